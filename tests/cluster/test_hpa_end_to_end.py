"""The real HorizontalPodAutoscaler in a closed loop with our metrics: five points of what test_hpa_simulation.py plays.

Clients are a number: so many requests, always. Engines are played: each becomes ready its load time after it was made, and serves
so many at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.kinds import DEPLOYMENTS, HPAS, PODS
from emberline_operator.demand_formula import Load, queue_load
from support.metrics_adapter import MetricsAdapter, metrics_adapter
from support.operator_rig import OperatorRig, eventually, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
CHILD = "tiny--default"
QUEUE_DEPTH = 4
MAX_REPLICAS = 3
QUIET_S = 12.0
"""Six looks of the autoscaler, which looks every two seconds here."""


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


@dataclass
class Played:
    """Clients and engines."""

    rig: OperatorRig
    metrics: MetricsAdapter
    demand: int
    capacity: int
    load_s: float
    seen_s: dict[str, float] = field(default_factory=dict)
    """Name of an engine -> when it was first seen."""
    ready: set[str] = field(default_factory=set)
    history: list[tuple[int, int, int]] = field(default_factory=list)
    """Replicas, engines that serve, and what waited then, whenever one of them changed."""

    async def run(self) -> None:
        """Play until cancelled."""
        queued_since_s: float | None = None
        while True:
            live, now_s = await self.rig.get(DEPLOYMENTS, CHILD), time.monotonic()
            assert live is not None
            pods = {p["metadata"]["name"]: p for p in await self.rig.list(PODS) if not _is_leaving(p)}
            self.ready &= pods.keys()
            for name, pod in pods.items():
                if name not in self.ready and now_s >= self.seen_s.setdefault(name, now_s) + self.load_s:
                    await self.rig.set_pod(pod, ready=True)
                    self.ready.add(name)
            queue = max(0, self.demand - len(self.ready) * self.capacity)
            queued_since_s = (queued_since_s or now_s) if queue else None
            has_waited = queued_since_s is not None and now_s - queued_since_s > 1
            load = Load(self.demand, queue, has_waited, len(self.ready))
            self.metrics.values = {
                names.METRIC_QUEUE_LOAD: queue_load(load, QUEUE_DEPTH),
                names.METRIC_REQUESTS: self.demand,
            }
            point = (live["spec"]["replicas"], len(self.ready), queue)
            if not self.history or self.history[-1] != point:
                self.history.append(point)
            await asyncio.sleep(0.1)


def _is_leaving(pod: dict[str, dict[str, str]]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


@pytest.mark.parametrize(
    ("demand", "capacity", "load_s"), [(1, 1, 0.0), (5, 2, 4.0), (3, 1, 8.0), (40, 16, 2.0), (500, 64, 20.0)]
)
async def test_it_comes_to_rest_and_a_backlog_stops_nothing(
    rig: OperatorRig, tmp_path: Path, demand: int, capacity: int, load_s: float
) -> None:
    scaling = {
        "via": "HPA",
        "minReplicas": 1,
        "maxReplicas": MAX_REPLICAS,
        "queueDepthPerReplica": QUEUE_DEPTH,
        "scaleDownStabilization": "0s",
    }
    async with metrics_adapter(rig.admin, tmp_path) as metrics, rig.operator():
        metrics.values = {names.METRIC_QUEUE_LOAD: 0, names.METRIC_REQUESTS: 0}
        await rig.endpoint("tiny", scaling=scaling, engine={"maxSequences": capacity})
        await rig.deployment("tiny")
        played = Played(rig, metrics, demand, capacity, load_s)
        playing = asyncio.create_task(played.run())
        try:
            wanted = min(MAX_REPLICAS, math.ceil(demand / capacity))

            async def is_there() -> bool:
                assert not playing.done(), playing.exception()
                return await rig.get(HPAS, CHILD) is not None and len(played.ready) == wanted

            await eventually(is_there, f"{wanted} engines ready", 60 + 2 * load_s)
            num_changes = len(played.history)
            await asyncio.sleep(QUIET_S)
            assert not playing.done(), playing.exception()
        finally:
            playing.cancel()
            await asyncio.wait([playing])
    at_rest = played.history[max(0, num_changes - 1) :]
    assert {replicas for replicas, _, _ in at_rest} == {wanted}, played.history
    fewer = [b for a, b in zip(played.history, played.history[1:], strict=False) if b[0] < a[0] and a[2]]
    assert not fewer, f"scaled down under a backlog: {played.history}"
