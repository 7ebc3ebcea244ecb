"""Our autoscaler's object on a real API server, and the real autoscaler that follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.api import APPLY
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, HPAS
from emberline_operator.desired.child import Child
from emberline_operator.desired.hpa import make_hpa
from emberline_operator.plan import idle
from emberline_operator.plan.ownership import needs_write
from support.metrics_adapter import MetricsAdapter, metrics_adapter
from support.operator_rig import OperatorRig, Raw, condition, eventually, operator_rig
from support.plane import TestPlane
from support.scaling_cases import spec_of

pytestmark = pytest.mark.cluster
CHILD = "tiny--default"


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


@pytest.mark.parametrize("has_tolerance", [True, False])
@pytest.mark.parametrize(
    "scaling",
    [
        {},
        {"minReplicas": 2, "maxReplicas": 300, "queueDepthPerReplica": 10_000, "scaleDownStabilization": "0s"},
        {"queueDepthPerReplica": 1500, "requestsPerReplica": 3000, "scaleDownStabilization": "1h"},
    ],
)
async def test_it_comes_back_as_it_was_written(rig: OperatorRig, scaling: Raw, has_tolerance: bool) -> None:
    child = Child(rig.namespace, "tiny", (await rig.endpoint("tiny"))["metadata"]["uid"], "default")
    body = make_hpa(child, spec_of(scaling=scaling), floor=0, has_tolerance=has_tolerance)
    path = HPAS.path(rig.namespace, child.name)
    query = [("fieldManager", names.OPERATOR_MANAGER), ("force", "true")]
    live = await rig.admin.request("PATCH", path, body=body, query=query, content_type=APPLY)
    assert not needs_write(live, body, names.OPERATOR_MANAGER)
    other = make_hpa(child, spec_of(scaling={**scaling, "maxReplicas": 500}), floor=0, has_tolerance=has_tolerance)
    assert needs_write(live, other, names.OPERATOR_MANAGER)


async def replicas(rig: OperatorRig) -> int:
    live = await rig.get(DEPLOYMENTS, CHILD)
    assert live is not None
    return int(live["spec"]["replicas"])


async def is_at(rig: OperatorRig, wanted: int) -> None:
    """Waits for that number of replicas."""

    async def read() -> bool:
        return await replicas(rig) == wanted

    await eventually(read, f"{wanted} replicas", 60)


async def scaling_is(rig: OperatorRig, reason: str) -> Raw:
    async def read() -> Raw | None:
        found = condition(await rig.get(ENDPOINTS, "tiny") or {}, "ScalingActive")
        return found if found.get("reason") == reason else None

    return await eventually(read, f"ScalingActive {reason}", 60)


async def test_the_real_autoscaler_scales_by_it(
    rig: OperatorRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "POLL_S", 1.0)
    monkeypatch.setattr(idle, "UNKNOWN_POLL_S", 1.0)
    async with metrics_adapter(rig.admin, tmp_path) as metrics, rig.operator():
        metrics.values = {names.METRIC_QUEUE_LOAD: 0, names.METRIC_REQUESTS: 1}
        await rig.endpoint("tiny", scaling={"scaleDownStabilization": "0s", "idleAfter": "1s", "maxReplicas": 5})
        await scaling_is(rig, "ScaledToZero")

        async def is_made() -> Raw | None:
            return await rig.get(HPAS, CHILD)

        await eventually(is_made, "the autoscaler", 60)
        await asyncio.sleep(3)
        assert await replicas(rig) == 0, "it wakes nothing"
        await rig.deployment("tiny")
        await rig.scale("tiny", 1)
        metrics.values[names.METRIC_QUEUE_LOAD] = 7
        await is_at(rig, 2)
        metrics.values[names.METRIC_QUEUE_LOAD] = 0
        await is_at(rig, 1)
        metrics.values[names.METRIC_REQUESTS] = 32 * 3.5
        await is_at(rig, 4)
        assert metrics.asked == {(rig.namespace, "tiny", "emberline.dev/region=default")}
        async with rig.gateway(idle_s=0.0) as gateway:
            gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
            await scaling_is(rig, "FollowsHPA")
            await rig.set_pod((await rig.pods("tiny", 4))[0], ready=True)
            await keeps_four(rig, metrics)
            # Idle: the operator alone goes to zero, and the autoscaler stays there.
            gateway.idle_s = 100
            metrics.values = {names.METRIC_QUEUE_LOAD: 0, names.METRIC_REQUESTS: 0}
            await is_at(rig, 0)
            assert gateway.closes
            await scaling_is(rig, "ScaledToZero")
            await asyncio.sleep(3)
            assert await replicas(rig) == 0


async def keeps_four(rig: OperatorRig, metrics: MetricsAdapter) -> None:
    # A user edits the image at four: nobody writes replicas (T17).
    await rig.patch(ENDPOINTS, "tiny", {"spec": {"engine": {"image": "emberline/runtime:next"}}})

    async def has_image() -> bool:
        live = await rig.deployment("tiny")
        return bool(live["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":next"))

    await eventually(has_image, "the new image")
    assert await replicas(rig) == 4
    # No metrics: nothing moves, and status says so (T14).
    metrics.values.clear()
    assert "is not known now" in (await scaling_is(rig, "MetricsUnavailable"))["message"]
    assert await replicas(rig) == 4
