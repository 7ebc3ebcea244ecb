"""The whole decision for endpoints in several regions: their objects, their ends, their status."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from emberline_contract import names
from emberline_contract.status import InferenceEndpointStatus
from emberline_operator.plan.actions import Apply, Delete, Evict, Plan, Scale
from emberline_operator.snapshot import NodeState, PodState, Ref
from support.gpu_nodes import gpu_node
from support.operator_objects import NOW, Raw, Store, condition_of, make_endpoint, make_pod_state, quiet

REGIONS: Raw = {
    name: {"metadata": {"name": name}, "spec": {"jurisdictions": [name.upper()[:2]]}}
    for name in ("eu-1", "eu-2", "us-1")
}


def labels(region: str) -> dict[str, str]:
    return {names.LABEL_TOPOLOGY_REGION: region}


def world(*regions: str, nodes: dict[str, NodeState] | None = None, **spec: Any) -> Store:
    """An endpoint in these regions, each with a node of its own."""
    given = nodes or {f"n-{name}": NodeState(f"n-{name}", labels(name)) for name in REGIONS}
    placement = {"regions": list(regions), **spec.pop("placement", {})}
    return Store(make_endpoint(placement=placement, **spec), regions=dict(REGIONS), nodes=given, demand=quiet(1))


def moved(store: Store, *regions: str, generation: int = 2, **spec: Any) -> None:
    status = store.endpoint.get("status")
    placement = {"regions": list(regions), **spec.pop("placement", {})}
    store.endpoint = make_endpoint(generation=generation, status=status, placement=placement, **spec)


def pod_in(store: Store, region: str, name: str = "", **state: Any) -> PodState:
    """A ready pod of the region's present template."""
    live = store.children[Ref("Deployment", f"tiny--{region}")]
    hash_ = live["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH]
    given = {"region": region, "template_hash": hash_, "node": f"n-{region}", "uid": f"u-{region}", **state}
    return make_pod_state(name or f"p-{region}", ready_s=600, **given)


def run(store: Store, region: str, replicas: int = 1) -> None:
    """Somebody scaled, and the pods are there and ready."""
    store.scale(replicas, ref=Ref("Deployment", f"tiny--{region}"))
    store.pods = (*store.pods, *(pod_in(store, region, f"p-{region}-{i}") for i in range(replicas)))


def regions_of(plan: Plan) -> dict[str, Raw]:
    return {region["name"]: region for region in plan.status.get("regions", ())}


# Objects.


def test_each_region_has_its_own_objects() -> None:
    store = world("eu-1", "us-1")
    store.settle()
    found = {(ref.kind, child["metadata"]["labels"][names.LABEL_REGION]) for ref, child in store.children.items()}
    kinds = ("ConfigMap", "Deployment", "PodDisruptionBudget", "Service")
    assert found == {(kind, region) for kind in kinds for region in ("eu-1", "us-1")}
    for region in ("eu-1", "us-1"):
        spec = store.children[Ref("Deployment", f"tiny--{region}")]["spec"]
        assert spec["selector"]["matchLabels"][names.LABEL_REGION] == region
        (term,) = spec["template"]["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        assert {"key": names.LABEL_TOPOLOGY_REGION, "operator": "In", "values": [region]} in term["matchExpressions"]


@pytest.mark.parametrize("label", ["us-1", "nowhere", None])
def test_a_label_that_somebody_has_changed_is_put_back_and_stops_nothing(label: str | None) -> None:
    store = world("eu-1")
    store.settle()
    run(store, "eu-1")
    before = dict(store.children)
    for ref, child in before.items():
        labels = {key: value for key, value in child["metadata"]["labels"].items() if key != names.LABEL_REGION}
        if label is not None:
            labels[names.LABEL_REGION] = label
        store.children[ref] = {**child, "metadata": {**child["metadata"], "labels": labels}}
    first = store.decide().actions
    assert first, "the labels are not what they should be"
    assert all(isinstance(action, Apply) for action in first), first
    store.settle()
    assert store.children.keys() == before.keys()
    assert {child["metadata"]["labels"][names.LABEL_REGION] for child in store.children.values()} == {"eu-1"}


def test_floors_count_in_each_region() -> None:
    store = world("eu-1", "us-1", scaling={"minReplicas": 2})
    store.settle()
    for region in ("eu-1", "us-1"):
        assert store.children[Ref("Deployment", f"tiny--{region}")]["spec"]["replicas"] == 2


def test_status_speaks_of_each_and_of_all() -> None:
    store = world("eu-1", "us-1")
    store.settle()
    run(store, "eu-1", 2)
    plan = store.settle()
    InferenceEndpointStatus.model_validate(plan.status)
    assert plan.status["regions"] == [
        {"name": "eu-1", "desired": 2, "ready": 2},
        {"name": "us-1", "desired": 0, "ready": 0},
    ]
    assert (plan.status["replicas"], plan.status["readyReplicas"]) == (2, 2)
    assert (plan.status["readyOfDesired"], plan.status["regionNames"]) == ("2/2", "eu-1,us-1")
    assert plan.status["selector"] == "app.kubernetes.io/name=emberline-runtime,emberline.dev/endpoint=tiny"
    assert condition_of(plan, "Ready")["message"] == "2 of 2 engines are ready"


def test_one_region_without_a_place_is_told_and_the_others_serve() -> None:
    store = world("eu-1", "mars", "us-1")
    plan = store.settle()
    placed = condition_of(plan, "Placed")
    assert (placed["status"], placed["reason"]) == ("True", "PartlyPlaced")
    assert "eu-1, us-1" in placed["message"]
    assert "there is no InferenceRegion of that name" in placed["message"]
    assert condition_of(plan, "Ready")["reason"] == "ScaledToZero"
    shown = regions_of(plan)
    assert list(shown) == ["eu-1", "mars", "us-1"]
    assert "create it or name another" in shown["mars"]["message"]
    assert "message" not in shown["eu-1"]


def test_the_precision_of_the_first_is_shown_and_that_others_differ() -> None:
    nodes = {
        "n-eu-1": gpu_node("h100", "n-eu-1", labels=labels("eu-1")),
        "n-us-1": gpu_node("t4", "n-us-1", labels=labels("us-1")),
    }
    store = world("eu-1", "us-1", nodes=nodes, accelerator={"kind": "Nvidia"}, model={"source": "pvc://m/llama-3-8b"})
    plan = store.settle()
    shown = regions_of(plan)
    assert (shown["eu-1"]["gpuClass"], plan.status["precision"]["format"]) == ("h100", "fp8")
    assert plan.status["precision"]["weightBytes"] > 8e9
    assert shown["us-1"]["gpuClass"] == "t4"
    assert "us-1: " in plan.status["precision"]["reason"]
    InferenceEndpointStatus.model_validate(plan.status)


# Leaving.


def test_a_left_region_where_nothing_runs_is_cleared_at_once() -> None:
    store = world("eu-1")
    store.settle()
    moved(store, "us-1")
    plan = store.decide()
    assert {action.ref.kind for action in plan.actions if isinstance(action, Delete)} == {
        "ConfigMap", "Deployment", "PodDisruptionBudget", "Service",
    }  # fmt: skip
    store.settle()
    assert {child["metadata"]["labels"][names.LABEL_REGION] for child in store.children.values()} == {"us-1"}


def test_a_left_region_serves_until_the_new_one_answers() -> None:
    store = world("eu-1")
    store.settle()
    run(store, "eu-1")
    moved(store, "us-1", "eu-2")
    plan = store.settle()
    assert store.children[Ref("Deployment", "tiny--us-1")]["spec"]["replicas"] == 1, "it starts, though nobody called"
    assert store.children[Ref("Deployment", "tiny--eu-2")]["spec"]["replicas"] == 0, "one of them is enough"
    assert store.children[Ref("Deployment", "tiny--eu-1")]["spec"]["replicas"] == 1
    assert condition_of(plan, "Ready")["reason"] == "Serving"
    reconciling = condition_of(plan, "Reconciling")
    assert "eu-1 go on until one of a region that the endpoint names answers" in reconciling["message"]
    assert "drained when another region answers" in regions_of(plan)["eu-1"]["message"]
    assert condition_of(plan, "ScalingActive")["reason"] == "FollowsDemand", "nothing is wrong"
    assert [notice for notice in plan.notices if notice.type == "Warning"] == []
    store.pods = (*store.pods, replace(pod_in(store, "us-1"), ready_since=None))
    assert not any(isinstance(action, Delete) for action in store.decide().actions), "it does not answer yet"
    store.pods = (store.pods[0], pod_in(store, "us-1"))
    plan = store.settle()
    assert not [ref for ref in store.children if ref.name.startswith("tiny--eu-1")]
    assert condition_of(plan, "Reconciling") == {}


def test_a_new_region_that_slept_already_is_woken() -> None:
    store = world("eu-1", "us-1")
    store.settle()
    run(store, "eu-1")
    store.settle()
    moved(store, "us-1")
    (scale,) = [action for action in store.decide().actions if isinstance(action, Scale)]
    assert (scale.ref.name, scale.replicas) == ("tiny--us-1", 1)


def test_an_endpoint_that_is_stopped_while_it_moves_starts_nothing() -> None:
    store = world("eu-1", scaling={"via": "External"}, replicas=1)
    store.settle()
    store.pods = (pod_in(store, "eu-1"),)
    moved(store, "us-1", scaling={"via": "External"}, replicas=0)
    store.settle()
    assert store.children[Ref("Deployment", "tiny--us-1")]["spec"]["replicas"] == 0
    store.pods = ()
    store.settle()
    assert not [ref for ref in store.children if ref.name.startswith("tiny--eu-1")]


def test_engines_that_found_no_node_hold_up_no_move() -> None:
    store = world("eu-1", scaling={"minReplicas": 1})
    store.settle()
    store.pods = (make_pod_state("p", region="eu-1", unschedulable="0/3 nodes"),)
    moved(store, "us-1")
    assert any(isinstance(action, Delete) for action in store.decide().actions)


def test_a_spec_change_touches_no_pod_of_a_left_region() -> None:
    store = world("eu-1")
    store.settle()
    run(store, "eu-1")
    before = store.children[Ref("Deployment", "tiny--eu-1")]["spec"]["template"]
    moved(store, "us-1", engine={"maxSequences": 7})
    store.settle()
    assert store.children[Ref("Deployment", "tiny--eu-1")]["spec"]["template"] == before


def test_what_would_start_engines_anew_is_deleted_first() -> None:
    store = world("eu-1")
    store.settle()
    moved(store, "us-1")
    deleted = [action.ref.kind for action in store.decide().actions if isinstance(action, Delete)]
    assert deleted[0] == "Deployment"


# Residency.


def test_replicas_are_lowered_before_a_pod_is_evicted() -> None:
    store = world("eu-1", placement={"residency": {"jurisdictions": ["EU"]}}, scaling={"minReplicas": 1})
    store.settle()
    store.pods = (pod_in(store, "eu-1"),)
    store.settle()
    store.regions["eu-1"] = {"metadata": {"name": "eu-1"}, "spec": {"jurisdictions": ["US"]}}
    plan = store.decide()
    assert [type(action) for action in plan.actions] == [Scale, Evict]
    scale, evict = plan.actions
    assert isinstance(scale, Scale)
    assert isinstance(evict, Evict)
    assert (scale.replicas, evict.pod, evict.uid, evict.grace_s) == (0, "p-eu-1", "u-eu-1", 10)
    assert condition_of(plan, "Placed")["reason"] == "OutsideJurisdiction"
    degraded = condition_of(plan, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ResidencyViolation")
    assert "p-eu-1" in degraded["message"]
    store.act(plan.actions)
    store.settle()
    assert store.pods == ()
    assert store.children[Ref("Deployment", "tiny--eu-1")]["spec"]["replicas"] == 0, "and stays so, whatever the floor"


def test_a_spec_that_cannot_be_read_still_keeps_engines_inside() -> None:
    store = world("eu-1", placement={"residency": {"jurisdictions": ["EU"]}}, scaling={"minReplicas": 1})
    store.settle()
    store.pods = (pod_in(store, "eu-1"),)
    store.settle()
    store.endpoint["spec"]["scaling"] = {"idleAfter": "soon"}
    plan = store.decide()
    assert plan.actions == (), "all is where it should be"
    assert plan.status["precision"]["format"] == "bf16", "what runs is still told"
    assert regions_of(plan)["eu-1"] == {"name": "eu-1", "desired": 1, "ready": 1}
    store.nodes["n-eu-1"] = NodeState("n-eu-1", labels("us-1"))
    plan = store.decide()
    (evict,) = plan.actions
    assert isinstance(evict, Evict)
    assert condition_of(plan, "Accepted")["reason"] == "InvalidSpec"
    assert condition_of(plan, "Degraded")["reason"] == "ResidencyViolation"
    store.endpoint["spec"]["placement"] = "nonsense"
    assert [type(action) for action in store.decide().actions] == [Evict], "also if not even the placement can be read"


def test_a_name_that_is_taken_in_one_region_stops_all_but_evictions() -> None:
    store = world("eu-1", "us-1", placement={"residency": {"jurisdictions": ["EU", "US"]}})
    store.settle()
    store.pods = (pod_in(store, "eu-1", node="n-us-1"),)
    moved(store, "eu-1", "eu-2", placement={"residency": {"jurisdictions": ["EU"]}})
    theirs: Raw = {"metadata": {"name": "tiny--eu-2", "uid": "x", "ownerReferences": []}, "spec": {}}
    store.children[Ref("PodDisruptionBudget", "tiny--eu-2")] = theirs
    plan = store.decide()
    assert [type(action) for action in plan.actions] == [Evict]
    assert condition_of(plan, "Accepted")["reason"] == "NameTaken"
    assert "PodDisruptionBudget tiny--eu-2" in condition_of(plan, "Accepted")["message"]


# Nothing may start.


@pytest.mark.parametrize("change", [{"engine": {"maxSequences": 7}}, {"podTemplate": {"labels": {"team": "a"}}}])
def test_where_nothing_may_start_no_template_changes(change: Raw) -> None:
    store = world("eu-1", scaling={"minReplicas": 1})
    store.settle()
    store.pods = (pod_in(store, "eu-1"),)
    store.settle()
    before = store.children[Ref("Deployment", "tiny--eu-1")]["spec"]["template"]
    del store.regions["eu-1"]
    moved(store, "eu-1", scaling={"minReplicas": 3}, **change)
    plan = store.settle()
    live = store.children[Ref("Deployment", "tiny--eu-1")]["spec"]
    assert live["template"] == before
    assert live["replicas"] == 1, "and nothing is added"
    assert condition_of(plan, "Placed")["reason"] == "ResidencyUnknown"
    assert condition_of(plan, "Ready")["reason"] == "Serving"
    assert "wait for a place" in condition_of(plan, "Reconciling")["message"], "what serves is not what was asked for"
    store.regions["eu-1"] = REGIONS["eu-1"]
    store.settle()
    live = store.children[Ref("Deployment", "tiny--eu-1")]["spec"]
    assert live["template"] != before
    assert live["replicas"] == 3


def test_the_objects_of_a_region_with_nothing_decided_are_not_made() -> None:
    store = world("mars")
    plan = store.settle()
    assert store.children == {}
    assert not any(isinstance(action, Apply) for action in plan.actions)
    assert condition_of(plan, "Ready")["reason"] == "NotPlaced"


def test_a_status_is_never_too_large_to_be_written() -> None:
    """However many regions the endpoint has left, and however much there is to say."""
    store = world(*(f"mars-{i}" for i in range(8)), scaling={"minReplicas": 1})
    for i in range(12):
        region = f"eu-{i}"
        store.regions[region] = {"metadata": {"name": region}, "spec": {}}
        store.nodes[f"n-{region}"] = NodeState(f"n-{region}", labels(region))
        moved(store, region, scaling={"minReplicas": 1})
        store.settle()
        store.pods = (*store.pods, replace(pod_in(store, region), ready_since=None, failure="x" * 5000))
    moved(store, *(f"mars-{i}" for i in range(8)), scaling={"minReplicas": 1})
    plan = store.settle()
    assert len(plan.status["regions"]) == 16
    InferenceEndpointStatus.model_validate(plan.status)


def fails_to_start(store: Store, region: str) -> None:
    """An engine there crashes for longer than it may; it has gone to zero."""
    run(store, region)
    failing = pod_in(store, region, age_s=700, failure="container engine: no such model")
    store.pods = (replace(failing, ready_since=None),)
    store.settle()
    assert store.children[Ref("Deployment", f"tiny--{region}")]["spec"]["replicas"] == 0
    store.pods = ()


def test_a_region_that_may_still_be_tried_keeps_the_endpoint_ready() -> None:
    store = world("eu-1", "eu-2")
    store.settle()
    fails_to_start(store, "eu-1")
    plan = store.settle()
    assert condition_of(plan, "Ready")["reason"] == "ScaledToZero"
    assert condition_of(plan, "Degraded")["message"].startswith("eu-1: no engine could be started: ")
    fails_to_start(store, "eu-2")
    plan = store.settle()
    ready = condition_of(plan, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "StartFailed")
    assert {name: it["failedStart"]["count"] for name, it in regions_of(plan).items()} == {"eu-1": 1, "eu-2": 1}
    later = store.settle(now=NOW + timedelta(seconds=31))
    assert condition_of(later, "Ready")["reason"] == "ScaledToZero"
