"""uvicorn as the gateway needs it: bounded headers, a time-out for them, many accepts a turn of the loop, our own signals."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import socket
from collections.abc import Generator, Sequence
from typing import Any, Final

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

MAX_HEADER_BYTES: Final = 32_768
HEADERS_TIMEOUT_S: Final = 3.0
UNREAD_TIMEOUT_S: Final = 10.0
"""How long a client may go on sending a body whose answer is out already (413)."""
SWEEP_S: Final = 0.5
KEEP_ALIVE_S: Final = 75
NUM_LISTENERS: Final = 16
"""uvloop accepts about one connection a listener and turn of the loop."""
SEND_BUFFER_BYTES: Final = 131_072
"""A client that never reads costs this and no more of the kernel's memory."""
BACKLOG: Final = 8192
_DEAD_PEER_MS: Final = 60_000
_UPGRADE: Final = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_SPARE_DESCRIPTORS: Final = 256


class ListenError(Exception):
    """The address or port cannot be had."""


class BoundedHeadersProtocol(HttpToolsProtocol):
    """Answers 431 beyond MAX_HEADER_BYTES; `overdue` says when a connection has had its time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._num_header_bytes = 0
        self._num_pending_bytes = 0
        self._headers_since_s: float | None = None
        self._is_message_open = False
        self._answered_since_s: float | None = None
        self._earlier: Sequence[RequestResponseCycle] = ()
        """Unanswered requests of this connection before the newest."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn starts this timer after a response only: a connection that never sends anything would stay for ever.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the newest request alone that its client is gone.
        for cycle in self._earlier:
            cycle.disconnected = cycle.disconnected or not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        if not self._is_message_open:
            data = _without_upgrade(data)
            if self._headers_since_s is None:
                self._headers_since_s = self.loop.time()
        super().data_received(data)
        if self._headers_since_s is not None and not self.transport.is_closing():
            self._num_pending_bytes += len(data)
            if self._num_pending_bytes > MAX_HEADER_BYTES:
                self.send_400_response("")

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_header_bytes = 0

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._headers_since_s = None
        self._num_pending_bytes = 0
        self._is_message_open = True
        if self.cycle is not None:
            self._earlier = [cycle for cycle in (*self._earlier, self.cycle) if not cycle.response_complete]
        super().on_headers_complete()

    @override
    def on_message_complete(self) -> None:
        self._is_message_open = False
        self._answered_since_s = None
        super().on_message_complete()

    @override
    def on_response_complete(self) -> None:
        if self._is_message_open:
            self._answered_since_s = self.loop.time()
        super().on_response_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        if max(self._num_header_bytes, self._num_pending_bytes) <= MAX_HEADER_BYTES:
            super().send_400_response(msg)
            return
        text = f"the headers are longer than {MAX_HEADER_BYTES} bytes".encode()
        self.transport.write(
            STATUS_LINE[431]
            + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\ncontent-length: "
            + str(len(text)).encode()
            + b"\r\n\r\n"
            + text
        )
        self.transport.close()

    def is_overdue(self, now_s: float) -> bool:
        """Headers that do not end, or a body that goes on after its answer."""
        if self._headers_since_s is not None and now_s - self._headers_since_s > HEADERS_TIMEOUT_S:
            return True
        return self._answered_since_s is not None and now_s - self._answered_since_s > UNREAD_TIMEOUT_S

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES:
            raise _HeadersTooLongError  # ends the parser, which leads to send_400_response


class _HeadersTooLongError(Exception):
    pass


def _without_upgrade(data: bytes) -> bytes:
    """Bytes of a head as the parser may see them: it would drop the body of a request that offers another protocol.

    Java's HttpClient offers h2c with every request, and goes on with HTTP/1.1 when the offer is passed over.
    """
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    return data if _UPGRADE.search(head) is None else _UPGRADE.sub(b"\r\nx-upgrade:", head) + data[len(head) :]


class Server(uvicorn.Server):
    """Leaves signals to `main`, and sweeps connections that hang."""

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def sweep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now_s = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, BoundedHeadersProtocol) and connection.is_overdue(now_s):
                    connection.transport.abort()


def make_server(app: Any, grace_s: float) -> Server:
    """A server of one ASGI app; after `grace_s` from its end on, requests that still run are cancelled."""
    return Server(
        uvicorn.Config(
            app,
            http=BoundedHeadersProtocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, int(grace_s)),
            limit_concurrency=max_connections(),
        )
    )


def raise_descriptor_limit() -> None:
    """As many descriptors as the process may have: a stream takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def max_connections() -> int:
    """More are answered 503, before descriptors run out."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(64, (soft - _SPARE_DESCRIPTORS) // 2)


def listen(host: str, port: int, num_listeners: int = NUM_LISTENERS) -> list[socket.socket]:
    """The listening socket and its duplicates. What is set on it is inherited by each connection."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_PEER_MS)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.settimeout(0)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return [listener, *(listener.dup() for _ in range(num_listeners - 1))]
