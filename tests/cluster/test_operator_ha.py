"""Several replicas as processes: one leads, and whatever becomes of it, the next goes on and nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, WATCHED
from emberline_operator.settings import LeaseTimes
from support.operator_process import (
    OperatorProcess,
    free_lease,
    holder,
    is_write,
    led_by,
    own_kubeconfig,
    replica,
    requests_by,
)
from support.operator_rig import OperatorRig, endpoint_yaml, eventually, operator_rig, owns_replicas
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
NAMES = ("one", "two", "three")
NUM_ENDPOINTS = 30


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await free_lease(rig)
        await rig.claim()
        yield rig


async def test_a_leader_killed_in_the_middle_of_a_pass_is_followed_within_20_s(
    rig: OperatorRig, tmp_path: Path
) -> None:
    """With the times as shipped: a look each 2 s, 15 s for the Lease, and no wait after that."""
    async with AsyncExitStack() as stack:
        replicas = {
            name: await stack.enter_async_context(replica(rig, name, tmp_path, lease=asdict(LeaseTimes())))
            for name in NAMES
        }
        for process in replicas.values():
            await process.ready()
        leader, _ = await led_by(rig, set(NAMES))
        for number in range(NUM_ENDPOINTS):
            await rig.endpoint(f"tiny-{number}")
        await eventually(lambda: rig.list(DEPLOYMENTS), "the first Deployment")
        replicas[leader].signal(signal.SIGKILL)
        made = await rig.list(DEPLOYMENTS)
        assert len(made) < NUM_ENDPOINTS, "it was killed before it was through"
        _, took_s = await led_by(rig, set(NAMES) - {leader})
        assert took_s <= 20
        for number in range(NUM_ENDPOINTS):
            await rig.settled(f"tiny-{number}", "ScaledToZero")
        kinds = Counter(child.partition("/")[0] for child in await rig.children())
        assert kinds.keys() >= {"Deployment", "Service", "ConfigMap"}
        assert set(kinds.values()) == {NUM_ENDPOINTS}, "one of each"
        for deployment in await rig.list(DEPLOYMENTS):
            assert deployment["spec"]["replicas"] == 0
            assert owns_replicas(deployment, names.SCALE_MANAGER)
        uids = {o["metadata"]["name"]: o["metadata"]["uid"] for o in await rig.list(DEPLOYMENTS)}
        assert {o["metadata"]["name"]: o["metadata"]["uid"] for o in made}.items() <= uids.items(), "none is made anew"
        followers = [process for name, process in replicas.items() if name != leader]
        assert [process.code for process in followers] == [None, None]


async def test_a_leader_that_was_stopped_for_longer_than_the_lease_writes_nothing_more(
    rig: OperatorRig, plane: TestPlane, tmp_path: Path
) -> None:
    """It is stopped when it has decided to scale to zero and waits for the gateway's word, the last thing before the write."""
    kubeconfig, credential = own_kubeconfig(plane, Path(str(rig.settings.kubeconfig)), tmp_path / "own")
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def when_closing() -> None:
        asked.set()
        await may_answer.wait()

    scaling = {"minReplicas": 0, "maxReplicas": 1, "idleAfter": "1s"}
    async with (
        rig.gateway(idle_s=3600) as gateway,
        replica(rig, "one", tmp_path, kubeconfig=str(kubeconfig)) as stopped,
    ):
        await led_by(rig, {"one"}, 40)
        await rig.endpoint("tiny", scaling=scaling)
        gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
        await rig.deployment("tiny")
        await rig.scale("tiny", 1)
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod, ready=True, since="2026-01-01T00:00:00Z")
        gateway.on_close = when_closing
        async with asyncio.timeout(30):
            await asked.wait()
        stopped.signal(signal.SIGSTOP)
        gateway.on_close = None
        may_answer.set()
        written = sum(map(is_write, requests_by(plane, credential)))
        async with replica(rig, "two", tmp_path):
            await led_by(rig, {"two"}, 40)
            await rig.settled("tiny", "ScaledToZero")
            # What is awake now and holds a request must stay so, whoever comes too late.
            gateway.held, gateway.busy = 1, "it holds 1 request"
            await rig.scale("tiny", 1)
            stopped.signal(signal.SIGCONT)
            assert await stopped.ended() == 1
            assert "lost the leadership" in stopped.words()
            assert "Traceback" not in stopped.words()
            late = [event for event in requests_by(plane, credential) if is_write(event)][written:]
            assert not late, "not one write has reached the API server"
            live = await rig.deployment("tiny")
            assert live["spec"]["replicas"] == 1
            assert await holder(rig) == "two"


