"""Forwards over real sockets, and the choice of pods."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from emberline_local.errors import ClusterError
from emberline_local.forward import Forward, ForwardedService, bind_local, make_forward, ready_addresses

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SERVICE = ForwardedService("ns", "svc", {"app": "x"}, "http", 0)


def pod(
    name: str, ip: str = "127.16.1.0", *, ready: bool = True, terminating: bool = False, **labels: str
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": labels or {"app": "x"},
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}),
        },
        "spec": {
            "containers": [{"ports": [{"containerPort": 9}]}, {"ports": [{"name": "http", "containerPort": 8080}]}]
        },
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def test_only_ready_selected_pods_that_stay_are_used() -> None:
    pods = [
        pod("c", "127.16.1.3"),
        pod("a", "127.16.1.1"),
        pod("unready", ready=False),
        pod("terminating", terminating=True),
        pod("other", app="y"),
        pod("no-address", ""),
    ]
    assert ready_addresses(pods, SERVICE) == [("127.16.1.1", 8080), ("127.16.1.3", 8080)]


def test_a_pod_without_the_named_port_is_left_out() -> None:
    unnamed = ForwardedService("ns", "svc", {"app": "x"}, "admin", 0)
    assert ready_addresses([pod("a")], unnamed) == []


@pytest.mark.parametrize(
    ("ports", "target"),
    [
        ([{"name": "admin", "port": 1}, {"name": "http", "port": 80, "targetPort": "web"}], "web"),
        ([{"port": 80}, {"port": 81}], 80),
    ],
)
def test_the_annotation_leads_to_port_http_else_the_first(ports: list[dict[str, Any]], target: int | str) -> None:
    service = {
        "metadata": {"namespace": "ns", "name": "svc", "annotations": {"local.emberline.dev/port": "8080"}},
        "spec": {"selector": {"app": "x"}, "ports": ports},
    }
    assert make_forward(service) == ForwardedService("ns", "svc", {"app": "x"}, target, 8080)


def test_a_service_without_the_annotation_is_not_forwarded() -> None:
    assert make_forward({"metadata": {"namespace": "ns", "name": "svc"}, "spec": {"ports": [{"port": 1}]}}) is None


def test_a_port_that_is_none_is_refused() -> None:
    service = {
        "metadata": {"namespace": "ns", "name": "svc", "annotations": {"local.emberline.dev/port": "http"}},
        "spec": {"ports": [{"port": 1}]},
    }
    with pytest.raises(ClusterError, match="use 1 to 65535"):
        make_forward(service)


def test_a_taken_port_is_refused() -> None:
    with bind_local(0, "this") as held:
        port = held.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} of 127.0.0.1 cannot be had for that"):
            bind_local(port, "that")


async def test_who_connects_before_it_serves_is_served_later() -> None:
    held = bind_local(0, "the test")
    early = asyncio.ensure_future(hear(held.getsockname()[1]))
    await asyncio.sleep(0)
    made = Forward(SERVICE)
    async with backend(says(b"a")) as address:
        made.set_addresses([address])
        await made.listen(held)
        assert await early == b"a"
        await made.close()


@asynccontextmanager
async def backend(handler: Handler) -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()
    finally:
        server.close()


@asynccontextmanager
async def forward(*addresses: tuple[str, int]) -> AsyncIterator[int]:
    held = bind_local(0, "the test")
    made = Forward(SERVICE)
    made.set_addresses(addresses)
    await made.listen(held)
    try:
        yield held.getsockname()[1]
    finally:
        await made.close()


def says(word: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word)
        writer.close()

    return handler


async def hear(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_connections_are_dealt_round_and_a_dead_backend_is_passed_over() -> None:
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # and does not listen
        async with backend(says(b"a")) as a, backend(says(b"b")) as b, forward(a, dead.getsockname(), b) as port:
            heard = [await hear(port) for _ in range(6)]
    assert set(heard) == {b"a", b"b"}
    assert heard[:3] == heard[3:]


async def test_without_a_ready_pod_the_connection_ends_at_once() -> None:
    async with forward() as port:
        with pytest.raises(ConnectionResetError):
            await hear(port)


async def test_either_side_may_end_its_direction_and_read_on() -> None:
    async def answers_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        writer.close()

    async def asks_and_then_listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        heard.set_result(await reader.read())
        writer.close()

    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with backend(answers_at_the_end) as address, forward(address) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"this")
        writer.write_eof()
        assert await reader.read() == b"got this"
        writer.close()
    async with backend(asks_and_then_listens) as address, forward(address) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.write(b"late")
        writer.close()
        assert await heard == b"late"


async def test_nothing_is_read_ahead_of_a_slow_reader_beyond_the_windows_and_nothing_is_lost() -> None:
    num_sent = 0
    total = 64 * 1024 * 1024

    async def sends_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_sent
        block = bytes(256 * 1024)
        while num_sent < total:
            writer.write(block)
            await writer.drain()
            num_sent += len(block)
        writer.close()

    async with backend(sends_all) as address, forward(address) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        # Until the sender has stood still: what is under way is in the windows of four sockets and two buffers.
        before = -1
        while before != num_sent:
            before = num_sent
            await asyncio.sleep(0.2)
        assert 0 < num_sent < total / 2
        num_received = 0
        while block := await reader.read(1 << 20):
            num_received += len(block)
        writer.close()
    assert num_received == total


async def test_a_backend_that_dies_takes_its_client_with_it() -> None:
    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A reset, as of a process that was killed with unread input.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with backend(dies) as address, forward(address) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 5)
        writer.close()
