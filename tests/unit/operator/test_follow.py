"""Replicas by demand as the operator computes them, played through time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract.http import EngineQueue
from emberline_operator.demand_formula import Load, Targets, queue_load, wanted_replicas
from emberline_operator.plan.actions import Scale
from emberline_operator.plan.follow import kept
from emberline_operator.snapshot import Demand, GatewayView, Recommendation
from support.examples import examples
from support.scaling_cases import START, Raw, Region, calls, engine, engines, spec_of

TARGETS = Targets(queue_depth=4, requests=8)


def load(unfinished: int = 0, queue: int = 0, ready: int = 0, *, has_waited: bool = True) -> Load:
    return Load(unfinished, queue, has_waited, ready)


@pytest.mark.parametrize(
    ("load", "queue_load_", "wanted"),
    [
        (load(), 0, 0),
        (load(1), 0, 1),
        (load(8), 0, 1),
        (load(9), 0, 2),
        (load(18, 18), 18, 5),
        (load(5, 1, 2), 9, 3),
        (load(5, 4, 2), 12, 3),
        (load(6, 5, 2), 13, 4),
        (load(5, 1, 2, has_waited=False), 0, 1),
        (load(90, 1, 2), 9, 12),
        (load(4, 4, 10), 44, 11),
    ],
)
def test_the_formula(load: Load, queue_load_: int, wanted: int) -> None:
    assert queue_load(load, TARGETS.queue_depth) == queue_load_
    assert wanted_replicas(load, TARGETS) == wanted


@given(st.integers(0, 500), st.integers(1, 500), st.integers(0, 60))
def test_a_backlog_never_argues_for_fewer_than_serve(unfinished: int, queue: int, ready: int) -> None:
    assert wanted_replicas(load(unfinished + queue, queue, ready), TARGETS) > ready


def region(replicas: int = 1, **scaling: Any) -> Region:
    given: Raw = {
        "via": "Operator", "maxReplicas": 10, "requestsPerReplica": 8, "scaleDownStabilization": "5m", **scaling
    }  # fmt: skip
    return Region(spec_of(scaling=given), replicas=replicas)


def step(case: Region) -> int:
    """One judgement, carried out; gives the replicas there are then."""
    for action in case.plan().actions:
        assert isinstance(action, Scale)
        case.replicas = action.replicas
    return case.replicas


def minutes(case: Region, count: float, every_s: float = 10) -> list[int]:
    """Replicas at the end of each minute."""
    seen = []
    for second in range(0, int(count * 60), int(every_s)):
        step(case)
        case.after(every_s)
        if (second + every_s) % 60 == 0:
            seen.append(case.replicas)
    return seen


def test_up_at_once_by_what_is_there_and_not_by_multiplying() -> None:
    """T11: engines that still start are capacity, whatever time they take."""
    case = region(2, maxReplicas=20)
    case.demand = calls(30, held=12)
    case.pods = engines(2, START)
    assert step(case) == 5, "two serve, and twelve that wait ask for three more"
    case.pods = (*engines(2, START), *(engine(f"new-{i}", START, ready_s=None) for i in range(3)))
    assert set(minutes(case, 20)) == {5}
    case.demand = calls(1000)
    assert step(case) == 20, "never above maxReplicas"


def test_what_waited_for_the_first_engine_asks_for_no_second() -> None:
    case = region(1)
    case.demand = calls(1, held=1)
    case.pods = (engine("tiny-0", START, age_s=20, ready_s=None),)
    assert step(case) == 1
    # Ready, and the gateway's word is still that of a moment ago.
    case.pods = (engine("tiny-0", START, age_s=20, ready_s=1),)
    assert step(case) == 1
    case.demand = calls(9, held=9)
    assert step(case) == 3, "nine that wait are more than one engine's share, whoever has just become ready"


def test_what_waits_for_less_than_a_second_asks_for_no_engine() -> None:
    case = region(2)
    case.demand = calls(3, held=3, held_s=1.0)
    assert step(case) == 2
    case.demand = calls(3, held=3, held_s=1.1)
    assert step(case) == 3


def test_what_waits_at_engines_counts_once_whoever_asked() -> None:
    case = region(2)
    said = {
        "tiny-0": EngineQueue(waiting=6, running=8, age_s=0.5, waited_s=3.0),
        "gone": EngineQueue(waiting=90, running=8, age_s=0.5, waited_s=3.0),
        "tiny-1": EngineQueue(waiting=90, running=8, age_s=5.1, waited_s=3.0),
    }
    older = {"tiny-0": EngineQueue(waiting=40, running=8, age_s=2.0, waited_s=1.5)}
    views = [GatewayView(f"gw-{i}", 7, 0.0, ever_active=True, engines=it) for i, it in enumerate((older, said))]
    case.demand = Demand(tuple(views))
    assert step(case) == 4, "six wait at two that serve"
    calm = {"tiny-0": EngineQueue(waiting=6, running=8, age_s=0.5)}
    case = region(2)
    case.demand = Demand((GatewayView("gw-1", 14, 0.0, ever_active=True, engines=calm),))
    assert step(case) == 2, "a moment's queue"


def test_down_late_and_one_a_minute() -> None:
    case = region(4)
    case.demand = calls(1)
    assert minutes(case, 9) == [4, 4, 4, 4, 4, 3, 2, 1, 1]


def test_a_burst_within_the_window_counts() -> None:
    case = region(2)
    case.demand = calls(32)
    assert step(case) == 4
    case.demand = calls(1)
    assert minutes(case, 4) == [4, 4, 4, 4]
    case.demand = calls(20)
    step(case)
    case.demand = calls(1)
    assert minutes(case, 6) == [4, 3, 3, 3, 3, 2], "of the last five minutes the largest holds"


def test_without_a_window_still_one_a_minute() -> None:
    case = region(4, scaleDownStabilization="0s")
    case.demand = calls(1)
    assert step(case) == 4, "the first look stops nothing"
    case.after(10)
    assert step(case) == 3
    assert minutes(case, 2.5) == [3, 2]


def test_a_new_leader_stops_nothing_on_its_first_look() -> None:
    case = region(4)
    case.demand = calls(1)
    minutes(case, 4.5)
    case.memory = None
    assert minutes(case, 4) == [4, 4, 4, 4]


@pytest.mark.parametrize("demand", [Demand(), Demand((), ("gw-1: refused",)), calls(1, silent=("gw-2: refused",))])
def test_what_is_unknown_stops_nothing_but_may_start_something(demand: Demand) -> None:
    case = region(4)
    case.demand = demand
    assert set(minutes(case, 12)) == {4}
    case.demand = calls(80, silent=("gw-2: refused",))
    assert step(case) == 10


def test_nothing_is_stopped_while_the_first_engines_start() -> None:
    case = region(3)
    case.demand = calls(0, idle_s=9999)
    case.pods = tuple(engine(f"new-{i}", START, ready_s=None) for i in range(3))
    assert set(minutes(case, 15)) == {3}


def test_floor_and_ceiling_hold_at_once() -> None:
    case = region(1, minReplicas=3)
    assert step(case) == 3
    case.replicas = 12
    assert step(case) == 10
    case.demand = Demand()
    case.replicas = 12
    assert step(case) == 10, "what the user has said does not depend on demand"


def test_it_never_goes_below_one_by_demand() -> None:
    case = region(1, idleAfter="1h")
    case.demand = calls(0, idle_s=60)
    assert set(minutes(case, 20)) == {1}


recommendations = st.lists(
    st.builds(Recommendation, st.integers(0, 9).map(lambda s: START + timedelta(seconds=s)), st.integers(0, 9)),
    max_size=12,
)


@settings(**examples(200))
@given(recommendations, st.integers(-1, 10))
def test_what_is_kept_says_the_same_at_every_time(memory: list[Recommendation], seconds: int) -> None:
    def least(found: tuple[Recommendation, ...] | list[Recommendation]) -> int:
        return max((r.replicas for r in found if r.until > START + timedelta(seconds=seconds)), default=0)

    short = kept(memory)
    assert least(short) == least(memory)
    assert len({r.replicas for r in short}) == len(short)
