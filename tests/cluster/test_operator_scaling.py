"""Replicas on a real API server: who writes them, and the way to zero, with gateways played by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, PODS
from emberline_operator.cluster.writes import Writer
from emberline_operator.errors import ConflictError
from emberline_operator.plan import follow, idle, scaling
from emberline_operator.snapshot import Ref
from support.operator_rig import (
    OperatorRig,
    Raw,
    condition,
    endpoint_yaml,
    eventually,
    operator_rig,
    owns_replicas,
    writes_of_operator,
)
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
CHILD = "tiny--default"
FAST = {"minReplicas": 0, "maxReplicas": 2, "idleAfter": "1s"}


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


async def replicas(rig: OperatorRig) -> int:
    live = await rig.get(DEPLOYMENTS, CHILD)
    assert live is not None
    return int(live["spec"]["replicas"])


async def becomes(rig: OperatorRig, wanted: int, timeout_s: float = 20.0) -> None:
    async def read() -> bool:
        return await replicas(rig) == wanted

    await eventually(read, f"{wanted} replicas", timeout_s)


async def awake(rig: OperatorRig, *, scaling: Raw) -> None:
    """An endpoint that was woken and serves."""
    await rig.endpoint("tiny", scaling=scaling)
    await rig.settled("tiny", "ScaledToZero")
    await rig.deployment("tiny")
    await rig.scale("tiny", 1)
    (pod,) = await rig.pods("tiny")
    await rig.set_pod(pod, ready=True)
    await rig.settled("tiny", "Serving")


async def scaling_is(rig: OperatorRig, status: str, reason: str) -> str:
    """The message of ScalingActive once it says so."""

    async def read() -> str | None:
        found = condition(await rig.get(ENDPOINTS, "tiny") or {}, "ScalingActive")
        return found["message"] if (found.get("status"), found.get("reason")) == (status, reason) else None

    return await eventually(read, f"ScalingActive {status} {reason}")


async def test_an_idle_endpoint_goes_to_zero_through_all_gateways(rig: OperatorRig) -> None:
    seen: list[int] = []

    async def look() -> None:
        seen.append(await replicas(rig))

    async with rig.gateway(idle_s=100, on_close=look) as first, rig.gateway(idle_s=100) as second, rig.operator():
        await awake(rig, scaling=FAST)
        await becomes(rig, 0)
        await rig.end_pods("tiny")
        endpoint = await rig.settled("tiny", "ScaledToZero")
        assert "ready" not in condition(endpoint, "Ready")["message"], "it has served, so nothing is said of never"
        for gateway in (first, second):
            close = gateway.closes[-1]
            assert (close.namespace, close.name, close.region) == (rig.namespace, "tiny", names.DEFAULT_REGION)
            assert gateway.reopens[-1].epoch == close.epoch, "opened again after the write"
        assert seen[-1] == 1, "replicas are written only after the close"
        live = await rig.deployment("tiny")
        assert owns_replicas(live, names.SCALE_MANAGER), "at zero the field still has an owner"
        assert not owns_replicas(live, names.OPERATOR_MANAGER)
    writes = writes_of_operator(rig.plane, rig.namespace)
    assert writes.count("patch deployments/") == 3, "create, hand over, let go; nothing more for a wake and a sleep"


async def test_a_write_of_replicas_that_comes_too_late_is_refused(rig: OperatorRig) -> None:
    """What another has written since the decision stands."""
    async with rig.operator():
        await rig.endpoint("tiny", scaling=FAST)
        await rig.settled("tiny", "ScaledToZero")
        seen = await rig.deployment("tiny")
    await rig.scale("tiny", 1)
    caches = Caches()
    writer = Writer(rig.admin, caches, lambda kind, verb: None)
    decision = {"replicas": 0, "uid": seen["metadata"]["uid"], "resource_version": seen["metadata"]["resourceVersion"]}
    with pytest.raises(ConflictError, match="modified"):
        await writer.scale(rig.namespace, Ref("Deployment", CHILD), **decision)
    assert await replicas(rig) == 1


async def test_a_busy_gateway_keeps_it_awake(rig: OperatorRig) -> None:
    async with (
        rig.gateway(idle_s=100) as calm,
        rig.gateway(idle_s=100, busy="2 running on an engine") as busy,
        rig.operator(),
    ):
        await awake(rig, scaling=FAST)

        async def asked_twice() -> bool:
            return len({close.epoch for close in busy.closes}) >= 2

        await eventually(asked_twice, "two attempts")
        assert await replicas(rig) == 1
        epochs = [close.epoch for close in calm.closes]
        assert epochs == sorted(set(epochs)), "each attempt has a higher epoch"
        assert {reopen.epoch for reopen in calm.reopens} >= set(epochs[:-1]), "a gateway that had closed is reopened"
        busy.busy = ""
        await becomes(rig, 0)


async def test_without_a_metrics_api_the_operator_follows_demand(
    rig: OperatorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "LOOK_S", 0.3)
    monkeypatch.setattr(follow, "DOWN_PERIOD_S", 1)
    async with rig.gateway() as gateway, rig.operator():
        gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
        await awake(rig, scaling={"requestsPerReplica": 2, "scaleDownStabilization": "1s", "maxReplicas": 4})
        gateway.held = 8
        await becomes(rig, 4)
        assert await scaling_is(rig, "True", "FollowsDemand")
        gateway.held = 3
        await becomes(rig, 2)
        gateway.held = 0
        await becomes(rig, 1)
        await asyncio.sleep(1.5)
        assert await replicas(rig) == 1, "zero is another matter"
        assert not gateway.closes


async def test_external_is_filled_once_and_then_copied(rig: OperatorRig) -> None:
    """`kubectl scale`, a manifest without the number that is applied again, and the way out of External."""
    manifest = endpoint_yaml("tiny", rig.namespace, scaling={"via": "External", "initialReplicas": 1})

    async def wanted() -> int | None:
        endpoint = await rig.get(ENDPOINTS, "tiny")
        assert endpoint is not None
        number: int | None = endpoint["spec"].get("replicas")
        return number

    def scale(count: int) -> None:
        rig.plane.kubectl("-n", rig.namespace, "scale", "iep", "tiny", f"--replicas={count}")

    async with rig.gateway(idle_s=0.0, busy="1 running on an engine") as gateway, rig.operator():
        rig.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        await eventually(wanted, "spec.replicas")
        assert (await wanted(), await replicas(rig)) == (1, 1)
        assert await scaling_is(rig, "True", "External")
        scale(2)
        await becomes(rig, 2)
        rig.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        rig.plane.apply(manifest)
        assert (await wanted(), await replicas(rig)) == (2, 2), "who leaves the number out does not change it"
        scale(0)
        await becomes(rig, 0)
        assert not gateway.closes, "stopped by hand means stopped, whatever runs"
        await rig.settled("tiny", "Stopped")
        await rig.scale("tiny", 1)
        await becomes(rig, 0)
        manifest["spec"]["scaling"]["via"] = "Auto"
        rig.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        await rig.settled("tiny", "ScaledToZero")
        await rig.scale("tiny", 1)
        await scaling_is(rig, "True", "FollowsDemand")
        assert (await wanted(), await replicas(rig)) == (0, 1), "what is left of External is ignored"
        refused = rig.plane.run_kubectl("-n", rig.namespace, "scale", "iep", "tiny", "--replicas=3")
        assert "replicas is only for scaling.via External" in refused.stderr


async def test_requests_that_are_held_or_recent_keep_it_awake(rig: OperatorRig) -> None:
    async with rig.gateway(idle_s=0.0) as gateway, rig.operator():
        gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
        await awake(rig, scaling=FAST)
        await asyncio.sleep(1.5)
        assert not gateway.closes, "the last request was just now"
        gateway.idle_s, gateway.held = 100, 1
        await asyncio.sleep(1.2)
        assert not gateway.closes, "one is held"
        endpoint = await rig.get(ENDPOINTS, "tiny")
        assert endpoint is not None
        assert endpoint["status"]["scaling"]["lastActiveTime"].endswith(":00Z")
        gateway.held = 0
        await becomes(rig, 0)


async def test_a_gateway_that_cannot_be_asked_blocks_and_no_gateway_too(
    rig: OperatorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "UNKNOWN_POLL_S", 0.5)
    async with rig.operator():
        await awake(rig, scaling=FAST)
        message = await scaling_is(rig, "False", "DemandUnknown")
        assert "start the Deployment emberline-gateway" in message
        async with rig.gateway(idle_s=100) as good, rig.gateway("mute", answers=False):
            message = await scaling_is(rig, "Unknown", "DemandUnknown")
            assert "mute" in message
            assert await replicas(rig) == 1
            assert not good.closes
        async with rig.gateway(idle_s=100):
            await becomes(rig, 0)
        assert await scaling_is(rig, "True", "ScaledToZero")


async def test_a_wrong_token_is_no_answer(rig: OperatorRig) -> None:
    async with rig.gateway("strict", idle_s=100, token="another"), rig.operator():
        await awake(rig, scaling=FAST)
        message = await scaling_is(rig, "Unknown", "DemandUnknown")
        assert "strict: it answered 401" in message
        assert await replicas(rig) == 1


async def test_floor_and_ceiling(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 0, "maxReplicas": 3, "initialReplicas": 1})
        assert (await rig.deployment("tiny"))["spec"]["replicas"] == 1, "initialReplicas"
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"minReplicas": 2}}})
        await becomes(rig, 2)
        await rig.scale("tiny", 0)
        await becomes(rig, 2)
        await rig.scale("tiny", 9)
        await becomes(rig, 3)
        generation = (await rig.deployment("tiny"))["spec"]["template"]
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"minReplicas": 0, "maxReplicas": 1}}})
        await becomes(rig, 1)
        assert (await rig.deployment("tiny"))["spec"]["template"] == generation
        assert (await rig.deployment("tiny"))["metadata"]["managedFields"]


async def test_a_wake_by_the_gateway_is_not_undone_by_a_spec_change(rig: OperatorRig) -> None:
    async with rig.operator():
        await awake(rig, scaling={"idleAfter": "1h"})
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"engine": {"maxSequences": 5}}})

        async def rolled() -> bool:
            live = await rig.deployment("tiny")
            return bool(live["metadata"]["generation"] >= 3)

        await eventually(rolled, "the new template")
        assert await replicas(rig) == 1


async def test_a_start_is_never_cut_off_but_a_failing_one_is(rig: OperatorRig) -> None:
    """T5, T6: nobody calls any more, and it goes on loading; when it only crashes it is given up, and told, and not begun at once."""
    async with rig.gateway(idle_s=100) as gateway, rig.operator():
        await rig.endpoint("tiny", scaling={**FAST, "initialReplicas": 1, "activationTimeout": "3s"})
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod, state={"waiting": {"reason": "ContainerCreating"}})
        await rig.settled("tiny", "Starting")
        await asyncio.sleep(3.5)
        assert await replicas(rig) == 1, "neither idleAfter nor activationTimeout ends what makes progress"
        words = "back-off 10s restarting failed container"
        await rig.set_pod(pod, state={"waiting": {"reason": "CrashLoopBackOff", "message": words}})
        await rig.settled("tiny", "ContainerFailed")
        assert await replicas(rig) == 1, "it has its time from when it was last seen as not ready"
        await becomes(rig, 0)
        assert not gateway.closes, "nothing can be in flight"
        endpoint = await rig.settled("tiny", "StartFailed")
        (region,) = endpoint["status"]["regions"]
        failed = region["failedStart"]
        assert (failed["phase"], failed["count"]) == ("Container", 1)
        assert words in failed["message"]
        assert failed["retryTime"] in condition(endpoint, "Ready")["message"]

        async def told() -> bool:
            return condition(await rig.get(ENDPOINTS, "tiny") or {}, "Degraded")["reason"] == "StartFailed"

        await eventually(told, "the failure, when its pod is gone")
    await rig.scale("tiny", 1)
    async with rig.gateway() as gateway, rig.operator():
        gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
        # Another process: what it knows of the failure is in status.
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod, ready=True)
        endpoint = await rig.settled("tiny", "Serving")
        assert "failedStart" not in endpoint["status"]["regions"][0]


async def test_an_engine_without_a_node_is_given_up_soon(rig: OperatorRig) -> None:
    """T10; the scheduler's words say what is short. A cluster autoscaler that has taken the pod up gets more time."""
    async with rig.gateway(idle_s=100) as gateway, rig.operator():
        gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
        patience = {"unschedulableTimeout": "2s", "activationTimeout": "1h"}
        nowhere = {"nodeSelector": {"example.com/none": rig.namespace}}
        await rig.endpoint("tiny", scaling={**FAST, **patience}, placement=nowhere)
        await rig.settled("tiny", "ScaledToZero")
        await rig.deployment("tiny")
        gateway.held = 1
        await rig.scale("tiny", 1)
        await rig.settled("tiny", "Unschedulable")
        await becomes(rig, 0)
        endpoint = await rig.settled("tiny", "StartFailed")
        failed = endpoint["status"]["regions"][0]["failedStart"]
        assert (failed["phase"], failed["count"]) == ("Scheduling", 1)
        assert "node" in failed["message"]

        async def gone() -> bool:
            return not await rig.list(PODS, f"{names.LABEL_ENDPOINT}=tiny")

        await eventually(gone, "no pod")
        # Times are told to the second: a pod of the very second of the failure counts as one that failed.
        await asyncio.sleep(1.1)
        await rig.scale("tiny", 1)
        (pod,) = await rig.pods("tiny")
        await taken_up(rig, pod)
        await asyncio.sleep(4)
        assert await replicas(rig) == 1


