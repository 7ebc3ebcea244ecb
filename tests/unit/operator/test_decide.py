"""The whole decision: its questions, its refusals, its places."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.plan.actions import Apply, Ask, Delete, Plan
from emberline_operator.plan.decide import decide
from emberline_operator.snapshot import Ref
from support.operator_objects import (
    CHILD,
    INSTALL,
    NOW,
    Raw,
    Store,
    condition_of,
    made,
    make_endpoint,
    quiet,
    ready_pod,
)

# Questions.


def test_names_that_are_not_known_are_looked_up_before_anything_is_written() -> None:
    ask = decide(Store(make_endpoint()).snapshot(), INSTALL, NOW)
    assert isinstance(ask, Ask)
    assert {ref.kind for ref in ask.objects} == {"ConfigMap", "Service", "Deployment", "PodDisruptionBudget"}
    assert ask.demand_of is None


def test_demand_is_asked_for_only_while_something_runs() -> None:
    store = made()
    assert isinstance(decide(store.snapshot(), INSTALL, NOW), Plan)
    store.scale(1)
    assert decide(store.snapshot(), INSTALL, NOW) == Ask(demand_of="default")


# Refusals.


def stranger(ref: Ref, **owner: Any) -> Raw:
    references = [{"kind": "Cat", "name": "tom", "uid": "u-9", "controller": True, **owner}] if owner else []
    return {"metadata": {"name": ref.name, "uid": "u-1", "ownerReferences": references}, "spec": {}}


@pytest.mark.parametrize("owner", [{}, {"kind": "Cat"}, {"kind": names.ENDPOINT_KIND, "name": "other"}])
@pytest.mark.parametrize("where", ["looked_up", "children"])
def test_a_strangers_object_is_never_touched(owner: Raw, where: str) -> None:
    store = Store(make_endpoint())
    refs = {action.ref: None for action in store.decide().actions}
    known = {CHILD: stranger(CHILD, **owner)}
    seen = store.snapshot(looked_up={**refs, **(known if where == "looked_up" else {})})
    if where == "children":
        seen = store.snapshot(looked_up=refs, children=known)
    plan = decide(seen, INSTALL, NOW)
    assert isinstance(plan, Plan)
    assert plan.actions == ()
    accepted = condition_of(plan, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "NameTaken")
    assert "Deployment tiny--default" in accepted["message"]
    assert plan.requeue_after_s is not None, "nobody tells when it goes"
    assert condition_of(plan, "Ready")["reason"] == "NotAccepted"
    assert condition_of(plan, "Stalled")["status"] == "True"


def test_leftovers_of_an_earlier_endpoint_are_waited_for() -> None:
    store = made()
    store.endpoint = {**store.endpoint, "metadata": {**store.endpoint["metadata"], "uid": "another"}}
    plan = store.decide()
    assert plan.actions == ()
    assert plan.requeue_after_s is not None
    assert condition_of(plan, "Accepted")["status"] == "True"
    assert condition_of(plan, "Reconciling")["status"] == "True"


def test_a_child_that_lost_its_label_is_still_ours() -> None:
    store = made()
    live = store.children.pop(CHILD)
    del live["metadata"]["labels"][names.LABEL_MANAGED_BY]
    plan = decide(store.snapshot(looked_up={CHILD: live}), INSTALL, NOW)
    assert isinstance(plan, Plan)
    (apply,) = plan.actions
    assert isinstance(apply, Apply)
    assert apply.body["metadata"]["labels"][names.LABEL_MANAGED_BY] == names.MANAGED_BY
    assert apply.body["metadata"]["uid"] == live["metadata"]["uid"]


def test_a_spec_that_became_invalid_leaves_what_runs_alone() -> None:
    store = made()
    store.scale(1)
    store.pods = (ready_pod(store),)
    store.endpoint = make_endpoint(generation=2, scaling={"idleAfter": "soon"})
    plan = store.decide()
    assert plan.actions == ()
    assert condition_of(plan, "Accepted")["reason"] == "InvalidSpec"
    ready = condition_of(plan, "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "Serving")
    assert "url" not in plan.status
    assert plan.status["readyReplicas"] == 1


# Places.


def test_an_unknown_region_places_nothing_and_removes_nothing() -> None:
    store = made()
    store.scale(1)
    store.pods = (ready_pod(store),)
    store.endpoint = make_endpoint(generation=2, placement={"regions": ["mars"]}, scaling={"minReplicas": 3})
    plan = store.decide()
    assert plan.actions == (), "no new place, no more pods, and what serves goes on"
    assert condition_of(plan, "Placed")["status"] == "False"
    assert condition_of(plan, "Ready")["reason"] == "Serving"
    store.pods = ()
    assert condition_of(store.decide(), "Ready")["reason"] == "NotPlaced"


def test_an_unplaced_endpoint_still_goes_to_sleep() -> None:
    store = made()
    store.scale(1)
    store.pods = (ready_pod(store),)
    store.endpoint = make_endpoint(generation=2, placement={"regions": ["mars"]})
    store.demand = quiet(10_000)
    (action,) = store.decide().actions
    assert "replicas 1 -> 0" in action.why if not hasattr(action, "scale") else "replicas 1 -> 0" in action.scale.why


def test_a_region_that_was_left_is_cleared_after_the_new_one_is_written() -> None:
    store = made()
    store.endpoint = make_endpoint(generation=2, placement={"regions": ["eu"]})
    plan = store.decide()
    kinds = [type(action) for action in plan.actions]
    assert kinds.index(Delete) == 5, "the new objects come first"
    assert {a.ref.name for a in plan.actions if isinstance(a, Delete)} == {ref.name for ref in store.children}
    store.settle()
    assert {child["metadata"]["labels"][names.LABEL_REGION] for child in store.children.values()} == {"eu"}
