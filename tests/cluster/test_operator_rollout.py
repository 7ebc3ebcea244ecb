"""Roll-outs on a real API server with its controllers and scheduler; tests play the kubelets of nodes that pretend GPUs.

The 30 s that a surge may look for a node are 1 s here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, NODES, PDBS, PODS, REGIONS
from emberline_operator.desired.deployment import strategy_of
from emberline_operator.desired.template import image_of, signature
from emberline_operator.errors import ClusterError
from support.operator_rig import (
    OperatorRig,
    condition,
    eventually,
    operator_rig,
    writes_of_operator,
)
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
Raw = dict[str, Any]
CHILD = "tiny--default"
PATIENCE_S = 1.0


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        rig.settings = replace(rig.settings, install=replace(rig.settings.install, surge_patience_s=PATIENCE_S))
        yield rig


@asynccontextmanager
async def gpus(rig: OperatorRig, count: int, name: str = "gpu", **labels: str) -> AsyncIterator[str]:
    """A node with so many H100, for this test alone."""
    async with rig.node(name, gpus="h100", **{"test": rig.namespace, **labels}) as node:
        size = {names.GPU_RESOURCE: str(count)}
        body = {"status": {"capacity": size, "allocatable": size}}
        path = NODES.path("", node, "status")
        await rig.admin.request("PATCH", path, body=body, content_type="application/strategic-merge-patch+json")
        yield node


async def endpoint(rig: OperatorRig, name: str = "tiny", replicas: int = 1, **spec: Any) -> None:
    """An endpoint on this test's H100, whose engines always run."""
    await rig.endpoint(name, **wanted(rig, replicas, **spec))


def wanted(rig: OperatorRig, replicas: int = 1, **spec: Any) -> Raw:
    full: Raw = {
        "model": {"source": "pvc://models/tiny", "parameters": "8B"},
        "accelerator": {"kind": "Nvidia", "types": ["h100"]},
        "placement": {"nodeSelector": {"test": rig.namespace}},
        "scaling": {"minReplicas": replicas, "maxReplicas": replicas},
    }
    return {**full, **spec}


async def edit(rig: OperatorRig, name: str = "tiny", **spec: Any) -> None:
    await rig.patch(ENDPOINTS, name, {"spec": spec})


async def alive(rig: OperatorRig, name: str = "tiny") -> list[Raw]:
    listed = await rig.list(PODS, f"{names.LABEL_ENDPOINT}={name}")
    return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]


async def leaving(rig: OperatorRig, name: str = "tiny") -> list[Raw]:
    listed = await rig.list(PODS, f"{names.LABEL_ENDPOINT}={name}")
    return [pod for pod in listed if "deletionTimestamp" in pod["metadata"]]


def is_ready(pod: Raw) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


async def load(rig: OperatorRig, count: int, name: str = "tiny") -> list[Raw]:
    """Play the kubelet: bound engines load and become ready until so many are."""

    async def read() -> list[Raw] | None:
        bound = [pod for pod in await alive(rig, name) if pod["spec"].get("nodeName")]
        for pod in bound:
            if not is_ready(pod):
                await rig.set_pod(pod, ready=True)
        return bound if len(bound) == count and all(map(is_ready, bound)) else None

    return await eventually(read, f"{count} engines of {name} are ready")


async def blocked(rig: OperatorRig, reason: str, name: str = "tiny") -> str:
    """The message of RolloutBlocked, once it has that reason."""

    async def read() -> str | None:
        live = await rig.get(ENDPOINTS, name)
        assert live is not None
        found = condition(live, "RolloutBlocked")
        return f"{found['message']}" if found.get("reason") == reason else None

    try:
        return await eventually(read, f"{name} has RolloutBlocked with {reason}")
    except AssertionError as error:
        error.add_note(json.dumps(((await rig.get(ENDPOINTS, name)) or {}).get("status"), indent=1))
        raise


