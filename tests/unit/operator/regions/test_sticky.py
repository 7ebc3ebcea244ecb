"""What is decided stays decided."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_operator.decision import Decision
from emberline_operator.regions.sticky import placement_inputs
from emberline_operator.snapshot import NodeState
from support.examples import examples
from support.region_world import EU, H100, L4, T4, US, World, make_spec, node, region


def decided(*nodes: NodeState, **parts: Any) -> World:
    """Region `eu` with those nodes, decided."""
    world = World(make_spec("eu", **parts))
    world.know(region("eu", "DE", "EU"))
    world.put(*nodes)
    assert world.look()["eu"].decision is not None
    return world


def without_memory(decision: Decision | None) -> Decision:
    assert decision is not None
    return replace(decision, unknown_since=None, unknown_nodes={}, impossible_since=None)


# Nodes.

gpus = st.sampled_from([None, H100, L4, T4])
labels = st.sampled_from([EU, US, {}, {**EU, "pool": "x"}])
nodes = st.builds(
    node,
    st.sampled_from(["n-1", "n-2", "n-3", "n-4"]),
    labels,
    gpus,
    is_ready=st.booleans(),
    is_cordoned=st.booleans(),
)
churn = st.lists(st.one_of(nodes, st.sampled_from(["n-1", "n-2", "n-3", "n-4"])), max_size=12)


@settings(**examples(60))
@given(st.lists(nodes, min_size=1, max_size=4), churn, st.integers(0, 250))
def test_no_churn_of_nodes_changes_a_decision(first: list[NodeState], changes: list[Any], seconds: int) -> None:
    world = World(make_spec("eu"))
    world.know(region("eu", "EU"))
    world.put(*first, node("always", EU, H100))
    before = without_memory(world.look()["eu"].decision)
    template = world.deployments["eu"]["spec"]["template"]
    world.pod("a", "always")
    for change in changes:
        if isinstance(change, NodeState):
            world.put(change)
        else:
            world.nodes.pop(change, None)
        world.later(seconds)
        placement = world.look()["eu"]
        assert without_memory(placement.decision) == before
        assert placement.may_start
    assert world.deployments["eu"]["spec"]["template"] == template


@settings(**examples(40))
@given(st.lists(nodes, min_size=1, max_size=4), st.integers())
def test_decisions_do_not_depend_on_the_order_of_nodes(found: list[NodeState], seed: int) -> None:
    def decide(order: list[NodeState]) -> object:
        world = World(make_spec("eu"))
        world.know(region("eu", "EU"))
        world.put(*order)
        return world.look()["eu"]

    unique = list({one.name: one for one in found}.values())
    shuffled = list(unique)
    random.Random(seed).shuffle(shuffled)
    assert decide(unique) == decide(shuffled)


def test_a_better_gpu_that_comes_later_changes_nothing() -> None:
    world = decided(node("h100", EU, H100))
    before = world.recorded()
    world.put(node("l4", EU, L4))
    assert world.look()["eu"].decision == before
    world.forget()
    fresh = World(world.spec, world.regions, world.nodes)
    fresh.look()
    assert fresh.recorded().choice.gpu_class != before.choice.gpu_class, "or this test shows nothing"


def test_a_choice_with_no_possible_node_is_made_again_after_five_minutes_if_nothing_runs() -> None:
    world = decided(node("h100", EU, H100), accelerator={"types": ["h100", "l4"]})
    before = world.recorded()
    world.nodes = {}
    world.put(node("l4", EU, L4))
    placement = world.look()["eu"]
    assert (placement.reason, placement.may_start, placement.is_placed) == (Reason.NO_SUCH_GPU, True, False)
    assert "the choice stays until 2026-07-01T12:05:00Z" in placement.message
    assert placement.check_in_s == 300
    world.later(299)
    assert world.look()["eu"].decision == replace(before, impossible_since=world.recorded().impossible_since)
    pod = world.pod("a", "h100")
    world.later(1)
    placement = world.look()["eu"]
    assert "the choice stays while engines run" in placement.message
    assert without_memory(placement.decision) == before
    world.pods.remove(pod)
    world.pod("b")
    placement = world.look()["eu"]
    assert placement.is_placed
    assert placement.decision is not None
    assert placement.decision.choice != before.choice
    assert placement.decision.impossible_since is None


def test_a_node_that_comes_back_in_time_ends_the_wait() -> None:
    world = decided(node("h100", EU, H100))
    before = world.recorded()
    world.put(node("h100", EU, H100, is_cordoned=True))
    world.look()
    assert world.recorded().impossible_since == world.now
    world.later(200)
    world.put(node("h100", EU, H100))
    assert world.look()["eu"].decision == before
    world.put(node("h100", US, H100))
    world.later(200)
    world.look()
    assert world.recorded().impossible_since == world.now, "it counts anew"


def test_where_nothing_else_would_do_either_the_choice_stays() -> None:
    world = decided(node("h100", EU, H100))
    before = world.recorded()
    world.nodes.clear()
    world.look()
    world.later(1000)
    placement = world.look()["eu"]
    assert without_memory(placement.decision) == before
    assert (placement.reason, placement.may_start) == (Reason.NO_NODES, True)
    assert placement.check_in_s is None


# The spec.


@pytest.mark.parametrize(
    ("change", "is_new"),
    [
        ({"model": {"source": "pvc://models/tiny", "parameters": "7B"}}, True),
        ({"model": {"source": "pvc://models/other", "parameters": "8B"}}, True),
        ({"model": {"source": "pvc://models/tiny", "parameters": "8B", "servedName": "x"}}, False),
        ({"accelerator": {"minMemory": "20Gi"}}, True),
        ({"precision": {"format": "bf16"}}, True),
        ({"precision": {"kvCache": "fp8"}}, True),
        ({"placement": {"nodeSelector": {"a": "b"}}}, True),
        ({"placement": {"tolerations": [{"operator": "Exists"}]}}, True),
        ({"placement": {"priorityClassName": "high"}}, False),
        ({"residency": {"absenceGrace": "1m", "jurisdictions": ["EU"]}}, False),
        ({"engine": {"maxModelLen": 4096}}, True),
        ({"engine": {"kvCache": "2Gi"}}, True),
        ({"engine": {"image": "i", "prefixCaching": False, "maxQueuedRequests": 3}}, False),
        ({"scaling": {"maxReplicas": 9, "minReplicas": 1}}, False),
        ({"serving": {"maxQueue": 5}}, False),
        ({"rollout": {"strategy": "Drain", "restartAt": "2026-01-01T00:00:00Z"}}, False),
        ({"podTemplate": {"labels": {"a": "b"}}}, False),
    ],
)
def test_what_a_decision_depends_on(change: dict[str, Any], is_new: bool) -> None:
    assert (placement_inputs(make_spec("eu", **change)) != placement_inputs(make_spec("eu"))) is is_new


def test_the_list_of_regions_is_no_part_of_a_regions_decision() -> None:
    assert placement_inputs(make_spec("eu", "us")) == placement_inputs(make_spec("us"))


def test_an_edit_and_its_undoing_give_the_equal_decision() -> None:
    world = decided(node("h100", EU, H100), node("l4", EU, L4))
    before = world.recorded()
    first = world.spec
    world.spec = make_spec("eu", accelerator={"types": ["l4"]})
    world.look()
    assert world.recorded() != before
    world.spec = first
    world.look()
    assert world.recorded() == before


def test_an_edit_that_cannot_be_placed_starts_nothing_and_keeps_what_runs() -> None:
    world = decided(node("h100", EU, H100))
    before = world.recorded()
    world.pod("a", "h100")
    first = world.spec
    world.spec = make_spec("eu", accelerator={"types": ["b200"]})
    placement = world.look()["eu"]
    assert (placement.may_start, placement.keeps_template, placement.most) == (False, True, 1)
    assert placement.decision == before
    assert "Nothing new is placed meanwhile" in placement.message
    world.spec = first
    placement = world.look()["eu"]
    assert placement.may_start
    assert placement.decision == before


# Records that are lost.


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '{"version":2,"region":"eu"}', '{"version":1}'])
def test_a_lost_record_is_found_again_in_the_live_template(text: str | None) -> None:
    world = decided(node("h100", EU, H100))
    before = world.recorded()
    world.put(node("l4", EU, L4))
    world.forget(text=text)
    world.look()
    assert world.recorded().choice.terms == before.choice.terms
    assert world.recorded().choice.gpu_class == before.choice.gpu_class


def test_a_record_of_another_region_is_none() -> None:
    world = decided(node("h100", EU, H100))
    text = world.deployments["eu"]["metadata"]["annotations"][names.ANNOTATION_PLACEMENT]
    world.forget(text=text.replace('"region":"eu"', '"region":"us"'))
    world.look()
    assert world.recorded().region == "eu"


# The region's selector.


def test_a_new_selector_is_a_new_decision_for_the_same_hardware() -> None:
    world = decided(node("a", {**EU, "pool": "x"}, L4), node("b", {**EU, "pool": "x"}, H100))
    before = world.recorded()
    world.pod("p", "a")
    world.know(region("eu", "DE", "EU", selector={"pool": "x"}))
    placement = world.look()["eu"]
    assert placement.may_start
    assert placement.decision is not None
    assert placement.decision.choice == before.choice
    assert dict(placement.decision.node_labels) == {"pool": "x"}
    assert placement.decision.has_moved, "a pod of the older template lives"
    world.pods.clear()
    world.pod("q", "a")
    world.look()
    assert not world.recorded().has_moved


def test_pods_that_a_new_selector_shuts_out_are_stopped_before_anything_is_placed_anew() -> None:
    world = decided(node("a", {**EU, "pool": "x"}), node("b", {**EU, "pool": "y"}))
    world.look()
    world.pod("p", "a")
    world.pod("q", "b")
    world.know(region("eu", "DE", "EU", selector={"pool": "y"}))
    placement = world.look()["eu"]
    assert (placement.may_start, placement.most, placement.keeps_template) == (False, 0, True)
    assert placement.reason is Reason.RESIDENCY_VIOLATION
    assert world.evicted() == ["p"]
    world.pods.clear()
    placement = world.look()["eu"]
    assert placement.may_start
    assert dict(world.recorded().node_labels) == {"pool": "y"}


def test_a_new_selector_without_any_node_starts_nothing() -> None:
    world = decided(node("a"))
    world.know(region("eu", "DE", "EU", selector={"pool": "y"}))
    placement = world.look()["eu"]
    assert (placement.may_start, placement.reason) == (False, Reason.NO_NODES)
    assert dict(world.recorded().node_labels) == EU
