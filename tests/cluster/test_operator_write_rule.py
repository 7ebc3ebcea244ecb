"""The write rule on a real API server: what was applied needs no second write, and what is left out is really gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_operator.cluster.api import APPLY, Api
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.features import read_features
from emberline_operator.cluster.kinds import BY_KIND, ENDPOINTS, PODS, trimmed
from emberline_operator.cluster.writes import Writer
from emberline_operator.errors import ConflictError
from emberline_operator.plan.ownership import needs_write, owned_fields
from emberline_operator.pods import read_pod
from emberline_operator.snapshot import Features
from support.every_field import BODIES, CHANGES, REMOVALS, changed, parent_of, without
from support.operator_objects import fields_of
from support.operator_rig import Raw, endpoint_yaml
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
MANAGER = names.OPERATOR_MANAGER
REFUSED = ("data/engine.json", "metadata/ownerReferences/0/uid")
"""The operator makes another ConfigMap instead of changing one, and its objects have one owner."""


class Applies:
    """Applies children in a namespace as the operator does."""

    def __init__(self, api: Api, owner: Raw) -> None:
        self._api = api
        self._owner = owner

    async def __call__(self, body: Raw) -> Raw:
        """The live object as the operator keeps it."""
        kind, metadata = BY_KIND[body["kind"]], body["metadata"]
        namespace = self._owner["metadata"]["namespace"]
        owners = [{**owner, "uid": self._owner["metadata"]["uid"]} for owner in metadata["ownerReferences"]]
        moved = {**body, "metadata": {**metadata, "namespace": namespace, "ownerReferences": owners}}
        live = await self._api.request(
            "PATCH", kind.path(namespace, metadata["name"]), body=moved,
            query=[("fieldManager", MANAGER), ("force", "true")], content_type=APPLY,
        )  # fmt: skip
        assert not needs_write(trimmed(live), moved, MANAGER), f"{kind.kind}: a second pass would write it again"
        return live

    def differs(self, live: Raw, body: Raw) -> bool:
        """Whether a pass that wants `body` would write."""
        owners = live["metadata"]["ownerReferences"]
        wanted = {**body, "metadata": {**body["metadata"], "ownerReferences": owners}}
        return needs_write(trimmed(live), wanted, MANAGER)


@pytest_asyncio.fixture
async def applies(plane: TestPlane, namespace: str) -> AsyncIterator[Applies]:
    api = await Api.connect(plane.kubeconfig)
    try:
        owner = await api.request("POST", ENDPOINTS.path(namespace), body=endpoint_yaml("tiny", namespace))
        yield Applies(api, owner)
        await api.request("DELETE", ENDPOINTS.path(namespace, "tiny"))
    finally:
        await api.close()


async def test_the_api_server_says_what_it_can_do(plane: TestPlane) -> None:
    api = await Api.connect(plane.kubeconfig)
    try:
        assert await read_features(api) == Features(hpa_tolerance=True)
    finally:
        await api.close()


async def test_every_kind_is_recognised_as_it_was_applied(applies: Applies) -> None:
    for body in BODIES.values():
        live = await applies(body)
        fields = owned_fields(live, MANAGER)
        assert fields.keys() == fields_of(body).keys()
        for part in fields_of(body):
            if part != "f:metadata":
                assert fields[part] == fields_of(body)[part], (
                    f"{body['kind']}: the tests' own idea of FieldsV1 is right"
                )


async def test_a_change_of_any_field_is_written_once_and_taken_back_once(applies: Applies) -> None:
    for body in BODIES.values():
        await applies(body)
    for kind, path, value in CHANGES:
        if path in REFUSED:
            continue
        other = changed(BODIES[kind], path, value)
        live = await applies(other)
        assert applies.differs(live, BODIES[kind]), f"{kind} {path}: nobody would take it back"
        live = await applies(BODIES[kind])
        assert applies.differs(live, other), f"{kind} {path}: it is still there"


async def test_what_is_left_out_is_gone(applies: Applies) -> None:
    for kind, path in REMOVALS:
        whole = await applies(BODIES[kind])
        smaller = without(BODIES[kind], path)
        if path.endswith("/serviceAccountName"):
            smaller = without(smaller, path.removesuffix("Name"))
        live = await applies(smaller)
        before, after = _value(whole, path), _value(live, path)
        assert before is not None, f"{kind} {path} was never there"
        assert after != before, f"{kind} {path} is still there"
        assert applies.differs(live, BODIES[kind])
        assert not applies.differs(await applies(BODIES[kind]), BODIES[kind])


def _value(live: Raw, path: str) -> Any:
    """What is at a path; None if nothing is. An item of a list that lost one is another."""
    try:
        node, last = parent_of(live, path)
        return node[last]
    except (KeyError, IndexError):
        return None


async def test_writes_about_pods_and_endpoints_hit_what_was_decided_on_and_nothing_else(
    plane: TestPlane, namespace: str
) -> None:
    api = await Api.connect(plane.kubeconfig)
    writer = Writer(api, Caches(), lambda *_: None)
    at = datetime(2026, 12, 1, 12, tzinfo=UTC)
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {"nodeName": f"played-{namespace}", "terminationGracePeriodSeconds": 600,
            "containers": [{"name": "engine", "image": "i", "securityContext": restricted}]}  # fmt: skip

    async def pod() -> Raw:
        return await api.request("GET", PODS.path(namespace, "one"))

    try:
        made = await api.request("POST", PODS.path(namespace), body={"metadata": {"name": "one"}, "spec": spec})
        uid, other = made["metadata"]["uid"], "22222222-0000-4000-8000-000000000002"
        await writer.set_deletion_cost(namespace, "one", uid=other, cost=3, at=at)
        assert "annotations" not in (await pod())["metadata"]
        await writer.set_deletion_cost(namespace, "one", uid=uid, cost=3, at=at)
        state = read_pod(await pod())
        assert (state.deletion_cost, state.deletion_cost_written) == (3, at)
        await writer.set_deletion_cost(namespace, "gone", uid=uid, cost=3, at=at)

        with pytest.raises(ConflictError):
            await writer.evict(namespace, "one", uid=other, grace_s=10)
        await api.request("DELETE", PODS.path(namespace, "one"))
        assert (await pod())["metadata"]["deletionGracePeriodSeconds"] == 600
        await writer.evict(namespace, "one", uid=uid, grace_s=10)
        assert (await pod())["metadata"]["deletionGracePeriodSeconds"] == 10, "an eviction cuts a drain short"
        await writer.evict(namespace, "gone", uid=uid, grace_s=10)

        body = endpoint_yaml("tiny", namespace, scaling={"via": "External"})
        endpoint = await api.request("POST", ENDPOINTS.path(namespace), body=body)
        version = endpoint["metadata"]["resourceVersion"]
        with pytest.raises(ConflictError):
            await writer.fill_replicas(namespace, "tiny", replicas=2, resource_version="1")
        await writer.fill_replicas(namespace, "tiny", replicas=2, resource_version=version)
        assert (await api.request("GET", ENDPOINTS.path(namespace, "tiny")))["spec"]["replicas"] == 2
        await api.request("DELETE", ENDPOINTS.path(namespace, "tiny"))
    finally:
        await api.request("DELETE", PODS.path(namespace, "one"), body={"gracePeriodSeconds": 0})
        await api.close()
