"""Regions that drain are replaced one after another, so that requests always find an engine somewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_operator.desired.deployment import strategy_of
from emberline_operator.snapshot import NodeState, Ref
from support.operator_objects import Raw, Store, condition_of, make_endpoint, make_pod_state, quiet

REGIONS: Raw = {name: {"metadata": {"name": name}, "spec": {}} for name in ("eu", "us")}
DRAIN: Raw = {"scaling": {"minReplicas": 1}, "rollout": {"strategy": "Drain"}}


def hash_of(store: Store, region: str) -> str:
    template = store.children[Ref("Deployment", f"tiny--{region}")]["spec"]["template"]
    found: str = template["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH]
    return found


def answers(store: Store, region: str) -> None:
    """The region's only engine is one of its newest template, and ready."""
    pod = make_pod_state(f"{region}-{hash_of(store, region)}", region=region, ready_s=600, uid=region,
                         template_hash=hash_of(store, region), node=f"n-{region}")  # fmt: skip
    store.pods = (*(pod for pod in store.pods if pod.region != region), pod)


def serving(**spec: Any) -> Store:
    nodes = {f"n-{name}": NodeState(f"n-{name}", {names.LABEL_TOPOLOGY_REGION: name}) for name in REGIONS}
    given = {**DRAIN, **spec}
    store = Store(
        make_endpoint(placement={"regions": ["eu", "us"]}, **given), regions=REGIONS, nodes=nodes, demand=quiet(1)
    )
    store.settle()
    for region in REGIONS:
        answers(store, region)
    store.settle()
    return store


def edit(store: Store, max_sequences: int, **spec: Any) -> None:
    status = store.endpoint["status"]
    given = {**DRAIN, **spec, "engine": {"maxSequences": max_sequences}}
    store.endpoint = make_endpoint(generation=max_sequences, placement={"regions": ["eu", "us"]}, **given)
    store.endpoint["status"] = status
    store.settle()


def lose(store: Store, region: str) -> None:
    """Its engine drains, and the new one has a node."""
    old = next(pod for pod in store.pods if pod.region == region)
    new = make_pod_state(f"{region}-loading", region=region, template_hash=hash_of(store, region), node=f"n-{region}")
    store.pods = (*(pod for pod in store.pods if pod is not old), replace(old, terminating=True), new)


def test_the_next_region_drains_when_the_first_one_answers_again() -> None:
    store = serving()
    before = {region: hash_of(store, region) for region in REGIONS}
    edit(store, 7)
    assert hash_of(store, "eu") != before["eu"]
    assert hash_of(store, "us") == before["us"]
    lose(store, "eu")
    plan = store.settle()
    assert hash_of(store, "us") == before["us"]
    reconciling = condition_of(plan, "Reconciling")
    assert "engines in us go on until one of the newest generation answers in eu" in reconciling["message"]
    assert condition_of(plan, "RolloutBlocked")["status"] == "False"
    assert condition_of(plan, "Ready")["reason"] == "Serving"
    answers(store, "eu")
    plan = store.settle()
    assert hash_of(store, "us") not in before.values()
    assert condition_of(plan, "Reconciling")["status"] == "True", "us is being replaced now"
    answers(store, "us")
    assert condition_of(store.settle(), "Reconciling") == {}


def test_an_engine_that_fails_in_the_first_region_is_not_tried_in_the_next() -> None:
    store = serving()
    before = hash_of(store, "us")
    edit(store, 7)
    broken = make_pod_state(
        "broken", region="eu", template_hash=hash_of(store, "eu"), node="n-eu", failure="container engine: exit code 1"
    )
    store.pods = (*(pod for pod in store.pods if pod.region == "us"), broken)
    progressing = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
    store.children[Ref("Deployment", "tiny--eu")]["status"] = {"conditions": [progressing]}
    plan = store.settle()
    assert hash_of(store, "us") == before
    assert condition_of(plan, "RolloutBlocked")["reason"] == Reason.NEW_ENGINE_FAILS


def test_an_edit_that_overtakes_a_roll_out_does_not_stop_the_only_region_that_answers() -> None:
    store = serving()
    edit(store, 7)
    answers(store, "eu")
    store.settle()
    lose(store, "us")
    seven = hash_of(store, "eu")
    edit(store, 8)
    assert hash_of(store, "eu") == seven, "us is still on its way"
    assert hash_of(store, "us") != seven, "there is nothing to lose in us"
    answers(store, "us")
    store.settle()
    assert hash_of(store, "eu") != seven


def test_regions_that_surge_or_sleep_or_have_nothing_to_lose_wait_for_none() -> None:
    store = serving(rollout={"strategy": "Surge"})
    before = hash_of(store, "us")
    edit(store, 7, rollout={"strategy": "Surge"})
    assert hash_of(store, "us") != before, "both surge"
    store = serving()
    store.pods = tuple(pod for pod in store.pods if pod.region == "eu")
    before = hash_of(store, "us")
    edit(store, 7)
    assert hash_of(store, "us") != before, "none answers in us"
    store = serving(scaling={"minReplicas": 0})
    store.scale(0, ref=Ref("Deployment", "tiny--eu"))
    store.pods = tuple(pod for pod in store.pods if pod.region == "us")
    before = hash_of(store, "us")
    edit(store, 7, scaling={"minReplicas": 0})
    assert hash_of(store, "us") != before, "eu sleeps"


def test_a_surge_turns_round_in_one_region_at_a_time() -> None:
    """Both had hoped for a GPU; the strategy of the second stays until it is its turn."""
    store = serving(rollout={"strategy": "Surge"})
    edit(store, 7, rollout={"strategy": "Surge"})
    edit(store, 7)
    found = [strategy_of(store.children[Ref("Deployment", f"tiny--{region}")]) for region in ("eu", "us")]
    assert found == ["Drain", "Surge"]
    answers(store, "eu")
    store.settle()
    assert strategy_of(store.children[Ref("Deployment", "tiny--us")]) == "Drain"
