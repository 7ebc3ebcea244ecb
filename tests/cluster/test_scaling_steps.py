"""Load steps 0 -> 1 -> n -> 1 -> 0 through two gateways, one of which falls silent under load, to engines of which one does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from emberline_contract import http, names
from support.examples import SOAK
from support.operator_rig import eventually
from support.whole_cluster import WholeCluster, gpu_node, whole_cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(SOAK == 1, reason="tried on a quiet machine alone so far; `make soak` runs it"),
]
NAME = "steps"
NUM_TOKENS = 100
SCALING: dict[str, Any] = {"minReplicas": 0, "maxReplicas": 2, "idleAfter": "4s", "scaleDownStabilization": "5s"}


@asynccontextmanager
async def clients(cluster: WholeCluster, url: str, count: int) -> AsyncIterator[list[str]]:
    """So many that ask again when they are answered; each answer must be the right one. They finish at the end."""
    right, answers = cluster.expected(NAME, NAME, NUM_TOKENS), list[str]()
    body = {"model": f"default/{NAME}", "prompt": NAME, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    is_over = asyncio.Event()

    async def ask(session: aiohttp.ClientSession) -> None:
        while not is_over.is_set():
            async with session.post(url + http.COMPLETIONS, json=body) as response:
                assert response.status == 200, await response.text()
                answers.append((await response.json())["choices"][0]["text"])
                assert answers[-1] == right

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(ask(session))
        try:
            yield answers
        finally:
            is_over.set()


async def is_at(cluster: WholeCluster, replicas: int, timeout_s: float = 60) -> None:
    async def read() -> bool:
        return await cluster.replicas(NAME) == replicas

    await eventually(read, f"{replicas} replicas", timeout_s)


async def test_load_steps_with_a_silent_gateway_and_a_silent_engine(localplane: Path) -> None:
    async with whole_cluster(localplane, (NAME,), [gpu_node("gpu-1")]) as cluster:
        await cluster.endpoint(NAME, scaling=SCALING, engine={"maxSequences": 2})
        await cluster.becomes(NAME, "ScaledToZero")
        first, second = await cluster.gateways()
        url = f"http://{first.address}:{names.GATEWAY_PORT}"
        async with clients(cluster, url, 1):
            await is_at(cluster, 1)
            await cluster.becomes(NAME, "Serving")
            assert second.signal("gateway", signal.SIGSTOP)
            try:
                async with clients(cluster, url, 7):
                    await is_at(cluster, 2)  # up is possible
                for _ in range(10):
                    await asyncio.sleep(1)
                    assert await cluster.replicas(NAME) == 2, "down is not, while one gateway is silent"
            finally:
                second.signal("gateway", signal.SIGCONT)
            await is_at(cluster, 1, 90)
            (engine,) = await cluster.engines(NAME)
            assert engine.signal("engine", signal.SIGSTOP)
            try:
                # Its requests are not answered and not lost, and nobody takes it for idle.
                await asyncio.sleep(6)
                assert await cluster.replicas(NAME) >= 1
            finally:
                engine.signal("engine", signal.SIGCONT)
        await is_at(cluster, 0)
        assert cluster.num_wakes(NAME) == 1
