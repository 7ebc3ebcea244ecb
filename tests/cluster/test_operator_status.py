"""Status on a real API server: what is wrong is shown in the words of who saw it, and Ready never lies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.kinds import CLAIMS, DEPLOYMENTS, ENDPOINTS, PODS, REGIONS
from support.operator_rig import (
    STRATEGIC,
    OperatorRig,
    Raw,
    condition,
    eventually,
    operator_rig,
    writes_of_operator,
)
from support.plane import TestPlane

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        yield rig


async def test_pods_that_cannot_start_are_explained(rig: OperatorRig) -> None:
    await rig.claim()
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 1})
        # There is no node: the real scheduler says so.
        endpoint = await rig.settled("tiny", "Unschedulable")
        ready = condition(endpoint, "Ready")
        assert ready["status"] == "False"
        assert "no nodes available to schedule pods" in ready["message"]
        assert condition(endpoint, "Degraded")["status"] == "True"

        (pod,) = await rig.pods("tiny")
        words = 'Back-off pulling image "emberline/runtime:dev"'
        await rig.set_pod(pod, state={"waiting": {"reason": "ImagePullBackOff", "message": words}})
        begun = time.monotonic()
        endpoint = await rig.settled("tiny", "ContainerFailed")
        assert time.monotonic() - begun < 5
        assert f"ImagePullBackOff: {words}" in condition(endpoint, "Ready")["message"]

        ended = {"exitCode": 3, "reason": "Error", "message": "config.json is missing in /models"}
        await rig.set_pod(
            pod,
            state={"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
            lastState={"terminated": ended},
            restartCount=2,
        )

        async def told() -> bool:
            shown = condition(await rig.get(ENDPOINTS, "tiny") or {}, "Ready")
            return "exit code 3" in shown["message"] and ended["message"] in shown["message"]

        await eventually(told, "the container's last words")
        # Between two crashes it runs: still no reason to say that all is well.
        await rig.set_pod(pod, lastState={"terminated": ended}, restartCount=3)
        await asyncio.sleep(0.5)
        assert await told()

        await rig.set_pod(pod, ready=True, lastState={"terminated": ended}, restartCount=3)
        endpoint = await rig.settled("tiny", "Serving")
        assert condition(endpoint, "Degraded")["status"] == "False"
        assert endpoint["status"]["readyReplicas"] == 1
        assert endpoint["status"]["regions"] == [{"name": names.DEFAULT_REGION, "desired": 1, "ready": 1}]


async def test_an_old_pod_that_works_keeps_it_ready_while_the_new_one_comes(rig: OperatorRig) -> None:
    await rig.claim()
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 1})
        (old,) = await rig.pods("tiny")
        await rig.set_pod(old, ready=True)
        before = condition(await rig.settled("tiny", "Serving"), "Ready")
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"engine": {"maxSequences": 7}}})

        async def reconciling() -> Raw | None:
            endpoint = await rig.get(ENDPOINTS, "tiny")
            assert endpoint is not None
            found = condition(endpoint, "Reconciling")
            is_current = endpoint["status"]["observedGeneration"] == 2
            return endpoint if is_current and old["metadata"]["name"] in found.get("message", "") else None

        endpoint = await eventually(reconciling, "Reconciling, naming the old pod")
        ready = condition(endpoint, "Ready")
        assert (ready["status"], ready["reason"]) == ("True", "Serving")
        assert ready["lastTransitionTime"] == before["lastTransitionTime"]
        (new,) = [pod for pod in await rig.pods("tiny", 2) if pod["metadata"]["uid"] != old["metadata"]["uid"]]
        await rig.set_pod(new, ready=True)
        await rig.pods("tiny", 1)
        endpoint = await rig.settled("tiny", "Serving")
        assert condition(endpoint, "Ready")["lastTransitionTime"] == before["lastTransitionTime"]


async def test_an_init_container_that_fails_after_the_engine_has_served_is_told(rig: OperatorRig) -> None:
    """T37: a running pod restarts into Init:CrashLoopBackOff."""
    await rig.claim()
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 1})
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod, ready=True)
        await rig.settled("tiny", "Serving")
        begun = time.monotonic()
        await rig.set_pod(pod, ready=False, state={"waiting": {"reason": "PodInitializing"}}, restartCount=1)
        failing = {
            "name": "fetch", "image": "i", "imageID": "", "ready": False, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
            "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "message": "no space left"}},
        }  # fmt: skip
        body = {"status": {"phase": "Pending", "initContainerStatuses": [failing]}}
        await rig.patch(PODS, pod["metadata"]["name"], body, "status", STRATEGIC)
        endpoint = await rig.settled("tiny", "ContainerFailed")
        assert time.monotonic() - begun < 30
        assert condition(endpoint, "Ready")["status"] == "False"
        degraded = condition(endpoint, "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "ContainerFailed")
        assert "container fetch: CrashLoopBackOff" in degraded["message"]
        assert "no space left" in degraded["message"]


async def test_a_region_places_pods_and_an_unknown_one_places_nothing(rig: OperatorRig) -> None:
    await rig.claim()
    region = f"eu-{rig.namespace}"[:25].rstrip("-")
    async with rig.operator():
        await rig.endpoint("tiny", placement={"regions": [region]})
        endpoint = await rig.settled("tiny", "NotPlaced")
        placed = condition(endpoint, "Placed")
        assert (placed["status"], placed["reason"]) == ("False", "UnknownRegion")
        assert "create it or name another" in placed["message"]
        assert await rig.children() == []
        await rig.region(region, **{"topology.kubernetes.io/region": rig.namespace})
        try:
            async with rig.node("first", **{"topology.kubernetes.io/region": rig.namespace}):
                # A node in the region is what it waited for.
                await rig.settled("tiny", "ScaledToZero", 5)
            live = await rig.deployment("tiny", region)
            affinity = live["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
            (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            assert term["matchExpressions"] == [
                {"key": "topology.kubernetes.io/region", "operator": "In", "values": [rig.namespace]}
            ]
            # To another place: the new objects come, then those of the place that was left go.
            await rig.patch(ENDPOINTS, "tiny", {"spec": {"placement": {"regions": []}}})

            async def moved() -> bool:
                return await rig.get(DEPLOYMENTS, f"tiny--{region}") is None

            await eventually(moved, "the Deployment of the region that was left gone")
            await rig.settled("tiny", "ScaledToZero")
            assert len([child for child in await rig.children() if "tiny--default" in child]) == 4
        finally:
            await rig.delete(REGIONS, region)


async def test_a_claim_that_is_missing_or_unbound_is_shown(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.endpoint("tiny")
        endpoint = await rig.settled("tiny", "WeightsNotReady")
        assert condition(endpoint, "WeightsReady")["reason"] == "ClaimNotFound"
        assert condition(endpoint, "Ready")["status"] == "False"
        await rig.claim(bound=False)

        async def unbound() -> bool:
            found = await rig.get(ENDPOINTS, "tiny") or {}
            return condition(found, "WeightsReady").get("reason") == "ClaimNotBound"

        await eventually(unbound, "ClaimNotBound")
        await rig.delete(CLAIMS, "models")

        async def gone() -> bool:
            return await rig.get(CLAIMS, "models") is None

        await eventually(gone, "the claim gone")
        await rig.claim()
        endpoint = await rig.settled("tiny", "ScaledToZero")
        assert condition(endpoint, "WeightsReady")["reason"] == "ClaimBound"
        assert "No engine has been ready" in condition(endpoint, "Ready")["message"]


async def test_status_is_written_seldom_unless_a_condition_flips(rig: OperatorRig) -> None:
    await rig.claim()
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 1})
        (pod,) = await rig.pods("tiny")
        for attempt in range(8):
            waiting = {"reason": "CrashLoopBackOff", "message": f"attempt {attempt}"}
            await rig.set_pod(pod, state={"waiting": waiting})
            await asyncio.sleep(0.1)
        writes = writes_of_operator(rig.plane, rig.namespace).count("patch inferenceendpoints/status")

        async def last() -> bool:
            found = condition(await rig.get(ENDPOINTS, "tiny") or {}, "Ready")
            return "attempt 7" in found["message"]

        await eventually(last, "the last message, after a while")
        # Made, unschedulable, failing, perhaps starting in between: flips; the eight messages are no flips.
        assert writes <= 5


async def test_a_refused_write_is_shown_and_tried_again(rig: OperatorRig) -> None:
    await rig.claim()
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none"},
        "spec": {"hard": {"count/services": "0"}},
    }
    path = f"/api/v1/namespaces/{rig.namespace}/resourcequotas"
    await rig.admin.request("POST", path, body=quota)

    async def counted() -> bool:
        return bool((await rig.admin.request("GET", f"{path}/none"))["status"].get("hard"))

    await eventually(counted, "the quota in force")
    async with rig.operator():
        await rig.endpoint("tiny")

        async def shown() -> str:
            found = condition(await rig.get(ENDPOINTS, "tiny") or {}, "Degraded")
            return str(found["message"]) if found.get("reason") == "ApplyFailed" else ""

        message = await eventually(shown, "Degraded with the API server's answer")
        assert "exceeded quota: none" in message
        await rig.admin.request("DELETE", f"{path}/none")
        endpoint = await rig.settled("tiny", "ScaledToZero", 30)
        assert condition(endpoint, "Degraded")["status"] == "False"
