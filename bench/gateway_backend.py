"""An engine for the gateway's bench, as a process: thinks, answers whole or in a paced stream, and stamps what it sends.

How it answers is in the query of each request, which the gateway passes on: `think_ms`, `chunks` (0: a whole answer),
`pace_ms`, `id`. Raw protocols, so that it takes as little of the machine as can be. It listens on several ports, each of which
plays a pod. Standard input takes commands, a JSON object a line, each answered by one line.
"""

from __future__ import annotations

import asyncio
import functools
import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

from typing_extensions import override

from emberline_contract import metrics

CHUNK_BYTES = 240
STAMP = b'"t":%019d,"spent":%013d'
"""When it was sent, and how long the engine had the request until then; both in nanoseconds of the machine's clock."""
WHOLE_PAD = b"x" * 400
TICK_S = 0.001
MAX_TICKS = 1_000
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """How to answer."""

    think_s: float
    num_chunks: int
    num_ticks: int
    """Pace of the chunks."""
    id: int


@functools.lru_cache(maxsize=4096)
def read_order(target: bytes) -> Order:
    query = dict(parse_qsl(target.partition(b"?")[2].decode()))

    def number(name: str) -> int:
        return int(query.get(name, "0"))

    return Order(number("think_ms") / 1e3, number("chunks"), max(1, number("pace_ms")), number("id"))


class Pacer:
    """Calls each stream once every so many ticks; streams start at whatever moment, so they are spread over the ticks."""

    def __init__(self) -> None:
        self._due: dict[int, list[Engine]] = {}
        self._now = 0
        self._next_s = 0.0

    def start(self) -> None:
        self._next_s = asyncio.get_running_loop().time() + TICK_S
        self._tick()

    def after(self, num_ticks: int, engine: Engine) -> None:
        self._due.setdefault(self._now + num_ticks, []).append(engine)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while self._next_s <= loop.time():
            self._now += 1
            self._next_s += TICK_S
            for engine in self._due.pop(self._now, ()):
                engine.send_chunk()
        loop.call_at(self._next_s, self._tick)


class Ledger:
    """What happened, for whoever asks."""

    def __init__(self) -> None:
        self.cancelled: dict[int, int] = {}
        """Request -> nanoseconds of its end before its answer was out."""
        self.num_open = 0


class Engine(asyncio.Protocol):
    """One connection."""

    def __init__(self, pacer: Pacer, ledger: Ledger) -> None:
        self._pacer = pacer
        self._ledger = ledger
        self._data = b""
        self._order: Order | None = None
        self._began_ns = 0
        self._num_sent = 0
        self._transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._order is not None:
            self._ledger.num_open -= 1
            self._ledger.cancelled[self._order.id] = time.monotonic_ns()
            self._order = None

    @override
    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        found = _LENGTH.search(self._data, 0, end)
        total = end + 4 + (int(found[1]) if found else 0)
        if len(self._data) < total:
            return
        target = self._data.split(b" ", 2)[1]
        self._data = self._data[total:]
        if target.startswith(b"/v1/"):
            self._take(read_order(target))
        else:
            self._page(target)

    def _page(self, target: bytes) -> None:
        text = "{}"
        if target == b"/metrics":
            labels = '{model_name="bench"}'
            values = {metrics.NUM_REQUESTS_RUNNING: self._ledger.num_open, metrics.NUM_REQUESTS_WAITING: 0}
            text = "".join(f"{name}{labels} {value}\n" for name, value in values.items())
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text.encode())
        )

    def _take(self, order: Order) -> None:
        self._order = order
        self._began_ns = time.monotonic_ns()
        self._num_sent = 0
        self._ledger.num_open += 1
        if order.think_s:
            asyncio.get_running_loop().call_later(order.think_s, self._answer)
        else:
            self._answer()

    def _stamp(self) -> bytes:
        now_ns = time.monotonic_ns()
        return STAMP % (now_ns, now_ns - self._began_ns)

    def _answer(self) -> None:
        if self._order is None:
            return
        if self._order.num_chunks:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self.send_chunk()
            return
        body = b'{"object":"chat.completion",%b,"choices":[],"pad":"%b"}' % (self._stamp(), WHOLE_PAD)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self._end()

    def send_chunk(self) -> None:
        """The next one of a stream, and the end after the last."""
        order = self._order
        if order is None:
            return
        event = b'data: {%b,"pad":"' % self._stamp()
        event += b"x" * (CHUNK_BYTES - len(event) - 4) + b'"}\n\n'
        self._num_sent += 1
        is_last = self._num_sent == order.num_chunks
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event) + (b"0\r\n\r\n" if is_last else b""))
        if is_last:
            self._end()
        else:
            self._pacer.after(order.num_ticks, self)

    def _end(self) -> None:
        self._order = None
        self._ledger.num_open -= 1


async def serve(num_ports: int) -> None:
    """Prints its ports, then an answer to each command: `cancelled`, or `open`."""
    loop, pacer, ledger = asyncio.get_running_loop(), Pacer(), Ledger()
    servers = [
        await loop.create_server(lambda: Engine(pacer, ledger), "127.0.0.1", 0, backlog=8192) for _ in range(num_ports)
    ]
    pacer.start()
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        answer: Any = ledger.num_open
        if json.loads(line)["do"] == "cancelled":
            answer, ledger.cancelled = ledger.cancelled, {}
        print(json.dumps(answer), flush=True)


def main() -> None:
    import uvloop

    from emberline_gateway.server import raise_descriptor_limit

    raise_descriptor_limit()
    uvloop.run(serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
