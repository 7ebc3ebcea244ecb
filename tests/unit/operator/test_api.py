"""The connection to the API server against a server of the test's own: the gate before writes, and patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from emberline_operator.cluster.api import Api
from emberline_operator.errors import LostLeadershipError, NotFoundError, UnavailableError
from emberline_operator.snapshot import Json

PATH = "/api/v1/namespaces/team/services/a"


class Server:
    """Notes what arrives and answers as it is told."""

    def __init__(self) -> None:
        self.arrived: list[tuple[str, Json | None]] = []
        self.answers: list[web.Response] = []
        self.delay_s = 0.0

    async def handle(self, request: web.Request) -> web.Response:
        self.arrived.append((request.method, await request.json() if request.can_read_body else None))
        await asyncio.sleep(self.delay_s)
        return self.answers.pop(0) if self.answers else web.json_response({"kind": "Service"})


@asynccontextmanager
async def connected(
    may_write: Callable[[], float] | None = None, **options: float
) -> AsyncIterator[tuple[Server, Api]]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = Api(configuration, may_write=may_write, chance=lambda: 0.0, **options)  # type: ignore[arg-type]
    try:
        yield server, api
    finally:
        await api.close()
        await runner.cleanup()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_a_closed_gate_lets_no_write_out_but_every_read(method: str) -> None:
    def closed() -> float:
        raise LostLeadershipError("not any more")

    async with connected(closed) as (server, api):
        with pytest.raises(LostLeadershipError, match="not any more"):
            await api.request(method, PATH, body={"a": 1})
        assert server.arrived == []
        await api.request("GET", PATH)
        assert server.arrived == [("GET", None)]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_the_gate_is_asked_again_when_the_connection_is_there(method: str) -> None:
    """Between the first question and the last a process may have been stopped for a minute."""
    answers: list[float] = [10.0]

    def closing() -> float:
        if not answers:
            raise LostLeadershipError("not any more")
        return answers.pop()

    async with connected(closing) as (server, api):
        with pytest.raises(LostLeadershipError, match="not any more"):
            await api.request(method, PATH, body={"a": 1})
        await asyncio.sleep(0.05)
        assert server.arrived == [], "neither whole nor in part"
        answers[:] = [10.0, 10.0]
        await api.request(method, PATH, body={"a": 1})
        assert server.arrived == [(method, {"a": 1})], "the connection can be used again"


async def test_a_write_is_given_up_before_another_may_lead() -> None:
    async with connected(lambda: 0.1, timeout_s=60.0) as (server, api):
        server.delay_s = 0.5
        with pytest.raises(UnavailableError, match="no answer"):
            await api.request("PATCH", PATH, body={})
        assert await api.request("GET", PATH) == {"kind": "Service"}, "a read may take as long as it likes"


async def test_one_refusal_for_being_busy_makes_all_wait() -> None:
    now = [0.0]
    async with connected(clock=lambda: now[0]) as (server, api):  # type: ignore[arg-type]
        server.answers = [
            web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "3"}),
            web.json_response({"message": "not there"}, status=404),
        ]
        with pytest.raises(UnavailableError, match="busy"):
            await api.request("GET", PATH)
        server.answers.clear()
        now[0] = 2.9
        waiting = [asyncio.create_task(api.request("GET", PATH)) for _ in range(3)]
        await asyncio.sleep(0.02)
        assert len(server.arrived) == 1
        now[0] = 3.0
        await asyncio.gather(*waiting)
        assert len(server.arrived) == 4
        server.answers = [web.json_response({"message": "not there"}, status=404)]
        with pytest.raises(NotFoundError):
            await api.request("GET", PATH)