async def test_a_stopped_leader_hands_over_at_once(rig: OperatorRig, tmp_path: Path) -> None:
    """SIGTERM, with the times as shipped: nobody waits for the Lease to run out."""
    lease = asdict(LeaseTimes(retry_s=0.5))
    async with replica(rig, "one", tmp_path, lease=lease) as one, replica(rig, "two", tmp_path, lease=lease) as two:
        both: dict[str, OperatorProcess] = {"one": one, "two": two}
        for process in both.values():
            await process.ready()
        first, _ = await led_by(rig, set(both))
        second = next(name for name in both if name != first)
        health = {name: (await process.asked("/healthz"))[1] for name, process in both.items()}
        assert (health[first]["leader"], health[second]["leader"]) == (True, False)
        await rig.endpoint("tiny")
        await rig.settled("tiny", "ScaledToZero")
        before = await rig.versions()
        both[first].signal(signal.SIGTERM)
        begun_s = time.monotonic()
        await led_by(rig, {second})
        assert time.monotonic() - begun_s < 12, "sooner than the Lease runs out"
        assert await both[first].ended() == 0, both[first].words()
        await rig.endpoint("late")
        await rig.settled("late", "ScaledToZero")
        after = await rig.versions()
        assert before.items() <= after.items(), "who takes over writes nothing that is as it should be"
        both[second].signal(signal.SIGTERM)
        assert await both[second].ended() == 0
        assert await holder(rig) == ""


async def test_replicas_of_chosen_namespaces_touch_no_other(rig: OperatorRig, plane: TestPlane, tmp_path: Path) -> None:
    kubeconfig, credential = own_kubeconfig(plane, Path(str(rig.settings.kubeconfig)), tmp_path / "own")
    outside = f"{rig.namespace}-outside"
    plane.kubectl("create", "namespace", outside)
    try:
        await rig.admin.request("POST", ENDPOINTS.path(outside), body=endpoint_yaml("tiny", outside))
        changes = {"kubeconfig": str(kubeconfig), "watch_namespaces": [rig.namespace], "resync_s": 1.0}
        async with replica(rig, "one", tmp_path, **changes) as process:
            await process.ready()
            await rig.endpoint("tiny")
            await rig.settled("tiny", "ScaledToZero")
            await rig.endpoint("tiny-2")
            await rig.settled("tiny-2", "ScaledToZero")
            found = await rig.admin.request("GET", ENDPOINTS.path(outside, "tiny"))
            assert found["status"].get("observedGeneration", -1) == -1, "nobody has looked at it"
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0, process.words()
        namespaced = {kind.plural for kind in WATCHED if kind.is_namespaced}
        read = Counter(
            (event["objectRef"]["resource"], event["objectRef"].get("namespace", ""))
            for event in requests_by(plane, credential)
            if event.get("objectRef", {}).get("resource") in namespaced
        )
        assert {namespace for _, namespace in read} == {rig.namespace, names.SYSTEM_NAMESPACE}
        assert read["pods", names.SYSTEM_NAMESPACE] > 0
        writes = [event["objectRef"] for event in requests_by(plane, credential) if is_write(event)]
        assert {ref.get("namespace") for ref in writes} == {rig.namespace}
    finally:
        await rig.admin.request("DELETE", f"/api/v1/namespaces/{outside}")
