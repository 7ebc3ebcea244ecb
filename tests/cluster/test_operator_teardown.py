"""Deletion on a real API server: the garbage collector does it, with an operator or without one.

It learns of a new CRD at its next look at discovery, every 30 s. What it could not look up until then it tries again after twice
as long each time, so after up to as long again as it has failed: on a control plane that is half a minute old, a minute in all, and
some more on a busy machine. Hence the patience, which costs nothing later, and a file that runs late.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_operator.cluster.kinds import CLAIMS, DEPLOYMENTS, ENDPOINTS, PODS, REGIONS
from emberline_operator.errors import NotFoundError
from support.operator_rig import OperatorRig, condition, eventually, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
CHILD = "tiny--default"
PATIENCE_S = 100


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig


@pytest.mark.parametrize("is_running", [True, False], ids=["operator running", "operator gone"])
async def test_deleting_an_endpoint_removes_all_its_objects(rig: OperatorRig, is_running: bool) -> None:
    async def gone() -> bool:
        return not await rig.children() and not await rig.list(PODS)

    async def delete() -> None:
        await rig.delete(ENDPOINTS, "tiny")
        await eventually(gone, "all children gone", PATIENCE_S)
        assert await rig.get(ENDPOINTS, "tiny") is None

    async with rig.operator():
        await rig.endpoint("tiny", scaling={"minReplicas": 1})
        await rig.pods("tiny")
        assert len(await rig.children()) == 4
        if is_running:
            await delete()
            await asyncio.sleep(0.5)
            assert not await rig.children(), "nothing is made again"
    if not is_running:
        await delete()


async def test_an_endpoint_made_again_waits_for_the_first_ones_objects(rig: OperatorRig) -> None:
    async with rig.operator():
        first = await rig.endpoint("tiny")
        await rig.settled("tiny", "ScaledToZero")
        await rig.delete(ENDPOINTS, "tiny")
        second = await rig.endpoint("tiny")
        assert first["metadata"]["uid"] != second["metadata"]["uid"]

        async def owned() -> bool:
            live = await rig.get(DEPLOYMENTS, CHILD)
            return bool(live) and live["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]

        await eventually(owned, "a Deployment of the second endpoint", PATIENCE_S)
        endpoint = await rig.settled("tiny", "ScaledToZero")
        assert condition(endpoint, "Accepted")["status"] == "True"


async def test_what_an_endpoint_refers_to_may_go_before_it(rig: OperatorRig) -> None:
    """T31, T33: nothing but the garbage collector has a say in a deletion, so nothing can hold it up."""
    region = f"gone-{rig.namespace[-5:]}"
    await rig.region(region, place=rig.namespace)

    async def gone() -> bool:
        return not await rig.children() and await rig.get(ENDPOINTS, "tiny") is None

    async with rig.node("n", place=rig.namespace), rig.operator():
        await rig.endpoint("tiny", placement={"regions": [region]})
        endpoint = await rig.settled("tiny", "ScaledToZero")
        assert "finalizers" not in endpoint["metadata"]
        await rig.delete(REGIONS, region)
        await rig.delete(CLAIMS, "models")
        await rig.delete(ENDPOINTS, "tiny")
        await eventually(gone, "endpoint and children gone", PATIENCE_S)


async def test_a_namespace_goes_without_an_operator(rig: OperatorRig) -> None:
    """T32."""
    other = replace(rig, namespace=f"{rig.namespace}-going", volumes=[])
    path = f"/api/v1/namespaces/{other.namespace}"
    await rig.admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": other.namespace}})
    async with rig.operator():
        await other.endpoint("tiny")
        await other.deployment("tiny")
    await rig.admin.request("DELETE", path)

    async def gone() -> bool:
        try:
            await rig.admin.request("GET", path)
        except NotFoundError:
            return True
        return False

    await eventually(gone, "the namespace gone", PATIENCE_S)
