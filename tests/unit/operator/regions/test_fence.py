"""A region in which no engine may come to be, seen by the whole decision: what is written, and in which order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.plan.actions import Apply, Delete, Evict, Scale
from emberline_operator.regions.record import record_of
from emberline_operator.snapshot import MetricsApi, NodeState, Ref
from support.operator_objects import NOW, Raw, Store, condition_of, make_endpoint, make_pod_state, quiet

EU_CHILD = Ref("Deployment", "tiny--eu")


def regions(*jurisdictions: str, **spec: Any) -> Raw:
    return {"eu": {"metadata": {"name": "eu"}, "spec": {"jurisdictions": list(jurisdictions), **spec}}}


def serving(*, via: str = "Auto", has_metrics: bool = False, **spec: Any) -> Store:
    """Two engines in region `eu`, which lies in the EU as it must."""
    placement = {"regions": ["eu"], "residency": {"jurisdictions": ["EU"]}}
    store = Store(
        make_endpoint(placement=placement, scaling={"minReplicas": 2, "via": via}, **spec),
        regions=regions("EU"),
        demand=quiet(1),
        metrics_api=MetricsApi(is_ours=has_metrics),
    )
    store.settle()
    template = store.children[EU_CHILD]["spec"]["template"]["metadata"]["annotations"]["emberline.dev/template-hash"]
    store.pods = tuple(
        make_pod_state(name, ready_s=300, region="eu", node="n-eu", uid=name, template_hash=template) for name in "ab"
    )
    assert store.settle().actions == ()
    return store


def template(store: Store) -> Raw:
    found: Raw = store.children[EU_CHILD]["spec"]["template"]
    return found


def test_replicas_are_lowered_before_anybody_is_evicted_whatever_the_version() -> None:
    store = serving()
    store.regions = regions("CH")
    plan = store.decide()
    scale, *evictions = plan.actions
    assert isinstance(scale, Scale)
    assert (scale.ref, scale.replicas, scale.resource_version) == (EU_CHILD, 0, "")
    assert [(e.pod, e.grace_s) for e in evictions if isinstance(e, Evict)] == [("a", 10), ("b", 10)]
    assert len(evictions) == 2
    assert condition_of(plan, "Degraded")["reason"] == "ResidencyViolation"
    assert condition_of(plan, "Placed")["reason"] == "OutsideJurisdiction"
    store.act(plan.actions)
    assert store.settle().actions == ()
    store.regions = regions("EU")
    store.settle()
    assert store.children[EU_CHILD]["spec"]["replicas"] == 2


def test_a_violation_is_told_until_the_pods_are_gone_and_names_them_all() -> None:
    store = serving()
    store.regions = regions("CH")
    told = condition_of(store.decide(), "Degraded")
    assert (
        "2 engines are where they must not be and are being stopped: pod a, b: residency: region eu" in told["message"]
    )
    soon = NOW + timedelta(seconds=8)
    store.pods = tuple(replace(pod, terminating=True, ends_by=soon) for pod in store.pods)
    plan = store.decide()
    assert not any(isinstance(action, Evict) for action in plan.actions), "they are on their way"
    assert condition_of(plan, "Degraded")["reason"] == "ResidencyViolation"
    store.pods = store.pods[:1]
    assert (
        "1 engine is where it must not be and is being stopped: pod a"
        in (condition_of(store.decide(), "Degraded")["message"])
    )
    store.pods = ()
    assert condition_of(store.settle(), "Degraded")["status"] == "False"


def test_nothing_is_told_of_pods_that_were_evicted_with_their_region() -> None:
    store = serving()
    store.pods = tuple(replace(pod, ready_since=None, failure="container engine: OOMKilled") for pod in store.pods)
    assert condition_of(store.settle(), "Degraded")["reason"] == "ContainerFailed"
    store.regions = regions("CH")
    store.settle()
    store.pods = ()
    plan = store.settle()
    assert condition_of(plan, "Degraded")["status"] == "False"
    assert condition_of(plan, "Ready")["reason"] == "NotPlaced"


def test_an_absence_is_remembered_on_the_deployment_and_nothing_else_changes() -> None:
    store = serving()
    before, generation = template(store), store.children[EU_CHILD]["spec"]["replicas"]
    store.regions = {}
    plan = store.settle()
    record = record_of(store.children[EU_CHILD], "eu")
    assert record is not None
    assert record.unknown_since == NOW
    assert (template(store), store.children[EU_CHILD]["spec"]["replicas"]) == (before, generation)
    assert condition_of(plan, "Placed")["reason"] == "ResidencyUnknown"
    assert plan.requeue_after_s is not None
    assert plan.requeue_after_s <= 600
    later = store.decide(now=NOW + timedelta(minutes=10))
    assert [type(action) for action in later.actions] == [Scale, Evict, Evict]
    store.regions = regions("EU")
    store.settle()
    record = record_of(store.children[EU_CHILD], "eu")
    assert record is not None
    assert record.unknown_since is None
    assert template(store) == before


@pytest.mark.parametrize("absent", [{}, regions()])
def test_an_edit_waits_until_it_is_known_again_where_the_region_is(absent: Raw) -> None:
    store = serving()
    before = template(store)
    store.regions = absent
    store.endpoint = {**store.endpoint, "spec": {**store.endpoint["spec"], "engine": {"maxModelLen": 512}}}
    store.settle()
    assert template(store) == before
    store.regions = regions("EU")
    store.settle()
    assert template(store) != before


def test_a_deployment_that_has_lost_all_annotations_gets_them_back_as_they_were() -> None:
    # Its spec asks for what the first release did not know: it is not taken for one of that release.
    store = serving(model={"source": "pvc://models/tiny", "parameters": "8B"})
    before = store.children[EU_CHILD]
    store.children[EU_CHILD] = {**before, "metadata": {**before["metadata"], "annotations": {}}}
    assert store.settle().actions == ()
    assert template(store) == before["spec"]["template"]
    assert store.children[EU_CHILD]["metadata"]["annotations"] == before["metadata"]["annotations"]


def test_a_new_selector_moves_the_engines() -> None:
    store = serving()
    store.regions = regions("EU", nodeSelector={"pool": "x"})
    assert condition_of(store.decide(), "Placed")["reason"] == "NoNodes"
    node = store.nodes["n-eu"]
    store.nodes["n-eu"] = type(node)(node.name, {**node.labels, "pool": "x"})
    plan = store.decide()
    (apply,) = [action for action in plan.actions if isinstance(action, Apply) and action.ref == EU_CHILD]
    assert "pool" in str(apply.body["spec"]["template"]["spec"]["affinity"])
    assert not [action for action in plan.actions if isinstance(action, Evict)]


def unread(store: Store) -> None:
    """The newest spec cannot be acted on; its placement can be read."""
    store.endpoint = copy.deepcopy(store.endpoint)
    store.endpoint["metadata"]["generation"] += 1
    store.endpoint["spec"]["scaling"]["idleAfter"] = "1 day"


def graceless(store: Store) -> None:
    """What cannot be read is the residency's own grace."""
    unread(store)
    store.endpoint["spec"]["placement"]["residency"]["absenceGrace"] = "1 day"


