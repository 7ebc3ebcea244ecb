"""uvicorn's HTTP protocol with bounds on what comes before a request's body: uvicorn itself has none."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES: Final = 32 * 1024
"""Request line and headers together; a head that is not complete after so many bytes is refused."""
HEAD_TIMEOUT_S: Final = 10.0
"""A connection has this long to send a head once it is open or has begun one."""
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    _num_head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None
    _earlier: Sequence[RequestResponseCycle] = ()
    """Unanswered requests of this connection before the newest."""

    @override
    def connection_made(self, transport: Any) -> None:
        """Wait for a first head."""
        super().connection_made(transport)
        self._await_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more, and every request of the connection learns it: uvicorn tells the newest alone."""
        self._head_is_done()
        for cycle in self._earlier:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        """Bytes of a head that is still incomplete after them count against its limit."""
        newest: RequestResponseCycle | None = self.cycle
        is_body = newest is not None and newest.more_body
        super().data_received(data if is_body else _without_upgrade(data))
        if self._head_timer is None or self.transport.is_closing():
            return
        self._num_head_bytes += len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._head_is_done()
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    @override
    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    @override
    def on_headers_complete(self) -> None:
        """The head is there. A client may send it while its earlier requests are still being answered."""
        self._head_is_done()
        if self.cycle is not None:
            self._earlier = [cycle for cycle in (*self._earlier, self.cycle) if not cycle.response_complete]
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._num_head_bytes = 0
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _head_is_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _without_upgrade(data: bytes) -> bytes:
    """Bytes of a head as the parser may see them: it would drop the body of a request that offers another protocol.

    Java's HttpClient offers h2c with every request, and goes on with HTTP/1.1 when the offer is passed over.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    return data if _UPGRADE.search(head) is None else _UPGRADE.sub(b"\r\nx-upgrade:", head) + data[len(head) :]
