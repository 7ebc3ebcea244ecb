"""A region whose start has failed: nothing is woken there before its time, and what it held goes elsewhere or is told so."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime

import aiohttp
import pytest

from emberline_contract import http
from emberline_gateway.directory import Directory
from emberline_gateway.objects import Target
from support.gateway import (
    FakeCluster,
    Raw,
    Running,
    eventually,
    make_endpoint,
    make_pod,
    running_engine,
    running_gateway,
)

EU, US = Target("default", "tiny", "eu"), Target("default", "tiny", "us")
LONG_AGO_S, FAR_S = 0.0, 4_000_000_000.0


def endpoint_with(failed: dict[str, float], regions: tuple[str, ...] = ("eu", "us")) -> Raw:
    """`failed`: region -> Unix time of its next try."""
    raw = make_endpoint(regions=regions)
    raw["status"] = {"observedGeneration": 1, "regions": []}
    for region in regions:
        told: Raw = {"name": region}
        if region in failed:
            told["failedStart"] = {
                "phase": "Scheduling",
                "message": "Insufficient nvidia.com/gpu",
                "count": 1,
                "retryTime": datetime.fromtimestamp(failed[region], UTC).isoformat(),
            }
        raw["status"]["regions"].append(told)
    return raw


@pytest.mark.parametrize(
    ("failed", "pods", "now_s", "expected", "is_refused"),
    [
        ({}, {}, 50.0, EU, False),
        ({"eu": 100.0}, {}, 50.0, US, False),
        ({"eu": 100.0}, {}, 100.0, EU, False),
        ({"eu": 100.0}, {"eu": "loading"}, 50.0, US, False),
        ({"eu": 100.0}, {"eu": "ready"}, 50.0, EU, False),
        ({"eu": 100.0, "us": 60.0}, {}, 50.0, EU, True),
        ({"eu": 100.0, "us": 60.0}, {}, 70.0, US, False),
    ],
)
def test_where_a_request_goes(
    failed: dict[str, float], pods: dict[str, str], now_s: float, expected: Target, *, is_refused: bool
) -> None:
    directory = Directory(unix_clock=lambda: now_s)
    directory.endpoint_sink.replace([endpoint_with(failed)])
    directory.pod_sink.replace([make_pod(state, region=region) for region, state in pods.items()])
    target = directory.assign(directory.resolve("tiny", None))
    assert (target, directory.failed_start(target) is not None) == (expected, is_refused)


def test_a_region_that_was_left_is_not_started_instead() -> None:
    raw = endpoint_with({"eu": 100.0}, ("eu", "old"))
    raw["spec"]["placement"]["regions"] = ["eu"]
    directory = Directory(unix_clock=lambda: 50.0)
    directory.endpoint_sink.replace([raw])
    assert directory.assign(directory.resolve("tiny", None)) == EU


def test_a_change_of_the_spec_is_a_new_start() -> None:
    raw = endpoint_with({"eu": 100.0})
    raw["metadata"]["generation"] = 2
    directory = Directory(unix_clock=lambda: 50.0)
    directory.endpoint_sink.replace([raw])
    assert directory.failed_start(EU) is None


def test_seconds_until_the_next_try_are_whole_and_at_least_one() -> None:
    directory = Directory(unix_clock=lambda: 50.0)
    assert [directory.seconds_until(at_s) for at_s in (40.0, 50.0, 50.2, 51.5, 80.0)] == [1, 1, 1, 2, 30]


async def ask(running: Running) -> tuple[int, Raw, str | None]:
    """Status, body and Retry-After."""
    body = io.BytesIO(json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}).encode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(running.url + http.CHAT_COMPLETIONS, data=body) as response,
    ):
        return response.status, await response.json(), response.headers.get("retry-after")


async def test_held_requests_are_told_at_once_and_later_ones_wake_nothing() -> None:
    cluster = FakeCluster(make_endpoint(regions=("eu",)))
    async with running_gateway(cluster) as running:
        held = asyncio.create_task(ask(running))
        await eventually(lambda: cluster.wakes)
        cluster.num_replicas[EU] = 0  # the operator has taken it back
        cluster.put_endpoint(endpoint_with({"eu": FAR_S}, ("eu",)))
        async with asyncio.timeout(5.0):
            answers = [await held, await ask(running)]
        for status, body, retry_after in answers:
            assert status == 503
            assert "Insufficient nvidia.com/gpu" in body["error"]["message"]
            assert retry_after is not None
            assert int(retry_after) > 1_000_000
        assert len(cluster.wakes) == 1


async def test_held_requests_move_to_the_next_region_and_wake_that_one_alone() -> None:
    cluster = FakeCluster(make_endpoint(regions=("eu", "us")))
    async with running_engine() as engine, running_gateway(cluster) as running:
        held = [asyncio.create_task(ask(running)) for _ in range(3)]
        await eventually(lambda: cluster.wakes)
        cluster.put_endpoint(endpoint_with({"eu": FAR_S}))
        await eventually(lambda: len(cluster.wakes) == 2)
        cluster.put_pod(make_pod(url=engine.url, region="us"))
        assert [status for status, _, _ in await asyncio.gather(*held)] == [200, 200, 200]
        assert [target for _, target in cluster.wakes] == [EU, US]


def start_pod(cluster: FakeCluster, url: str, target: Target) -> None:
    """What a scale-up ends in."""
    cluster.put_pod(make_pod(url=url, region=target.region))


async def test_after_its_time_a_request_may_wake_again() -> None:
    cluster = FakeCluster(endpoint_with({"eu": LONG_AGO_S}, ("eu",)))
    async with running_engine() as engine, running_gateway(cluster) as running:
        cluster.on_wake = lambda target: start_pod(cluster, engine.url, target)
        assert (await ask(running))[0] == 200
        assert [target for _, target in cluster.wakes] == [EU]