def taken(store: Store) -> None:
    """Somebody has put an object of theirs in the place of a child."""
    del store.children[Ref("Service", "tiny--eu")]["metadata"]["ownerReferences"]


@pytest.mark.parametrize("reject", [unread, graceless, taken])
def test_an_endpoint_that_is_not_accepted_is_fenced_too(reject: Callable[[Store], None]) -> None:
    """Else the ReplicaSet makes each engine that is evicted anew, in the region that is forbidden."""
    store = serving()
    reject(store)
    assert store.decide().actions == (), "what runs where it may goes on"
    store.regions = regions("CH")
    scale, *evictions = store.decide().actions
    assert isinstance(scale, Scale)
    assert (scale.ref, scale.replicas, scale.resource_version) == (EU_CHILD, 0, "")
    assert [e.pod for e in evictions if isinstance(e, Evict)] == ["a", "b"]
    store.regions = regions("EU")
    store.pods = (store.pods[0], replace(store.pods[1], node="n-ch"))
    store.nodes["n-ch"] = NodeState("n-ch", {names.LABEL_TOPOLOGY_REGION: "ch"})
    (eviction,) = store.decide().actions
    assert isinstance(eviction, Evict), "an engine on a wrong node is made anew on a right one"


def test_pods_without_a_region_are_not_made_anew_where_they_may_not_be() -> None:
    store = Store(make_endpoint(scaling={"minReplicas": 1}), regions=regions("EU"), demand=quiet(1))
    store.settle()
    store.nodes = {"n-ch": NodeState("n-ch", {names.LABEL_TOPOLOGY_REGION: "ch"})}
    store.regions |= {"ch": {"metadata": {"name": "ch"}, "spec": {"jurisdictions": ["CH"]}}}
    store.pods = (make_pod_state("a", ready_s=300, node="n-ch", uid="a"),)
    store.endpoint["spec"]["placement"] = {"regions": ["eu"], "residency": {"jurisdictions": ["EU"]}}
    unread(store)
    scale, eviction = store.decide().actions
    assert isinstance(scale, Scale)
    assert (scale.ref.name, scale.replicas) == ("tiny--default", 0)
    assert isinstance(eviction, Evict)


def test_no_autoscaler_is_left_where_nothing_may_start() -> None:
    store = serving(has_metrics=True, via="HPA")
    unread(store)
    store.regions = regions("CH")
    delete, scale, *_ = store.decide().actions
    assert isinstance(delete, Delete)
    assert delete.ref.kind == "HorizontalPodAutoscaler"
    assert isinstance(scale, Scale)


def test_an_edit_that_cannot_be_placed_lets_a_roll_out_that_waits_keep_the_engine_that_serves() -> None:
    """With fewer replicas the controller would stop it: the new one, which has no node, counts as one of them."""
    store = serving()
    store.pods = (store.pods[0], make_pod_state("new", region="eu", template_hash="newer", unschedulable="0/1 nodes"))
    store.endpoint = copy.deepcopy(store.endpoint)
    store.endpoint["metadata"]["generation"] += 1
    store.endpoint["spec"]["accelerator"] = {"kind": "Nvidia", "types": ["zzz"], "count": 1}
    plan = store.settle()
    assert condition_of(plan, "Placed")["reason"] == "NoSuchGpu"
    assert condition_of(plan, "Ready")["status"] == "True"
    assert store.children[EU_CHILD]["spec"]["replicas"] == 2
    store.regions = regions("CH")
    store.settle()
    assert store.children[EU_CHILD]["spec"]["replicas"] == 0
