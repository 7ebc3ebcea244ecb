"""Asking gateways: who is asked, what silence means, and the handshake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from emberline_contract import http, names
from emberline_contract.http import CloseAnswer, CloseRequest, CloseState, DemandAnswer, EndpointDemand
from emberline_operator import demand as demand_module
from emberline_operator.demand import Gateway, Gateways, demand_of, running_gateways
from emberline_operator.snapshot import Demand, GatewayView


def gateway_pod(
    name: str = "gw-1", namespace: str = names.SYSTEM_NAMESPACE, app: str = names.GATEWAY_NAME, **status: Any
) -> Any:
    running = [{"state": {"running": {}}}]
    full = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": running, **status}
    return {"metadata": {"name": name, "namespace": namespace, "labels": {names.LABEL_APP: app}}, "status": full}


@pytest.mark.parametrize(
    ("pod", "is_asked"),
    [
        (gateway_pod(), True),
        (gateway_pod(conditions=[{"type": "Ready", "status": "False"}]), True),
        (gateway_pod(namespace="team"), False),
        (gateway_pod(app=names.RUNTIME_NAME), False),
        (gateway_pod(phase="Pending", containerStatuses=[]), False),
        (gateway_pod(phase="Succeeded", containerStatuses=[{"state": {"terminated": {}}}]), False),
        (gateway_pod(containerStatuses=[{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]), False),
        (gateway_pod(podIP=""), False),
    ],
)
def test_who_is_a_gateway(pod: Any, is_asked: bool) -> None:
    assert running_gateways([pod]) == ([Gateway("gw-1", "10.0.0.1")] if is_asked else [])


def test_one_that_drains_is_still_asked() -> None:
    leaving = gateway_pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    assert running_gateways([leaving]) == [Gateway("gw-1", "10.0.0.1")]


def seen(
    name: str = "tiny", region: str = "default", held: int = 0, dispatched: int = 0, idle_s: float = 5
) -> EndpointDemand:
    pods = {"tiny-1": dispatched} if dispatched else {}
    return EndpointDemand(
        namespace="team", name=name, region=region, held=held, dispatched=dispatched, idle_s=idle_s, pods=pods
    )


def test_one_endpoints_part_of_the_answers() -> None:
    answers = {
        "gw-1": DemandAnswer(uptime_s=100, endpoints=[seen("other", held=9), seen(held=1, dispatched=2, idle_s=0)]),
        "gw-2": DemandAnswer(uptime_s=100, endpoints=[seen(region="eu", held=9)]),
        "gw-3": "it answered 500",
        "gw-4": DemandAnswer(uptime_s=50, endpoints=[seen(idle_s=50)]),
    }
    assert demand_of(answers, "team", "tiny", "default") == Demand(
        views=(
            GatewayView("gw-1", 3, 0, ever_active=True, held=1, pods={"tiny-1": 2}),
            GatewayView("gw-2", 0, 100, ever_active=False),
            GatewayView("gw-4", 0, 50, ever_active=False),
        ),
        silent=("gw-3: it answered 500",),
    )
    assert demand_of({}, "team", "tiny", "default") == Demand()


class Played:
    """A gateway's admin port that answers what the test says."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.tokens: set[str | None] = set()
        self.requests: list[CloseRequest] = []
        self.state = CloseState.CLOSED
        self.status = 200
        self.body: str | None = None
        self.epoch_shift = 0
        self.hangs = False

    async def demand(self, request: web.Request) -> web.Response:
        self.num_asked += 1
        self.tokens.add(request.headers.get("Authorization"))
        if self.hangs:
            await asyncio.sleep(30)
        text = self.body if self.body is not None else DemandAnswer(uptime_s=9, endpoints=[seen()]).model_dump_json()
        return web.Response(text=text, status=self.status)

    async def close(self, request: web.Request) -> web.Response:
        asked = CloseRequest.model_validate_json(await request.text())
        self.requests.append(asked)
        answer = CloseAnswer(state=self.state, epoch=asked.epoch + self.epoch_shift, reason="2 running")
        return web.Response(text=answer.model_dump_json(), status=self.status)


