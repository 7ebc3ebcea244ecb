"""Gateways, engines and the operator are killed and the API server goes and comes back, while clients call endpoints that sleep and wake.

20 endpoints; each is called for a quarter of the time, so that it goes to sleep in between. EMBERLINE_CHAOS_S says how long
(`make soak`: 600), EMBERLINE_CHAOS_SEED draws another run, and EMBERLINE_CHAOS_REPORT names a file for the counts.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from emberline_contract import names
from emberline_operator.errors import ClusterError
from support.chaos_client import Asking, Attempt, End
from support.examples import SOAK
from support.whole_cluster import GATEWAY_ACCOUNT, OPERATOR_ACCOUNT, WholeCluster, gpu_node, whole_cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(SOAK == 1, reason="tried on a quiet machine alone so far; `make soak` runs it"),
]

DURATION_S = float(os.environ.get("EMBERLINE_CHAOS_S", "120"))
SEED = int(os.environ.get("EMBERLINE_CHAOS_SEED", "1"))
REPORT = os.environ.get("EMBERLINE_CHAOS_REPORT", "")
ENDPOINTS = tuple(f"e-{letter}" for letter in "abcdefghijklmnopqrst")
RATE_PER_S = 50.0
PERIOD_S = 40.0
"""Each endpoint is called for a quarter of it, one after the other: five at a time."""
SCALING = {"minReplicas": 0, "maxReplicas": 1, "idleAfter": "4s", "activationTimeout": "60s", "via": "Operator"}
DOWN_S = 8.0
"""A gateway that was killed starts again within this time, on a machine that is busy with everything else here."""


@dataclass
class Chaos:
    """What is done to the cluster, and when."""

    cluster: WholeCluster
    chance: random.Random
    urls: dict[str, str]
    kills: Counter[str] = field(default_factory=Counter)
    gateway_kills: list[tuple[float, str]] = field(default_factory=list)

    async def run(self, until_s: float) -> None:
        """One thing after the other; a gateway is killed only while the others serve."""
        deeds = [self.kill_gateway, self.kill_engine, self.kill_engine, self.kill_operator]
        api_restart_s = time.monotonic() + 25
        while time.monotonic() < until_s:
            await asyncio.sleep(self.chance.uniform(2, 5))
            deed = self.chance.choice(deeds)
            if time.monotonic() > api_restart_s:
                deed, api_restart_s = self.restart_api_server, time.monotonic() + 45
            try:
                await deed()
            except ClusterError:
                self.kills["not possible while the API server was away"] += 1

    async def kill_gateway(self) -> None:
        gateways = await self.cluster.gateways()
        if not all(gateway.is_ready for gateway in gateways):
            return
        victim = self.chance.choice(gateways)
        self.gateway_kills.append((time.time(), victim.name))
        self.kills["gateway"] += victim.signal("gateway", signal.SIGKILL)

    async def kill_engine(self) -> None:
        engines = [pod for pod in await self.cluster.pods() if pod.is_ready]
        if engines:
            self.kills["engine"] += self.chance.choice(engines).signal("engine", signal.SIGKILL)

    async def kill_operator(self) -> None:
        (operator,) = await self.cluster.pods(names.SYSTEM_NAMESPACE, app=names.OPERATOR_NAME)
        self.kills["operator"] += operator.signal("operator", signal.SIGKILL)

    async def restart_api_server(self) -> None:
        await self.cluster.plane.restart_api_server(self.chance.choice((0.0, 2.0)))
        self.kills["API server"] += 1

    def was_killed(self, attempt: Attempt) -> bool:
        """Whether the attempt's gateway was killed during it, or was just starting again."""
        return any(
            name == attempt.gateway and attempt.begun_s - DOWN_S <= at_s <= attempt.ended_s
            for at_s, name in self.gateway_kills
        )


