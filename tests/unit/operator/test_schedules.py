"""Schedules: which floor is in force, and when that changes, in several zones and over the days on which clocks are set."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract.conditions import Reason
from emberline_contract.resources import ScalingSpec
from emberline_operator.accept import Rejection, accept
from emberline_operator.plan.actions import Apply, Scale, Sleep
from emberline_operator.schedules import Floor, floor_at
from support.examples import examples
from support.operator_objects import NOW, Raw, Store, condition_of, make_endpoint, ready_pod
from support.scaling_cases import OURS, Region, calls, spec_of

OFFICE: Raw = {
    "name": "office",
    "cron": "0 8 * * 1-5",
    "timeZone": "Europe/Berlin",
    "minReplicas": 2,
    "duration": "10h",
}


def scaling_of(*schedules: Raw, **more: Any) -> ScalingSpec:
    return ScalingSpec.model_validate({"schedules": list(schedules), "maxReplicas": 9, **more})


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("now", "replicas", "until"),
    [
        pytest.param("2026-12-01T07:59:59+01:00", 0, "2026-12-01T08:00:00+01:00", id="a second before"),
        pytest.param("2026-12-01T08:00:00+01:00", 2, "2026-12-01T18:00:00+01:00", id="it begins"),
        pytest.param("2026-12-01T17:59:59+01:00", 2, "2026-12-01T18:00:00+01:00", id="its last second"),
        pytest.param("2026-12-01T18:00:00+01:00", 0, "2026-12-02T08:00:00+01:00", id="it has ended"),
        pytest.param("2026-12-04T20:00:00+01:00", 0, "2026-12-07T08:00:00+01:00", id="over the weekend"),
        pytest.param("2026-07-01T08:00:00+02:00", 2, "2026-07-01T18:00:00+02:00", id="in summer at 6 of UTC"),
    ],
)
def test_a_day_at_the_office(now: str, replicas: int, until: str) -> None:
    floor = floor_at(scaling_of(OFFICE), at(now))
    assert floor == Floor(replicas, "office" if replicas else "", at(until))


def test_the_largest_of_those_that_last_counts_and_never_less_than_min_replicas() -> None:
    noon = {**OFFICE, "name": "noon", "cron": "0 12 * * *", "minReplicas": 5, "duration": "1h"}
    tokyo = {**OFFICE, "name": "tokyo", "cron": "0 9 * * *", "timeZone": "Asia/Tokyo", "minReplicas": 3}
    spec = scaling_of(OFFICE, noon, tokyo, minReplicas=1)
    seen = {hour: floor_at(spec, at(f"2026-12-01T{hour}:30:00+01:00")) for hour in ("00", "03", "09", "12", "13", "19")}
    assert {hour: (floor.replicas, floor.schedule) for hour, floor in seen.items()} == {
        "00": (1, ""),
        "03": (3, "tokyo"),
        "09": (3, "tokyo"),
        "12": (5, "noon"),
        "13": (2, "office"),
        "19": (1, ""),
    }
    assert seen["09"].until == at("2026-12-01T11:00:00+01:00"), "Tokyo ends at 19 there"
    assert floor_at(scaling_of({**OFFICE, "minReplicas": 1}, minReplicas=1), NOW) == Floor(
        1, "", at("2026-12-01T18:00:00+01:00")
    ), "it asks for no more"


def test_one_that_lasts_longer_than_its_period_never_ends() -> None:
    spec = scaling_of({**OFFICE, "cron": "0 * * * *", "duration": "90m"})
    for minutes in range(0, 600, 7):
        assert floor_at(spec, NOW + timedelta(minutes=minutes)).replicas == 2


@pytest.mark.parametrize(
    ("cron", "now", "replicas"),
    [
        pytest.param("30 2 * * *", "2026-03-29T00:59:59Z", 0, id="spring: 2.30 is not there"),
        pytest.param("30 2 * * *", "2026-03-29T01:00:00Z", 2, id="spring: it begins at 3"),
        pytest.param("30 2 * * *", "2026-03-29T02:00:00Z", 0, id="spring: and lasts an hour"),
        pytest.param("30 2 * * *", "2026-10-25T00:30:00Z", 2, id="autumn: at the first 2.30"),
        pytest.param("30 2 * * *", "2026-10-25T01:10:00Z", 2, id="autumn: the clock shows 2.10 once more"),
        pytest.param("30 2 * * *", "2026-10-25T01:30:00Z", 0, id="autumn: not again at the second"),
    ],
)
def test_clocks_that_are_set(cron: str, now: str, replicas: int) -> None:
    assert floor_at(scaling_of({**OFFICE, "cron": cron, "duration": "1h"}), at(now)).replicas == replicas


ZONES = ("Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Antarctica/Troll", "Asia/Kolkata")
CRONS = ("0 8 * * 1-5", "30 2 * * *", "0 * * * *", "5 1,2,3 * * *", "30 2 * * 0", "*/30 2 * * *", "0 0 1 * *")
CHANGES = tuple(at(f"2026-{day}T00:00:00Z") for day in ("03-08", "03-29", "04-05", "10-04", "10-25", "11-01"))


@settings(**examples(60))
@given(
    st.sampled_from(ZONES), st.sampled_from(CRONS), st.sampled_from(CHANGES), st.integers(-36_000, 90_000),
    st.integers(1, 3000),
)  # fmt: skip
def test_it_lasts_when_one_of_all_beginnings_says_so(
    zone: str, cron: str, day: datetime, offset_s: int, minutes: int
) -> None:
    """Against a list of every beginning of weeks, made forwards."""
    now, duration = day + timedelta(seconds=offset_s), timedelta(minutes=minutes)
    begins = []
    for begin in CronSim(cron, (now - timedelta(days=35)).astimezone(ZoneInfo(zone))):
        begins.append(begin.astimezone(UTC))
        if begins[-1] > now + timedelta(days=1):
            break
    schedule = {**OFFICE, "cron": cron, "timeZone": zone, "duration": f"{minutes}m"}
    floor = floor_at(scaling_of(schedule), now)
    assert (floor.replicas == 2) == any(begin <= now < begin + duration for begin in begins)
    assert floor.until is not None
    boundaries = {moment for begin in begins for moment in (begin, begin + duration) if moment > now}
    # What begins again while it lasts goes on: only the end of the last beginning is one.
    assert now < floor.until <= min(boundaries) or floor.until in boundaries


def test_a_look_is_cheap() -> None:
    spec = scaling_of(*({**OFFICE, "name": f"s{i}", "cron": f"{i} 8 * * *"} for i in range(16)))
    floor_at(spec, NOW)
    began = time.process_time()
    for second in range(500):
        floor_at(spec, NOW + timedelta(seconds=second % 20))
    assert time.process_time() - began < 2.5, "5 ms each would be a thousand times what it takes to remember"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cron": "30 18 1 12"}, "cron: '30 18 1 12' has 4 fields, not 5"),
        ({"cron": "0 0 8 * * 1"}, "has 6 fields"),
        ({"cron": "0 25 * * *"}, "cron: '0 25 * * *': Bad hour; write minute, hour"),
        ({"cron": "every day at 8"}, "write minute, hour"),
        ({"cron": "0 0 30 2 *"}, "cron: '0 0 30 2 *': Bad day-of-month"),
        ({"cron": "0 0 */29 * MON#2"}, "is no day that ever comes"),
        ({"timeZone": "Europe/Berlino"}, "timeZone: there is no time zone 'Europe/Berlino'; write an IANA name"),
        ({"timeZone": "Europe"}, "there is no time zone 'Europe'"),
        ({"timeZone": "../../etc/passwd"}, "there is no time zone"),
        ({"duration": "1 day"}, "duration: "),
        ({"minReplicas": 7}, "scaling.schedules[office].minReplicas is 7, larger than scaling.maxReplicas 4"),
    ],
)
def test_what_the_api_server_cannot_refuse(change: Raw, words: str) -> None:
    rejection = accept(make_endpoint(scaling={"schedules": [{**OFFICE, **change}]}))
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.INVALID_SPEC
    assert rejection.message.startswith("scaling.schedules[office].")
    assert words in rejection.message


def test_one_that_begins_starts_engines_and_one_that_ends_stops_none() -> None:
    now = at("2026-12-01T07:59:50+01:00")
    case = Region(spec_of(scaling={"schedules": [OFFICE]}), replicas=0, now=now)
    plan = case.plan()
    assert (plan.actions, plan.check_in_s) == ((), 10.0)
    case.after(10)
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert (scale.replicas, scale.why) == (
        2, "fewer than minReplicas 2 of scaling.schedules[office]: replicas 0 -> 2"
    )  # fmt: skip
    case.replicas, case.demand = 2, calls(idle_s=100_000)
    case.after(3600)
    plan = case.plan()
    assert not plan.actions, "idle, and no less than the floor"
    assert "while schedule office lasts" in plan.verdict.message
    case.now = at("2026-12-01T18:00:00+01:00")
    (sleep,) = case.plan().actions
    assert isinstance(sleep, Sleep), "now it is idleAfter that counts"


def test_the_autoscaler_keeps_to_the_floor() -> None:
    spec = spec_of(scaling={"schedules": [OFFICE], "via": "HPA"})
    for now, least in (("2026-12-01T07:00:00+01:00", 1), ("2026-12-01T08:00:00+01:00", 2)):
        (apply,) = Region(spec, api=OURS, now=at(now)).plan().actions
        assert isinstance(apply, Apply)
        assert apply.body["spec"]["minReplicas"] == least


def test_an_endpoint_that_is_made_while_one_lasts_begins_with_its_engines() -> None:
    now = at("2026-12-01T09:00:00+01:00")
    store = Store(make_endpoint(scaling={"schedules": [OFFICE]}))
    store.settle(now=now)
    assert store.history[0] == 2
    store.pods = (ready_pod(store, "a"), ready_pod(store, "b"))
    plan = store.settle(now=now)
    assert "by the operator: between 2 and 4" in condition_of(plan, "ScalingActive")["message"]
    asleep = Store(make_endpoint(scaling={"schedules": [OFFICE]}))
    plan = asleep.settle(now=at("2026-12-01T19:00:00+01:00"))
    assert asleep.history[0] == 0
    assert plan.requeue_after_s == 13 * 3600