async def strategy(rig: OperatorRig, name: str = "tiny") -> str:
    live = await rig.get(DEPLOYMENTS, f"{name}--default")
    assert live is not None
    return strategy_of(live)


def uids(pods: list[Raw]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


async def test_one_gpu_and_any_argument_changed(rig: OperatorRig) -> None:
    """T22: the old engine finishes its requests and gives its GPU to the new one; status tells which one holds it."""
    async with gpus(rig, 1) as node, rig.operator():
        await endpoint(rig)
        (old,) = await load(rig, 1)
        await rig.settled("tiny", "Serving")
        await edit(rig, engine={"maxSequences": 7})
        message = await blocked(rig, "WaitingForDrain")
        assert old["metadata"]["name"] in message
        assert node in message
        (ending,) = await leaving(rig)
        assert ending["metadata"]["deletionTimestamp"] in message
        live = await rig.get(ENDPOINTS, "tiny")
        assert live is not None
        assert condition(live, "Ready")["status"] == "False"
        assert not condition(live, "Stalled")
        assert condition(live, "Reconciling")["status"] == "True"
        await rig.end_pods("tiny")
        await eventually(lambda: _has_bound(rig), "the new engine has the GPU")
        live = await rig.get(ENDPOINTS, "tiny")
        assert live is not None
        assert condition(live, "Reconciling")["status"] == "True", "it loads still"
        (new,) = await load(rig, 1)
        settled = await rig.settled("tiny", "Serving")
        assert condition(settled, "RolloutBlocked")["status"] == "False"
        await eventually(lambda: _rolled_out(rig), "the roll-out is over")
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
    scales = [write for write in writes_of_operator(rig.plane, rig.namespace) if "/scale" in write]
    assert not scales, "a roll-out never writes replicas"


async def _has_bound(rig: OperatorRig) -> bool:
    return any(pod["spec"].get("nodeName") for pod in await alive(rig))


async def _rolled_out(rig: OperatorRig) -> bool:
    return not condition(await rig.get(ENDPOINTS, "tiny") or {}, "Reconciling")


async def test_a_wake_is_no_roll_out(rig: OperatorRig) -> None:
    """Also the first one after an edit that came while nothing ran."""
    async with gpus(rig, 1), rig.gateway(idle_s=0), rig.operator():
        await endpoint(rig, replicas=0, scaling={"minReplicas": 0, "maxReplicas": 1})
        await rig.settled("tiny", "ScaledToZero")
        for number in (1, 2):
            await rig.patch(DEPLOYMENTS, "tiny--default", {"spec": {"replicas": 1}})
            await eventually(lambda: _has_bound(rig), "an engine wakes")
            await rig.settled("tiny", "Starting")
            assert await _rolled_out(rig)
            await load(rig, 1)
            await rig.settled("tiny", "Serving")
            await rig.patch(DEPLOYMENTS, "tiny--default", {"spec": {"replicas": 0}})
            await rig.end_pods("tiny")
            await rig.settled("tiny", "ScaledToZero")
            await edit(rig, engine={"maxSequences": number})
            await rig.settled("tiny", "ScaledToZero")


async def test_a_spare_gpu_keeps_the_old_engine_until_the_new_one_answers(rig: OperatorRig) -> None:
    """T25 too: while an old engine is there status says so, at whatever moment somebody looks."""
    async with gpus(rig, 2), rig.operator():
        await endpoint(rig)
        (old,) = await load(rig, 1)
        await rig.settled("tiny", "Serving")
        await edit(rig, engine={"maxSequences": 7})

        async def new_one_is_bound() -> list[Raw] | None:
            bound = [pod for pod in await alive(rig) if pod["spec"].get("nodeName")]
            live = await rig.get(ENDPOINTS, "tiny")
            assert live is not None
            if live["status"]["observedGeneration"] == live["metadata"]["generation"]:
                assert condition(live, "Reconciling")["status"] == "True", "an old engine is still there"
            return bound if len(bound) == 2 else None

        await eventually(new_one_is_bound, "the new engine has a node")
        assert not await leaving(rig)
        live = await rig.get(ENDPOINTS, "tiny")
        assert live is not None
        assert condition(live, "Ready")["status"] == "True"
        await load(rig, 1)
        await rig.settled("tiny", "Serving")
        assert uids(await leaving(rig)) == {old["metadata"]["uid"]}
        assert await strategy(rig) == "Surge"


@asynccontextmanager
async def stranger(rig: OperatorRig, node: str) -> AsyncIterator[None]:
    """Somebody else's pod that holds a GPU of the node; the operator does not see it."""
    container = {"name": "c", "image": "i", "resources": {"limits": {names.GPU_RESOURCE: "1"}}}
    body = {"metadata": {"name": "stranger"}, "spec": {"nodeName": node, "containers": [container]}}
    await rig.create(PODS, body)
    try:
        yield
    finally:
        await rig.delete(PODS, "stranger", gracePeriodSeconds=0)


async def test_a_surge_that_finds_no_gpu_turns_round_in_the_same_rollout(rig: OperatorRig) -> None:
    async with gpus(rig, 2) as node, rig.operator():
        await endpoint(rig)
        (old,) = await load(rig, 1)
        await rig.settled("tiny", "Serving")
        async with stranger(rig, node):
            await edit(rig, engine={"maxSequences": 7})
            assert "Insufficient nvidia.com/gpu" in await blocked(rig, "WaitingForGpu")
            live = await rig.get(ENDPOINTS, "tiny")
            assert live is not None
            assert condition(live, "Ready")["status"] == "True"
            await blocked(rig, "WaitingForDrain")
            assert await strategy(rig) == "Drain"
            assert uids(await leaving(rig)) == {old["metadata"]["uid"]}
            await rig.end_pods("tiny")
            await load(rig, 1)
            await rig.settled("tiny", "Serving")
        versions = await rig.versions()
        await asyncio.sleep(1)
        assert await rig.versions() == versions, "the strategy that it rests with is left alone"
        assert await strategy(rig) == "Drain"
        # The next roll-out is decided anew.
        await edit(rig, engine={"maxSequences": 8})
        await eventually(lambda: _is(rig, "Surge"), "it surges again")
        assert not [pod for pod in await leaving(rig) if pod["metadata"]["uid"] != old["metadata"]["uid"]]


async def _is(rig: OperatorRig, expected: str) -> bool:
    return await strategy(rig) == expected


async def test_of_two_endpoints_one_gets_the_spare_gpu(rig: OperatorRig) -> None:
    async with gpus(rig, 3), rig.operator():
        for name in ("one", "two"):
            await endpoint(rig, name)
            await load(rig, 1, name)
            await rig.settled(name, "Serving")
        await asyncio.gather(*(edit(rig, name, engine={"maxSequences": 7}) for name in ("one", "two")))
        await eventually(lambda: _one_drains(rig), "one surges, the other one drains")
        for name in ("one", "two"):
            await rig.end_pods(name)
        await load(rig, 1, "one")
        await load(rig, 1, "two")
        for name in ("one", "two"):
            await rig.settled(name, "Serving")


async def _one_drains(rig: OperatorRig) -> bool:
    found = [await strategy(rig, name) for name in ("one", "two")]
    num_left = [len(await leaving(rig, name)) for name in ("one", "two")]
    assert found != ["Surge", "Surge"] or num_left == [0, 0]
    return sorted(found) == ["Drain", "Surge"] and sorted(num_left) == [0, 1]


async def test_no_engine_is_stopped_whose_gpu_another_endpoint_waits_for(rig: OperatorRig) -> None:
    async with gpus(rig, 2), rig.operator():
        await endpoint(rig)
        (old,) = await load(rig, 1)
        await rig.settled("tiny", "Serving")
        await endpoint(rig, "greedy", scaling={"via": "External"})
        await edit(rig, "greedy", replicas=2)
        await load(rig, 1, "greedy")
        await rig.settled("greedy", "Serving")
        await eventually(lambda: _num_alive(rig, "greedy", 2), "the second engine of greedy waits")
        await edit(rig, engine={"maxSequences": 7})
        assert "of endpoint" in await blocked(rig, "WaitingForGpu")
        await asyncio.sleep(PATIENCE_S + 1)
        assert old["metadata"]["uid"] in uids(await alive(rig))
        message = await blocked(rig, "WaitingForGpu")
        assert f"{rig.namespace}/greedy, which waits for one" in message
        await edit(rig, "greedy", replicas=1)
        await blocked(rig, "WaitingForDrain")
        await rig.end_pods("tiny")
        (new,) = await load(rig, 1)
        assert new["metadata"]["uid"] != old["metadata"]["uid"]
        await rig.settled("tiny", "Serving")


async def _num_alive(rig: OperatorRig, name: str, count: int) -> bool:
    return len(await alive(rig, name)) == count


async def test_a_b_a_and_rapid_edits_restart_no_more_than_they_must(rig: OperatorRig) -> None:
    """T24."""
    async with gpus(rig, 5), rig.operator():
        await endpoint(rig, replicas=2)
        first = await load(rig, 2)
        await rig.settled("tiny", "Serving")
        await edit(rig, engine={"maxSequences": 7})
        await rig.pods("tiny", 3)
        await edit(rig, engine={"maxSequences": None})
        await rig.settled("tiny", "Serving")
        assert uids(await rig.pods("tiny", 2)) == uids(first), "what served is what serves"
        for number in (11, 12, 13):
            await edit(rig, engine={"maxSequences": number})
        newest = (await rig.get(ENDPOINTS, "tiny") or {})["metadata"]["generation"]
        seen: set[str] = set()

        async def rolled_out() -> bool:
            pods = await alive(rig)
            assert sum(map(is_ready, pods)) >= 2, "with a GPU to spare nobody notices"
            seen.update(uids(pods))
            for pod in pods:
                if pod["spec"].get("nodeName") and not is_ready(pod):
                    await rig.set_pod(pod, ready=True)
            await rig.end_pods("tiny")
            live = await rig.get(ENDPOINTS, "tiny") or {}
            is_seen = live["status"]["observedGeneration"] == newest
            return is_seen and not uids(pods) & uids(first) and len(pods) == 2 and not condition(live, "Reconciling")

        await eventually(rolled_out, "both are of the last edit")
        assert len(seen - uids(first)) <= 2 + 2, "two for the last edit, one for each edit before it at most"


async def test_a_node_that_boots_is_waited_for(rig: OperatorRig) -> None:
    """T40: no node for the new engine for thrice the patience, while a pool may still get one, is no failure."""
    pool = {"name": "h100", "nodeSelector": {"test": rig.namespace}, "type": "h100", "computeCapability": "9.0",
            "memory": "80Gi", "maxNodes": 2}  # fmt: skip
    region = f"r-{rig.namespace}"[:25]
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.REGION_KIND,
        "metadata": {"name": region},
        "spec": {"nodeSelector": {"test": rig.namespace}, "gpuPools": [pool]},
    }
    await rig.create(REGIONS, body)
    try:
        async with gpus(rig, 1), rig.operator():
            await endpoint(rig, placement={"regions": [region]})
            (old,) = await load(rig, 1)
            await rig.settled("tiny", "Serving")
            await edit(rig, engine={"maxSequences": 7})
            await blocked(rig, "WaitingForGpu")
            await asyncio.sleep(3 * PATIENCE_S)
            assert not await leaving(rig)
            live = await rig.get(ENDPOINTS, "tiny")
            assert live is not None
            assert condition(live, "Ready")["status"] == "True"
            assert not condition(live, "Stalled")
            assert condition(live, "RolloutBlocked")["reason"] == "WaitingForGpu"
            async with gpus(rig, 1, "booted"):
                (new,) = await load(rig, 1)
                await rig.settled("tiny", "Serving")
                assert new["metadata"]["uid"] != old["metadata"]["uid"]
                await rig.delete(ENDPOINTS, "tiny")
    finally:
        await rig.delete(REGIONS, region)