@asynccontextmanager
async def gateways_of(played: Played, tmp_path: Path, names_: list[str], clock: Any = None) -> AsyncIterator[Gateways]:
    app = web.Application()
    app.router.add_get(http.ADMIN_DEMAND, played.demand)
    app.router.add_post(http.ADMIN_CLOSE, played.close)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    token = tmp_path / "token"
    token.write_text("abc\n")
    async with aiohttp.ClientSession() as session:
        yield Gateways(
            session,
            list_gateways=lambda: [Gateway(name, "127.0.0.1") for name in names_],
            token_path=token,
            port=runner.addresses[0][1],
            clock=clock or (lambda: 0.0),
        )
    await runner.cleanup()


REQUEST = CloseRequest(namespace="team", name="tiny", region="default", epoch=7)


async def test_answers_are_shared_for_a_moment(tmp_path: Path) -> None:
    played, now = Played(), [0.0]
    async with gateways_of(played, tmp_path, ["gw-1"], lambda: now[0]) as gateways:
        many = await asyncio.gather(*(gateways.demand("team", f"e{n}", "default") for n in range(20)))
        assert played.num_asked == 1
        assert all(demand.views[0].idle_s == 9 for demand in many)
        now[0] = 1.1
        await gateways.demand("team", "tiny", "default")
        assert played.num_asked == 2
    assert played.tokens == {"Bearer abc"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": 401}, "gw-1: it answered 401"),
        ({"status": 500}, "gw-1: it answered 500"),
        ({"body": "{}"}, "gw-1: its answer does not fit the contract"),
        ({"body": "not json"}, "gw-1: its answer does not fit the contract"),
        ({"hangs": True}, "gw-1: no answer within 0.2 s"),
        ({"body": "x" * 2000}, "gw-1: ClientPayloadError: the answer has more than 1000 bytes"),
    ],
)
async def test_what_is_no_answer_is_silence_with_a_reason(
    change: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand_module, "ASK_TIMEOUT_S", 0.2 if "hangs" in change else 3.0)
    monkeypatch.setattr(demand_module, "MAX_ANSWER_BYTES", 1000)
    played = Played()
    for name, value in change.items():
        setattr(played, name, value)
    async with gateways_of(played, tmp_path, ["gw-1"]) as gateways:
        found = await gateways.demand("team", "tiny", "default")
    assert found.views == ()
    assert len(found.silent) == 1
    assert found.silent[0].startswith(words)


async def test_no_token_and_no_listener_are_silence(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        lost = Gateways(
            session,
            list_gateways=lambda: [Gateway("gw-1", "127.0.0.1")],
            token_path=tmp_path / "nowhere",
            port=1,
            clock=lambda: 0.0,
        )
        assert "FileNotFoundError" in (await lost.demand("team", "tiny", "default")).silent[0]
        (tmp_path / "nowhere").write_text("abc")
        assert "gw-1: ClientConnectorError" in await lost.close(REQUEST)


async def test_closed_only_if_all_are(tmp_path: Path) -> None:
    played = Played()
    async with gateways_of(played, tmp_path, ["gw-1", "gw-2"]) as gateways:
        assert await gateways.close(REQUEST) == ""
        assert played.requests == [REQUEST, REQUEST]
        await gateways.reopen(REQUEST)
        assert [request.reopen for request in played.requests] == [False, False, True, True]
        played.state = CloseState.BUSY
        assert await gateways.close(REQUEST) == "gw-1 is busy: 2 running; gw-2 is busy: 2 running"
        played.state, played.epoch_shift = CloseState.CLOSED, -1
        assert "gw-1 is closed" in await gateways.close(REQUEST), "an answer to another close"
        played.epoch_shift, played.status = 0, 503
        assert "gw-2: it answered 503" in await gateways.close(REQUEST)


async def test_nobody_to_ask_is_an_objection_and_a_newcomer_too(tmp_path: Path) -> None:
    listed = ["gw-1"]
    played = Played()
    async with gateways_of(played, tmp_path, listed) as gateways:
        closing = asyncio.create_task(gateways.close(REQUEST))
        await asyncio.sleep(0)
        listed.append("gw-2")
        assert await closing == "gw-2 has just started"
        listed.clear()
        assert await gateways.close(REQUEST) == "no gateway runs"
