"""The operator's port: who gets in, what demand says, and the close that must not lose a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from emberline_contract import metrics, names
from emberline_contract.http import ADMIN_CLOSE, ADMIN_DEMAND, CHAT_COMPLETIONS
from emberline_gateway import callers
from emberline_gateway.activation import ClusterError
from emberline_gateway.callers import Caller, Callers, ForbiddenError, UnauthenticatedError, account
from emberline_gateway.demand import count_unfinished
from emberline_gateway.objects import Target
from support.gateway import (
    FakeCluster,
    FakeEngine,
    Running,
    eventually,
    make_endpoint,
    make_pod,
    running_engine,
    running_gateway,
)

TINY = Target("default", "tiny", "default")
TOKEN = "operator-token"
CHAT = {"model": "tiny", "messages": []}


class Rig:
    def __init__(
        self, cluster: FakeCluster, engine: FakeEngine, running: Running, session: aiohttp.ClientSession
    ) -> None:
        self.cluster = cluster
        self.engine = engine
        self.running = running
        self.http = session

    async def close(self, epoch: int, **fields: Any) -> tuple[str, str]:
        body = {"namespace": "default", "name": "tiny", "region": "default", "epoch": epoch, **fields}
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with self.http.post(self.running.admin_url + ADMIN_CLOSE, json=body, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["epoch"] == epoch
            return answer["state"], answer["reason"]

    async def demand(self) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with self.http.get(self.running.admin_url + ADMIN_DEMAND, headers=headers) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["uptime_s"] > 0
            (endpoint,) = answer["endpoints"]
            return dict(endpoint)

    async def ask(self) -> int:
        async with self.http.post(self.running.url + CHAT_COMPLETIONS, json=CHAT) as response:
            return response.status

    def held(self) -> int:
        return self.running.gateway.demand.answer().endpoints[0].held


@asynccontextmanager
async def rig(*, pods: int = 1) -> AsyncIterator[Rig]:
    cluster = FakeCluster(make_endpoint())
    cluster.tokens[TOKEN] = account(names.OPERATOR_NAME)
    async with running_engine() as engine:
        cluster.num_replicas[TINY] = pods
        for number in range(pods):
            cluster.put_pod(make_pod(url=engine.url, uid=f"pod-{number}"))
        async with running_gateway(cluster) as running, aiohttp.ClientSession() as session:
            await eventually(lambda: running.gateway.directory.is_complete)
            yield Rig(cluster, engine, running, session)


# Who gets in


async def test_the_port_answers_401_403_and_503() -> None:
    async with rig() as at:
        at.cluster.tokens["stranger"] = "system:serviceaccount:default:stranger"

        async def status(authorization: str | None) -> int:
            headers = {"authorization": authorization} if authorization else {}
            async with at.http.get(at.running.admin_url + ADMIN_DEMAND, headers=headers) as response:
                return response.status

        assert await status(None) == 401
        assert await status("Basic abc") == 401
        assert await status("Bearer unknown") == 401
        assert await status("Bearer stranger") == 403
        assert await status(f"Bearer {TOKEN}") == 200
        async with at.http.get(at.running.url + ADMIN_DEMAND) as response:
            assert response.status == 404  # not on the public port

        async def down(_token: str, _audience: str) -> Caller | None:
            raise ClusterError("token review: the API server does not answer")

        at.cluster.review = down  # type: ignore[method-assign]
        assert await status("Bearer another") == 503


async def test_reviews_are_kept_for_a_short_time_by_digest() -> None:
    cluster, now_s = FakeCluster(), 0.0
    cluster.tokens["good"] = account(names.GATEWAY_NAME)
    checked = Callers(cluster, lambda: now_s)
    for _ in range(3):
        assert (await checked.check("Bearer good")).username == account(names.GATEWAY_NAME)
        with pytest.raises(UnauthenticatedError):
            await checked.check("Bearer bad")
    assert cluster.num_reviews == 2
    cluster.tokens["good"] = account("somebody")  # deleted and made again by another
    now_s = callers.VALID_S + 1
    with pytest.raises(ForbiddenError):
        await checked.check("Bearer good")
    for number in range(callers.MAX_CACHED + 5):
        with pytest.raises(UnauthenticatedError):
            await checked.check(f"Bearer {number}")
    assert len(checked._known) == callers.MAX_CACHED
    assert not any(b"good" in digest for digest in checked._known)


async def test_bodies_are_checked() -> None:
    async with rig() as at:
        headers = {"authorization": f"Bearer {TOKEN}"}
        for body in ({}, {"namespace": "a", "name": "b", "region": "c", "epoch": -1}, {"extra": 1}):
            async with at.http.post(at.running.admin_url + ADMIN_CLOSE, json=body, headers=headers) as response:
                assert response.status == 400
                assert (await response.json())["error"]["type"] == "BadRequestError"


# Demand


async def test_demand_counts_held_and_dispatched_and_the_time_since() -> None:
    async with rig(pods=0) as at:
        first = await at.demand()
        assert (first["held"], first["dispatched"], first["held_s"]) == (0, 0, 0)
        assert first["idle_s"] > 0
        at.engine.gate = asyncio.Event()
        answers = [asyncio.create_task(at.ask()) for _ in range(3)]
        await eventually(lambda: at.held() == 3)
        assert (await at.demand())["idle_s"] == 0
        waited_s = (await at.demand())["held_s"]
        assert 0 < waited_s < (await at.demand())["held_s"], (
            "the operator asks for engines by how long something has waited"
        )
        at.cluster.put_pod(make_pod(url=at.engine.url))
        await eventually(lambda: len(at.engine.calls) == 3)
        busy = await at.demand()
        assert (busy["held"], busy["dispatched"], busy["idle_s"], busy["held_s"]) == (0, 3, 0, 0)
        assert list(busy["pods"].values()) == [3]
        at.engine.gate.set()
        assert await asyncio.gather(*answers) == [200] * 3
        done = await at.demand()
        assert (done["held"], done["dispatched"], done["pods"]) == (0, 0, {})
        assert 0 <= done["idle_s"] < first["idle_s"] + 2


# Close


async def test_a_quiet_endpoint_closes_holds_and_opens_again() -> None:
    async with rig() as at:
        assert await at.close(1) == ("closed", "")
        answer = asyncio.create_task(at.ask())
        await eventually(lambda: at.held() == 1)
        await asyncio.sleep(0.1)
        assert at.engine.calls == []
        assert await at.close(1, reopen=True) == ("open", "")
        assert await answer == 200


async def test_a_close_ends_by_itself() -> None:
    async with rig() as at:
        assert await at.close(1, ttl_s=0.3) == ("closed", "")
        assert await at.ask() == 200


async def test_held_or_dispatched_requests_are_busy_and_nothing_stays_closed() -> None:
    async with rig(pods=0) as at:
        held = asyncio.create_task(at.ask())
        await eventually(lambda: at.held() == 1)
        assert await at.close(1) == ("busy", "1 requests held, 0 dispatched")
        at.engine.gate = asyncio.Event()
        at.cluster.put_pod(make_pod(url=at.engine.url))
        await eventually(lambda: at.engine.calls)
        assert await at.close(2) == ("busy", "0 requests held, 1 dispatched")
        at.engine.gate.set()
        assert await held == 200
        assert await at.ask() == 200


async def test_an_engine_at_work_or_silent_is_busy() -> None:
    async with rig() as at:
        at.engine.num_running = 2
        assert await at.close(1) == ("busy", "the engine in pod tiny-pod-0 has 2 requests")
        at.engine.num_running, at.engine.has_metrics = 0, False
        state, reason = await at.close(2)
        assert (state, reason) == ("busy", "the engine in pod tiny-pod-0 does not tell what it does")
        await at.engine.stop()
        assert (await at.close(3))[0] == "busy"
        # One that never became ready cannot have anything to do, and must not keep the endpoint up for ever.
        at.cluster.put_pod(make_pod("loading", url=at.engine.url, uid="pod-0"))
        assert await at.close(4) == ("closed", "")


async def test_a_request_that_comes_while_the_engines_are_asked_makes_it_busy() -> None:
    async with rig() as at:
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slow(request: aiohttp.web.Request) -> aiohttp.web.Response:
            asked.set()
            await go_on.wait()
            text = f"{metrics.NUM_REQUESTS_RUNNING} 0\n{metrics.NUM_REQUESTS_WAITING} 0\n"
            return aiohttp.web.Response(text=text)

        at.engine.metrics_handler = slow
        closing = asyncio.create_task(at.close(1))
        await asked.wait()
        answer = asyncio.create_task(at.ask())
        await eventually(lambda: at.held() == 1)
        go_on.set()
        assert await closing == ("busy", "1 requests held, 0 dispatched")
        assert await answer == 200


async def test_epochs() -> None:
    async with rig() as at:
        assert (await at.close(5))[0] == "closed"
        assert await at.close(4) == ("busy", "epoch 5 is in force, 4 is older")
        assert await at.close(4, reopen=True) == ("busy", "epoch 5 is in force, 4 is older")
        assert (await at.close(5))[0] == "closed"
        assert (await at.close(6, reopen=True))[0] == "open"
        assert (await at.close(1))[0] == "closed"  # a new leader counts from the start


async def test_after_zero_is_written_what_was_held_wakes_the_endpoint() -> None:
    async with rig() as at:
        assert (await at.close(1))[0] == "closed"
        answers = [asyncio.create_task(at.ask()) for _ in range(5)]
        await eventually(lambda: at.held() == 5)
        at.cluster.num_replicas[TINY] = 0
        at.cluster.put_pod(make_pod("leaving", url=at.engine.url, uid="pod-0"))
        await eventually(lambda: len(at.cluster.wakes) == 1)
        at.cluster.put_pod(make_pod(url=at.engine.url))
        assert await asyncio.gather(*answers) == [200] * 5
        assert at.cluster.num_attempts == 1


async def test_a_gateway_that_has_not_read_the_cluster_is_busy() -> None:
    cluster = FakeCluster()

    async def never(_directory: object) -> None:
        await asyncio.Event().wait()

    cluster.watch = never  # type: ignore[method-assign]
    cluster.tokens[TOKEN] = account(names.OPERATOR_NAME)
    async with running_engine() as engine, running_gateway(cluster) as running, aiohttp.ClientSession() as session:
        at = Rig(cluster, engine, running, session)
        assert await at.close(1) == ("busy", "this gateway has not read the cluster yet")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('vllm:num_requests_running{model_name="a"} 2\nvllm:num_requests_waiting{model_name="a"} 3\n', 5.0),
        ("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n", 0.0),
        ("vllm:num_requests_running 0\n", None),
        ("", None),
    ],
)
def test_count_unfinished(text: str, expected: float | None) -> None:
    assert count_unfinished(text) == expected
