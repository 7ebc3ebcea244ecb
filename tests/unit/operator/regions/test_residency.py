"""Contradictions go at once, absences after the grace, and nothing new is placed where anything is unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from emberline_contract.conditions import Reason
from emberline_operator.regions.residency import judge
from support.region_world import EU, US, World, make_spec, node, region

GRACE_S = 600


def running(jurisdictions: tuple[str, ...] = ("EU",), **parts: Any) -> World:
    """A pod in region `eu`, which lies in DE and EU; `us` is there too."""
    world = World(make_spec("eu", kind="Cpu", jurisdictions=jurisdictions, **parts))
    world.know(region("eu", "DE", "EU"), region("us", "US"))
    world.put(node("eu-1", gpu=None), node("eu-2", gpu=None), node("us-1", US, gpu=None))
    world.look()
    world.pod("a", "eu-1")
    world.look()
    assert world.evicted() == []
    return world


# Contradictions.


@pytest.mark.parametrize("jurisdictions", [(), ("EU",)])
def test_a_node_that_carries_another_value_is_a_contradiction(jurisdictions: tuple[str, ...]) -> None:
    world = running(jurisdictions)
    world.put(node("eu-1", US, gpu=None))
    placement = world.look()["eu"]
    assert placement.may_start, "the region has another node"
    (eviction,) = world.judge().evictions
    assert (eviction.pod, eviction.uid) == ("a", "a")
    assert "node eu-1 carries topology.kubernetes.io/region=us, which is not region eu" in eviction.why


def test_a_node_that_carries_another_regions_label_is_a_contradiction() -> None:
    world = running()
    world.know(region("mars", selector={"planet": "mars"}))
    world.put(node("eu-1", {"planet": "mars"}, gpu=None))
    assert world.evicted() == ["a"]


def test_a_wider_region_is_no_contradiction() -> None:
    world = running()
    world.know(region("eu", "DE", "EU", selector={**EU, "pool": "x"}), region("europe", "EU", selector=EU))
    world.put(node("eu-1", {**EU, "pool": "x"}, gpu=None))
    world.look()
    world.put(node("eu-1", EU, gpu=None))
    world.look()
    assert world.evicted() == []
    assert "node eu-1 lacks the label pool" in world.look()["eu"].message


def test_a_region_whose_jurisdictions_exclude_it_now_is_emptied() -> None:
    world = running()
    world.pod("b", region="eu")
    world.know(region("eu", "CH"))
    placement = world.look()["eu"]
    assert (placement.may_start, placement.most, placement.reason) == (False, 0, Reason.OUTSIDE_JURISDICTION)
    assert "region eu lies in CH, not in EU" in placement.message
    assert world.evicted() == ["a", "b"]
    assert world.recorded().jurisdictions == ("DE", "EU"), "those that were accepted"
    world.know(region("eu", "DE", "EU"))
    assert world.look()["eu"].is_placed
    assert world.evicted() == []


def test_an_endpoint_that_wants_another_jurisdiction_is_emptied() -> None:
    world = running()
    world.spec = make_spec("eu", kind="Cpu", jurisdictions=("US",))
    assert world.look()["eu"].most == 0
    assert world.evicted() == ["a"]


def test_a_region_that_is_gone_is_judged_by_what_was_accepted_last() -> None:
    world = running()
    del world.regions["eu"]
    world.spec = make_spec("eu", kind="Cpu", jurisdictions=("US",))
    world.look()
    assert world.evicted() == ["a"]
    assert "region eu lies in DE, EU, as far as last known, not in US" in world.judge().evictions[0].why


def test_pods_of_left_regions_are_judged_too() -> None:
    world = running()
    world.spec = make_spec("us", kind="Cpu", jurisdictions=("US",))
    placements = world.look()
    assert placements["us"].is_placed
    assert (placements["eu"].is_wanted, placements["eu"].most) == (False, 0)
    assert world.evicted() == ["a"]


def test_pods_of_a_region_of_which_no_child_is_left_are_judged_too() -> None:
    world = running()
    world.pod("x", "us-1", region="us")
    assert world.evicted() == ["x"]


def test_pods_from_before_the_endpoint_named_regions_are_judged_by_their_nodes() -> None:
    world = running()
    world.put(node("nowhere", {}, gpu=None))
    world.deployments["default"] = world.deployments["eu"] | {
        "metadata": {
            **world.deployments["eu"]["metadata"],
            "name": "tiny--default",
            "labels": {"emberline.dev/region": "default"},
        }
    }
    for name, on in (("in", "eu-1"), ("out", "us-1"), ("lost", "nowhere")):
        world.pod(name, on, region="default", age_s=30)
    assert world.evicted() == ["out"]
    world.later(GRACE_S)
    assert world.evicted() == ["lost", "out"]
    world.spec = make_spec("eu", kind="Cpu")
    assert world.evicted() == [], "without jurisdictions a left region is only drained"


def test_pods_of_other_templates_are_judged_too() -> None:
    world = running()
    world.pod("old", "us-1", template_hash="older")
    assert world.evicted() == ["old"]


def test_a_pod_that_drains_is_cut_short_once() -> None:
    world = running()
    world.pods.clear()
    world.pod("slow", "us-1", terminating=True, ends_by=world.now + timedelta(seconds=600))
    world.pod("fast", "us-1", terminating=True, ends_by=world.now + timedelta(seconds=10))
    assert world.evicted() == ["slow"]


# Absences.


@pytest.mark.parametrize("absence", ["region", "jurisdictions"])
def test_a_region_of_which_nothing_is_known_starts_nothing_and_is_emptied_after_the_grace(absence: str) -> None:
    world = running()
    if absence == "region":
        del world.regions["eu"]
    else:
        world.know(region("eu"))
    placement = world.look()["eu"]
    assert (placement.may_start, placement.most, placement.keeps_template) == (False, 1, True)
    assert placement.reason is Reason.RESIDENCY_UNKNOWN
    assert (
        "what runs is stopped at 2026-07-01T12:10:00Z, after placement.residency.absenceGrace 10m" in placement.message
    )
    verdict = world.judge()
    assert (verdict.evictions, verdict.check_in_s) == ((), GRACE_S)
    world.later(GRACE_S - 1)
    world.look()
    assert (world.evicted(), world.judge().check_in_s) == ([], 1)
    world.later(1)
    message = world.look()["eu"].message
    assert "nothing may run there any longer, since placement.residency.absenceGrace 10m has passed" in message
    assert "is stopped at" not in message
    world.later(-1)
    world.later(1)
    assert world.look()["eu"].most == 0
    assert world.evicted() == ["a"]
    world.know(region("eu", "DE", "EU"))
    assert world.look()["eu"].is_placed
    assert world.evicted() == []
    assert world.recorded().unknown_since is None


def test_a_region_that_never_named_jurisdictions_is_an_absence() -> None:
    world = running(())
    world.know(region("eu"))
    world.look()
    world.spec = make_spec("eu", kind="Cpu", jurisdictions=("EU",))
    # What was accepted without any question does not count against it.
    assert world.look()["eu"].most == 1
    world.later(GRACE_S)
    assert world.evicted() == ["a"]


def test_a_pod_that_is_started_while_the_region_is_unknown_goes_at_once() -> None:
    world = running()
    del world.regions["eu"]
    world.look()
    world.later(5)
    world.pod("new", "eu-1", age_s=0)
    assert world.look()["eu"].most == 1
    assert world.evicted() == ["new"]


def test_a_node_that_has_lost_its_label_is_an_absence_of_its_own() -> None:
    world = running()
    world.pod("b", "eu-2")
    world.put(node("eu-1", {}, gpu=None))
    placement = world.look()["eu"]
    assert placement.is_placed, "the scheduler places nothing on that node; the others are sound"
    assert (
        "node eu-1 lacks the label topology.kubernetes.io/region of region eu: its pods are stopped"
        in placement.message
    )
    world.later(300)
    world.put(node("eu-2", {}, gpu=None))
    world.look()
    world.later(300)
    assert world.evicted() == ["a"]
    world.put(node("eu-1", gpu=None))
    world.look()
    world.later(300)
    world.look()
    assert world.evicted() == ["b"]
    world.put(node("eu-2", gpu=None))
    world.look()
    assert world.evicted() == []
    assert dict(world.recorded().unknown_nodes) == {}


def test_without_a_record_the_pods_own_age_is_what_counts() -> None:
    world = running()
    world.forget()
    del world.regions["eu"]
    world.pod("young", "eu-1", age_s=5)
    world.look()
    world.later(GRACE_S - 5)
    assert world.evicted() == ["a", "young"]


def test_the_memory_is_written_once() -> None:
    world = running()
    del world.regions["eu"]
    world.look()
    text = world.deployments["eu"]["metadata"]["annotations"]
    for _ in range(3):
        world.later(7)
        world.look()
        assert world.deployments["eu"]["metadata"]["annotations"] == text


# What is no matter of residency.


@pytest.mark.parametrize("state", [{"is_cordoned": True}, {"is_ready": False}])
def test_pods_on_nodes_that_take_no_new_ones_stay(state: dict[str, bool]) -> None:
    world = running()
    world.put(*(node(name, gpu=None, **state) for name in ("eu-1", "eu-2")))
    placement = world.look()["eu"]
    world.later(GRACE_S * 10)
    assert world.evicted() == []
    assert placement.reason is Reason.NO_NODES
    assert placement.may_start


def test_a_record_from_the_future_does_not_lengthen_the_grace() -> None:
    """It was written by a clock that was ahead, or by hand."""
    world = running()
    world.put(node("eu-1", {}, gpu=None))
    ahead = world.now + timedelta(days=3650)
    world.record(replace(world.recorded(), unknown_nodes={"eu-1": ahead}))
    world.look()
    world.later(GRACE_S)
    assert world.evicted() == ["a"]
    world.put(node("eu-1", gpu=None))
    del world.regions["eu"]
    world.record(replace(world.recorded(), unknown_since=ahead, unknown_nodes={}))
    world.look()
    assert world.evicted() == []
    world.later(GRACE_S)
    assert world.evicted() == ["a"]


def test_pods_of_a_node_that_is_gone_are_not_residencys() -> None:
    world = running()
    del world.nodes["eu-1"]
    world.look()
    world.later(GRACE_S * 10)
    world.look()
    assert world.evicted() == []


def test_an_endpoint_without_regions_may_be_anywhere() -> None:
    world = running()
    world.spec = make_spec(kind="Cpu")
    world.put(node("eu-1", US, gpu=None))
    world.know(region("eu", "CH"))
    placements = world.look()
    assert not placements["eu"].is_wanted
    assert world.evicted() == []
    assert judge(world.spec, world.seen, (), world.now).evictions == ()
