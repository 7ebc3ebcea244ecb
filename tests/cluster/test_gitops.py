"""GitOps tools and the operator never fight: whoever applies an endpoint, by whatever means and however often, its spec stays theirs.

The operator writes status and nothing else of an endpoint, and takes nothing of its labels and annotations to the children, which
a tool would then believe to be its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.kinds import CHILDREN, DEPLOYMENTS, ENDPOINTS, PODS
from support.argo_health import argo_health
from support.kstatus import Kstatus, compute
from support.operator_rig import OPERATOR_USER, OperatorRig, Raw, audit_of, endpoint_yaml, eventually, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
CHILD = "tiny--default"
PATIENCE_S = 40
"""The garbage collector learns of a new CRD at its next look at discovery, every 30 s."""
TRACKING = {
    "labels": {"app.kubernetes.io/instance": "endpoints", "kustomize.toolkit.fluxcd.io/name": "endpoints", "team": "a"},
    "annotations": {"argocd.argoproj.io/tracking-id": "endpoints:x", "argocd.argoproj.io/sync-wave": "1", "note": "n"},
}


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


def manifest(rig: OperatorRig, **spec: Any) -> Raw:
    """An endpoint as a GitOps tool has it, with the marks by which such tools know what is theirs."""
    body = endpoint_yaml("tiny", rig.namespace, **spec)
    return {**body, "metadata": {**body["metadata"], **TRACKING}}


async def kubectl(rig: OperatorRig, *arguments: str, body: Raw) -> str:
    """Out of the way of the operator, which runs in this loop."""
    return await asyncio.to_thread(rig.plane.kubectl, *arguments, "-f", "-", stdin=json.dumps(body))


async def children(rig: OperatorRig) -> dict[str, Raw]:
    """Kind/name -> object, of whatever kinds the operator makes."""
    return {
        f"{kind.kind}/{live['metadata']['name']}": live
        for kind in CHILDREN
        for live in await rig.list(kind, names.LABEL_ENDPOINT)
    }


async def identities(rig: OperatorRig) -> dict[str, tuple[str, str]]:
    """uid and resourceVersion of every child."""
    found = await children(rig)
    return {key: (live["metadata"]["uid"], live["metadata"]["resourceVersion"]) for key, live in found.items()}


async def live_endpoint(rig: OperatorRig) -> Raw:
    live = await rig.get(ENDPOINTS, "tiny")
    assert live is not None
    return live


async def settled(rig: OperatorRig, reason: str = "ScaledToZero") -> dict[str, tuple[str, str]]:
    """Once nothing has been written for a while: uid and resourceVersion of every child."""
    await rig.settled("tiny", reason)
    while True:
        before, version = await identities(rig), (await live_endpoint(rig))["metadata"]["resourceVersion"]
        await asyncio.sleep(0.6)
        if (before, version) == (await identities(rig), (await live_endpoint(rig))["metadata"]["resourceVersion"]):
            return before


def writes_of_spec(rig: OperatorRig) -> list[str]:
    """What the operator wrote of endpoints, their status apart."""
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in audit_of(rig.plane, rig.namespace, OPERATOR_USER)
        if event["objectRef"]["resource"] == names.ENDPOINT_PLURAL
        and event["objectRef"].get("subresource") != "status"
        and event["verb"] not in ("get", "list", "watch")
    ]


def owned_by_the_operator(endpoint: Raw) -> set[str]:
    """Top-level fields that managers of ours own."""
    ours = (names.OPERATOR_MANAGER, names.SCALE_MANAGER, names.GATEWAY_MANAGER)
    entries = [e for e in endpoint["metadata"]["managedFields"] if e["manager"].startswith(ours)]
    return {field for entry in entries for field in entry["fieldsV1"]}


async def test_every_way_of_applying_leaves_the_spec_to_its_owner_and_the_children_alone(rig: OperatorRig) -> None:
    body = manifest(rig)
    async with rig.operator():
        await kubectl(rig, "apply", body=body)
        made = await settled(rig)
        first = await live_endpoint(rig)
        ways = {
            "client-side apply": ("apply",),
            "server-side apply by Argo CD": ("apply", "--server-side", "--field-manager=argocd-controller", "--force-conflicts"),
            "server-side apply by Flux": ("apply", "--server-side", "--field-manager=kustomize-controller"),
            "replace": ("replace",),
            "client-side apply once more": ("apply",),
        }  # fmt: skip
        for way, arguments in ways.items():
            await kubectl(rig, *arguments, body=body)
            assert await settled(rig) == made, way
            live = await live_endpoint(rig)
            assert live["metadata"]["generation"] == 1, way
            assert live["spec"] == first["spec"], way
            assert live["status"] == first["status"], way
            assert owned_by_the_operator(live) == {"f:status"}, way
            assert "finalizers" not in live["metadata"], way
            marks = {key: live["metadata"][key] for key in TRACKING}
            marks["annotations"].pop("kubectl.kubernetes.io/last-applied-configuration", None)
            assert marks == TRACKING, way
    assert writes_of_spec(rig) == []


async def test_nothing_of_the_endpoints_labels_and_annotations_goes_to_its_children(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.create(ENDPOINTS, manifest(rig, scaling={"minReplicas": 1}))
        (pod,) = await rig.pods("tiny")
        marks = {*TRACKING["labels"], *TRACKING["annotations"]}
        found = await children(rig)
        assert {key.partition("/")[0] for key in found} >= {"Deployment", "Service", "ConfigMap"}
        for key, live in {**found, "Pod": pod, **await templates(rig)}.items():
            metadata = live["metadata"]
            assert not marks & {*metadata.get("labels", {}), *metadata.get("annotations", {})}, key


async def templates(rig: OperatorRig) -> dict[str, Raw]:
    return {
        f"template of {live['metadata']['name']}": live["spec"]["template"]
        for live in await rig.list(DEPLOYMENTS, names.LABEL_ENDPOINT)
    }


@asynccontextmanager
async def self_healing(rig: OperatorRig, body: Raw) -> AsyncIterator[list[str]]:
    """A tool that applies the same manifest every 200 ms; gives the resourceVersions that it was answered."""
    answers: list[str] = []

    async def apply() -> None:
        live = await rig.apply(body, "argocd-controller")
        answers.append(live["metadata"]["resourceVersion"])

    async def heal() -> None:
        while True:
            await asyncio.sleep(0.2)
            await apply()

    await apply()
    task = asyncio.create_task(heal())
    try:
        yield answers
        assert not task.done(), "the tool was refused"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_self_healing_loop_and_the_operator_do_not_fight(rig: OperatorRig) -> None:
    body = manifest(rig, scaling={"idleAfter": "1s", "maxReplicas": 2})
    async with rig.gateway() as gateway, rig.operator(), self_healing(rig, body) as answers:
        made = await settled(rig)
        # It wakes, serves and sleeps again under the loop's eyes.
        gateway.endpoints = [(rig.namespace, "tiny", names.DEFAULT_REGION)]
        await rig.scale("tiny", 1)
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod, ready=True)
        await rig.settled("tiny", "Serving")
        gateway.idle_s = 3600
        await rig.settled("tiny", "ScaledToZero")
        await rig.end_pods("tiny")
        after = await settled(rig)
        assert {key: uid for key, (uid, _) in after.items()} == {key: uid for key, (uid, _) in made.items()}
        # Some seconds more of the loop alone: neither moves any more.
        del answers[:]
        await asyncio.sleep(2)
        assert len(answers) > 4
        assert len(set(answers)) == 1
        assert await identities(rig) == after
        assert (await live_endpoint(rig))["metadata"]["generation"] == 1
    assert writes_of_spec(rig) == []


async def test_a_change_in_git_is_carried_out_under_the_loop(rig: OperatorRig) -> None:
    async with rig.operator():
        async with self_healing(rig, manifest(rig)):
            before = await settled(rig)
        changed = manifest(rig, engine={"maxModelLen": 512})
        async with self_healing(rig, changed):
            async with asyncio.timeout(20):
                while (await live_endpoint(rig))["status"]["observedGeneration"] != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            after = await settled(rig)
        assert after[f"Deployment/{CHILD}"][0] == before[f"Deployment/{CHILD}"][0]
        assert after.keys() - before.keys(), "its new configuration"
        (live,) = await rig.list(DEPLOYMENTS, names.LABEL_ENDPOINT)
        assert live["spec"]["replicas"] == 0
    assert writes_of_spec(rig) == []


async def test_replicas_of_an_external_autoscaler_survive_the_loop(rig: OperatorRig) -> None:
    """Git has no `replicas`: the operator fills it once, an autoscaler changes it, and the tool takes nothing back."""
    body = manifest(rig, scaling={"via": "External"})
    async with rig.operator(), self_healing(rig, body):

        async def replicas() -> int | None:
            number: int | None = (await live_endpoint(rig))["spec"].get("replicas")
            return number

        async def is_filled() -> bool:
            return await replicas() is not None

        await eventually(is_filled, "spec.replicas")
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"replicas": 2}}, "scale")
        await rig.pods("tiny", 2)
        await asyncio.sleep(1)
        assert await replicas() == 2
    (fill,) = writes_of_spec(rig)
    assert fill.startswith("patch ")
    assert "/scale?" in fill


async def test_the_tools_read_the_real_status(rig: OperatorRig) -> None:
    def read(endpoint: Raw) -> tuple[str, Kstatus]:
        return argo_health(names.ENDPOINT_KIND, endpoint)[0], compute(endpoint)

    await rig.create(ENDPOINTS, manifest(rig))
    assert read(await live_endpoint(rig)) == ("Progressing", Kstatus.IN_PROGRESS), "no operator has seen it yet"
    async with rig.operator():
        assert read(await rig.settled("tiny", "ScaledToZero")) == ("Healthy", Kstatus.CURRENT)
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"idleAfter": "5 minutes"}}})
        assert read(await rig.settled("tiny", "NotAccepted")) == ("Degraded", Kstatus.FAILED)
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"idleAfter": "5m", "minReplicas": 1}}})
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod)
        assert read(await rig.settled("tiny", "Starting")) == ("Progressing", Kstatus.IN_PROGRESS)
        await rig.set_pod(pod, ready=True)
        assert read(await rig.settled("tiny", "Serving")) == ("Healthy", Kstatus.CURRENT)
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"via": "External", "minReplicas": 0}, "replicas": 0}})
        assert read(await rig.settled("tiny", "Stopped")) == ("Suspended", Kstatus.CURRENT)
    changed = await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"maxReplicas": 3}}})
    assert read(changed) == ("Progressing", Kstatus.IN_PROGRESS), "the operator is gone and has not seen this"


async def test_replace_by_force_is_another_endpoint_with_children_of_its_own(rig: OperatorRig) -> None:
    """Also in the midst of service: nothing of the old one is left, and nothing is there twice."""
    body = manifest(rig, scaling={"minReplicas": 1, "maxReplicas": 1})
    async with rig.operator():
        await kubectl(rig, "apply", body=body)
        (serving,) = await rig.pods("tiny")
        await rig.set_pod(serving, ready=True)
        before = await settled(rig, "Serving")
        old = await live_endpoint(rig)
        await kubectl(rig, "replace", "--force", body=body)
        new = await live_endpoint(rig)
        assert new["metadata"]["uid"] != old["metadata"]["uid"]

        async def is_taken_over() -> list[Raw] | None:
            await rig.end_pods("tiny")
            found = await children(rig)
            owners = {live["metadata"]["ownerReferences"][0]["uid"] for live in found.values()}
            is_all_new = found.keys() == before.keys() and owners == {new["metadata"]["uid"]}
            pods = await rig.list(PODS)
            is_one = len(pods) == 1 and pods[0]["metadata"]["uid"] != serving["metadata"]["uid"]
            return pods if is_all_new and is_one else None

        (pod,) = await eventually(is_taken_over, "children of the new endpoint alone, and one engine", PATIENCE_S)
        await rig.set_pod(pod, ready=True)
        after = await settled(rig, "Serving")
        assert not {uid for uid, _ in before.values()} & {uid for uid, _ in after.values()}
        assert (await live_endpoint(rig))["metadata"]["uid"] == new["metadata"]["uid"]
    assert writes_of_spec(rig) == []
