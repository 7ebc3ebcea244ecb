"""Caches: the newest version wins, whichever way it came."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_contract import names
from emberline_operator.cluster.caches import Cache, Caches
from emberline_operator.cluster.kinds import CLAIMS, DEPLOYMENTS, ENDPOINTS, PODS, REGIONS, SERVICES, trimmed
from emberline_operator.handlers.watches import concerned, kopf_settings
from support.operator_objects import entry, make_endpoint


def obj(
    version: int, name: str = "a", namespace: str = "team", endpoint: str = "", kind: str = "Service"
) -> dict[str, Any]:
    labels = {names.LABEL_ENDPOINT: endpoint} if endpoint else {}
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(version), "labels": labels}
    return {"kind": kind, "metadata": metadata}


KEY = ("team", "a")


def test_a_newer_version_replaces_and_an_older_one_does_not() -> None:
    cache = Cache()
    assert cache.put(obj(5))
    assert not cache.put(obj(5)), "known already"
    assert not cache.put(obj(4))
    assert cache.put(obj(10)), "as a number, not as a text"
    assert cache.get(KEY) == obj(10)
    assert len(cache) == 1


def test_a_deletion_holds_against_older_news() -> None:
    cache = Cache()
    cache.put(obj(5))
    assert cache.remove(obj(6))
    assert cache.get(KEY) is None
    assert not cache.put(obj(5)), "a list that is older than the deletion"
    assert cache.put(obj(7)), "made again"
    assert not cache.remove(obj(6)), "the old deletion, told late"
    assert cache.get(KEY) == obj(7)


def test_a_list_heals_what_a_watch_lost() -> None:
    cache = Cache()
    for name in ("lost", "kept", "newer"):
        cache.put(obj(5, name))
    cache.put(obj(21, "newer"))
    changed = cache.absorb([obj(5, "kept"), obj(8, "added")], version=20)
    assert [o["metadata"]["name"] for o in changed] == ["lost", "added"]
    assert {o["metadata"]["name"] for o in cache} == {"kept", "newer", "added"}, "what came after the list stays"
    assert cache.absorb([obj(5, "kept"), obj(8, "added"), obj(21, "newer")], version=30) == []


def test_objects_are_found_by_their_endpoint() -> None:
    cache = Cache()
    cache.put(obj(1, "a", endpoint="tiny"))
    cache.put(obj(1, "b", endpoint="tiny"))
    cache.put(obj(1, "c", "other", endpoint="tiny"))
    assert [o["metadata"]["name"] for o in cache.of_endpoint(("team", "tiny"))] == ["a", "b"]
    cache.put(obj(2, "a", endpoint="big"))
    cache.remove(obj(2, "b", endpoint="tiny"))
    assert cache.of_endpoint(("team", "tiny")) == []
    assert [o["metadata"]["name"] for o in cache.of_endpoint(("team", "big"))] == ["a"]


events = st.lists(st.tuples(st.sampled_from(["put", "remove"]), st.sampled_from("ab"), st.integers(1, 30)), max_size=30)


@given(events)
def test_the_order_of_news_does_not_matter(news: list[tuple[str, str, int]]) -> None:
    """One object's versions are told once each; whatever their order, the newest stands."""
    last: dict[str, tuple[int, str]] = {}
    unique = {(name, version): what for what, name, version in news}
    for (name, version), what in unique.items():
        last[name] = max(last.get(name, (0, "")), (version, what))
    cache = Cache()
    for (name, version), what in unique.items():
        (cache.put if what == "put" else cache.remove)(obj(version, name))
    assert {o["metadata"]["name"]: int(o["metadata"]["resourceVersion"]) for o in cache} == {
        name: version for name, (version, what) in last.items() if what == "put"
    }


def test_only_what_decisions_look_at_is_kept() -> None:
    ours = entry(names.OPERATOR_MANAGER, {"f:spec": {}})
    scale = entry("kubectl", {"f:spec": {"f:replicas": {}}}, operation="Update")
    other = entry("kube-controller-manager", {"f:status": {}}, operation="Update")
    dated = [{**e, "time": "t", "fieldsType": "FieldsV1"} for e in (ours, scale, other)]
    deployment = {"kind": "Deployment", "metadata": {"name": "a", "managedFields": dated}, "spec": {"replicas": 1}}
    assert trimmed(deployment)["metadata"]["managedFields"] == [ours, scale]
    assert deployment["metadata"]["managedFields"] == dated, "the given object is not changed"
    pod = {
        "kind": "Pod",
        "metadata": {"name": "a", "managedFields": dated},
        "spec": {"volumes": [], "containers": [{"env": [{"value": "secret"}]}]},
        "status": {"phase": "Running", "hostIP": "x"},
    }
    assert trimmed(pod) == {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"volumes": []},
        "status": {"phase": "Running"},
    }
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "a", "labels": {}},
        "spec": {},
        "status": {"phase": "Bound", "x": 1},
    }
    assert trimmed(claim) == {"kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "status": {"phase": "Bound"}}


@pytest.mark.parametrize(
    ("changed", "keys"),
    [
        (obj(1, "tiny", kind="InferenceEndpoint"), {("team", "tiny")}),
        (obj(1, "x", endpoint="tiny"), {("team", "tiny")}),
        (obj(1, "x", endpoint="tiny", kind="Deployment"), {("team", "tiny")}),
        (obj(1, "gateway"), set()),
        (obj(1, "models", kind="PersistentVolumeClaim"), {("team", "tiny"), ("team", "eu")}),
        (obj(1, "models", "other", kind="PersistentVolumeClaim"), set()),
        (obj(1, "weights", kind="PersistentVolumeClaim"), set()),
        ({"kind": "InferenceRegion", "metadata": {"name": "eu", "resourceVersion": "1"}}, {("team", "eu")}),
    ],
)
def test_whom_a_change_concerns(changed: dict[str, Any], keys: set[tuple[str, str]]) -> None:
    caches = Caches()
    caches[ENDPOINTS].put(make_endpoint("tiny"))
    caches[ENDPOINTS].put(make_endpoint("eu", placement={"regions": ["eu"]}))
    assert set(concerned(caches, changed)) == keys


def test_paths_and_selectors() -> None:
    assert ENDPOINTS.path("team", "tiny", "status") == (
        "/apis/emberline.dev/v1alpha1/namespaces/team/inferenceendpoints/tiny/status"
    )
    assert REGIONS.path(name="eu") == "/apis/emberline.dev/v1alpha1/inferenceregions/eu"
    assert CLAIMS.path() == "/api/v1/persistentvolumeclaims"
    assert DEPLOYMENTS.path("team", "x", "scale") == "/apis/apps/v1/namespaces/team/deployments/x/scale"
    settings = kopf_settings()
    assert settings.peering.standalone
    assert not settings.posting.enabled
    selectors = settings.watching.label_selectors
    assert selectors["", "v1", "services"] == SERVICES.selector
    assert names.GATEWAY_NAME in PODS.selector
