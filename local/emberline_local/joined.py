"""Two TCP connections joined into one: what one receives the other sends, and no more than a window lies between.

Either side may end its direction and go on reading; a side that is lost takes the other with it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from typing_extensions import override

_NO_LINGER = struct.pack("ii", 1, 0)


class Side(asyncio.Protocol):
    """One of the two connections. It is not read until it is joined.

    It is in `open_sides` while its connection is; `on_made` is called once it is there.
    """

    def __init__(self, open_sides: set[Side], on_made: Callable[[Side], None] | None = None) -> None:
        self._open_sides = open_sides
        self._on_made = on_made
        self._transport: asyncio.Transport | None = None
        self._peer: Side | None = None
        self.has_ended = False
        """Whether the far end has said that it sends no more."""

    def join(self, other: Side) -> None:
        """Begins to pass on, both ways. Ends the one that is left if the other was lost meanwhile."""
        self.peer_with(other)
        other.peer_with(self)
        for side in (self, other):
            if side.is_lost:
                self.abort()
                other.abort()
                return
        self.resume_reading()
        other.resume_reading()

    def peer_with(self, other: Side) -> None:
        """What is received here goes to `other`."""
        self._peer = other

    @property
    def is_lost(self) -> bool:
        """Whether there is no connection (any more)."""
        return self._transport is None

    def send(self, data: bytes) -> None:
        """Sends; asks the peer to stop reading when the window is full."""
        if self._transport is not None:
            self._transport.write(data)

    def end(self) -> None:
        """Says that nothing more will be sent; what is queued goes first."""
        if self._transport is not None:
            self._transport.write_eof()

    def close(self) -> None:
        """Ends the connection after what is queued."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection now, with a reset, so that nobody takes what was sent for the whole."""
        if self._transport is not None:
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self._transport.abort()

    def pause_reading(self) -> None:
        """Leaves what arrives to the kernel's window."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if self._transport is not None:
            self._transport.resume_reading()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open_sides.add(self)
        transport.pause_reading()
        if self._on_made is not None:
            self._on_made(self)

    @override
    def data_received(self, data: bytes) -> None:
        if self._peer is not None:
            self._peer.send(data)

    @override
    def eof_received(self) -> bool:
        self.has_ended = True
        if self._peer is None or self._peer.is_lost:
            return False  # closes
        if self._peer.has_ended:
            self._peer.close()
            return False
        self._peer.end()
        return True  # the other direction is still open

    @override
    def pause_writing(self) -> None:
        if self._peer is not None:
            self._peer.pause_reading()

    @override
    def resume_writing(self) -> None:
        if self._peer is not None:
            self._peer.resume_reading()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._open_sides.discard(self)
        if self._peer is None:
            return
        if exc is None:
            self._peer.close()
        else:
            self._peer.abort()
