"""Which engine goes first: coarse costs, written seldom, and only where they change who goes."""

from __future__ import annotations

import itertools
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract import names
from emberline_operator.plan.actions import Ask, SetDeletionCost
from emberline_operator.plan.termination import PERIOD_S, Costs, cost_of, deletion_costs, is_order_right
from emberline_operator.snapshot import Demand, GatewayView, PodState, Snapshot
from support.examples import examples
from support.operator_objects import NOW, make_endpoint, make_pod_state

REGION = names.DEFAULT_REGION


def pod(
    name: str, cost: int | None = None, *, written_s: float | None = None, ready: bool = True, **state: bool
) -> PodState:
    return make_pod_state(
        name,
        ready_s=60 if ready else None,
        uid=f"uid-{name}",
        deletion_cost=cost,
        deletion_cost_written=None if written_s is None else NOW - timedelta(seconds=written_s),
        **state,
    )


def demand(*gateways: dict[str, int], silent: tuple[str, ...] = ()) -> Demand:
    views = tuple(GatewayView(f"gw-{i}", sum(pods.values()), 0, True, pods=pods) for i, pods in enumerate(gateways))
    return Demand(views, silent)


def judge(pods: list[PodState], told: Demand | None) -> Costs | Ask:
    demands = {} if told is None else {REGION: told}
    seen = Snapshot(endpoint=make_endpoint(), pods=tuple(pods), demands=demands)
    return deletion_costs(seen, REGION, NOW)


def written(pods: list[PodState], told: Demand) -> dict[str, int]:
    costs = judge(pods, told)
    assert isinstance(costs, Costs)
    return {action.pod: action.cost for action in costs.actions}


def test_the_one_with_the_least_to_do_goes_first() -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    assert written(pods, demand({"a": 1, "b": 5}, {"b": 4})) == {"a": 1, "b": 4}
    action = SetDeletionCost("a", "uid-a", 2, NOW, "pod a has 3 requests")
    assert judge(pods, demand({"a": 3})) == Costs((action,), PERIOD_S)


def test_a_single_engine_is_told_nothing() -> None:
    assert judge([pod("a")], None) == Costs(), "nobody is asked for it"
    assert written([pod("a")], demand({"a": 9})) == {}
    assert written([pod("a"), pod("b", ready=False)], demand({"a": 9})) == {}
    assert written([pod("a"), pod("b", terminating=True)], demand({"a": 9})) == {}
    elsewhere = make_pod_state("b", ready_s=60, region="eu")
    assert written([pod("a"), elsewhere], demand({"a": 9})) == {}


def test_nothing_is_said_while_demand_is_not_known() -> None:
    pods = [pod("a"), pod("b")]
    assert judge(pods, None) == Ask(demand_of=REGION)
    assert judge(pods, Demand()) == Costs(check_in_s=PERIOD_S)
    assert written(pods, demand({"a": 9}, silent=("gw-9: no answer",))) == {}
    assert written(pods, demand({"a": 9})) == {"a": 4}


def test_only_a_change_of_the_order_is_written() -> None:
    assert written([pod("a", 1), pod("b", 3)], demand({"a": 4, "b": 60})) == {}, "b is dearer still"
    assert written([pod("a", 1), pod("b", 3)], demand({"a": 4, "b": 7})) == {}, (
        "which of two alike goes does not matter"
    )
    assert written([pod("a", 1), pod("b", 3)], demand({"a": 8, "b": 7})) == {"a": 4}
    assert written([pod("a"), pod("b")], demand({})) == {}


def test_at_most_once_a_pod_in_its_period() -> None:
    told = demand({"a": 8, "b": 1})
    assert written([pod("a", 1, written_s=PERIOD_S - 1), pod("b", 3, written_s=PERIOD_S)], told) == {"b": 1}
    assert written([pod("a", 1, written_s=PERIOD_S), pod("b", 3, written_s=1)], told) == {"a": 4}
    assert written([pod("a", 1, written_s=-3600), pod("b", 3, written_s=1)], told) == {"a": 4}, "a clock was ahead"


def test_the_steps_are_coarse() -> None:
    assert [cost_of(n) for n in (0, 1, 2, 3, 4, 7, 8, 1000)] == [0, 1, 2, 2, 3, 3, 4, 10]


LOADS = st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(0, 6)), min_size=2, max_size=6)


@settings(**examples(200))
@given(loads=LOADS)
def test_after_the_writes_the_order_is_right_and_it_is_quiet(loads: list[tuple[int, int | None]]) -> None:
    pods = [pod(f"p{i}", carried) for i, (_, carried) in enumerate(loads)]
    requests = {f"p{i}": number for i, (number, _) in enumerate(loads)}
    costs = {name: cost_of(number) for name, number in requests.items()}
    told = demand({name: number for name, number in requests.items() if number})
    by_pairs = all(
        (one.deletion_cost or 0) < (other.deletion_cost or 0)
        for one, other in itertools.permutations(pods, 2)
        if costs[one.name] < costs[other.name]
    )
    assert is_order_right(pods, costs) == by_pairs
    changes = written(pods, told)
    assert bool(changes) == (not by_pairs)
    after = [pod(p.name, changes.get(p.name, p.deletion_cost)) for p in pods]
    assert written(after, told) == {}
