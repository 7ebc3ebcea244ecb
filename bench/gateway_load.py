"""Clients for the gateway's bench, as a process: raw protocols, so that what they measure is not themselves.

Standard input takes commands, a JSON object a line, each answered by one line. The same command with the engine's ports instead
of the gateway's tells what clients and engine need by themselves. All times are of the machine's one monotonic clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from typing_extensions import override

PATH = "/v1/chat/completions"
NUM_BODIES = 64
PROMPT_CHARS = 2_000
SETTLE_S = 1.0
"""Streams are opened within this time; what comes in it is not counted."""
_STAMP = re.compile(rb'"t":(\d{19}),"spent":(\d{13})')
_STAMP_BYTES = 45
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_LAST = b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    """One keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.sent_ns = 0
        self.first_ns = 0
        """What passed until the first chunk of a stream, or the whole answer, without the engine's own part."""
        self.is_first = True
        self.is_open = True
        self._on_chunk: Callable[[int, int], None] | None = None
        self._on_end: Callable[[Connection], None] = lambda _: None
        self._data = b""
        self._left: int | None = None
        self._is_in_body = False
        self.transport: asyncio.Transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self.errors.append(f"connection lost: {exc}")
            self._on_end(self)

    def close(self) -> None:
        self.is_open = False
        self.transport.close()

    def ask(
        self,
        request: bytes,
        on_end: Callable[[Connection], None],
        on_chunk: Callable[[int, int], None] | None = None,
        sent_ns: int = 0,
    ) -> None:
        """`on_chunk` gets the time of a chunk and its delay; `sent_ns`, if not now, is when it should have been sent."""
        self._on_end, self._on_chunk = on_end, on_chunk
        self._data, self._left, self._is_in_body, self.is_first = b"", None, False, True
        self.sent_ns = sent_ns or time.monotonic_ns()
        self.transport.write(request)

    @override
    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if not self._is_in_body:
            self._data += data
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data, self._data = self._data[:end], self._data[end + 4 :], b""
            if not head.startswith(b"HTTP/1.1 200 "):
                self.errors.append((head.split(b"\r\n", 1)[0] + b" " + data).decode("latin-1")[:300])
            self._is_in_body = True
            found = _LENGTH.search(head)
            self._left = int(found[1]) if found else None
        text = self._data + data if self._data else data
        at = 0
        for stamp in _STAMP.finditer(text):
            at = stamp.end()
            if self.is_first:
                self.is_first = False
                self.first_ns = now_ns - self.sent_ns - int(stamp[2])
            if self._on_chunk is not None:
                self._on_chunk(now_ns, now_ns - int(stamp[1]))
        self._data = text[at:][-_STAMP_BYTES:]  # the next stamp may have come in part
        if self._left is None:
            if text.endswith(_LAST):
                self._on_end(self)
        else:
            self._left -= len(data)
            if self._left <= 0:
                self._on_end(self)


async def connect(ports: Sequence[int], number: int) -> list[Connection]:
    loop, made = asyncio.get_running_loop(), list[Connection]()
    for first in range(0, number, 100):
        some = range(first, min(number, first + 100))
        pairs = [loop.create_connection(Connection, "127.0.0.1", ports[n % len(ports)]) for n in some]
        made += [connection for _, connection in await asyncio.gather(*pairs)]
    return made


def quantiles(values_ns: Sequence[int]) -> dict[str, float]:
    ordered = sorted(values_ns)
    if not ordered:
        return {"n": 0}
    return {f"p{q:g}": ordered[min(len(ordered) - 1, int(q / 100 * len(ordered)))] / 1e6 for q in (50, 90, 99)} | {
        "n": len(ordered)
    }


