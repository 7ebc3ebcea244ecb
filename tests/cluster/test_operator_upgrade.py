"""A new operator over what the first release left on a real API server: no pod is replaced (T20)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from emberline_contract import names
from emberline_operator.cluster.api import APPLY
from emberline_operator.cluster.kinds import BY_KIND, DEPLOYMENTS, PODS
from support.operator_rig import OperatorRig, Raw, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
GOLDEN = Path(__file__).parents[1] / "golden" / "input" / "first_release.yaml"
CHILD = "tiny--default"


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


async def left_by_first_release(rig: OperatorRig, case: Raw) -> None:
    """The endpoint and its objects, applied as the first release did, replicas handed over."""
    endpoint = await rig.endpoint("tiny", **case["spec"])
    uid = endpoint["metadata"]["uid"]
    for body in case["objects"]:
        owners = [{**owner, "uid": uid} for owner in body["metadata"]["ownerReferences"]]
        body["metadata"].update(namespace=rig.namespace, ownerReferences=owners)
        await apply(rig, body, names.OPERATOR_MANAGER)
    (deployment,) = [body for body in case["objects"] if body["kind"] == "Deployment"]
    replicas = deployment["spec"].pop("replicas")
    handed = {**deployment, "metadata": {"name": CHILD}, "spec": {"replicas": replicas}}
    await apply(rig, handed, names.SCALE_MANAGER)
    await apply(rig, deployment, names.OPERATOR_MANAGER)


async def apply(rig: OperatorRig, body: Raw, manager: str) -> None:
    path = BY_KIND[body["kind"]].path(rig.namespace, body["metadata"]["name"])
    await rig.admin.request(
        "PATCH", path, body=body, query=[("fieldManager", manager), ("force", "true")], content_type=APPLY
    )


async def test_an_upgrade_replaces_no_pod_and_is_quiet_afterwards(rig: OperatorRig) -> None:
    cases = {case["name"]: case for case in yaml.safe_load_all(GOLDEN.read_text())}
    await left_by_first_release(rig, cases["with an own drain timeout"])
    (pod,) = await rig.pods("tiny")
    await rig.set_pod(pod, ready=True)
    before = await rig.get(DEPLOYMENTS, CHILD)
    assert before is not None
    async with rig.operator():
        endpoint = await rig.settled("tiny", "Serving")
    after = await rig.get(DEPLOYMENTS, CHILD)
    assert after is not None
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["spec"]["replicas"] == 1
    assert names.ANNOTATION_PLACEMENT in after["metadata"]["annotations"]
    assert [p["metadata"]["uid"] for p in await rig.list(PODS)] == [pod["metadata"]["uid"]]
    assert endpoint["status"]["precision"]["format"] == "bf16"
    versions = await rig.versions()
    async with rig.operator():
        await rig.settled("tiny", "Serving")
    assert await rig.versions() == versions
