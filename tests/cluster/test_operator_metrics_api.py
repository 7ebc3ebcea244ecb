"""The operator keeps the metrics API's APIServices on a real API server: made when wanted, never taken from others, gone when done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.kinds import API_SERVICES as KIND
from emberline_operator.cluster.kinds import ENDPOINTS
from emberline_operator.metrics_api.certificate import read_certificate
from emberline_operator.metrics_api.decide import API_SERVICES
from support.metrics_adapter import metrics_adapter, metrics_service
from support.operator_rig import OperatorRig, Raw, condition, eventually, install_account, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
SECRET = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/secrets/{names.METRICS_TLS_SECRET}"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{names.OPERATOR_NAME}"


@pytest_asyncio.fixture
async def rig(plane: TestPlane, namespace: str, tmp_path: Path) -> AsyncIterator[OperatorRig]:
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        yield rig
        for name in await group(rig):
            await rig.admin.request("DELETE", KIND.path("", name))
        plane.kubectl("-n", names.SYSTEM_NAMESPACE, "delete", "secret", names.METRICS_TLS_SECRET, "--ignore-not-found")


async def group(rig: OperatorRig) -> dict[str, Raw]:
    """The APIServices of the group by name."""
    found = await rig.admin.request("GET", KIND.path())
    return {it["metadata"]["name"]: it for it in found["items"] if it["spec"].get("group") == names.METRICS_GROUP}


async def both(rig: OperatorRig) -> dict[str, Raw] | None:
    found = await group(rig)
    return found if found.keys() == set(API_SERVICES) else None


async def test_it_comes_with_the_first_endpoint_that_wants_it_and_goes_with_the_last(rig: OperatorRig) -> None:
    async with metrics_service(rig.admin, 7443), rig.operator():
        await rig.endpoint("still", scaling={"via": "Operator"})
        await rig.settled("still", "ScaledToZero")
        assert await group(rig) == {}
        await rig.endpoint("auto")
        made = await eventually(lambda: both(rig), "both APIServices")
        certificate = read_certificate(await rig.admin.request("GET", SECRET), datetime.now(UTC))
        assert certificate is not None
        role = await rig.admin.request("GET", ROLE)
        for service in made.values():
            assert service["spec"]["caBundle"] == certificate.ca_bundle
            assert service["spec"]["service"]["port"] == 7443
            (owner,) = service["metadata"]["ownerReferences"]
            assert owner["uid"] == role["metadata"]["uid"]
        await rig.delete(ENDPOINTS, "auto")
        await eventually(lambda: is_empty(rig), "no APIService")


async def is_empty(rig: OperatorRig) -> bool:
    return await group(rig) == {}


async def test_a_new_leader_writes_nothing_and_puts_back_what_was_changed(rig: OperatorRig) -> None:
    await rig.endpoint("auto")
    async with metrics_service(rig.admin, 7443):
        async with rig.operator():
            before = await eventually(lambda: both(rig), "both APIServices")
        secret = await rig.admin.request("GET", SECRET)
        async with rig.operator():
            await rig.settled("auto", "ScaledToZero")
            name = API_SERVICES[0]
            await rig.admin.request("DELETE", KIND.path("", name))

            async def is_back() -> Raw | None:
                found = (await group(rig)).get(name)
                return found if found and found["metadata"]["uid"] != before[name]["metadata"]["uid"] else None

            back = await eventually(is_back, "the deleted one is made again")
            assert back["spec"]["caBundle"] == before[name]["spec"]["caBundle"]
        after = await rig.admin.request("GET", SECRET)
        assert after["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"], (
            "one certificate is enough"
        )


async def test_somebody_elses_is_never_touched_and_status_says_whose_it_is(rig: OperatorRig) -> None:
    """T15: another adapter has the group."""
    theirs: Raw = {
        "metadata": {"name": API_SERVICES[1]},
        "spec": {
            "group": names.METRICS_GROUP,
            "version": names.METRICS_VERSIONS[1],
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {"namespace": "monitoring", "name": "prometheus-adapter", "port": 443},
        },
    }
    await rig.endpoint("scaled", scaling={"via": "HPA"})
    async with metrics_service(rig.admin, 7443):
        async with rig.operator():
            await eventually(lambda: both(rig), "both APIServices")
        await rig.admin.request("DELETE", KIND.path("", API_SERVICES[1]))
        made = await rig.admin.request("POST", KIND.path(), body=theirs)
        async with rig.operator():
            await eventually(lambda: is_all(rig, API_SERVICES[1]), "ours is gone")
            await eventually(lambda: is_told(rig), "whose it is")
        live = (await group(rig))[API_SERVICES[1]]
        assert (live["metadata"]["uid"], live["spec"]) == (made["metadata"]["uid"], made["spec"])


async def is_all(rig: OperatorRig, name: str) -> bool:
    return (await group(rig)).keys() == {name}


async def is_told(rig: OperatorRig) -> bool:
    endpoint = await rig.get(ENDPOINTS, "scaled")
    told = condition(endpoint, "ScalingActive") if endpoint else {}
    return told.get("reason") == "MetricsUnavailable" and "monitoring/prometheus-adapter" in told["message"]


async def test_what_was_made_by_hand_is_left(rig: OperatorRig, tmp_path: Path) -> None:
    async with metrics_adapter(rig.admin, tmp_path), rig.operator():
        before = await group(rig)
        await rig.endpoint("auto")
        await rig.settled("auto", "ScaledToZero")
        await rig.delete(ENDPOINTS, "auto")
        after = await group(rig)
        assert {name: it["spec"] for name, it in after.items()} == {name: it["spec"] for name, it in before.items()}


async def test_what_uninstalling_takes_away_takes_the_apiservices_along(rig: OperatorRig, plane: TestPlane) -> None:
    """One that leads to nothing would keep namespaces from ending. Nobody is left to delete it, so the collector does."""
    await rig.endpoint("auto")
    async with metrics_service(rig.admin, 7443), rig.operator():
        await eventually(lambda: both(rig), "both APIServices")
    role = await rig.admin.request("DELETE", ROLE)
    try:
        await eventually(lambda: is_empty(rig), "no APIService", 60)
    finally:
        install_account(plane)
    assert role["status"] == "Success"