async def test_an_engine_that_cannot_start_leaves_the_old_one_serving(rig: OperatorRig) -> None:
    async with gpus(rig, 2), rig.operator():
        await endpoint(rig)
        (old,) = await load(rig, 1)
        await rig.settled("tiny", "Serving")
        await edit(rig, engine={"maxSequences": 7})
        pods = await rig.pods("tiny", 2)
        (name,) = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["uid"] != old["metadata"]["uid"]]
        new = await eventually(lambda: _bound(rig, name), "the new engine has a node")
        ended = {"exitCode": 2, "reason": "Error", "message": "no config.json in /models"}
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
        await rig.set_pod(new, state=waiting, lastState={"terminated": ended})
        message = await blocked(rig, "NewEngineFails")
        assert "no config.json in /models" in message
        assert "one older engine goes on serving" in message
        live = await rig.get(ENDPOINTS, "tiny")
        assert live is not None
        assert condition(live, "Ready")["status"] == "True"
        assert "no config.json" in condition(live, "Degraded")["message"]
        await asyncio.sleep(2 * PATIENCE_S)
        assert not await leaving(rig)
        await edit(rig, engine={"maxSequences": None})
        await rig.settled("tiny", "Serving")
        assert uids(await rig.pods("tiny", 1)) == {old["metadata"]["uid"]}


