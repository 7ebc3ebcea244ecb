"""What clients get that no engine wrote: OpenAI error bodies, SSE error events and heartbeats. Pure."""

from __future__ import annotations

import json
from typing import Final

from emberline_contract import http
from emberline_contract.http import ErrorType
from emberline_gateway.holding import Wait

RETRY_AFTER_S: Final = 5
"""What a client is asked to wait that came while the queue was full or the endpoint did not come up."""
CLIENT_GONE: Final = 499
"""Code in metrics and logs of a request whose client went away; nobody reads it as an answer."""

Headers = list[tuple[bytes, bytes]]
EVENT_STREAM: Final = b"text/event-stream"


class RefusalError(Exception):
    """A request ends here, with this answer."""

    def __init__(
        self, status: int, kind: ErrorType, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The OpenAI error object."""
        return json.dumps(http.error_body(str(self), self.kind, self.status, self.param)).encode()

    def headers(self) -> Headers:
        """Headers of the answer besides the request's id."""
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((http.HEADER_RETRY_AFTER.encode(), str(self.retry_after_s).encode()))
        return headers


def error_event(body: bytes) -> bytes:
    """An SSE event that carries an error object."""
    return b"data: " + body + b"\n\n"


def heartbeat(wait: Wait, waited_s: float) -> bytes:
    """An SSE comment: clients skip it, people and proxies see that something goes on.

    Of the detail only a reason such as `CrashLoopBackOff` is told: what a container wrote is for its owner.
    """
    word = wait.detail.split(" ", 1)[0]
    reason = f" reason={word}" if word.isascii() and word.isalpha() else ""
    return f": waiting phase={wait.phase.value}{reason} waited={waited_s:.1f}s\n\n".encode()


def carried_error(status: int, body: bytes) -> bytes:
    """The error object of an engine's answer, for a stream that has begun already; one of ours when there is none in it."""
    try:
        parsed = json.loads(body)
        if isinstance(parsed, dict) and isinstance(parsed.get("error"), dict):
            return json.dumps({"error": {**parsed["error"], "code": status}}).encode()
    except ValueError:
        pass
    return RefusalError(status, ErrorType.INTERNAL, f"the engine answered {status} without an error body").body()


class WholeEvents:
    """Cuts a stream at the ends of events, so that a stream that breaks off never leaves half an event with the client.

    Bytes are neither changed nor lost while the stream goes on; an event longer than `max_bytes` is passed on in parts.
    """

    def __init__(self, max_bytes: int = 65_536) -> None:
        self._max_bytes = max_bytes
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be sent now; may be empty."""
        if not self._rest and chunk.endswith(b"\n\n"):
            return chunk
        chunk = self._rest + chunk
        end = chunk.rfind(b"\n\n") + 2
        if end < 2:
            end = len(chunk) if len(chunk) > self._max_bytes else 0
        self._rest = chunk[end:]
        return chunk[:end]

    def finish(self) -> bytes:
        """What is left when the stream has ended as it should."""
        rest, self._rest = self._rest, b""
        return rest


def not_found(message: str) -> RefusalError:
    """No such model or path."""
    return RefusalError(404, ErrorType.NOT_FOUND, message, param="model")


def bad_request(message: str, param: str | None = None) -> RefusalError:
    """The request cannot be understood."""
    return RefusalError(400, ErrorType.BAD_REQUEST, message, param=param)


def too_large(num_bytes: int | None) -> RefusalError:
    """The body is over the limit; `num_bytes` when the client said how long it is."""
    said = f"{num_bytes} bytes" if num_bytes is not None else "longer"
    return RefusalError(413, ErrorType.TOO_LARGE, f"the body is {said}; at most {http.MAX_BODY_BYTES} bytes are read")


def queue_full(model: str, num_held: int, field: str = "serving.maxQueue") -> RefusalError:
    """Held requests are bounded."""
    return RefusalError(
        429,
        ErrorType.RATE_LIMIT,
        f"{num_held} requests wait for {model} already, which is all that {field} allows; try again later",
        retry_after_s=RETRY_AFTER_S,
    )


def unavailable(message: str, retry_after_s: int = RETRY_AFTER_S) -> RefusalError:
    """Not now."""
    return RefusalError(503, ErrorType.UNAVAILABLE, message, retry_after_s=retry_after_s)


def bad_gateway(message: str) -> RefusalError:
    """The engine was lost on the way."""
    return RefusalError(502, ErrorType.INTERNAL, message)
