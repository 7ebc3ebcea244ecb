"""Who leads, decided from a Lease. Pure: times are arguments, in monotonic seconds.

Clocks of two machines are never compared. A holder is taken for gone when its record has not changed for as long as it
itself says, counted from when *we* first saw the record; and a leader stops writing by its own clock before that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from emberline_operator.errors import LostLeadershipError
from emberline_operator.settings import LeaseTimes


@dataclass(frozen=True, slots=True)
class Record:
    """What matters of a Lease."""

    holder: str
    """Identity of the leader; empty: released."""
    duration_s: float
    """How long the holder asks to be taken for alive after each change."""
    version: str
    """resourceVersion; every renewal changes it."""
    transitions: int = 0
    acquired: str = ""
    """Wall-clock time since which the holder leads, for people."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A record and when this process first saw it as it is."""

    record: Record | None
    """None: there is no Lease yet."""
    since_s: float


class Step(Enum):
    """What to do next."""

    ACQUIRE = "acquire"
    """Write ourselves into the record, on the condition that it has not changed."""
    RENEW = "renew"
    WAIT = "wait"
    LOST = "lost"
    """We led and do so no longer."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A step, and for WAIT after which time to look again."""

    step: Step
    after_s: float = 0.0
    why: str = ""


def seen_now(before: Seen | None, record: Record | None, now_s: float) -> Seen:
    """What is known after a look; a record that has not changed keeps the time it was first seen at."""
    if before is not None and before.record == record:
        return before
    return Seen(record, now_s)


def decide(seen: Seen, renewed_s: float | None, identity: str, times: LeaseTimes, now_s: float) -> Decision:
    """The next step. `renewed_s` is when our last successful write of the record began; None: we do not lead."""
    record = seen.record
    if renewed_s is not None:
        if record is None or record.holder != identity:
            holder = "nobody" if record is None or not record.holder else record.holder
            return Decision(Step.LOST, why=f"the Lease is held by {holder}")
        if now_s - renewed_s >= times.renew_deadline_s:
            why = f"the Lease was last renewed {now_s - renewed_s:.1f} s ago, and {times.renew_deadline_s:g} s are allowed"
            return Decision(Step.LOST, why=why)
        return Decision(Step.RENEW)
    # Our own name without our leading: an answer was lost on its way, the write was not.
    if record is None or record.holder in ("", identity):
        return Decision(Step.ACQUIRE)
    left_s = seen.since_s + record.duration_s - now_s
    if left_s <= 0:
        return Decision(Step.ACQUIRE)
    return Decision(Step.WAIT, after_s=min(left_s, times.retry_s))


class Gate:
    """Open while this process certainly leads. `clock` gives monotonic seconds.

    It closes by itself: a process that was stopped and goes on finds it closed, whatever else it has missed.
    """

    def __init__(self, clock: Callable[[], float], times: LeaseTimes) -> None:
        self._clock = clock
        self._times = times
        self._renewed_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether a write may begin now."""
        return self._renewed_s is not None and self._clock() - self._renewed_s < self._times.renew_deadline_s

    def open(self, renewed_s: float) -> None:
        """The record was written by a request that began then."""
        self._renewed_s = renewed_s

    def close(self) -> None:
        """Let nothing through any more."""
        self._renewed_s = None

    def may_write(self) -> float:
        """Seconds within which a write that begins now must be over, since afterwards another may lead.

        Raises LostLeadershipError if it must not begin.
        """
        if self._renewed_s is None:
            raise LostLeadershipError("this process does not lead; it writes nothing")
        age_s = self._clock() - self._renewed_s
        if age_s >= self._times.renew_deadline_s:
            raise LostLeadershipError(
                f"the Lease was last renewed {age_s:.1f} s ago, and writes are allowed for {self._times.renew_deadline_s:g} s"
            )
        return self._times.duration_s - age_s