class Load:
    """The commands."""

    def __init__(self, models: Sequence[str], key: str) -> None:
        self._models = models
        self._key = key
        self._random = random.Random(5)
        self._bodies = {
            (model, is_stream): [self._body(model, number, is_stream=is_stream) for number in range(NUM_BODIES)]
            for model in models
            for is_stream in (False, True)
        }
        self._turn = 0
        self._held: list[Connection] = []

    def _body(self, model: str, number: int, *, is_stream: bool) -> bytes:
        # Eight system prompts with eight questions each: what PrefixAware is for.
        system = f"You are assistant {number % 8}. " + "Rules. " * (PROMPT_CHARS // 7)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f"Question {number // 8}?"}]
        return json.dumps({"model": model, "messages": messages, "stream": is_stream}).encode()

    def request(self, *, is_stream: bool = False, model: str = "", **query: int) -> bytes:
        """The models take turns."""
        self._turn += 1
        name = model or self._models[self._turn % len(self._models)]
        number = self._turn // len(self._models) % NUM_BODIES
        known = self._bodies.get((name, is_stream))
        body = known[number] if known else self._body(name, number, is_stream=is_stream)
        head = (
            f"POST {PATH}?{'&'.join(f'{k}={v}' for k, v in query.items())} HTTP/1.1\r\nhost: bench\r\n"
            f"authorization: Bearer {self._key}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def latency(self, ports: list[int], clients: int, rate: float, seconds: float, think_ms: int) -> Any:
        """Whole answers and streams of three chunks in turn; arrivals by chance at a mean rate, whatever is answered.

        A rate of 0 means one after the other.
        """
        loop = asyncio.get_running_loop()
        idle, waiting = deque(await connect(ports, clients)), deque[int]()
        everyone = list(idle)
        taken: dict[bool, list[int]] = {False: [], True: []}
        num_asked = 0
        end_s = loop.time() + seconds
        done = asyncio.Event()

        def ask(connection: Connection, due_ns: int) -> None:
            nonlocal num_asked
            is_stream = num_asked // 2 % 2 == 1
            num_asked += 1
            request = self.request(is_stream=is_stream, think_ms=think_ms, chunks=3 if is_stream else 0, pace_ms=20)

            def ended(connection: Connection) -> None:
                if not connection.is_open:
                    done.set()
                    return
                taken[is_stream].append(connection.first_ns)
                if waiting:
                    ask(connection, waiting.popleft())
                elif not rate and loop.time() < end_s:
                    ask(connection, 0)
                else:
                    idle.append(connection)
                    if len(idle) == clients and loop.time() >= end_s:
                        done.set()

            connection.ask(request, ended, sent_ns=due_ns)

        def arrive(due_s: float) -> None:
            while due_s <= loop.time() and due_s < end_s:
                due_ns = time.monotonic_ns() - int((loop.time() - due_s) * 1e9)
                if idle:
                    ask(idle.popleft(), 0)
                else:
                    waiting.append(due_ns)
                due_s += self._random.expovariate(rate)
            if due_s < end_s:
                loop.call_at(due_s, arrive, due_s)
            else:
                loop.call_at(end_s, lambda: done.set() if len(idle) == clients else None)

        if rate:
            arrive(loop.time())
        else:
            for _ in range(clients):
                ask(idle.popleft(), 0)
        async with asyncio.timeout(seconds + 20):
            await done.wait()
        return {"whole": quantiles(taken[False]), "first": quantiles(taken[True]), **_closed(everyone)}

    async def rps(self, ports: list[int], clients: int, seconds: float) -> Any:
        """Each client asks again as soon as it is answered; the engine does not think."""
        loop = asyncio.get_running_loop()
        connections = await connect(ports, clients)
        num_done = 0

        def again(connection: Connection) -> None:
            nonlocal num_done
            num_done += 1
            if connection.is_open:
                connection.ask(self.request(), again)

        for connection in connections:
            connection.ask(self.request(), again)
        await asyncio.sleep(SETTLE_S / 2)
        before, began_s = num_done, loop.time()
        await asyncio.sleep(seconds)
        per_s = (num_done - before) / (loop.time() - began_s)
        return {"rps": per_s, **_closed(connections)}

    async def streams(self, ports: list[int], clients: int, pace_ms: int, seconds: float) -> Any:
        """Streams at a pace: each chunk's delay from the engine's write to here, once all are open."""
        loop = asyncio.get_running_loop()
        connections = await connect(ports, clients)
        num_chunks = int((seconds + SETTLE_S) * 1e3 / pace_ms)
        delays, num_seen, num_ended = array("q"), 0, 0
        done = asyncio.Event()
        from_ns = time.monotonic_ns() + int(SETTLE_S * 1e9)
        to_ns = from_ns + int((seconds - SETTLE_S) * 1e9)

        def chunk(now_ns: int, delay_ns: int) -> None:
            nonlocal num_seen
            num_seen += 1
            if from_ns <= now_ns < to_ns:
                delays.append(delay_ns)

        def ended(_: Connection) -> None:
            nonlocal num_ended
            num_ended += 1
            if num_ended == clients:
                done.set()

        for number, connection in enumerate(connections):
            request = self.request(is_stream=True, chunks=num_chunks, pace_ms=pace_ms)
            loop.call_later(SETTLE_S * number / clients, connection.ask, request, ended, chunk)
        async with asyncio.timeout(2 * seconds + 30):
            await done.wait()
        found = _closed(connections)
        if num_seen != clients * num_chunks:
            found["errors"].append(f"{clients * num_chunks - num_seen} of {clients * num_chunks} chunks did not come")
        return {"delay": quantiles(delays), "per_s": len(delays) / (seconds - SETTLE_S), **found}

    async def hold(self, ports: list[int], clients: int) -> Any:
        """Opens streams that stay open until `let_go`; answers once each has had its first chunk."""
        num_first, done = 0, asyncio.Event()

        def chunk(_now_ns: int, _delay_ns: int) -> None:
            nonlocal num_first
            num_first += 1
            if num_first == clients:
                done.set()

        began_s = time.monotonic()
        self._held = await connect(ports, clients)
        for connection in self._held:
            connection.ask(self.request(is_stream=True, chunks=2, pace_ms=60_000), lambda _: done.set(), chunk)
        async with asyncio.timeout(60):
            await done.wait()
        return {"open": num_first, "seconds": time.monotonic() - began_s}

    async def let_go(self) -> Any:
        """How many of the held streams were still open."""
        num_open = sum(connection.is_open for connection in self._held)
        return {**_closed(self._held), "open": num_open}

    async def cancel(self, ports: list[int], clients: int) -> Any:
        """Opens streams of a 20 ms pace and drops one every 5 ms; answers with when each was dropped."""
        connections = await connect(ports, clients)
        for number, connection in enumerate(connections):
            connection.ask(self.request(is_stream=True, chunks=5_000, pace_ms=20, id=number + 1), lambda _: None)
        await asyncio.sleep(SETTLE_S)
        at_ns: dict[int, int] = {}
        for number, connection in enumerate(connections):
            at_ns[number + 1] = time.monotonic_ns()
            connection.close()
            await asyncio.sleep(0.005)
        return {"at_ns": at_ns, "errors": [error for c in connections for error in c.errors]}

    async def wake(self, ports: list[int], model: str) -> Any:
        """One request, left waiting until `let_go`: the wall clock's time of its first byte."""
        connections = await connect(ports, 1)
        self._held += connections
        request = self.request(model=model)
        sent_unix_s = time.time()
        connections[0].ask(request, lambda _: None)
        return {"sent_unix_s": sent_unix_s}


def _closed(connections: Sequence[Connection]) -> dict[str, list[str]]:
    for connection in connections:
        connection.close()
    return {"errors": [error for connection in connections for error in connection.errors]}


async def serve(models: Sequence[str], key: str) -> None:
    load = Load(models, key)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        command: dict[str, Any] = json.loads(line)
        print(json.dumps(await getattr(load, command.pop("do"))(**command)), flush=True)


def main() -> None:
    import uvloop

    from emberline_gateway.server import raise_descriptor_limit

    raise_descriptor_limit()
    uvloop.run(serve(json.loads(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    main()
