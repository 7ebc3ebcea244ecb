"""Which regions may start engines, which are drained, and what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_operator.snapshot import Taint
from support.region_world import EU, H100, L4, US, World, make_spec, node, region

POOL = {
    "name": "h100", "nodeSelector": {"pool": "h100"}, "type": "h100", "computeCapability": "9.0", "memory": "80Gi",
    "gpusPerNode": 8,
}  # fmt: skip


def two_regions(*named: str, **parts: Any) -> World:
    """`eu` and `us`, an H100 node each."""
    world = World(make_spec(*named, **parts))
    world.know(region("eu", "DE", "EU"), region("us", "US"))
    world.put(node("eu-1"), node("us-1", US))
    return world


def test_without_regions_any_node_will_do() -> None:
    world = World(make_spec())
    world.put(node("n", {}))
    placement = world.look()["default"]
    assert (placement.reason, placement.may_start, placement.is_placed) == (Reason.ANYWHERE, True, True)
    assert placement.decision is not None
    assert dict(placement.decision.node_labels) == {}


def test_wanted_regions_come_in_the_endpoints_order_and_left_ones_after_them() -> None:
    world = two_regions("us", "eu")
    assert list(world.look()) == ["us", "eu"]
    world.spec = make_spec("eu")
    placements = world.look()
    assert list(placements) == ["eu", "us"]
    assert placements["eu"].is_wanted
    left = placements["us"]
    assert (left.is_wanted, left.may_start, left.keeps_template) == (False, False, True)
    assert "no longer names region us" in left.message
    assert left.decision == world.recorded("us")


def test_a_left_region_keeps_as_many_engines_as_live() -> None:
    world = two_regions("eu", "us")
    world.look()
    world.pod("a", "us-1", region="us")
    world.pod("b", "us-1", region="us", terminating=True)
    world.pod("c", region="us")
    world.pod("d", "us-1", region="us", has_ended=True)
    world.spec = make_spec("eu")
    assert world.look()["us"].most == 1
    assert world.evicted() == []


def test_a_region_of_an_endpoint_that_names_regions_now() -> None:
    world = World(make_spec())
    world.put(node("eu-1"), node("us-1", US))
    world.look()
    world.know(region("eu", "EU"), region("us", "US"))
    world.spec = make_spec("eu")
    placements = world.look()
    assert (placements["default"].is_wanted, placements["eu"].may_start) == (False, True)


@pytest.mark.parametrize(
    ("case", "reason", "words"),
    [
        ("unknown", Reason.UNKNOWN_REGION, "'eu' and there is no InferenceRegion of that name (there are: us); create it"),
        ("no nodes", Reason.NO_NODES, "no node carries topology.kubernetes.io/region=eu, and InferenceRegion eu declares no gpuPools"),
        ("no GPU nodes", None, "region eu"),
        ("wrong GPU", Reason.NO_SUCH_GPU, "h200"),
        ("outside", Reason.OUTSIDE_JURISDICTION, "region eu lies in DE, EU, not in US; name a region that lies in one of US"),
        ("nowhere", Reason.OUTSIDE_JURISDICTION, "InferenceRegion eu names no jurisdictions"),
        ("selector", Reason.NO_NODES, "pool=gold, topology.kubernetes.io/region=eu (placement.nodeSelector is in it)"),
    ],
)  # fmt: skip
def test_a_region_that_cannot_be_used_says_why_and_what_to_do(case: str, reason: Reason | None, words: str) -> None:
    world = two_regions("eu")
    match case:
        case "unknown":
            del world.regions["eu"]
        case "no nodes":
            del world.nodes["eu-1"]
        case "no GPU nodes":
            world.put(node("eu-1", gpu=None))
        case "wrong GPU":
            world.spec = make_spec("eu", accelerator={"types": ["h200"]})
        case "outside" | "nowhere":
            world.spec = make_spec("eu", jurisdictions=("US",))
            if case == "nowhere":
                world.know(region("eu"))
        case _:
            world.spec = make_spec("eu", placement={"nodeSelector": {"pool": "gold"}})
    placement = world.look()["eu"]
    assert (placement.may_start, placement.is_placed, placement.decision) == (False, False, None)
    assert placement.most == 0
    assert reason in (None, placement.reason)
    assert words in placement.message


def test_a_pool_is_a_place_without_any_node() -> None:
    world = two_regions("eu")
    world.nodes.clear()
    world.know(region("eu", pools=(POOL,)))
    placement = world.look()["eu"]
    assert placement.is_placed, placement
    assert placement.decision is not None
    assert placement.decision.choice.terms, "the pool's own labels pick its nodes"


def test_a_pool_that_a_newer_release_describes_is_read_as_far_as_known() -> None:
    world = two_regions("eu")
    world.nodes.clear()
    world.know(region("eu", pools=({**POOL, "newField": 1},)))
    assert world.look()["eu"].is_placed


def test_a_region_of_cpu_nodes_needs_one_of_them() -> None:
    world = World(make_spec("eu", kind="Cpu"))
    world.know(region("eu"))
    assert "label nodes so" in world.look()["eu"].message
    world.put(node("eu-1", gpu=None))
    assert world.look()["eu"].is_placed
    assert World(make_spec(kind="Cpu")).look()["default"].is_placed, "without regions a node may yet come"


@pytest.mark.parametrize(
    ("state", "words"),
    [({"is_cordoned": True}, "eu-1 (cordoned)"), ({"is_ready": False}, "eu-1 (not Ready)")],
)
def test_a_region_whose_nodes_take_no_pods_now_is_decided_and_says_so(state: dict[str, bool], words: str) -> None:
    world = two_regions("eu")
    world.put(node("eu-1", **state))
    placement = world.look()["eu"]
    assert (placement.reason, placement.may_start, placement.is_placed) == (Reason.NO_NODES, True, False)
    assert words in placement.message
    world.put(node("eu-1"))
    assert world.look()["eu"].is_placed


def test_taints_count_but_those_of_gpus_and_tolerated_ones() -> None:
    world = two_regions("eu")
    world.put(node("eu-1", taints=(Taint(names.GPU_RESOURCE, "", "NoSchedule"), Taint("soft", "", "PreferNoSchedule"))))
    assert world.look()["eu"].is_placed
    world.put(node("eu-1", taints=(Taint("team", "a", "NoSchedule"),)))
    assert "eu-1 (tainted: team)" in world.look()["eu"].message
    for toleration in (
        {"key": "team", "operator": "Exists"}, {"key": "team", "value": "a"}, {"operator": "Exists"},
        {"key": "team", "value": "a", "effect": "NoSchedule"},
    ):  # fmt: skip
        world.spec = make_spec("eu", placement={"tolerations": [toleration]})
        assert world.look()["eu"].is_placed, toleration
    for wrong in (
        {"key": "team", "value": "b"},
        {"key": "x", "operator": "Exists"},
        {"operator": "Exists", "effect": "NoExecute"},
    ):
        world.spec = make_spec("eu", placement={"tolerations": [wrong]})
        assert not world.look()["eu"].is_placed, wrong


# Jurisdictions.


def test_one_common_jurisdiction_is_enough() -> None:
    world = two_regions("eu", "us", jurisdictions=("FR", "EU"))
    placements = world.look()
    assert placements["eu"].is_placed
    assert (placements["us"].may_start, placements["us"].is_wanted) == (False, True)
    assert placements["us"].reason is Reason.OUTSIDE_JURISDICTION


def test_prefer_uses_regions_outside_only_while_none_inside_can_serve() -> None:
    world = two_regions("us", "eu", jurisdictions=("EU",), residency={"mode": "Prefer"})
    placements = world.look()
    assert placements["eu"].is_placed
    outside = placements["us"]
    assert (outside.may_start, outside.is_wanted, outside.decision) == (False, False, None)
    assert "used only while no region inside can serve" in outside.message
    world.put(node("eu-1", is_cordoned=True))
    outside = world.look()["us"]
    assert (outside.may_start, outside.is_wanted, outside.is_placed) == (True, True, True)
    assert "no region inside can serve (residency.mode Prefer)" in outside.message
    world.pod("a", "us-1", region="us")
    world.put(node("eu-1"))
    outside = world.look()["us"]
    assert (outside.may_start, outside.is_wanted, outside.most) == (False, False, 1)
    assert outside.decision is not None, "it is drained by what is recorded"
    assert world.evicted() == [], "Prefer evicts nobody"


def test_prefer_goes_on_inside_while_an_engine_answers_there() -> None:
    world = two_regions("us", "eu", jurisdictions=("EU",), residency={"mode": "Prefer"})
    world.look()
    pod = world.pod("a", "eu-1")
    world.pods = [replace(pod, ready_since=world.now)]
    world.put(node("eu-1", is_cordoned=True))
    assert not world.look()["us"].is_wanted


def test_prefer_places_nothing_new_in_a_region_that_is_gone_and_evicts_nobody() -> None:
    world = two_regions("eu", jurisdictions=("EU",), residency={"mode": "Prefer"})
    world.look()
    world.pod("a", "eu-1")
    del world.regions["eu"]
    placement = world.look()["eu"]
    assert (placement.reason, placement.may_start, placement.most) == (Reason.UNKNOWN_REGION, False, 1)
    world.later(100_000)
    assert world.evicted() == []


def test_all_gpus_of_one_region_are_looked_at_and_none_of_another() -> None:
    world = two_regions("eu")
    world.put(node("eu-1", EU, L4), node("us-1", US, H100))
    placement = world.look()["eu"]
    assert placement.decision is not None
    assert "L4" in placement.decision.choice.gpu_class.upper()