async def _bound(rig: OperatorRig, pod: str) -> Raw | None:
    live = await rig.get(PODS, pod)
    return live if live and live["spec"].get("nodeName") else None


async def evict(rig: OperatorRig, pod: Raw) -> int | None:
    """Ask for an eviction as `kubectl drain` does; gives the HTTP status, 201 if it was granted."""
    name = pod["metadata"]["name"]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": rig.namespace}}
    try:
        await rig.admin.request("POST", PODS.path(rig.namespace, name, "eviction"), body=body)
    except ClusterError as error:
        return error.status
    return 201


async def test_drains_of_nodes_take_one_engine_at_a_time_and_broken_ones_at_once(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 3, "maxReplicas": 3})
        pods = await rig.pods("tiny", 3)
        for pod in pods[:2]:
            await rig.set_pod(pod, ready=True)
        await rig.set_pod(pods[2], ready=False)

        async def is_counted() -> bool:
            budget = await rig.get(PDBS, CHILD)
            assert budget is not None
            return budget.get("status", {}).get("currentHealthy") == 2

        await eventually(is_counted, "the budget has counted the engines")
        assert await evict(rig, pods[0]) == 429, "one engine is missing already"
        assert await evict(rig, pods[2]) == 201, "one that never became ready keeps no node from being drained"


