"""Regions on a real API server: engines are where they may be, and nowhere else for longer than is said."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_local.node_spec import NodeSpec, PretendedGpus
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, NODES
from support.operator_rig import OperatorRig, condition, eventually, operator_rig
from support.plane import TestPlane
from support.region_rig import RegionRig, Sighting, region_rig

pytestmark = pytest.mark.cluster
Raw = dict[str, Any]
L4 = PretendedGpus(product="NVIDIA-L4", count=8, memory_mib=23034, compute=(8, 9))
PAGE = Path(__file__).parents[2] / "docs" / "regions.md"
EVICTED_WITHIN_S = 10
"""What the design says of a contradiction."""


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


@asynccontextmanager
async def two_regions(plane: TestPlane, rig: OperatorRig, **options: Any) -> AsyncIterator[RegionRig]:
    """Region `eu` (EU) with nodes eu-1 and eu-2, region `us` (US) with us-1, and an operator."""
    specs = [NodeSpec(name=name, region=name[:2]) for name in ("eu-1", "eu-2", "us-1")]
    async with region_rig(plane, rig, specs, **options) as regions:
        await regions.region("eu", "DE", "EU")
        await regions.region("us", "US")
        async with rig.operator():
            yield regions


async def endpoint(regions: RegionRig, *named: str, least: int = 1, grace: str = "2s", **spec: Any) -> None:
    """`tiny`, bound to the EU, with engines that always run."""
    await regions.rig.endpoint(
        "tiny",
        placement={
            "regions": [regions.name(name) for name in named],
            "residency": {"jurisdictions": ["EU"], "absenceGrace": grace},
        },
        scaling={"minReplicas": least},
        **spec,
    )


async def running(regions: RegionRig, region: str, count: int = 1) -> list[Sighting]:
    """Pods of a region, once so many are ready."""

    async def read() -> list[Sighting] | None:
        ready = [pod for pod in regions.alive(region) if pod.is_ready]
        return ready if len(ready) == count else None

    return await eventually(read, f"{count} engines in {region}")


async def told(rig: OperatorRig, kind: str, reason: str) -> Raw:
    """A condition of `tiny`, once it has that reason."""

    async def read() -> Raw | None:
        found = condition(await rig.get(ENDPOINTS, "tiny") or {}, kind)
        return found if found.get("reason") == reason else None

    return await eventually(read, f"{kind} says {reason}")


async def gone(pod: Sighting) -> None:
    async def read() -> bool:
        return pod.gone_s is not None

    await eventually(read, f"the pod on {pod.node} is gone")


async def nobody(regions: RegionRig) -> None:
    async def read() -> bool:
        return not regions.alive()

    await eventually(read, "no engine is anywhere")


async def replicas(rig: OperatorRig, regions: RegionRig, region: str, count: int) -> None:
    async def read() -> bool:
        live = await rig.get(DEPLOYMENTS, names.child_name("tiny", regions.name(region)))
        return live is not None and live["spec"]["replicas"] == count

    await eventually(read, f"{count} replicas in {region}")


def short_name(regions: RegionRig, pod: Sighting) -> str:
    return pod.node.removesuffix(f"-{regions.word}")


async def test_a_pod_whose_node_is_another_regions_goes_at_once_and_one_whose_node_is_nobodys_after_the_grace(
    plane: TestPlane, rig: OperatorRig
) -> None:
    async with two_regions(plane, rig) as regions:
        await endpoint(regions, "eu")
        (first,) = await running(regions, "eu")
        node = short_name(regions, first)
        began_s = time.monotonic()
        await regions.label(node, "us")
        await gone(first)
        assert first.leaving_s is not None
        assert first.leaving_s - began_s < EVICTED_WITHIN_S
        assert first.grace_s is not None
        assert first.grace_s <= EVICTED_WITHIN_S, "whatever drainTimeout says"
        (second,) = await running(regions, "eu")
        assert second.node != first.node
        began_s = time.monotonic()
        await regions.label(short_name(regions, second), None)
        await gone(second)
        assert second.leaving_s is not None
        assert second.leaving_s - began_s > 0.9, "to the second, as times are recorded"
        placed = await told(rig, "Placed", "NoNodes")
        assert f"no node carries {names.LABEL_TOPOLOGY_REGION}={regions.name('eu')}" in placed["message"]
        await regions.label(node, "eu")
        await running(regions, "eu")
        await told(rig, "Placed", "InRegion")
        assert regions.on("us-1") == []


async def test_a_region_that_is_deleted_starts_nothing_is_emptied_after_the_grace_and_comes_back(
    plane: TestPlane, rig: OperatorRig
) -> None:
    async with two_regions(plane, rig) as regions:
        await endpoint(regions, "eu", least=2, grace="3s")
        pods = await running(regions, "eu", 2)
        began_s = time.monotonic()
        await regions.drop_region("eu")
        placed = await told(rig, "Placed", "ResidencyUnknown")
        assert "absenceGrace 3s" in placed["message"]
        # Somebody, such as a gateway, wants another engine: none may come to be.
        child = names.child_name("tiny", regions.name("eu"))
        await rig.patch(DEPLOYMENTS, child, {"spec": {"replicas": 4}}, "scale")
        await replicas(rig, regions, "eu", 2)
        for pod in pods:
            await gone(pod)
        # The ReplicaSet may have taken one of them for the surplus.
        assert max(pod.leaving_s or 0 for pod in pods) - began_s > 1.9, "they may go on for the grace"
        await replicas(rig, regions, "eu", 0)
        await nobody(regions)
        before = len(regions.pods)
        await regions.region("eu", "DE", "EU")
        await running(regions, "eu", 2)
        await told(rig, "Placed", "InRegion")
        assert len(regions.pods) >= before + 2
        assert regions.on("us-1") == []


async def test_regions_outside_get_nothing_and_one_that_turns_out_to_be_outside_is_emptied(
    plane: TestPlane, rig: OperatorRig
) -> None:
    # A pod that is being deleted would go on for minutes, as one whose streams drain.
    async with two_regions(plane, rig, gone_s=600) as regions:
        await endpoint(regions, "eu")
        (pod,) = await running(regions, "eu")
        both = {"placement": {"regions": [regions.name("us"), regions.name("eu")]}}
        await rig.patch(ENDPOINTS, "tiny", {"spec": both})
        placed = await told(rig, "Placed", "PartlyPlaced")
        assert f"region {regions.name('us')} lies in US, not in EU" in placed["message"]
        tiny = await rig.get(ENDPOINTS, "tiny")
        assert tiny is not None
        us = next(one for one in tiny["status"]["regions"] if one["name"] == regions.name("us"))
        assert "lies in US" in us["message"]
        assert us["desired"] == 0
        began_s = time.monotonic()
        await regions.change_region("eu", jurisdictions=["CH"])
        await told(rig, "Placed", "OutsideJurisdiction")

        async def is_leaving() -> bool:
            return pod.leaving_s is not None and pod.grace_s is not None and pod.grace_s <= EVICTED_WITHIN_S

        await eventually(is_leaving, "the pod is stopped, and not by its own grace period of minutes")
        assert time.monotonic() - began_s < EVICTED_WITHIN_S
        await replicas(rig, regions, "eu", 0)
        await nobody(regions)
        await regions.change_region("eu", jurisdictions=["EU"])
        await running(regions, "eu")
        assert regions.on("us-1") == []


async def test_where_the_only_nodes_take_no_pods_engines_stay_and_nothing_is_placed_elsewhere(
    plane: TestPlane, rig: OperatorRig
) -> None:
    async with two_regions(plane, rig) as regions:
        await endpoint(regions, "eu")
        (first,) = await running(regions, "eu")
        for node in ("eu-1", "eu-2"):
            await regions.cordon(node)
        placed = await told(rig, "Placed", "NoNodes")
        assert "(cordoned)" in placed["message"]
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"minReplicas": 2}}})

        async def is_waiting() -> bool:
            return any(not pod.node for pod in regions.pods.values())

        await eventually(is_waiting, "a second engine waits")
        await asyncio.sleep(1)
        assert regions.alive() == [first]
        await regions.cordon("eu-2", on=False)
        await running(regions, "eu", 2)
        assert regions.on("us-1") == []


async def test_a_region_that_is_left_is_drained_when_the_new_one_answers(plane: TestPlane, rig: OperatorRig) -> None:
    async with two_regions(plane, rig) as regions:
        await regions.change_region("us", jurisdictions=["US", "EU"])
        await endpoint(regions, "eu")
        (old,) = await running(regions, "eu")
        del regions.num_ready[:]
        await regions.cordon("us-1")
        other = {"placement": {"regions": [regions.name("us")]}}
        await rig.patch(ENDPOINTS, "tiny", {"spec": other})
        await told(rig, "Placed", "NoNodes")
        await asyncio.sleep(1)
        assert regions.alive("eu") == [old], "nothing answers in the new region yet"
        await regions.cordon("us-1", on=False)
        (new,) = await running(regions, "us")
        await gone(old)
        assert new.is_ready
        assert min(regions.num_ready) == 1, "some engine could always answer"

        async def is_left() -> bool:
            return await rig.get(DEPLOYMENTS, names.child_name("tiny", regions.name("eu"))) is None

        await eventually(is_left, "the left region's objects are gone")


async def test_several_regions_at_once_have_engines_of_their_own(plane: TestPlane, rig: OperatorRig) -> None:
    async with two_regions(plane, rig) as regions:
        await regions.change_region("us", jurisdictions=["EU"])
        await endpoint(regions, "us", "eu")
        (here,), (there,) = await running(regions, "us"), await running(regions, "eu")
        assert short_name(regions, here) == "us-1"
        assert short_name(regions, there) in ("eu-1", "eu-2")

        async def is_told() -> bool:
            tiny = await rig.settled("tiny", "Serving")
            told_of = [(one["name"], one["ready"]) for one in tiny["status"]["regions"]]
            return told_of == [(regions.name("us"), 1), (regions.name("eu"), 1)]

        await eventually(is_told, "status counts each region's engine, the first region first")


async def test_nodes_that_come_go_or_change_change_no_template(plane: TestPlane, rig: OperatorRig) -> None:
    specs = [
        NodeSpec(name=name, region="eu", gpus=gpus)
        for name, gpus in (("h100", PretendedGpus()), ("l4-1", None), ("l4-2", None))
    ]
    async with region_rig(plane, rig, specs) as regions, rig.operator():
        await regions.region("eu", "EU")
        spec = {
            "model": {"source": "pvc://models/tiny", "parameters": "8B"},
            "accelerator": {"kind": "Nvidia"},
            "placement": {"regions": [regions.name("eu")]},
        }
        await rig.endpoint("tiny", **spec, scaling={"minReplicas": 1})
        (pod,) = await running(regions, "eu")
        child = names.child_name("tiny", regions.name("eu"))
        before = await rig.get(DEPLOYMENTS, child)
        assert before is not None
        assert names.ANNOTATION_PLACEMENT in before["metadata"]["annotations"]
        capacity = {names.GPU_RESOURCE: "8"}
        for name in ("l4-1", "l4-2"):
            # A card that is just large enough: whoever decided now would take it.
            await rig.admin.request(
                "PATCH",
                NODES.path("", regions.name(name), "status"),
                body={"status": {"capacity": capacity, "allocatable": capacity}},
                content_type="application/strategic-merge-patch+json",
            )
            await rig.admin.request(
                "PATCH",
                NODES.path("", regions.name(name)),
                body={"metadata": {"labels": L4.labels}},
                content_type="application/strategic-merge-patch+json",
            )
        await rig.admin.request("DELETE", NODES.path("", regions.name("l4-2")))
        await asyncio.sleep(1)
        await rig.endpoint("fresh", **spec)
        fresh = await rig.settled("fresh", "ScaledToZero")
        assert "l4" in fresh["status"]["regions"][0]["gpuClass"], "or this test shows nothing"
        await regions.label("l4-1", None)
        await regions.label("l4-1", "eu")
        await asyncio.sleep(1.5)
        tiny = await rig.get(ENDPOINTS, "tiny")
        assert tiny is not None
        assert "h100" in tiny["status"]["regions"][0]["gpuClass"]
        after = await rig.get(DEPLOYMENTS, child)
        assert after is not None
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        assert after["spec"]["template"] == before["spec"]["template"]
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert regions.alive() == [pod]
        # Somebody replaces the object without its annotations (T19).
        ours = {key: None for key in before["metadata"]["annotations"] if key.startswith(names.GROUP)}
        await rig.patch(DEPLOYMENTS, child, {"metadata": {"annotations": ours}})

        async def is_recorded() -> Raw | None:
            live = await rig.get(DEPLOYMENTS, child)
            return live if live and names.ANNOTATION_PLACEMENT in live["metadata"]["annotations"] else None

        again = await eventually(is_recorded, "what was decided is recorded again")
        assert again["spec"]["template"] == before["spec"]["template"]
        assert again["metadata"]["annotations"] == before["metadata"]["annotations"]
        assert regions.alive() == [pod]


def test_the_how_tos_objects_are_accepted(plane: TestPlane) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    answer = plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin="---\n".join(blocks))
    assert answer.count("created (server dry run)") == 3
