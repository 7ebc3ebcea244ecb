"""Pages, and the limits that stand before any application: headers, slow clients, unread bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from emberline_gateway import server
from emberline_gateway.main import parse
from emberline_gateway.server import MAX_HEADER_BYTES
from support.gateway import FakeCluster, Running, eventually, make_endpoint, running_gateway


@pytest_asyncio.fixture
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setattr(server, "HEADERS_TIMEOUT_S", 0.6)
    monkeypatch.setattr(server, "UNREAD_TIMEOUT_S", 0.3)
    monkeypatch.setattr(server, "SWEEP_S", 0.05)
    cluster = FakeCluster(make_endpoint(), make_endpoint("other", "team"), make_endpoint("tiny", "team"))
    async with running_gateway(cluster) as made:
        await eventually(lambda: made.gateway.directory.is_complete)
        yield made


async def talk(running: Running, *parts: bytes) -> bytes:
    """Sends parts and returns everything until the gateway closes."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_models_lists_what_is_known_asleep_or_not(running: Running) -> None:
    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> tuple[int, dict[str, object]]:
            async with session.get(running.url + path) as response:
                return response.status, await response.json()

        status, listed = await get("/v1/models")
        assert (status, listed["object"]) == (200, "list")
        assert [card["id"] for card in listed["data"]] == ["default/tiny", "team/other", "other", "team/tiny"]
        assert listed["data"][0]["created"] == 1767323045
        assert [card["id"] for card in (await get("/team/other/v1/models"))[1]["data"]] == ["team/other", "other"]
        assert (await get("/v1/models/team/other"))[1]["id"] == "team/other"
        assert (await get("/team/other/v1/models/other"))[1]["root"] == "team/other"
        for path in ("/v1/models/nope", "/v1/models/tiny", "/no/body/v1/models", "/nowhere"):
            status, body = await get(path)
            assert (status, body["error"]["type"]) == (404, "NotFoundError")
        for path in ("/health", "/live", "/ready"):
            assert (await get(path))[0] == 200
            async with session.get(running.admin_url + path) as response:
                assert response.status == 200
        for path in ("/docs", "/openapi.json"):
            assert (await get(path))[0] == 404


async def test_not_ready_before_both_lists_are_read() -> None:
    cluster = FakeCluster()

    async def only_pods(directory: object) -> None:
        directory.pod_sink.replace([])
        await asyncio.Event().wait()

    cluster.watch = only_pods
    async with running_gateway(cluster) as made, aiohttp.ClientSession() as session:
        async with session.get(made.url + "/ready") as response:
            assert (response.status, await response.json()) == (503, {"status": "reading the cluster"})
        async with session.get(made.url + "/live") as response:
            assert response.status == 200


@pytest.mark.parametrize("parts", [1, 8])
async def test_long_headers_are_431(running: Running, parts: int) -> None:
    text = b"GET /live HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * (MAX_HEADER_BYTES + 1000) + b"\r\n\r\n"
    size = len(text) // parts
    assert (await talk(running, *(text[i : i + size] for i in range(0, len(text), size)))).startswith(b"HTTP/1.1 431 ")


async def test_many_headers_are_431(running: Running) -> None:
    fields = b"".join(b"x-%d: %s\r\n" % (number, b"a" * 90) for number in range(400))
    assert (await talk(running, b"GET /live HTTP/1.1\r\n" + fields + b"\r\n")).startswith(b"HTTP/1.1 431 ")


async def test_headers_below_the_limit_pass(running: Running) -> None:
    field = b"x-long: " + b"a" * (MAX_HEADER_BYTES - 1000)
    request = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + field + b"\r\n\r\n"
    assert (await talk(running, request)).startswith(b"HTTP/1.1 200 ")


async def test_headers_that_do_not_end_are_cut(running: Running) -> None:
    assert await talk(running, b"GET /live HTTP/1.1\r\nhost: x\r\nx-slow:") == b""
    # ... also the second time on a connection that was good once.
    assert (await talk(running, b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /l")).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_goes_on_after_its_answer_is_cut(running: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\n"
    assert (await talk(running, head, b"{")).startswith(b"HTTP/1.1 413 ")


async def test_garbage_is_400(running: Running) -> None:
    assert (await talk(running, b"NONSENSE\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_length_and_chunks_together_are_refused(running: Running) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n"
    assert (await talk(running, head + b"0\r\n\r\n")).startswith(b"HTTP/1.1 400 ")


async def test_an_idle_connection_is_not_cut(running: Running) -> None:
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await asyncio.sleep(1.2)
    writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


def test_binds_the_pods_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_IP", "127.1.2.3")
    assert parse([]).host == "127.1.2.3"
    monkeypatch.delenv("POD_IP")
    assert (parse([]).host, parse([]).port, parse([]).admin_port) == ("127.0.0.1", 8080, 8081)
