"""Probes as pure decisions: when to ask next, and what the answers so far mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

_STARTUP_STEP_S = 0.1


class Verdict(Enum):
    """What a probe says of its container."""

    UNKNOWN = "unknown"
    """Neither threshold was reached yet."""
    SUCCESS = "success"
    FAILURE = "failure"


@dataclass(frozen=True, kw_only=True)
class ProbeSpec:
    """A probe of the pod's spec with the API's defaults filled in.

    `is_eager` (startup and readiness): until the first success it is asked in steps of 100 ms rather than one period,
    but failures still count once a period only. A kubelet probes at the container's start and then each period, of
    a second at least; here a start is not rounded up to whole seconds.
    """

    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int
    is_eager: bool


def read_probe(probe: Mapping[str, Any], *, is_eager: bool) -> ProbeSpec:
    """The numbers of a probe of the API."""
    return ProbeSpec(
        initial_delay_s=probe.get("initialDelaySeconds", 0),
        period_s=probe.get("periodSeconds", 10),
        timeout_s=probe.get("timeoutSeconds", 1),
        success_threshold=probe.get("successThreshold", 1),
        failure_threshold=probe.get("failureThreshold", 3),
        is_eager=is_eager,
    )


@dataclass(frozen=True)
class ProbeState:
    """Where a probe stands. Times are seconds of any one clock."""

    due_s: float
    verdict: Verdict = Verdict.UNKNOWN
    num_successes: int = 0
    """In a row."""
    num_failures: int = 0
    """In a row."""
    counts_from_s: float = 0.0
    """A failure before this time does not count: it is one of the extra questions of an eager probe."""


def first_state(spec: ProbeSpec, started_s: float) -> ProbeState:
    """State of a probe whose container started at `started_s`."""
    due_s = started_s + spec.initial_delay_s
    # A program needs its time to listen: the first eager failure of a period is taken at the period's end.
    return ProbeState(due_s, counts_from_s=due_s + (spec.period_s if spec.is_eager else 0.0))


def decide_probe(spec: ProbeSpec, state: ProbeState, *, success: bool, now_s: float) -> ProbeState:
    """The state after an answer that arrived at `now_s`."""
    if success:
        num_successes = state.num_successes + 1
        reached = num_successes >= spec.success_threshold
        return replace(
            state,
            due_s=now_s + spec.period_s,
            verdict=Verdict.SUCCESS if reached else state.verdict,
            num_successes=num_successes,
            num_failures=0,
        )
    is_extra = spec.is_eager and state.verdict is Verdict.UNKNOWN and now_s < state.counts_from_s
    num_failures = state.num_failures if is_extra else state.num_failures + 1
    step_s = (
        min(_STARTUP_STEP_S, spec.period_s) if spec.is_eager and state.verdict is Verdict.UNKNOWN else spec.period_s
    )
    return ProbeState(
        due_s=now_s + step_s,
        verdict=Verdict.FAILURE if num_failures >= spec.failure_threshold else state.verdict,
        num_failures=num_failures,
        counts_from_s=state.counts_from_s if is_extra else state.counts_from_s + spec.period_s,
    )