async def load(asking: Asking, until_s: float) -> list[Attempt]:
    """Requests at random moments, each to one of the endpoints whose turn it is."""
    begun_s, running = time.monotonic(), []
    chance = asking.chance
    while time.monotonic() < until_s:
        await asyncio.sleep(chance.expovariate(RATE_PER_S))
        turn = int((time.monotonic() - begun_s) / PERIOD_S * len(ENDPOINTS))
        endpoint = ENDPOINTS[(turn + chance.randrange(len(ENDPOINTS) // 4)) % len(ENDPOINTS)]
        num_tokens = 150 if chance.random() < 0.05 else chance.randint(1, 20)
        call = asking.call(endpoint, num_tokens=num_tokens, is_stream=chance.random() < 0.6)
        running.append(asyncio.create_task(call))
    return await asyncio.gather(*running)


def wakes_without_sleep(cluster: WholeCluster) -> list[str]:
    """Deployments that a gateway has woken twice while the operator has not put them to sleep in between."""
    writes = [(at_s, child, True) for at_s, child in cluster.scale_writes(GATEWAY_ACCOUNT)]
    writes += [(at_s, child, False) for at_s, child in cluster.scale_writes(OPERATOR_ACCOUNT)]
    awake: set[str] = set()
    wrong = []
    for at_s, child, is_wake in sorted(writes):
        if is_wake and child in awake:
            wrong.append(f"{child} at {at_s:.1f}")
        (awake.add if is_wake else awake.discard)(child)
    return wrong


def stopped_at_work(cluster: WholeCluster, attempts: list[Attempt], chaos: Chaos) -> list[Attempt]:
    """Streams that had begun before the operator scaled their endpoint to zero and went on after it."""
    found = []
    for at_s, child in cluster.scale_writes(OPERATOR_ACCOUNT):
        name = child.partition("--")[0]
        found += [
            a
            for a in attempts
            if a.endpoint == name and a.first_text_s and a.first_text_s < at_s < a.ended_s - 0.5
            if not chaos.was_killed(a)
        ]
    return found


async def test_whatever_is_killed_every_request_has_one_end(localplane: Path) -> None:
    node = gpu_node("gpu-1", count=len(ENDPOINTS) * 2)
    async with whole_cluster(localplane, ENDPOINTS, [node]) as cluster:
        for name in ENDPOINTS:
            await cluster.endpoint(name, scaling=SCALING, serving={"heartbeat": "1s", "maxQueue": 200})
        for name in ENDPOINTS:
            await cluster.becomes(name, "ScaledToZero")
        urls = {gateway.name: f"http://{gateway.address}:{names.GATEWAY_PORT}" for gateway in await cluster.gateways()}
        assert len(urls) == 2
        chaos = Chaos(cluster, random.Random(SEED), urls)
        until_s = time.monotonic() + DURATION_S
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            asking = Asking(session, lambda: urls, cluster.expected, random.Random(SEED + 1))
            lasts, _ = await asyncio.gather(load(asking, until_s), chaos.run(until_s))
        report = make_report(cluster, asking, chaos, lasts)
        print(json.dumps(report, indent=1))
        if REPORT:
            await asyncio.to_thread(Path(REPORT).write_text, json.dumps(report, indent=1) + "\n")
        assert report["violations"] == {}
        # It was chaos, and it was use: neither is true of a run in which nothing happened.
        assert all(chaos.kills[what] for what in ("gateway", "engine", "operator", "API server")), chaos.kills
        assert sum(last.end is End.COMPLETE for last in lasts) > 0.8 * len(lasts)
        assert report["wakes"] > len(ENDPOINTS)


def make_report(cluster: WholeCluster, asking: Asking, chaos: Chaos, lasts: list[Attempt]) -> dict[str, Any]:
    """The counts, and what should not have been."""
    attempts = asking.attempts
    violations = {
        "no end": [a for a in attempts if a.end is End.SILENT],
        "wrong": [a for a in attempts if a.end is End.WRONG],
        "broke although its gateway lived": [a for a in attempts if a.end is End.BROKEN and not chaos.was_killed(a)],
        "no retry succeeded": [a for a in lasts if a.end is End.BROKEN],
        "two scale-ups for one wave": wakes_without_sleep(cluster),
        "scaled to zero at work": stopped_at_work(cluster, attempts, chaos),
    }
    waits_s = sorted(a.ended_s - a.begun_s for a in attempts if a.end is End.COMPLETE)
    return {
        "duration_s": DURATION_S,
        "seed": SEED,
        "requests": len(lasts),
        "requests_per_s": round(len(lasts) / DURATION_S, 1),
        "ends of attempts": dict(Counter(a.end for a in attempts)),
        "of these streams": sum(a.is_stream for a in attempts),
        "broken and tried again": asking.num_retried,
        "of these with an answer at last": asking.num_rescued,
        "refusals": dict(Counter(a.detail for a in attempts if a.end is End.REFUSED).most_common(5)),
        "killed": dict(chaos.kills),
        "wakes": len(cluster.scale_writes(GATEWAY_ACCOUNT)),
        "sleeps": len(cluster.scale_writes(OPERATOR_ACCOUNT)),
        "complete_p50_s": round(waits_s[len(waits_s) // 2], 3),
        "complete_p99_s": round(waits_s[len(waits_s) * 99 // 100], 3),
        "violations": {what: [str(one) for one in found[:10]] for what, found in violations.items() if found},
    }
