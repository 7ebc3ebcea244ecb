"""Idle or not: unknown is not zero, a start is not cut off, and every gateway counts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from emberline_operator.plan.idle import POLL_S, SOONEST_S, UNKNOWN_POLL_S, Idleness, judge_idleness
from emberline_operator.plan.trouble import awake_since
from emberline_operator.snapshot import Demand, GatewayView
from support.operator_objects import NOW, make_pod_state, quiet


def judge(demand: Demand, awake_s: float | None = 1000, idle_after_s: float = 60) -> Idleness:
    since = None if awake_s is None else NOW - timedelta(seconds=awake_s)
    return judge_idleness(demand, idle_after_s=idle_after_s, awake_since=since, now=NOW)


def view(idle_s: float, unfinished: int = 0, *, ever_active: bool = True, gateway: str = "gw") -> GatewayView:
    return GatewayView(gateway, unfinished, idle_s, ever_active=ever_active)


@pytest.mark.parametrize(
    ("demand", "awake_s", "is_idle", "check_in_s"),
    [
        pytest.param(quiet(60), 1000, True, SOONEST_S, id="just idle for long enough"),
        pytest.param(quiet(59), 1000, False, 1, id="a second too early"),
        pytest.param(quiet(0), 1000, False, POLL_S, id="a request just now; looked at while awake"),
        pytest.param(quiet(1000), 10, False, POLL_S, id="only just ready"),
        pytest.param(quiet(1000), 59.95, False, SOONEST_S, id="never sooner than a moment"),
        pytest.param(quiet(1000), None, False, POLL_S, id="a start is never cut off"),
        pytest.param(Demand((view(1000), view(5))), 1000, False, POLL_S, id="the busiest gateway counts"),
        pytest.param(Demand((view(1000), view(0, 1))), 1000, False, POLL_S, id="one request unfinished"),
        pytest.param(Demand((view(1000, 1),)), 1000, False, POLL_S, id="unfinished, however long ago it came"),
        pytest.param(Demand((view(61, ever_active=False),)), 1000, True, SOONEST_S, id="never asked since its start"),
        pytest.param(Demand((view(1000),), ("gw-2: refused",)), 1000, False, UNKNOWN_POLL_S, id="one is silent"),
        pytest.param(Demand(), 1000, False, UNKNOWN_POLL_S, id="no gateway"),
    ],
)
def test_idleness(demand: Demand, awake_s: float | None, is_idle: bool, check_in_s: float) -> None:
    found = judge(demand, awake_s)
    assert found.is_idle is is_idle
    assert found.check_in_s == pytest.approx(check_in_s)


def test_what_is_unknown_is_said_with_what_to_do() -> None:
    silent = judge(Demand((view(1000),), ("gw-2: it answered 500",)))
    assert "gw-2: it answered 500" in silent.unknown
    assert silent.has_gateway
    nobody = judge(Demand())
    assert "start the Deployment emberline-gateway" in nobody.unknown
    assert not nobody.has_gateway
    assert judge(quiet(1)).unknown == ""


def test_last_active_is_the_latest_that_a_gateway_saw() -> None:
    both = judge(Demand((view(40), view(20, gateway="b"))))
    assert both.last_active == NOW - timedelta(seconds=20)
    assert judge(Demand((view(40, 2),))).last_active == NOW
    assert judge(Demand((view(40, ever_active=False),))).last_active is None, "its own start is no request"
    assert judge(Demand((view(40),), ("gw-2: gone",))).last_active == NOW - timedelta(seconds=40)


def test_awake_since_the_oldest_engine_that_is_ready() -> None:
    pods = [
        make_pod_state("a", ready_s=10),
        make_pod_state("b", ready_s=50),
        make_pod_state("c", ready_s=90, terminating=True),
    ]
    assert awake_since(pods) == NOW - timedelta(seconds=50)


def test_a_start_is_not_awake_however_it_fares() -> None:
    """Its own deadlines end it, not a time of idling."""
    assert awake_since([make_pod_state(age_s=70)]) is None
    assert awake_since([]) is None
    assert awake_since([make_pod_state(age_s=70, failure="container engine: CrashLoopBackOff")]) is None
    assert awake_since([make_pod_state("a", age_s=30, unschedulable="no gpu"), make_pod_state("b", age_s=70)]) is None
