"""Clients and engines that do what they should not, against the gateway as a process: nobody else notices, and nothing is left."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from emberline_contract import http
from emberline_gateway.server import MAX_HEADER_BYTES
from support.examples import SOAK
from support.gateway import FakeEngine, running_engine, stream_chunks
from support.gateway_process import GatewayProcess, gateway_process

LONG_CHUNK = b"data: " + b"x" * 65_000 + b"\n\n"
NUM_SLOW = 20
NUM_STUCK = 200
NUM_GOOD = 100
SOAK_S = 600.0 if SOAK > 1 else 10.0
MAX_GROWTH_MIB = 8.0
"""Between the first third of the soak and its end: what a heap that is used unevenly may gain, and a leak soon exceeds."""

ON_A_QUIET_MACHINE = pytest.mark.skipif(
    SOAK == 1, reason="times and memory mean nothing on a busy machine; `make soak` runs it"
)


@dataclass
class Rig:
    """A gateway with the endpoints `tiny` (answers), `long` (streams without end) and `stuck` (takes connections, says nothing)."""

    gateway: GatewayProcess
    tiny: FakeEngine
    long: FakeEngine
    session: aiohttp.ClientSession
    num_descriptors: int = 0

    async def ask(self, model: str = "tiny", *, is_stream: bool = False) -> tuple[int, bytes]:
        body = {"model": model, "messages": [], "stream": is_stream}
        async with self.session.post(self.gateway.url + http.CHAT_COMPLETIONS, json=body) as response:
            return response.status, await response.read()

    async def raw(self, *parts: bytes, pause_s: float = 0.0) -> bytes:
        """Sends parts as they are, and returns what comes back until the gateway closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gateway.port)
        reading = asyncio.create_task(reader.read())
        try:
            for part in parts:
                if reading.done():
                    break
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause_s)
            async with asyncio.timeout(10):
                return await reading
        except ConnectionError:
            return reading.result() if reading.done() and not reading.exception() else b""
        finally:
            reading.cancel()
            writer.close()

    def open_raw(self, body: dict[str, Any]) -> socket.socket:
        """Asks over a socket that nobody reads, with as little room in it as there can be."""
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.gateway.port))
        client.sendall(request(json.dumps(body).encode()))
        return client

    async def until_nothing_is_left(self, num_kept: int = 10) -> None:
        """No request is counted, and no socket stays but those to engines, which are kept for the next requests."""

        async def is_nothing_left() -> bool:
            is_idle = await self.gateway.num_unfinished() == 0
            return is_idle and self.gateway.num_descriptors <= self.num_descriptors + num_kept

        await until(is_nothing_left, "requests or sockets stay")


