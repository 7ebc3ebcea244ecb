"""One client's request, from its first byte to its last: what has been sent, and why it was interrupted if it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from enum import StrEnum
from typing import Any

from emberline_contract import http
from emberline_gateway.answers import EVENT_STREAM, Headers, RefusalError, error_event, heartbeat
from emberline_gateway.holding import Wait
from emberline_gateway.objects import Endpoint, Pod

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Cause(StrEnum):
    """Why a request is interrupted from outside."""

    CLIENT_GONE = "client gone"
    CLIENT_STALLED = "client does not read"
    BACKEND_STALLED = "engine stalled"
    SHUTDOWN = "gateway stops"


class Exchange:
    """Sends to the client, and remembers what was sent."""

    def __init__(self, send: Send, request_id: str, arrival: int, now_s: float) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.arrived_s = now_s
        self.num_body_bytes = 0
        self.is_stream = False
        self.endpoint: Endpoint | None = None
        self.pod: Pod | None = None
        """The engine that works on it now."""
        self.pod_name = ""
        """The last one that did."""
        self.heard_s = now_s
        """When that engine last sent something."""
        self.held_s = 0.0
        self.code = 0
        """HTTP status, or the code of the error event."""
        self.has_started = False
        """Status and headers are out."""
        self.cause: Cause | None = None
        self.sending_since_s: float | None = None
        self._send = send
        self._is_over = False
        task = asyncio.current_task()
        assert task is not None
        self.task = task

    def interrupt(self, cause: Cause) -> None:
        """Cancels whatever it waits for; a client that is gone outweighs every other cause."""
        if self._is_over:
            return
        if self.cause is None:
            self.cause = cause
            self.task.cancel()
        elif cause is Cause.CLIENT_GONE:
            self.cause = cause

    def acknowledge(self) -> None:
        """The interruption has been acted on: the task may await again."""
        self.cause = None
        self.task.uncancel()

    async def start(self, status: int, headers: Headers, now_s: float) -> None:
        """Status and headers."""
        self.has_started = True
        self.code = status
        await self._out({"type": "http.response.start", "status": status, "headers": headers}, now_s)

    async def body(self, data: bytes, now_s: float) -> None:
        """A part of the body."""
        await self._out({"type": "http.response.body", "body": data, "more_body": True}, now_s)

    async def finish(self, data: bytes, now_s: float) -> None:
        """The last part."""
        await self._out({"type": "http.response.body", "body": data, "more_body": False}, now_s)
        self._is_over = True

    async def beat(self, wait: Wait, now_s: float) -> None:
        """A comment that says what is waited for; from the first on, failures can only be events."""
        if not self.has_started:
            await self.start(200, self._own_headers([(b"content-type", EVENT_STREAM)]), now_s)
        await self.body(heartbeat(wait, now_s - self.arrived_s), now_s)

    async def refuse(self, refusal: RefusalError, now_s: float) -> None:
        """An HTTP error while nothing is out, else an error event with the same code, then the end."""
        body = refusal.body()
        if self.has_started:
            self.code = refusal.status
            await self.finish(error_event(body), now_s)
            return
        length = (b"content-length", str(len(body)).encode())
        await self.start(refusal.status, self._own_headers([*refusal.headers(), length]), now_s)
        await self.finish(body, now_s)

    async def fail(self, code: int, body: bytes, now_s: float) -> None:
        """An error event with a body that an engine wrote, then the end."""
        self.code = code
        await self.finish(error_event(body), now_s)

    def _own_headers(self, headers: Headers) -> Headers:
        own = [*headers, (http.HEADER_REQUEST_ID.encode(), self.request_id.encode())]
        if (b"content-type", EVENT_STREAM) in headers:
            own.append((b"cache-control", b"no-cache"))
        return own

    async def _out(self, message: Message, now_s: float) -> None:
        self.sending_since_s = now_s
        await self._send(message)
        self.sending_since_s = None
