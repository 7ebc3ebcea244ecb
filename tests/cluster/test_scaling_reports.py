"""What users of other servers have reported of scaling (T-cases), each tried on a whole cluster with two gateways.

Cases that another test has: T5, T6, T10 test_operator_scaling.py; T11 unit/operator/test_follow.py, test_hpa_simulation.py; T14
test_operator_hpa.py; T15 unit/operator/test_via.py. Times are scaled down through their fields.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from emberline_contract import http, names
from support.operator_rig import eventually
from support.whole_cluster import GATEWAY_ACCOUNT, WholeCluster, gpu_node, whole_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
MODELS = ("listed", "idle", "burst", "quick", "busy", "stream", "mute")
Raw = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(localplane: Path) -> AsyncIterator[WholeCluster]:
    async with whole_cluster(localplane, MODELS, [gpu_node("gpu-1", load_s=1.0)]) as running:
        yield running


async def asleep(cluster: WholeCluster, name: str, *, serving: Raw | None = None, **more: Any) -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 1, "idleAfter": "2s", "via": "Operator", **more.pop("scaling", {})}
    await cluster.endpoint(name, scaling=scaling, serving=serving or {}, **more)
    await cluster.becomes(name, "ScaledToZero")


async def urls_of(cluster: WholeCluster) -> list[str]:
    return [f"http://{gateway.address}:{names.GATEWAY_PORT}" for gateway in await cluster.gateways()]


def body_of(name: str, num_tokens: int, *, stream: bool = False) -> Raw:
    return {"model": f"default/{name}", "prompt": name, "max_tokens": num_tokens, "temperature": 0,
            "ignore_eos": True, "stream": stream}  # fmt: skip


async def ask(session: aiohttp.ClientSession, url: str, name: str, num_tokens: int = 8) -> tuple[int, str, str]:
    """Status, text or error message, and Retry-After."""
    async with session.post(url + http.COMPLETIONS, json=body_of(name, num_tokens)) as response:
        found = await response.json()
        told = found["choices"][0]["text"] if response.status == 200 else found["error"]["message"]
        return response.status, told, response.headers.get(http.HEADER_RETRY_AFTER, "")


async def test_t1_t2_a_gateway_that_restarted_at_zero_lists_and_holds(cluster: WholeCluster) -> None:
    await asleep(cluster, "listed")
    gateways = await cluster.gateways()
    assert gateways[0].signal("gateway", signal.SIGKILL)
    async with aiohttp.ClientSession() as session:
        url = (await urls_of(cluster))[0]

        async def lists() -> bool:
            try:
                async with session.get(url + http.MODELS) as response:
                    return "default/listed" in {m["id"] for m in (await response.json())["data"]}
            except aiohttp.ClientConnectionError:
                return False

        await eventually(lists, "the restarted gateway lists a sleeping model", 40)
        assert await cluster.replicas("listed") == 0
        answers = await asyncio.gather(*(ask(session, each, "listed") for each in await urls_of(cluster)))
    assert answers == [(200, cluster.expected("listed", "listed", 8), "")] * 2
    assert cluster.num_wakes("listed") == 1


async def test_t3_t4_the_first_request_after_a_long_sleep_wakes_within_a_second(cluster: WholeCluster) -> None:
    await asleep(cluster, "idle")
    # Idle for many times idleAfter; its engine then loads for a second while the request is held (T4).
    await asyncio.sleep(10)
    async with aiohttp.ClientSession() as session:
        begun_s = time.time()
        assert (await ask(session, cluster.url, "idle"))[:2] == (200, cluster.expected("idle", "idle", 8))
    (wake,) = cluster.scale_writes(GATEWAY_ACCOUNT, names.child_name("idle", names.DEFAULT_REGION))
    print(f"request to accepted wake: {1000 * (wake[0] - begun_s):.0f} ms")
    assert wake[0] - begun_s < 5, "at once, on a machine that does much else"


async def test_t7_a_burst_at_zero_is_held_to_the_bound_and_the_rest_is_told_at_once(cluster: WholeCluster) -> None:
    await asleep(cluster, "burst", serving={"maxQueue": 100}, engine={"maxSequences": 8})
    url = (await urls_of(cluster))[0]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        answers = await asyncio.gather(*(ask(session, url, "burst") for _ in range(500)))
    right = cluster.expected("burst", "burst", 8)
    assert sum(answer[:2] == (200, right) for answer in answers) == 100
    assert sum(status == 429 and bool(after) for status, _, after in answers) == 400
    assert cluster.num_wakes("burst") == 1
    assert await cluster.replicas("burst") == 1


async def test_t8_quick_requests_keep_it_awake(cluster: WholeCluster) -> None:
    await asleep(cluster, "quick")
    async with aiohttp.ClientSession() as session:
        for _ in range(12):
            assert (await ask(session, cluster.url, "quick", 1))[0] == 200
            await asyncio.sleep(1)
        assert cluster.num_wakes("quick") == 1, "each request begins idleAfter anew, however short it is"
        await cluster.becomes("quick", "ScaledToZero")


async def test_t13_parallel_requests_to_an_engine_of_one_ask_for_more_engines(cluster: WholeCluster) -> None:
    """With what scaling is by default; the signal is what is unfinished, which no engine's capacity caps."""
    await asleep(cluster, "busy", scaling={"maxReplicas": 3, "idleAfter": "10s"}, engine={"maxSequences": 1})
    async with aiohttp.ClientSession() as session:
        asking = [asyncio.create_task(ask(session, cluster.url, "busy", 200)) for _ in range(20)]

        async def grows() -> bool:
            return await cluster.replicas("busy") == 3

        await eventually(grows, "three engines", 60)
        answers = await asyncio.gather(*asking)
    assert {answer[:2] for answer in answers} == {(200, cluster.expected("busy", "busy", 200))}


async def test_t26_t27_a_long_stream_outlives_idle_times_and_its_endpoint_stays(cluster: WholeCluster) -> None:
    """15 times idleAfter; the waiting client hears heartbeats first."""
    await asleep(cluster, "stream", serving={"heartbeat": "200ms"}, scaling={"idleAfter": "1s"})
    text, comments = "", 0
    async with (
        aiohttp.ClientSession() as session,
        session.post(cluster.url + http.COMPLETIONS, json=body_of("stream", 1500, stream=True)) as response,
    ):
        async for line in response.content:
            comments += line.startswith(b": waiting phase=")
            if line.startswith(b"data: {"):
                choices = json.loads(line.removeprefix(b"data: "))["choices"]
                text += choices[0]["text"] if choices else ""
    assert comments >= 1
    assert text == cluster.expected("stream", "stream", 1500)
    assert cluster.num_wakes("stream") == 1
    await cluster.becomes("stream", "ScaledToZero")


async def test_t28_an_engine_that_takes_connections_and_is_silent_harms_nobody_else(cluster: WholeCluster) -> None:
    await cluster.endpoint("mute", scaling={"minReplicas": 2, "maxReplicas": 2, "via": "Operator"})
    await cluster.becomes("mute", "Serving")

    async def both_ready() -> bool:
        return sum(engine.is_ready for engine in await cluster.engines("mute")) == 2

    await eventually(both_ready, "two engines", 60)
    victim = (await cluster.engines("mute"))[0]
    assert victim.signal("engine", signal.SIGSTOP)
    try:
        async with aiohttp.ClientSession() as session:
            answers = await asyncio.gather(*(ask(session, cluster.url, "mute") for _ in range(20)))
    finally:
        victim.signal("engine", signal.SIGCONT)
    assert {answer[:2] for answer in answers} == {(200, cluster.expected("mute", "mute", 8))}