def request(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + lines
    return head + b"content-length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def vanish(client: socket.socket) -> None:
    """Closes with a reset, as a process that is killed with unread data does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    client.close()


async def until(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 15.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.05)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections and never answers."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            writer.close()


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with (
        running_engine() as tiny,
        running_engine(chunks=itertools.repeat(LONG_CHUNK)) as long,
        silent_server() as stuck,
        gateway_process({"tiny": tiny.url, "long": long.url, "stuck": stuck}) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session,
    ):
        made = Rig(gateway, tiny, long, session)
        assert (await made.ask())[0] == 200
        made.num_descriptors = gateway.num_descriptors
        yield made


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Status and `error` of a whole answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer
    return int(head.split(b" ")[1]), json.loads(body)["error"]


async def test_who_does_not_read_blocks_nobody_and_who_vanishes_meanwhile_leaves_nothing(rig: Rig) -> None:
    clients = [rig.open_raw({"model": "long", "messages": [], "stream": True}) for _ in range(NUM_SLOW)]

    async def are_blocked() -> bool:
        return len(rig.long.calls) == NUM_SLOW

    await until(are_blocked, "the streams did not all begin")
    await asyncio.sleep(0.5)  # all buffers fill
    async with asyncio.timeout(20):
        for _ in range(10):
            assert await rig.ask(is_stream=True) == (200, b"".join(stream_chunks()))
    assert not any(call.was_cancelled for call in rig.long.calls)
    assert await rig.gateway.num_unfinished() == NUM_SLOW
    for number, client in enumerate(clients):
        if number % 2:
            vanish(client)
        else:
            client.close()

    async def are_cancelled() -> bool:
        return all(call.was_cancelled for call in rig.long.calls)

    await until(are_cancelled, "engines still work for clients that are gone")
    await rig.until_nothing_is_left()


async def test_an_engine_that_takes_connections_and_says_nothing_harms_no_other(rig: Rig) -> None:
    clients = [rig.open_raw({"model": "stuck", "messages": []}) for _ in range(NUM_STUCK)]

    async def are_there() -> bool:
        return await rig.gateway.num_unfinished() == NUM_STUCK

    await until(are_there, "the requests did not all come to the engine")
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*(rig.ask(is_stream=True) for _ in range(NUM_GOOD)))
    assert set(answers) == {(200, b"".join(stream_chunks()))}
    for client in clients:
        vanish(client)
    await rig.until_nothing_is_left(NUM_GOOD)


CASES = {
    "invalid JSON": (request(b"{"), 400, "BadRequestError"),
    "no object": (request(b"[]"), 400, "BadRequestError"),
    "deep JSON": (request(b"[" * 200_000), 400, "BadRequestError"),
    "unknown model": (request(b'{"model": "nobody"}'), 404, "NotFoundError"),
    "long model": (request(b'{"model": "%b"}' % (b"m" * 300)), 400, "BadRequestError"),
    "oversize, announced": (request(b"{", length=http.MAX_BODY_BYTES + 1), 413, "RequestEntityTooLargeError"),
    "half a body": (request(b'{"model": ', length=100), 408, "TimeoutError"),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_is_wrong_gets_its_status_and_an_error_body(rig: Rig, case: str) -> None:
    sent, status, kind = CASES[case]
    found, error = error_of(await rig.raw(sent))
    assert (found, error["type"], error["code"]) == (status, kind, status)
    assert error["message"]
    await rig.until_nothing_is_left()


@ON_A_QUIET_MACHINE
async def test_headers_and_bodies_that_come_in_drops_end(rig: Rig) -> None:
    began_s = time.monotonic()
    drops = (b"GET /live HTTP/1.1\r\n", *(b"x-%d: y\r\n" % number for number in range(100)))
    assert await rig.raw(*drops, pause_s=0.1) == b""
    assert time.monotonic() - began_s < 8
    began_s = time.monotonic()
    head = request(b"{", length=10_000)
    status, error = error_of(await rig.raw(head, *[b" "] * 100, pause_s=0.1))
    assert (status, error["type"]) == (408, "TimeoutError")
    assert time.monotonic() - began_s < 8
    assert (await rig.raw(request(b"{}", b"x: " + b"y" * MAX_HEADER_BYTES))).startswith(b"HTTP/1.1 431 ")
    await rig.until_nothing_is_left()


@ON_A_QUIET_MACHINE
async def test_ten_thousand_models_that_do_not_exist_leave_no_trace(rig: Rig) -> None:
    async def ask_for(first: int, number: int) -> None:
        async with aiohttp.ClientSession() as session:
            for model in range(first, first + number):
                body = {"model": f"nobody-{model}"}
                async with session.post(rig.gateway.url + http.CHAT_COMPLETIONS, json=body) as response:
                    assert (response.status, (await response.json())["error"]["type"]) == (404, "NotFoundError")

    await asyncio.gather(*(ask_for(1_000_000 + 100 * n, 100) for n in range(10)))
    before_mib, before = rig.gateway.rss_mib, await rig.gateway.metrics()
    await asyncio.gather(*(ask_for(1_000 * n, 1_000) for n in range(10)))
    assert rig.gateway.rss_mib - before_mib < 3
    assert len((await rig.gateway.metrics()).splitlines()) == len(before.splitlines())


@ON_A_QUIET_MACHINE
async def test_nothing_grows_while_everything_goes_wrong(rig: Rig) -> None:
    """Ten seconds of it; ten minutes with EMBERLINE_SOAK."""
    dice = random.Random(SOAK)

    async def abandon(model: str, *, is_stream: bool) -> None:
        client = rig.open_raw({"model": model, "messages": [], "stream": is_stream})
        await asyncio.sleep(dice.random() * 0.2)
        vanish(client)

    async def wrong() -> None:
        sent, status, _ = CASES[dice.choice(["invalid JSON", "no object", "unknown model", "oversize, announced"])]
        assert error_of(await rig.raw(sent))[0] == status

    async def good(*, is_stream: bool) -> None:
        assert (await rig.ask(is_stream=is_stream))[0] == 200

    async def long_header() -> None:
        assert (await rig.raw(request(b"{}", b"x: " + b"y" * MAX_HEADER_BYTES))).startswith(b"HTTP/1.1 431 ")

    acts: list[Callable[[], Awaitable[None]]] = [
        lambda: good(is_stream=False),
        lambda: good(is_stream=True),
        lambda: abandon("long", is_stream=True),
        lambda: abandon("stuck", is_stream=False),
        lambda: abandon("tiny", is_stream=True),
        wrong,
        long_header,
    ]
    end_s = time.monotonic() + SOAK_S
    num_done = 0

    async def act() -> None:
        nonlocal num_done
        while time.monotonic() < end_s:
            await dice.choice(acts)()
            num_done += 1
            rig.tiny.calls.clear()
            rig.long.calls.clear()

    async def watch() -> float:
        await asyncio.sleep(SOAK_S / 3)
        return max([rig.gateway.rss_mib for _ in range(3) if await asyncio.sleep(0.3, result=True)])

    before_mib, *_ = await asyncio.gather(watch(), *(act() for _ in range(8)))
    await rig.until_nothing_is_left()
    assert num_done > 5 * SOAK_S
    assert rig.gateway.rss_mib - before_mib < MAX_GROWTH_MIB