async def taken_up(rig: OperatorRig, pod: Raw) -> None:
    """A cluster autoscaler's Event."""
    metadata = pod["metadata"]
    about = {"kind": "Pod", "namespace": rig.namespace, "name": metadata["name"], "uid": metadata["uid"]}
    body = {
        "metadata": {"generateName": "up-", "namespace": rig.namespace},
        "involvedObject": about, "reason": "TriggeredScaleUp", "type": "Normal", "message": "pod triggered scale-up",
        "source": {"component": "cluster-autoscaler"},
    }  # fmt: skip
    await rig.admin.request("POST", f"/api/v1/namespaces/{rig.namespace}/events", body=body)


async def test_a_schedule_starts_engines_and_lets_them_go(rig: OperatorRig) -> None:
    """Whatever the minute is when the test runs: one that begins each minute and lasts for one is always on."""
    always = {"name": "always", "cron": "* * * * *", "minReplicas": 2, "duration": "1m"}
    async with rig.gateway(idle_s=100), rig.operator():
        await rig.endpoint("tiny", scaling=FAST)
        await rig.settled("tiny", "ScaledToZero")
        await rig.deployment("tiny")
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"schedules": [always]}}})
        await becomes(rig, 2)
        for pod in await rig.pods("tiny", 2):
            await rig.set_pod(pod, ready=True)
        await rig.settled("tiny", "Serving")
        await asyncio.sleep(1.5)
        assert await replicas(rig) == 2, "idle, and no less than the schedule asks for"
        wrong = {**always, "timeZone": "Europe/Berlino"}
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"schedules": [wrong]}}})

        async def refused() -> str | None:
            accepted = condition(await rig.get(ENDPOINTS, "tiny") or {}, "Accepted")
            return accepted["message"] if accepted["status"] == "False" else None

        assert "scaling.schedules[always].timeZone" in await eventually(refused, "not accepted")
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"schedules": []}}})
        await becomes(rig, 0)
