"""GPUs and precision on a real API server: what status says, and where the real scheduler puts the pods by the terms.

All endpoints ask for more engines than the right nodes have GPUs: what is left must stay Pending rather than go elsewhere.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_local.node_options import GPUS
from emberline_local.node_spec import NodeSpec
from emberline_operator.cluster.kinds import CONFIGMAPS, DEPLOYMENTS, ENDPOINTS, PODS
from emberline_operator.desired.template import configmap_of
from support.operator_rig import OperatorRig, condition, eventually, operator_rig
from support.plane import TestPlane
from support.region_rig import RegionRig, region_rig

pytestmark = pytest.mark.cluster
Raw = dict[str, Any]
TINY, LLAMA, LARGE = "smollm2-135m", "llama-3.1-8b", "llama-3.1-70b"


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


def gpu_node(name: str, region: str, kind: str, **labels: str) -> NodeSpec:
    """A node with one GPU of a kind, or one that four pods share."""
    return NodeSpec(name=name, region=region, gpus=replace(GPUS[kind], count=1), labels=labels)


@asynccontextmanager
async def regions_of(plane: TestPlane, rig: OperatorRig, specs: list[NodeSpec]) -> AsyncIterator[RegionRig]:
    """Those nodes, their regions, and an operator."""
    async with region_rig(plane, rig, specs) as regions:
        for region in sorted({spec.region for spec in specs if spec.region}):
            await regions.region(region)
        async with rig.operator():
            yield regions


async def endpoint(regions: RegionRig, name: str, region: str, model: str, *, engines: int = 2, **spec: Any) -> None:
    await regions.rig.endpoint(
        name,
        **{
            "model": {"source": f"pvc://models/{model}"},
            "accelerator": {},
            "placement": {"regions": [regions.name(region)]},
            "scaling": {"minReplicas": engines, "maxReplicas": engines},
            **spec,
        },
    )


async def placed(regions: RegionRig, name: str) -> Raw:
    """The endpoint once it is known whether it is placed, and status shows it."""

    async def read() -> Raw | None:
        found = await regions.rig.get(ENDPOINTS, name)
        assert found is not None
        return found if condition(found, "Placed").get("status") in ("True", "False") else None

    return await eventually(read, f"{name} looked at")


async def where(regions: RegionRig, name: str, engines: int = 2) -> tuple[set[str], int]:
    """Nodes of the endpoint's pods, and how many pods no node can take, once the scheduler has said so of each."""

    async def read() -> tuple[set[str], int] | None:
        pods = await regions.rig.list(PODS, f"{names.LABEL_ENDPOINT}={name}")
        bound = [pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")]
        waiting = [pod for pod in pods if _is_unschedulable(pod)]
        return (set(bound), len(waiting)) if len(bound) + len(waiting) == engines else None

    found, waiting = await eventually(read, f"{engines} pods of {name} looked at by the scheduler")
    word = regions.name("")
    return {node.removesuffix(word) for node in found}, waiting


def _is_unschedulable(pod: Raw) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


@dataclass(frozen=True)
class Case:
    """Nodes of a region, by name and kind, and what becomes of an endpoint there."""

    nodes: dict[str, str]
    model: str
    gpu_class: str
    format: str
    quantization: str | None
    on: str
    skipped: dict[str, str] = field(default_factory=dict)
    spec: Raw = field(default_factory=dict)


CASES = {
    "hopper": Case({"h100": "h100"}, LLAMA, "h100", "fp8", "fp8", "h100"),
    "ada": Case({"l4": "l4"}, LLAMA, "l4", "fp8", "fp8", "l4"),
    "forty": Case({"a100-40": "a100-40"}, LLAMA, "a100-40", "bf16", None, "a100-40"),
    "eighty": Case({"a100-80": "a100"}, LARGE, "a100-80", "int8", "int8", "a100-80"),
    "turing": Case({"t4": "t4"}, TINY, "t4", "fp16", None, "t4"),
    "blackwell": Case({"b200": "b200"}, LARGE, "b200", "fp8", "fp8", "b200"),
    "amd": Case({"mi300x": "mi300x"}, LARGE, "mi300x", "fp8", "fp8", "mi300x",
                spec={"accelerator": {"kind": "Amd"}}),
    "both": Case({"both-h100": "h100", "both-l4": "l4"}, LARGE, "h100", "fp8", "fp8", "both-h100",
                 skipped={"l4": "fp8 needs 73.2 GiB"}),
    "sizes": Case({"sizes-80": "a100", "sizes-40": "a100-40", "sizes-mig": "a100-mig"}, "yi-34b", "a100-80", "bf16", None,
                  "sizes-80", skipped={"a100-40": "it would have to be int8", "a100-80-mig-1g.10gb": "needs"}),
    # T39: a checkpoint in FP8 where A100 and L4 are.
    "stored": Case({"stored-a100": "a100", "stored-l4": "l4"}, f"{LLAMA}-fp8", "l4", "fp8", None, "stored-l4",
                   skipped={"a100-80": "it does not compute in fp8"}),
    "slices": Case({"slices-mig": "a100-mig", "slices-a100": "a100", "slices-h100": "h100"}, TINY, "a100-80-mig-1g.10gb",
                   "bf16", None, "slices-mig", skipped={"h100": "does not name it"},
                   spec={"accelerator": {"types": ["a100-80-mig-1g.10gb"]}}),
    "named": Case({"named-l4": "l4", "named-4090": "rtx4090", "named-shared": "l4-shared"}, LLAMA, "l4", "fp8", "fp8",
                  "named-l4", skipped={"l4-shared": "does not name it"}, spec={"accelerator": {"types": ["l4"]}}),
    "shared": Case({"quarters": "l4-shared", "quarters-l4": "l4"}, TINY, "l4-shared", "bf16", None, "quarters",
                   skipped={"l4": "does not name it"}, spec={"accelerator": {"types": ["l4-shared"]}}),
}  # fmt: skip


async def test_each_gpu_gets_its_precision_and_pods_go_there_and_nowhere_else(
    plane: TestPlane, rig: OperatorRig
) -> None:
    specs = [gpu_node(name, region, kind) for region, case in CASES.items() for name, kind in case.nodes.items()]
    async with regions_of(plane, rig, specs) as regions:
        await asyncio.gather(
            *(endpoint(regions, region, region, case.model, engines=_engines(case), **case.spec)
              for region, case in CASES.items())
        )  # fmt: skip
        for region, case in CASES.items():
            found = await placed(regions, region)
            status = found["status"]
            assert condition(found, "Placed")["status"] == "True", (region, condition(found, "Placed"))
            [shown] = status["regions"]
            assert (shown["gpuClass"], status["precision"]["format"]) == (case.gpu_class, case.format), region
            assert case.gpu_class in status["precision"]["reason"]
            skipped = {one["name"]: one["reason"] for one in shown.get("skipped", ())}
            for name, words in case.skipped.items():
                assert words in skipped[name], region
            live = await rig.get(DEPLOYMENTS, names.child_name(region, regions.name(region)))
            assert live is not None
            config = await rig.get(CONFIGMAPS, configmap_of(live["spec"]["template"]))
            assert config is not None
            engine = json.loads(config["data"][names.ENGINE_CONFIG_FILE])
            assert engine.get("quantization") == case.quantization, region
            assert await where(regions, region, _engines(case)) == ({case.on}, 1), region


def _engines(case: Case) -> int:
    """One more than the node that they shall be on has GPUs."""
    return GPUS[case.nodes[case.on]].replicas + 1


async def test_what_cannot_be_served_is_said_and_starts_nothing(plane: TestPlane, rig: OperatorRig) -> None:
    specs = [gpu_node("few-t4", "few", "t4"), gpu_node("split-l4", "split", "l4-shared")]
    async with regions_of(plane, rig, specs) as regions:
        await endpoint(regions, "large", "few", LARGE)
        await endpoint(regions, "fp8", "few", TINY, precision={"format": "fp8"})
        await endpoint(regions, "awq", "few", f"{LLAMA}-awq")
        await endpoint(regions, "wrong", "few", TINY, accelerator={"types": ["t44"]})
        await endpoint(regions, "shared", "split", TINY)
        await endpoint(regions, "several", "few", TINY, accelerator={"count": 2})
        expected = {
            "large": ("DoesNotFit", "t4: int8 needs 73.2 GiB"),
            "fp8": ("PrecisionUnsupported", "compute capability 7.5 does not compute in fp8; use int8 or fp16"),
            "awq": ("PrecisionUnsupported", "this engine does not load AWQ checkpoints yet"),
            "wrong": ("NoSuchGpu", "did you mean t4?"),
            "shared": ("NoSuchGpu", "4 pods share it; name it in accelerator.types to use it"),
            "several": ("NeedsSeveralGpus", "accelerator.count is 2"),
        }
        for name, (reason, words) in expected.items():
            is_placed = condition(await placed(regions, name), "Placed")
            assert (is_placed["status"], is_placed["reason"]) == ("False", reason), is_placed
            assert words in is_placed["message"]
            assert await rig.list(PODS, f"{names.LABEL_ENDPOINT}={name}") == []


async def test_a_declared_pool_is_placed_on_before_it_has_a_node(plane: TestPlane, rig: OperatorRig) -> None:
    pool = {"name": "spot", "nodeSelector": {"example.com/pool": "spot"}, "type": "h100", "computeCapability": "9.0",
            "memory": "80Gi", "maxNodes": 2, "pricePerHour": "3"}  # fmt: skip
    async with region_rig(plane, rig, []) as regions:
        await regions.region("auto", gpuPools=[pool, {**pool, "name": "dear", "pricePerHour": "9",
                                                      "nodeSelector": {"example.com/pool": "dear"}}])  # fmt: skip
        async with rig.operator():
            await endpoint(regions, "pooled", "auto", LLAMA)
            found = await placed(regions, "pooled")
            assert condition(found, "Placed")["status"] == "True", condition(found, "Placed")
            [shown] = found["status"]["regions"]
            assert shown["gpuClass"] == "h100 (pool spot)"
            assert shown["skipped"] == [
                {"name": "h100 (pool dear)", "reason": "h100 (pool spot) goes first: it costs more"}
            ]
            assert await where(regions, "pooled") == (set(), 2)
            # The autoscaler makes a node of each pool, before any label of GPU feature discovery is on it.
            region = {names.LABEL_TOPOLOGY_REGION: regions.name("auto")}
            async with (
                rig.node("dear", gpus="h100", **region, **{"example.com/pool": "dear"}),
                rig.node("spot", gpus="h100", **region, **{"example.com/pool": "spot"}) as spot,
            ):

                async def bound() -> set[str]:
                    pods = await rig.list(PODS, f"{names.LABEL_ENDPOINT}=pooled")
                    nodes = {pod["spec"].get("nodeName", "") for pod in pods}
                    return nodes if "" not in nodes else set()

                assert await eventually(bound, "both pods bound") == {spot}
