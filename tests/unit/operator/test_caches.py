"""Caches: the newest version wins, whichever way it came."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_contract import names
from emberline_operator.cluster.caches import MAX_GONE, Cache, Caches
from emberline_operator.cluster.kinds import CLAIMS, DEPLOYMENTS, ENDPOINTS, PODS, REGIONS, SERVICES, trimmed
from emberline_operator.handlers.watches import concerned, kopf_settings, scope
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
    newer = {**obj(10), "spec": {}}
    assert cache.put(newer), "as a number, not as a text"
    assert cache.get(KEY) == newer
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
    told = cache.absorb([obj(5, "kept"), obj(8, "added")], version=20)
    assert [o["metadata"]["name"] for o in told.changed] == ["lost", "added"]
    assert told.news == {("team", "added"): 8}
    assert told.present == {("team", "kept"), ("team", "added")}
    assert told.lost == {("team", "lost")}
    assert {o["metadata"]["name"] for o in cache} == {"kept", "newer", "added"}, "what came after the list stays"
    told = cache.absorb([obj(5, "kept"), obj(8, "added"), obj(21, "newer")], version=30)
    assert (told.changed, told.news, told.lost) == ([], {}, set())


def test_a_list_of_a_namespace_says_nothing_of_others() -> None:
    cache = Cache()
    cache.put(obj(5, "mine"))
    cache.put(obj(5, "theirs", "other"))
    cache.put(obj(6, "gone", "other"))
    cache.remove(obj(7, "gone", "other"))
    told = cache.absorb([], version=20, namespace="team")
    assert [o["metadata"]["name"] for o in told.changed] == ["mine"]
    assert [o["metadata"]["name"] for o in cache] == ["theirs"]
    assert not cache.put(obj(6, "gone", "other")), "its deletion is remembered until a list of its own namespace"


def test_what_is_only_touched_is_no_news() -> None:
    cache = Cache()
    first = {**obj(5), "spec": {"selector": {"a": "b"}}}
    first["metadata"]["managedFields"] = []
    assert cache.put(first)
    before = cache.get(KEY)
    touched = {**first, "metadata": {**first["metadata"], "resourceVersion": "6", "managedFields": [entry("x", {})]}}
    assert not cache.put(touched), "a field that no decision looks at"
    after = cache.get(KEY)
    assert after is not None
    assert after["metadata"]["resourceVersion"] == "6", "the next write must name it"
    assert before is not None
    assert before["metadata"]["resourceVersion"] == "5", "a snapshot of then is not changed"
    told = cache.absorb([{**touched, "metadata": {**touched["metadata"], "resourceVersion": "7"}}], version=9)
    assert told.changed == []
    assert told.news == {KEY: 7}, "the watch has to tell it nevertheless"
    assert cache.put({**touched, "metadata": {**touched["metadata"], "resourceVersion": "8"}, "spec": {}})


def test_deletions_are_not_remembered_for_ever() -> None:
    cache = Cache()
    for number in range(10 * MAX_GONE):
        name = f"pod-{number}"
        cache.put(obj(2 * number + 1, name))
        cache.remove(obj(2 * number + 2, name))
        if number > MAX_GONE:
            assert not cache.put(obj(2 * number + 1, name)), "a recent one is"
    assert len(cache) == 0
    assert len(cache._gone) <= MAX_GONE
    assert not cache._by_endpoint


def test_words_of_many_objects_are_kept_once() -> None:
    cache = Cache()
    for name in "ab":
        cache.put(json.loads(json.dumps({**obj(1, name), "spec": {"type": "a word", "list": ["another word"]}})))
    first, second = cache
    assert first["spec"]["type"] is second["spec"]["type"]
    assert first["spec"]["list"][0] is second["spec"]["list"][0]
    assert next(iter(first["spec"])) is next(iter(second["spec"]))


def test_only_the_namespaces_that_are_watched_are_read() -> None:
    everything, some = Caches(), Caches(["team", "b"])
    assert everything.reads(PODS, "any")
    assert some.reads(PODS, "team")
    assert some.reads(REGIONS, ""), "cluster-scoped kinds always"
    assert not some.reads(PODS, "other")
    assert some.reads(PODS, names.SYSTEM_NAMESPACE), "gateways run there"
    assert not some.reads(ENDPOINTS, names.SYSTEM_NAMESPACE)


async def test_lists_stay_in_those_namespaces() -> None:
    asked: list[str] = []

    class Listing:
        async def request(self, method: str, path: str, *, query: Any) -> Any:
            asked.append(path)
            namespace = path.split("/")[4] if "/namespaces/" in path else ""
            items = [{"metadata": {"name": "a", "namespace": namespace, "resourceVersion": "3"}}]
            return {"items": items, "metadata": {"resourceVersion": "9"}}

    caches = Caches(["team", "b"])
    told = await caches.refresh(Listing(), PODS)  # type: ignore[arg-type]
    assert asked == [f"/api/v1/namespaces/{name}/pods" for name in ("b", names.SYSTEM_NAMESPACE, "team")]
    assert told.present == {("b", "a"), ("team", "a"), (names.SYSTEM_NAMESPACE, "a")} == set(told.news)
    assert len(told.changed) == len(caches[PODS]) == 3
    await caches.refresh(Listing(), REGIONS)  # type: ignore[arg-type]
    assert asked[-1] == REGIONS.path()


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
        "spec": {"volumes": [], "containers": [{"env": [{"value": "secret"}], "resources": {"limits": {}}}]},
        "status": {"phase": "Running", "hostIP": "x"},
    }
    assert trimmed(pod) == {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"volumes": [], "containers": [{"resources": {"limits": {}}}]},
        "status": {"phase": "Running", "conditions": []},
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
        ({"kind": "InferenceRegion", "metadata": {"name": "us", "resourceVersion": "1"}}, {("team", "eu")}),
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
    backoffs = settings.networking.error_backoffs
    assert not isinstance(backoffs, float)
    for _ in range(2):
        assert len(list(itertools.islice(backoffs, 1000))) == 1000, "no watch is ever given up, nor its second failure"
    assert scope(()) == {"clusterwide": True}
    assert scope(["team"]) == {"namespaces": [names.SYSTEM_NAMESPACE, "team"]}
    selectors = settings.watching.label_selectors
    assert selectors["", "v1", "services"] == SERVICES.selector
    assert names.GATEWAY_NAME in PODS.selector
