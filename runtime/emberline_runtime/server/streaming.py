"""Answers on the wire, in plain ASGI: one coroutine writes, one watches for the client's leaving.

Text is coalesced while the client does not read; a client that takes nothing for a minute is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from starlette.types import Receive, Send

from emberline_contract.http import HEADER_RETRY_AFTER, ErrorType
from emberline_runtime.errors import RequestRefused
from emberline_runtime.server.bodies import DONE, Bodies, Usage, error_event, error_json, usage_comment
from emberline_runtime.server.choice import Choice

UNREAD_TIMEOUT_S: Final = 60.0
"""A client that takes no byte for this long is given up."""
Header = tuple[bytes, bytes]
_JSON: Final[Header] = (b"content-type", b"application/json")
_STREAM_HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ClientGone(Exception):  # noqa: N818 - an event, not a fault
    """The client left, or does not read."""


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The request's body. RequestRefused (413) beyond `max_bytes`; ClientGone if the client leaves meanwhile."""
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise too_large(num_bytes, max_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def too_large(num_bytes: int, max_bytes: int) -> RequestRefused:
    """413 with both numbers."""
    return RequestRefused(
        f"the body has {num_bytes} bytes or more and the limit is {max_bytes}; send less",
        status=413,
        kind=ErrorType.TOO_LARGE,
    )


async def send_json(send: Send, status: int, body: bytes, headers: Sequence[Header] = ()) -> None:
    """A whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await _send(send, {"type": "http.response.start", "status": status, "headers": [_JSON, length, *headers]})
    await _send(send, {"type": "http.response.body", "body": body})


async def send_error(send: Send, error: RequestRefused, headers: Sequence[Header] = ()) -> None:
    """An error as status and body."""
    if error.retry_after_s is not None:
        headers = [*headers, (HEADER_RETRY_AFTER.encode(), str(error.retry_after_s).encode())]
    await send_json(send, error.status, error_json(error), headers)


class Answer:
    """The choices of one HTTP request and the way back to its client."""

    def __init__(self, bodies: Bodies, *, include_usage: bool, usage_comment: bool) -> None:
        self.choices: list[Choice] = []
        self._bodies = bodies
        self._include_usage = include_usage
        self._usage_comment = usage_comment
        self._news = asyncio.Event()

    def wake(self) -> None:
        """A choice has something new."""
        self._news.set()

    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            num_prompt=sum(len(choice.request.prompt) for choice in self.choices),
            num_output=sum(choice.num_output for choice in self.choices),
            num_cached=sum(choice.num_cached for choice in self.choices),
        )

    def abandon(self) -> None:
        """Nobody waits for this any more."""
        for choice in self.choices:
            choice.abandon()

    async def send_whole(self, send: Send) -> None:
        """Wait for everything, then answer at once. RequestRefused if a choice fails."""
        while not all(choice.is_over for choice in self.choices):
            self._raise_failure()
            await self._wait()
        self._raise_failure()
        texts = [(choice, choice.take()) for choice in self.choices]
        await send_json(send, 200, self._bodies.whole(texts, self.usage()))

    async def send_stream(self, send: Send) -> None:
        """Answer with the first token, then as text comes. RequestRefused before the first byte, an error event after it."""
        while not any(choice.num_output or choice.is_over for choice in self.choices):
            await self._wait()
        self._raise_failure()
        await _send(send, {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        chunk = b"".join(self._bodies.opening(choice) for choice in self.choices)
        open_choices = list(self.choices)
        while True:
            news, open_choices, error = self._take(open_choices)
            chunk += news
            if error is not None or not open_choices:
                break
            if chunk:
                await _send(send, _body(chunk, more=True))
                chunk = b""
            await self._wait()
        await _send(send, _body(chunk + self._last(error), more=False))

    def _take(self, open_choices: list[Choice]) -> tuple[bytes, list[Choice], RequestRefused | None]:
        """What there is to send now, the choices that go on, and the failure that ends them all."""
        parts: list[bytes] = []
        going_on: list[Choice] = []
        for choice in open_choices:
            text = choice.take()
            if text:
                parts.append(self._bodies.text(choice, text))
            if choice.error is not None:
                return b"".join(parts), [], choice.error
            if choice.ending is None:
                going_on.append(choice)
            else:
                parts.append(self._bodies.closing(choice, choice.ending))
        return b"".join(parts), going_on, None

    def _last(self, error: RequestRefused | None) -> bytes:
        usage = self.usage()
        comment = usage_comment(usage) if self._usage_comment else b""
        if error is not None:
            return error_event(error) + comment
        return (self._bodies.usage(usage) if self._include_usage else b"") + DONE + comment

    async def _wait(self) -> None:
        await self._news.wait()
        self._news.clear()

    def _raise_failure(self) -> None:
        for choice in self.choices:
            if choice.error is not None:
                raise choice.error


def _body(content: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


async def _send(send: Send, message: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(UNREAD_TIMEOUT_S):
            await send(message)
    except TimeoutError as error:
        raise ClientGone from error
