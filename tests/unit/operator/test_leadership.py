"""Who leads: tables of the decision, and what a stopped clock does to the gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_operator.errors import LostLeadershipError
from emberline_operator.leadership import Decision, Gate, Record, Seen, Step, decide, seen_now
from emberline_operator.settings import LeaseTimes

TIMES = LeaseTimes()
ME, OTHER = "me", "other"


def record(holder: str = OTHER, version: int = 1, duration_s: float = 15.0) -> Record:
    return Record(holder, duration_s, str(version))


@pytest.mark.parametrize(
    ("seen", "now_s", "step", "after_s"),
    [
        (Seen(None, 0), 0, Step.ACQUIRE, 0),
        (Seen(record(""), 0), 0, Step.ACQUIRE, 0),
        (Seen(record(ME), 0), 0, Step.ACQUIRE, 0),
        (Seen(record(), 0), 0, Step.WAIT, 2),
        (Seen(record(), 0), 14.5, Step.WAIT, 0.5),
        (Seen(record(), 0), 15, Step.ACQUIRE, 0),
        (Seen(record(duration_s=60), 0), 15, Step.WAIT, 2),
        (Seen(record(duration_s=0), 0), 0, Step.ACQUIRE, 0),
        (Seen(record(), 100), 114, Step.WAIT, 1),
    ],
)
def test_who_does_not_lead(seen: Seen, now_s: float, step: Step, after_s: float) -> None:
    assert decide(seen, None, ME, TIMES, now_s) == Decision(step, after_s)


@pytest.mark.parametrize(
    ("held", "now_s", "step", "words"),
    [
        (record(ME), 0, Step.RENEW, ""),
        (record(ME), 9.9, Step.RENEW, ""),
        (record(ME), 10, Step.LOST, "last renewed 10.0 s ago, and 10 s are allowed"),
        (record(ME), 300, Step.LOST, "last renewed 300.0 s ago"),
        (record(OTHER), 1, Step.LOST, "held by other"),
        (record(""), 1, Step.LOST, "held by nobody"),
        (None, 1, Step.LOST, "held by nobody"),
    ],
)
def test_who_leads(held: Record | None, now_s: float, step: Step, words: str) -> None:
    decision = decide(Seen(held, 0), 0.0, ME, TIMES, now_s)
    assert decision.step is step
    assert words in decision.why


def test_a_record_is_as_old_as_it_has_been_seen_unchanged() -> None:
    first = seen_now(None, record(version=1), 5)
    assert first.since_s == 5
    assert seen_now(first, record(version=1), 9) == first
    assert seen_now(first, record(version=2), 9) == Seen(record(version=2), 9), "a renewal"
    assert seen_now(first, None, 9) == Seen(None, 9)


def test_the_gate_closes_by_itself() -> None:
    now = [100.0]
    gate = Gate(lambda: now[0], TIMES)
    with pytest.raises(LostLeadershipError, match="does not lead"):
        gate.may_write()
    gate.open(99.0)
    assert gate.may_write() == 14, "until others may take the Lease"
    now[0] = 108.9
    assert gate.is_open
    assert gate.may_write() == pytest.approx(5.1)
    now[0] = 130.0
    assert not gate.is_open
    with pytest.raises(LostLeadershipError, match=r"31\.0 s ago, and writes are allowed for 10 s"):
        gate.may_write()
    gate.open(130.0)
    gate.close()
    with pytest.raises(LostLeadershipError):
        gate.may_write()


@given(
    renewals=st.lists(st.floats(0.1, 12), max_size=12),
    looks=st.lists(st.floats(0.1, 6), min_size=1, max_size=40),
    delay_s=st.floats(0, 3),
)
def test_nobody_takes_the_lease_while_the_holder_may_write(
    renewals: list[float], looks: list[float], delay_s: float
) -> None:
    """The holder renews as it can (each write arrives a while after it began); another looks as it likes."""
    begun, at = [0.0], 0.0
    for gap in renewals:
        if gap >= TIMES.renew_deadline_s:
            break
        at += gap
        begun.append(at)
    gate_now = [0.0]
    gate = Gate(lambda: gate_now[0], TIMES)
    seen, now = None, 0.0
    for gap in looks:
        now += gap
        versions = [number for number, start in enumerate(begun) if start + delay_s <= now]
        if not versions:
            continue
        seen = seen_now(seen, record(OTHER, versions[-1]), now)
        if decide(seen, None, ME, TIMES, now).step is Step.ACQUIRE:
            gate.open(max(start for start in begun if start <= now))
            gate_now[0] = now
            assert not gate.is_open
            return