FULL = {
    "labels": {"team": "a"},
    "annotations": {"example.com/note": "x"},
    "imagePullSecrets": [{"name": "pull"}],
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "env": [
        {"name": "A", "value": "1"},
        {"name": "EMPTY", "value": ""},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        {"name": "SETTING", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ],
    "resources": {"requests": {"cpu": "1000m", "memory": "0.5Gi"}, "limits": {"cpu": "2000m", "memory": "1.5Gi"}},
    "sharedMemory": "1024Mi",
}
TOLERATIONS = [
    {"key": "a", "value": "b"},
    {"key": "c", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
]


async def test_a_full_template_comes_back_as_it_was_written(rig: OperatorRig) -> None:
    """So the operator recognises it: a restart writes nothing, nor does one with another image and other defaults."""
    install = replace(
        rig.settings.install,
        http_proxy="http://proxy.example:3128",
        ca_bundle_configmap="corporate-ca",
        hf_endpoint="https://hub.example",
    )
    async with rig.operator(install=install):
        await rig.endpoint(
            "tiny",
            podTemplate=FULL,
            placement={"tolerations": TOLERATIONS},
            rollout={"restartAt": "2026-12-01T12:00:00Z"},
        )
        await rig.settled("tiny", "ScaledToZero")
        await rig.deployment("tiny")
    versions, writes = await rig.versions(), writes_of_operator(rig.plane, rig.namespace)
    other = replace(rig.settings.install, runtime_image="emberline/runtime:next", image_registry="mirror.example")
    for changed in (install, other):
        async with rig.operator(install=changed):
            await rig.patch(ENDPOINTS, "tiny", {"metadata": {"annotations": {"note": changed.runtime_image}}})
            await asyncio.sleep(0.8)
    assert writes_of_operator(rig.plane, rig.namespace) == writes
    assert {k: v for k, v in (await rig.versions()).items() if versions[k] != v}.keys() == {"InferenceEndpoint/tiny"}
    env = FULL["env"]
    assert isinstance(env, list)
    async with rig.operator(install=install):
        await edit(rig, podTemplate={"env": [*env[:2], {"name": "NEW", "value": "2"}, *env[2:]], "sharedMemory": None})
        await rig.settled("tiny", "ScaledToZero")
    live = await rig.deployment("tiny")
    assert "NEW" in json.dumps(live["spec"]["template"])
    assert "shared-memory" not in json.dumps(live["spec"]["template"])
    writes = writes_of_operator(rig.plane, rig.namespace)
    async with rig.operator(install=other):
        await asyncio.sleep(0.8)
    assert writes_of_operator(rig.plane, rig.namespace) == writes, "also after items were put between others"


async def test_restart_at_and_the_engines_image(rig: OperatorRig) -> None:
    async def template() -> Raw:
        live: Raw = await rig.deployment("tiny")
        found: Raw = live["spec"]["template"]
        return found

    async def after(**spec: Any) -> Raw:
        await edit(rig, **spec)
        await rig.settled("tiny", "ScaledToZero")
        return await template()

    async with rig.operator():
        await rig.endpoint("tiny")
        await rig.settled("tiny", "ScaledToZero")
        first = await template()
        second = await after(rollout={"restartAt": "2026-12-01T12:00:00Z"})
        assert signature(second) != signature(first)
        assert await after(rollout={"restartAt": None}) == second
        assert await after(rollout={"strategy": "Drain", "drainTimeout": "5m"}) == second
        third = await after(engine={"image": "example.com/engine:7"})
        assert image_of(third) == "example.com/engine:7"
        await after(engine={"image": None}, rollout={"engineUpdates": "Auto"})
    newer = replace(rig.settings.install, runtime_image="emberline/runtime:next")
    async with rig.operator(install=newer):

        async def is_newer() -> bool:
            return image_of(await template()) == "emberline/runtime:next"

        await eventually(is_newer, "engineUpdates Auto takes the new operator's engine at once")


async def test_the_engine_with_the_least_to_do_goes_first(rig: OperatorRig) -> None:
    async with rig.gateway(idle_s=0.0) as gateway, rig.operator():
        gateway.endpoints.append((rig.namespace, "tiny", names.DEFAULT_REGION))
        await rig.endpoint("tiny", scaling={"minReplicas": 0, "maxReplicas": 2})
        await rig.settled("tiny", "ScaledToZero")
        await rig.scale("tiny", 2)
        pods = await rig.pods("tiny", 2)
        busy = pods[0]["metadata"]["name"]
        gateway.pods = {busy: 5}
        for pod in pods:
            await rig.set_pod(pod, ready=True)

        async def is_told() -> bool:
            live = await rig.get(PODS, busy)
            assert live is not None
            annotations = live["metadata"].get("annotations", {})
            return (
                annotations.get(names.POD_DELETION_COST) == "3" and names.ANNOTATION_DELETION_COST_TIME in annotations
            )

        await eventually(is_told, "what the busy engine's end would cost")
        await rig.scale("tiny", 1)
        (left,) = await rig.pods("tiny", 1)
        assert left["metadata"]["name"] == busy
