"""The operator's objects on a real API server: made once, kept as they should be, gone with their endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_contract.engine_config import EngineConfig
from emberline_operator.cluster.kinds import CONFIGMAPS, DEPLOYMENTS, ENDPOINTS, PODS, REGIONS, SERVICES
from emberline_operator.desired.template import signature, signed
from emberline_operator.plan.ownership import owned_fields, owned_part
from emberline_operator.settings import Install
from support.every_field import EVERYTHING
from support.operator_objects import fields_of
from support.operator_rig import (
    OperatorRig,
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


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


async def quiet(rig: OperatorRig) -> None:
    """Wait until the operator has had time to react to what has just been written."""
    before = await rig.versions()
    while True:
        await asyncio.sleep(0.4)
        after = await rig.versions()
        if after == before:
            return
        before = after


async def test_a_sleeping_endpoint_gets_its_objects_and_is_ready(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.endpoint("tiny")
        endpoint = await rig.settled("tiny", "ScaledToZero")
        live = await rig.deployment("tiny")
        assert live["spec"]["replicas"] == 0
        assert owns_replicas(live, names.SCALE_MANAGER)
        assert "finalizers" not in live["metadata"]
        (owner,) = live["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
            endpoint["metadata"]["uid"],
            True,
            True,
        )
        (volume,) = [v for v in live["spec"]["template"]["spec"]["volumes"] if v["name"] == "config"]
        config = await rig.get(CONFIGMAPS, volume["configMap"]["name"])
        assert config is not None
        assert config["immutable"] is True
        parsed = EngineConfig.model_validate_json(config["data"][names.ENGINE_CONFIG_FILE])
        assert parsed.served_names == (f"{rig.namespace}/tiny", "tiny")
        assert await rig.get(SERVICES, CHILD) is not None
        status = endpoint["status"]
        assert status["url"] == f"http://127.0.0.1:8080/{rig.namespace}/tiny/v1"
        assert [c["type"] for c in status["conditions"]] == [
            "Accepted", "AliasReady", "Placed", "WeightsReady", "Ready", "ScalingActive", "RolloutBlocked", "Degraded",
        ]  # fmt: skip
        assert condition(endpoint, "Ready")["status"] == "True"
        assert "finalizers" not in endpoint["metadata"]
        assert "annotations" not in endpoint["metadata"]
        assert not await rig.list(PODS)


async def test_applying_the_same_file_twice_writes_nothing(rig: OperatorRig) -> None:
    file = json.dumps(endpoint_yaml("tiny", rig.namespace))
    async with rig.operator():
        rig.plane.kubectl("apply", "-f", "-", stdin=file)
        await rig.settled("tiny", "ScaledToZero")
        await quiet(rig)
        before, writes = await rig.versions(), writes_of_operator(rig.plane, rig.namespace)
        assert "unchanged" in rig.plane.kubectl("apply", "-f", "-", stdin=file)
        rig.plane.kubectl("annotate", "iep", "tiny", "-n", rig.namespace, "note=x")
        await quiet(rig)
        changed = {key for key, version in (await rig.versions()).items() if before[key] != version}
        assert changed == {"InferenceEndpoint/tiny"}, "only the annotation that the test wrote"
    assert writes_of_operator(rig.plane, rig.namespace) == writes
    assert "patch deployments/" in writes


async def test_a_restart_and_a_resync_write_nothing(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 1})
        (pod,) = await rig.pods("tiny")
        await rig.set_pod(pod, ready=True)
        await rig.settled("tiny", "Serving")
        await quiet(rig)
    before, writes = await rig.versions(), writes_of_operator(rig.plane, rig.namespace)
    async with rig.operator(resync_s=0.3):
        await asyncio.sleep(1.2)
    assert await rig.versions() == before
    assert writes_of_operator(rig.plane, rig.namespace) == writes


async def test_a_b_a_changes_the_configuration_and_back(rig: OperatorRig) -> None:
    async def template_and_maps() -> tuple[dict, set[str]]:
        live = await rig.deployment("tiny")
        return live["spec"]["template"], {
            o["metadata"]["name"] for o in await rig.list(CONFIGMAPS, names.LABEL_ENDPOINT)
        }

    async def changed_to(value: int) -> tuple[dict, set[str]]:
        before, _ = await template_and_maps()
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"engine": {"maxSequences": value}}})

        async def read() -> tuple[dict, set[str]] | None:
            template, maps = await template_and_maps()
            return (template, maps) if template != before and len(maps) == 1 else None

        return await eventually(read, "another template, and the old ConfigMap gone")

    async with rig.operator():
        await rig.endpoint("tiny")
        await rig.settled("tiny", "ScaledToZero")
        a = await template_and_maps()
        b = await changed_to(7)
        assert b[1].isdisjoint(a[1])
        assert await changed_to(32) == a


async def test_an_old_configmap_stays_while_a_pod_uses_it(rig: OperatorRig) -> None:
    async with rig.node("gpu", gpus="l4"), rig.operator():
        await rig.endpoint(
            "tiny", accelerator={"kind": "Nvidia"}, scaling={"minReplicas": 1}, rollout={"strategy": "Drain"}
        )
        (old,) = await rig.pods("tiny")
        await rig.set_pod(old, ready=True)
        await rig.settled("tiny", "Serving")
        (old_map,) = [o["metadata"]["name"] for o in await rig.list(CONFIGMAPS, names.LABEL_ENDPOINT)]
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"engine": {"maxSequences": 7}}})

        async def replaced() -> bool:
            (pod,) = [p for p in await rig.list(PODS) if "deletionTimestamp" not in p["metadata"]] or [old]
            return pod["metadata"]["uid"] != old["metadata"]["uid"]

        await eventually(replaced, "a new pod while the old one drains")
        await asyncio.sleep(0.5)
        assert await rig.get(CONFIGMAPS, old_map) is not None
        await rig.end_pods("tiny")

        async def gone() -> bool:
            return await rig.get(CONFIGMAPS, old_map) is None

        await eventually(gone, "the old ConfigMap gone")


async def test_an_edit_by_hand_is_undone(rig: OperatorRig) -> None:
    async with rig.operator():
        await rig.endpoint("tiny")
        await rig.settled("tiny", "ScaledToZero")
        before = (await rig.deployment("tiny"))["spec"]["template"]
        patch = {"spec": {"template": {"spec": {"enableServiceLinks": True}}, "revisionHistoryLimit": 9}}
        await rig.patch(DEPLOYMENTS, CHILD, patch)
        await rig.delete(SERVICES, CHILD)

        async def restored() -> bool:
            live = await rig.deployment("tiny")
            is_back = live["spec"]["template"] == before and live["spec"]["revisionHistoryLimit"] == 2
            return is_back and await rig.get(SERVICES, CHILD) is not None

        await eventually(restored, "template, history limit and Service as before")


async def test_a_name_that_is_taken_is_never_adopted(rig: OperatorRig) -> None:
    theirs = {"metadata": {"name": CHILD}, "spec": {"ports": [{"port": 1}], "selector": {"theirs": "yes"}}}
    service = await rig.create(SERVICES, theirs)
    async with rig.operator():
        await rig.endpoint("tiny")
        endpoint = await rig.settled("tiny", "NotAccepted")
        accepted = condition(endpoint, "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "NameTaken")
        assert f"Service {CHILD}" in accepted["message"]
        assert "delete it or give the endpoint another name" in accepted["message"]
        assert condition(endpoint, "Stalled")["status"] == "True"
        assert await rig.children() == []
        still = await rig.get(SERVICES, CHILD)
        assert still is not None
        assert still["metadata"]["resourceVersion"] == service["metadata"]["resourceVersion"]


async def test_another_operator_replaces_no_pod(rig: OperatorRig) -> None:
    """What the operator reads back from managedFields is what it applied, for templates with everything in them."""
    region = f"eu-{rig.namespace}"[:25].rstrip("-")
    await rig.region(region, place=rig.namespace)
    placement = {**EVERYTHING["placement"], "regions": [region]}
    async with rig.node("gpu", gpus="h100", place=rig.namespace, pool="a"), rig.operator():
        await rig.endpoint("tiny")
        await rig.endpoint("full", **{**EVERYTHING, "placement": placement})
        await rig.settled("tiny", "ScaledToZero")
        await rig.settled("full", "ScaledToZero")
        live = [await rig.deployment("tiny"), await rig.deployment("full", region)]
        await quiet(rig)
    for deployment in live:
        fields = owned_fields(deployment, names.OPERATOR_MANAGER)["f:spec"]["f:template"]
        applied = owned_part(deployment["spec"]["template"], fields)
        assert signature(signed(applied)) == signature(applied)
        body = {"metadata": {"name": "x"}, "spec": {"template": applied}}
        assert fields_of(body)["f:spec"]["f:template"] == fields, "the tests' own idea of FieldsV1 is the API server's"
    before = await rig.versions()
    async with (
        rig.node("gpu", gpus="h100", place=rig.namespace, pool="a"),
        rig.operator(install=Install("another/image:2", "http://127.0.0.1:8080"), resync_s=0.3),
    ):
        await asyncio.sleep(1)
    assert await rig.versions() == before
    await rig.delete(REGIONS, region)


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from emberline_contract import names
from emberline_operator.cluster.writes import Writer
from emberline_operator.main import run
from emberline_operator.settings import Install, LeaseTimes, Settings
apply = Writer.apply
async def dies(self, body, *, manager, force):
    if manager == names.SCALE_MANAGER:
        os.kill(os.getpid(), signal.SIGKILL)
    await apply(self, body, manager=manager, force=force)
Writer.apply = dies
# Short, so that the next one need not wait long for the Lease.
lease = LeaseTimes(duration_s=2, renew_deadline_s=1.5, retry_s=0.3, request_timeout_s=1)
settings = Settings(Install("emberline/runtime:dev"), kubeconfig=Path(sys.argv[1]), health_port=0, lease=lease)
asyncio.run(run(settings))
"""


async def test_a_sleeping_endpoint_starts_no_pod_when_the_operator_dies_between_the_two_applies(
    rig: OperatorRig,
) -> None:
    await rig.endpoint("tiny")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(rig.settings.kubeconfig), env={**os.environ}, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, words = await process.communicate()
    assert process.returncode == -9, words.decode()[-2000:]
    crashed = await rig.get(DEPLOYMENTS, CHILD)
    assert crashed is not None
    assert owns_replicas(crashed, names.OPERATOR_MANAGER)
    assert not owns_replicas(crashed, names.SCALE_MANAGER), "the crash came in between"
    async with rig.operator():
        live = await rig.deployment("tiny")
        await rig.settled("tiny", "ScaledToZero")
        assert owns_replicas(live, names.SCALE_MANAGER)
    assert live["spec"]["replicas"] == 0
    assert live["metadata"]["generation"] == 1, "replicas never moved"
    assert not await rig.list(PODS)
