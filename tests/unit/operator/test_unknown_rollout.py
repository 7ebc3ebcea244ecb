"""A region that becomes unknown in the middle of a roll-out: it stands still, and nobody who answers is stopped before absenceGrace."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from emberline_contract import names
from emberline_operator.snapshot import PodState, Ref
from support.operator_objects import EU, NOW, Raw, Store, condition_of, make_endpoint, make_pod_state

REF = Ref("Deployment", "tiny--eu")
SPEC: Raw = {"placement": {"regions": ["eu"]}, "scaling": {"minReplicas": 2}}
LATER = NOW + timedelta(minutes=1)


def half_rolled_out() -> Store:
    """Two engines should run: an old one answers, and a new one finds no node."""
    store = Store(make_endpoint(**SPEC), regions=dict(EU))
    store.settle()
    old_hash = store.children[REF]["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH]
    old = make_pod_state("old", region="eu", ready_s=600, template_hash=old_hash, node="n-eu", uid="u-old")
    store.pods = (old, replace(old, name="old-2", uid="u-old-2"))
    store.settle()
    store.endpoint = {
        **make_endpoint(generation=2, engine={"maxSequences": 7}, **SPEC),
        "status": store.endpoint["status"],
    }
    store.settle()
    new_hash = store.children[REF]["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH]
    assert new_hash != old_hash
    new = make_pod_state(
        "new", region="eu", age_s=20, template_hash=new_hash, uid="u-new", unschedulable="Insufficient nvidia.com/gpu",
        unschedulable_since=NOW - timedelta(seconds=20),
    )  # fmt: skip
    store.pods = (old, new)
    store.settle()
    return store


def test_it_stands_still_until_the_region_is_known_again() -> None:
    store = half_rolled_out()
    store.regions = {}
    store.settle(now=LATER)
    spec = store.children[REF]["spec"]
    assert (spec["replicas"], spec.get("paused")) == (2, True)
    store.regions = dict(EU)
    plan = store.decide(now=LATER)
    assert condition_of(plan, "RolloutBlocked")["reason"] != "Paused", "nobody else has paused it"
    store.settle(now=LATER)
    assert "paused" not in store.children[REF]["spec"]


def test_after_the_grace_nothing_stays() -> None:
    store = half_rolled_out()
    store.regions = {}
    store.settle(now=LATER)
    after = LATER + timedelta(minutes=10)
    plan = store.decide(now=after)
    store.act(plan.actions)
    assert store.children[REF]["spec"]["replicas"] == 0
    assert {pod.name for pod in store.pods} == {"new"}, "it has no node; its ReplicaSet takes it away"


def test_whoever_came_since_is_not_counted_and_without_a_roll_out_nobody_waits() -> None:
    store = half_rolled_out()
    late = replace(store.pods[1], name="late", uid="u-late", created=LATER + timedelta(seconds=5))
    store.pods = (*store.pods, late)
    store.regions = {}
    store.settle(now=LATER)
    assert store.children[REF]["spec"]["replicas"] == 2
    store = half_rolled_out()
    same: PodState = replace(store.pods[0], template_hash=store.pods[1].template_hash)
    store.pods = (same, store.pods[1])
    store.regions = {}
    store.settle(now=LATER)
    spec = store.children[REF]["spec"]
    assert (spec["replicas"], spec.get("paused")) == (1, None), "what waits is taken away: nothing new is placed"
