"""What passes know of each other's endpoints, and whom a change concerns."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract import names
from emberline_operator.cluster.caches import Caches, Key
from emberline_operator.cluster.features import features_of
from emberline_operator.cluster.index import Index
from emberline_operator.cluster.kinds import API_SERVICES, BY_KIND, DEPLOYMENTS, ENDPOINTS, NODES, PODS, REGIONS
from emberline_operator.handlers.watches import concerned
from emberline_operator.reconcile.observe import Remembered, observe
from emberline_operator.snapshot import Features, MetricsApi, NodeState, Rival, Taint, read_node, time_of
from support.examples import examples
from support.operator_objects import Raw, make_endpoint

_versions = itertools.count(1)
GPU = names.GPU_RESOURCE
STAMP = "2026-12-01T12:00:00Z"


def put(caches: Caches, kind: str, name: str, namespace: str = "", **parts: Any) -> Raw:
    """A new version of an object in the caches."""
    metadata = {
        "name": name,
        "resourceVersion": str(next(_versions)),
        "creationTimestamp": STAMP,
        **parts.pop("metadata", {}),
    }
    if namespace:
        metadata["namespace"] = namespace
    obj = {"kind": kind, "metadata": metadata, **parts}
    caches[BY_KIND[kind]].put(obj)
    return obj


def remove(caches: Caches, obj: Raw) -> None:
    gone = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(next(_versions))}}
    assert caches[BY_KIND[obj["kind"]]].remove(gone)


def node(caches: Caches, name: str, *, ready: str = "True", beat: str = STAMP, **labels: str) -> Raw:
    conditions = [
        {"type": "Ready", "status": ready, "lastHeartbeatTime": beat},
        {"type": "DiskPressure", "status": "False", "lastHeartbeatTime": beat},
    ]
    status = {"conditions": conditions, "allocatable": {"cpu": "8", GPU: "8"}, "images": [{"names": [beat]}]}
    taints = [{"key": GPU, "effect": "NoSchedule"}]
    return put(caches, NODES.kind, name, metadata={"labels": labels}, spec={"taints": taints}, status=status)


def pod(caches: Caches, name: str, on: str, *, endpoint: str = "tiny", gpus: int = 1, phase: str = "Running") -> Raw:
    labels = {names.LABEL_APP: names.RUNTIME_NAME, names.LABEL_ENDPOINT: endpoint}
    spec = {"nodeName": on, "containers": [{"name": "engine", "resources": {"limits": {GPU: str(gpus)}}}]}
    return put(caches, PODS.kind, name, "team", metadata={"labels": labels}, spec=spec, status={"phase": phase})


def endpoint(
    caches: Caches, name: str = "tiny", conditions: Raw | None = None, *, created: str = STAMP, **spec: Any
) -> Raw:
    made = make_endpoint(name, **spec)
    listed = [{"type": kind, "status": s, "reason": r} for kind, (s, r) in (conditions or {}).items()]
    return put(
        caches, ENDPOINTS.kind, name, "team",
        metadata={"uid": f"uid-{name}", "creationTimestamp": created}, spec=made["spec"], status={"conditions": listed},
    )  # fmt: skip


# Nodes.


def test_a_node_is_read() -> None:
    caches = Caches()
    node(caches, "a", region="eu")
    assert caches.index.nodes == {"a": NodeState("a", {"region": "eu"}, {GPU: 8}, (Taint(GPU, "", "NoSchedule"),))}
    assert read_node({"metadata": {"name": "b"}, "spec": {"unschedulable": True}}) == NodeState(
        "b", {}, is_ready=False, is_cordoned=True
    )


def test_what_is_no_count_of_gpus_is_passed_over() -> None:
    allocatable = {"cpu": "64", GPU: "8", "nvidia.com/mig-1g.10gb": "2", "example.com/gpu": "1", "nvidia.com/gpumem": "80k",
                   "nvidia.com/hostdev": "4", "hugepages-2Mi": "0"}  # fmt: skip
    node_state = read_node({"metadata": {"name": "n"}, "status": {"allocatable": allocatable}})
    assert node_state.gpus == {GPU: 8, "nvidia.com/mig-1g.10gb": 2, "example.com/gpu": 1}


def test_a_heartbeat_is_no_news_and_concerns_nobody() -> None:
    caches = Caches()
    node(caches, "a")
    before = caches.index.nodes
    beat = {**node(caches, "a", beat="2026-12-01T12:00:10Z")}
    assert not caches[NODES].put({**beat, "metadata": {**beat["metadata"], "resourceVersion": str(next(_versions))}})
    assert caches.index.nodes is before, "nothing was counted anew"


def test_what_a_snapshot_has_been_given_does_not_change() -> None:
    caches = Caches()
    endpoint(caches)
    first = node(caches, "a")
    bound = pod(caches, "p", "a")
    seen = observe(caches, ("team", "tiny"), Features(), Remembered())
    assert seen is not None
    remove(caches, first)
    remove(caches, bound)
    assert set(seen.nodes) == {"a"}
    assert seen.gpus_in_use == {"a": {GPU: 1}}
    assert caches.index.nodes == {}
    assert caches.index.gpus_in_use == {}


# GPUs.


@pytest.mark.parametrize(
    ("phase", "counts"), [("Running", True), ("Pending", True), ("Succeeded", False), ("Failed", False)]
)
def test_a_pod_holds_its_gpus_until_it_has_ended(phase: str, counts: bool) -> None:
    caches = Caches()
    pod(caches, "p", "a", gpus=2, phase=phase)
    assert caches.index.gpus_in_use == ({"a": {GPU: 2}} if counts else {})


steps = st.lists(
    st.tuples(st.sampled_from("pqrs"), st.sampled_from(["", "a", "b"]), st.integers(0, 3), st.booleans()), max_size=20
)


@settings(**examples(100))
@given(steps=steps)
def test_the_count_is_that_of_counting_all(steps: list[tuple[str, str, int, bool]]) -> None:
    caches = Caches()
    for name, on, gpus, is_there in steps:
        obj = pod(caches, name, on, gpus=gpus, endpoint=f"of-{name}")
        if not is_there:
            remove(caches, obj)
    fresh = Index()
    for known in caches[PODS]:
        fresh.change(None, known)
    assert caches.index.gpus_in_use == fresh.gpus_in_use
    for on in ("a", "b"):
        assert caches.index.endpoints_on(on) == fresh.endpoints_on(on)
        assert sum(caches.index.gpus_in_use.get(on, {}).values()) == sum(
            int(p["spec"]["containers"][0]["resources"]["limits"][GPU])
            for p in caches[PODS]
            if p["spec"]["nodeName"] == on
        )


unplaced = st.lists(
    st.tuples(st.sampled_from("pqrs"), st.sampled_from(["", "a"]), st.sampled_from("xy"), st.booleans()), max_size=20
)


@settings(**examples(50))
@given(steps=unplaced)
def test_who_finds_no_node_is_known_until_that_ends(steps: list[tuple[str, str, str, bool]]) -> None:
    caches = Caches()
    expected: dict[str, str] = {}
    for name, on, owner, is_there in steps:
        before = caches.index.waiters
        held = {key: tuple(pods) for key, pods in before.items()}
        labels = {names.LABEL_APP: names.RUNTIME_NAME, names.LABEL_ENDPOINT: owner}
        said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"Insufficient {GPU}"}
        spec = {
            "nodeSelector": {"disk": "fast"},
            "containers": [{"name": "engine", "resources": {"limits": {GPU: "2"}}}],
            **({"nodeName": on} if on else {}),
        }
        obj = put(
            caches, PODS.kind, name, "team", metadata={"labels": labels}, spec=spec, status={"conditions": [said]}
        )
        expected[name] = "" if on else owner
        if not is_there:
            remove(caches, obj)
            del expected[name]
        assert {key: tuple(pods) for key, pods in before.items()} == held, "what a snapshot has been given stays"
        waiters = {(key, waiter.pod) for key, pods in caches.index.waiters.items() for waiter in pods}
        assert waiters == {(("team", owner), pod) for pod, owner in expected.items() if owner}
    for pods in caches.index.waiters.values():
        for waiter in pods:
            assert (waiter.gpus, waiter.words) == ({GPU: 2}, f"Insufficient {GPU}")
            assert waiter.spec["nodeSelector"] == {"disk": "fast"}


# Whom it concerns.


def of(caches: Caches, obj: Raw) -> set[str]:
    return {name for _, name in concerned(caches, obj)}


def test_a_node_concerns_who_runs_there_and_who_waits() -> None:
    caches = Caches()
    serving = {"Placed": ("True", "InRegion"), "Ready": ("True", "Serving"), "Degraded": ("False", "AsExpected")}
    endpoint(caches, "here", serving)
    endpoint(caches, "elsewhere", serving)
    pod(caches, "p", "a", endpoint="here")
    pod(caches, "q", "b", endpoint="elsewhere")
    waiting = {
        "unplaced": {"Placed": ("False", "NoNodes")},
        "partly": {"Placed": ("True", "PartlyPlaced")},
        "pending": {"Ready": ("False", "Unschedulable")},
        "degraded": {"Ready": ("True", "Serving"), "Degraded": ("True", "Unschedulable")},
        "blocked": {"RolloutBlocked": ("True", "WaitingForGpu")},
    }
    for name, conditions in waiting.items():
        endpoint(caches, name, conditions)
    of(caches, node(caches, "first"))  # of its kind, which is news to everybody
    assert of(caches, node(caches, "a")) == {"here", *waiting}
    for name in waiting:
        endpoint(caches, name, serving)
    changed = node(caches, "a", region="us")
    assert of(caches, changed) == {"here"}
    remove(caches, changed)
    assert of(caches, changed) == {"here"}, "gone: what ran there must be looked at"


def test_a_region_concerns_those_that_name_it() -> None:
    caches = Caches()
    endpoint(caches, "eu", placement={"regions": ["us", "eu"]})
    endpoint(caches, "any")
    left = endpoint(caches, "left", placement={"regions": ["us"]})
    put(caches, ENDPOINTS.kind, "left", "team", spec=left["spec"], status={"regions": [{"name": "us"}, {"name": "eu"}]})
    assert of(caches, put(caches, REGIONS.kind, "eu", spec={})) == {"eu", "left"}


def test_an_api_service_of_metrics_concerns_those_who_could_use_it() -> None:
    caches = Caches()
    for via in ("Auto", "HPA", "Operator"):
        endpoint(caches, via.lower(), scaling={"via": via})
    endpoint(caches, "external", scaling={"via": "External"})
    service = {
        "group": names.METRICS_GROUP,
        "service": {"namespace": names.SYSTEM_NAMESPACE, "name": names.GATEWAY_NAME},
    }
    status = {"conditions": [{"type": "Available", "status": "True"}]}
    theirs = put(caches, API_SERVICES.kind, "v1.apps", spec={"group": "apps", "service": None}, status={})
    ours = put(caches, API_SERVICES.kind, f"v1beta2.{names.METRICS_GROUP}", spec=service, status=status)
    assert of(caches, theirs) == set()
    assert of(caches, ours) == {"auto", "hpa"}
    seen = observe(caches, ("team", "auto"), Features(), Remembered())
    assert seen is not None
    assert seen.metrics_api == MetricsApi(is_ours=True)


def test_a_served_name_concerns_its_rivals_when_it_comes_changes_or_goes() -> None:
    caches = Caches()
    first = endpoint(
        caches, "first", created="2026-12-01T10:00:00Z", model={"source": "pvc://m", "servedName": "llama"}
    )
    assert of(caches, first) == {"first"}
    second = endpoint(caches, "second", model={"source": "pvc://m", "servedName": "llama"})
    assert of(caches, second) == {"first", "second"}
    assert of(caches, second) == {"second"}, "told once"
    assert caches.index.rivals(("team", "second")) == (Rival(time_of("2026-12-01T10:00:00Z"), "team", "first"),)
    again = endpoint(
        caches, "first", created="2026-12-01T10:00:00Z", model={"source": "pvc://m", "servedName": "llama"}
    )
    assert of(caches, again) == {"first"}, "another change of it is its own business"
    renamed = endpoint(caches, "first", model={"source": "pvc://m", "servedName": "other"})
    other = endpoint(caches, "other")
    assert of(caches, other) == {"second", "other"}, "whatever event comes next: its own may be old news"
    assert of(caches, renamed) == {"first"}
    assert caches.index.rivals(("team", "second")) == ()
    third = endpoint(caches, "third", model={"source": "pvc://m", "servedName": "other"})
    assert of(caches, third) == {"first", "third"}
    remove(caches, third)
    assert of(caches, third) == {"first", "third"}


def test_a_served_name_that_is_another_endpoints_qualified_name() -> None:
    caches = Caches()
    alias = endpoint(caches, "alias", model={"source": "pvc://m", "servedName": "team/first"})
    itself = endpoint(caches, "itself", model={"source": "pvc://m", "servedName": "team/itself"})
    assert of(caches, alias) == {"alias"}
    assert not caches.index.is_shadowed(("team", "alias"))
    first = endpoint(caches, "first")
    assert of(caches, first) == {"alias", "first"}
    assert caches.index.is_shadowed(("team", "alias"))
    shadowed = observe(caches, ("team", "alias"), Features(), Remembered())
    assert shadowed is not None
    assert shadowed.is_shadowed
    endpoint(caches, "first", model={"source": "pvc://other"})
    assert of(caches, first) == {"first"}, "it was there before"
    remove(caches, first)
    assert of(caches, first) == {"alias", "first"}
    assert not caches.index.is_shadowed(("team", "alias"))
    assert of(caches, itself) == {"itself"}
    assert not caches.index.is_shadowed(("team", "itself")), "its own name is no conflict"


def test_a_child_concerns_its_endpoint() -> None:
    caches = Caches()
    labels = {names.LABEL_ENDPOINT: "tiny", names.LABEL_MANAGED_BY: names.MANAGED_BY}
    template = {"spec": {"containers": []}}
    child = put(
        caches, DEPLOYMENTS.kind, "tiny--default", "team", metadata={"labels": labels}, spec={"template": template}
    )
    assert of(caches, child) == {"tiny"}


# The API server.

RULES = {"components": {"schemas": {"io.k8s.api.autoscaling.v2.HPAScalingRules": {"properties": {"tolerance": {}}}}}}


@pytest.mark.parametrize(
    ("version", "schema", "has"),
    [
        ({"major": "1", "minor": "37"}, RULES, True),
        ({"major": "1", "minor": "35+"}, RULES, True),
        ({"major": "1", "minor": "34"}, RULES, False),
        ({"major": "1", "minor": "37"}, {}, False),
        ({"major": "2", "minor": "0"}, RULES, True),
        ({}, RULES, False),
    ],
)
def test_what_an_older_api_server_lacks_is_left_out(version: Raw, schema: Raw, has: bool) -> None:
    assert features_of(version, schema) == Features(hpa_tolerance=has)


def test_a_pass_is_given_what_it_needs_of_the_others() -> None:
    caches = Caches()
    endpoint(caches, model={"source": "pvc://models/tiny", "servedName": "x"})
    endpoint(caches, "rival", model={"source": "pvc://models/tiny", "servedName": "x"})
    node(caches, "a")
    pod(caches, "theirs", "a", endpoint="rival", gpus=3)
    key: Key = ("team", "tiny")
    seen = observe(caches, key, Features(hpa_tolerance=False), Remembered(recommendations={"eu": ()}))
    assert seen is not None
    assert (set(seen.nodes), seen.gpus_in_use) == ({"a"}, {"a": {GPU: 3}})
    assert [rival.name for rival in seen.rivals] == ["rival"]
    assert not seen.features.hpa_tolerance
    assert seen.recommendations == {"eu": ()}
    assert seen.pods == (), "others' pods are no part of it"
