"""Who writes replicas: rule 1 and 2, at every crash and under every race that a small store can play."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec, ModelSpec, ScalingSpec
from emberline_operator.plan.actions import Apply, Scale, Sleep
from emberline_operator.plan.replicas import applied_replicas, created_with, others_own_replicas, replicas_of
from support.examples import examples
from support.operator_objects import CHILD, NOW, Raw, Store, entry, make_endpoint, make_pod_state, quiet

REPLICAS: Raw = {"f:spec": {"f:replicas": {}}}


def spec(**scaling: Any) -> InferenceEndpointSpec:
    return InferenceEndpointSpec(model=ModelSpec(source="pvc://models"), scaling=ScalingSpec(**scaling))


def deployment(replicas: int, *entries: Raw) -> Raw:
    metadata = {"name": "tiny--default", "uid": "u", "resourceVersion": "7", "managedFields": list(entries)}
    return {"metadata": metadata, "spec": {"replicas": replicas}}


@pytest.mark.parametrize(
    ("entries", "left_out"),
    [
        ([], False),
        ([entry(names.OPERATOR_MANAGER, REPLICAS)], False),
        ([entry(names.OPERATOR_MANAGER, {"f:spec": {"f:paused": {}}})], False),
        ([entry(names.OPERATOR_MANAGER, REPLICAS), entry(names.SCALE_MANAGER, REPLICAS)], True),
        ([entry(names.GATEWAY_MANAGER, REPLICAS, operation="Update", subresource="scale")], True),
        ([entry(names.OPERATOR_MANAGER, REPLICAS, operation="Update")], True),
        ([entry("kubectl", REPLICAS, operation="Update")], True),
        ([entry("kubectl", {"f:metadata": {}})], False),
    ],
)
def test_replicas_are_left_out_only_if_somebody_else_owns_them(entries: list[Raw], left_out: bool) -> None:
    live = deployment(2, *entries)
    assert others_own_replicas(live) is left_out
    assert applied_replicas(live, spec(), NOW) == (None if left_out else 2)


def test_a_new_deployment_has_the_larger_of_floor_and_initial() -> None:
    assert created_with(spec(), NOW) == 0
    assert created_with(spec(min_replicas=1, initial_replicas=2), NOW) == 2
    assert created_with(spec(min_replicas=3, initial_replicas=2), NOW) == 3
    assert applied_replicas(None, spec(initial_replicas=2), NOW) == 2
    assert replicas_of({"spec": {}}) == 1, "the API server's default"


def test_creation_hands_replicas_over_and_then_leaves_them_out() -> None:
    store = Store(make_endpoint())
    first = store.decide().actions
    assert [(a.ref.kind, a.manager, a.force) for a in first] == [
        ("ConfigMap", names.OPERATOR_MANAGER, True),
        ("Service", names.OPERATOR_MANAGER, True),
        ("PodDisruptionBudget", names.OPERATOR_MANAGER, True),
        ("Deployment", names.OPERATOR_MANAGER, True),
        ("Deployment", names.SCALE_MANAGER, False),
    ]
    assert first[3].body["spec"]["replicas"] == 0
    assert first[4].body["spec"] == {"replicas": 0}
    assert first[4].body.keys() == {"apiVersion", "kind", "metadata", "spec"}
    store.act(first)
    (second,) = store.decide().actions
    assert isinstance(second, Apply)
    assert "replicas" not in second.body["spec"]
    store.act([second])
    assert store.decide().actions == ()
    assert set(store.history) == {0}


@pytest.mark.parametrize("num_done", range(6))
def test_a_crash_after_any_write_starts_no_pod(num_done: int) -> None:
    store = Store(make_endpoint())
    store.act(store.decide().actions[:num_done])
    store.settle()
    assert set(store.history) == {0}
    assert others_own_replicas(store.deployment)
    assert "f:replicas" not in str(
        [e for e in store.deployment["metadata"]["managedFields"] if e["manager"] == names.OPERATOR_MANAGER]
    )


def test_the_store_knows_the_traps() -> None:
    """What the rules avoid does happen in the store: else the tests above would prove nothing."""
    store = Store(make_endpoint())
    *_, made, _hand_over = store.decide().actions
    store.act([made])
    without = {**made.body, "spec": {k: v for k, v in made.body["spec"].items() if k != "replicas"}}
    store.act([Apply(without, names.OPERATOR_MANAGER, "dropped without another owner")])
    assert store.history[-1] == 1
    never = Store(make_endpoint())
    never.act([Apply(without, names.OPERATOR_MANAGER, "never had")])
    assert never.history == [1]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(0, 6)),
        st.tuples(st.just("wake"), st.just(0)),
        st.tuples(st.just("user"), st.integers(0, 3)),
        st.tuples(st.just("spec"), st.integers(1, 40)),
        st.tuples(st.just("old"), st.integers(0, 6)),
    ),
    max_size=14,
)


@settings(**examples(150))
@given(steps=steps, initial=st.integers(0, 2), floor=st.integers(0, 2))
def test_nobody_but_the_rules_moves_replicas(steps: list[tuple[str, int]], initial: int, floor: int) -> None:
    """Passes that crash anywhere, a gateway that wakes, a user who scales, specs that change, operators of another version."""
    scaling = {"minReplicas": floor, "maxReplicas": 3, "initialReplicas": initial, "idleAfter": "1h"}
    store = Store(make_endpoint(scaling=scaling), demand=quiet(1.0))
    allowed = {max(floor, initial)}
    for what, number in steps:
        if what == "pass":
            store.act(store.decide().actions[:number])
        elif what == "old":
            for action in store.decide().actions[:number]:
                # A pass that decided before somebody scaled: an apply goes through, a scale is refused by its version.
                if isinstance(action, Apply):
                    store.act([action])
        elif what == "spec":
            store.endpoint = make_endpoint(scaling=scaling, engine={"maxSequences": number})
        elif CHILD in store.children:
            live = replicas_of(store.deployment)
            if what == "wake" and live == 0:
                store.scale(1)
                allowed.add(1)
            if what == "user":
                store.scale(number, "kubectl")
                allowed |= {number, max(number, floor)}
    store.settle()
    assert set(store.history) <= allowed | {floor}
    assert others_own_replicas(store.deployment)


def idle_store(**scaling: Any) -> Store:
    store = Store(make_endpoint(scaling={"idleAfter": "60s", **scaling}), demand=quiet(1.0))
    store.settle()
    store.scale(1)
    store.pods = (make_pod_state(ready_s=1000),)
    store.settle()
    return store


def with_demand(store: Store, idle_s: float) -> Store:
    store.demand = quiet(idle_s)
    return store


def test_idle_goes_to_the_floor_by_the_handshake_alone() -> None:
    store = idle_store()
    store.demand = quiet(61)
    (sleep,) = store.decide().actions
    assert isinstance(sleep, Sleep)
    assert (sleep.scale.replicas, sleep.region) == (0, "default")
    assert sleep.scale.resource_version == store.deployment["metadata"]["resourceVersion"]
    store.demand = quiet(59)
    assert store.decide().actions == ()


def test_scaling_waits_while_the_deployment_is_being_written() -> None:
    store = idle_store()
    store.demand = quiet(61)
    store.endpoint = make_endpoint(scaling={"idleAfter": "60s"}, engine={"maxSequences": 3}, generation=2)
    actions = store.decide().actions
    assert actions
    assert not any(isinstance(action, (Sleep, Scale)) for action in actions)


def test_a_raised_floor_starts_at_once_and_a_lowered_one_lets_go_late() -> None:
    store = idle_store()
    store.endpoint = make_endpoint(scaling={"idleAfter": "60s", "minReplicas": 2}, generation=2)
    (scale,) = with_demand(store, 1).decide().actions
    assert isinstance(scale, Scale)
    assert scale.replicas == 2
    store.act([scale])
    store.endpoint = make_endpoint(scaling={"idleAfter": "60s", "minReplicas": 1}, generation=3)
    first = with_demand(store, 1000).decide()
    assert first.actions == ()
    for seconds, replicas in ((299, None), (301, 1)):
        later = NOW + timedelta(seconds=seconds)
        actions = store.decide(now=later, recommendations=first.recommendations).actions
        assert [a.replicas for a in actions if isinstance(a, Scale)] == ([] if replicas is None else [replicas])
