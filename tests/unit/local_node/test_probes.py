from __future__ import annotations

from typing import Any

import pytest

from emberline_local.probes import ProbeSpec, Verdict, decide_probe, first_state, read_probe


def spec(*, is_eager: bool = False, **fields: Any) -> ProbeSpec:
    return read_probe(fields, is_eager=is_eager)


def follow(probe: ProbeSpec, answers: str) -> list[tuple[float, str]]:
    """Time and verdict after each answer (`+` or `-`), with every question asked when it is due, and answered at once."""
    state = first_state(probe, 100.0)
    seen = []
    for answer in answers:
        now_s = state.due_s
        state = decide_probe(probe, state, success=answer == "+", now_s=now_s)
        seen.append((round(now_s - 100, 3), state.verdict.value))
    return seen


def test_defaults_are_those_of_the_api() -> None:
    assert spec() == ProbeSpec(
        initial_delay_s=0, period_s=10, timeout_s=1, success_threshold=1, failure_threshold=3, is_eager=False
    )


@pytest.mark.parametrize(
    ("probe", "answers", "seen"),
    [
        (spec(periodSeconds=2), "+", [(0, "success")]),
        (
            spec(periodSeconds=2, initialDelaySeconds=5),
            "---+",
            [(5, "unknown"), (7, "unknown"), (9, "failure"), (11, "success")],
        ),
        (
            spec(periodSeconds=1, successThreshold=2),
            "+-++",
            [(0, "unknown"), (1, "unknown"), (2, "unknown"), (3, "success")],
        ),
        # What was ready stays so until the threshold of failures.
        (
            spec(periodSeconds=1, failureThreshold=2),
            "+-+--+",
            [(0, "success"), (1, "success"), (2, "success"), (3, "success"), (4, "failure"), (5, "success")],
        ),
    ],
)
def test_thresholds_and_periods(probe: ProbeSpec, answers: str, seen: list[tuple[float, str]]) -> None:
    assert follow(probe, answers) == seen


def test_eager_probe_asks_often_until_its_first_success() -> None:
    seen = follow(spec(is_eager=True, periodSeconds=1), "---+-")
    assert seen == [(0, "unknown"), (0.1, "unknown"), (0.2, "unknown"), (0.3, "success"), (1.3, "success")]


def test_eager_probe_counts_one_failure_a_period() -> None:
    seen = follow(spec(is_eager=True, periodSeconds=1, failureThreshold=3), "-" * 60)
    failed_at_s = next(at_s for at_s, verdict in seen if verdict == "failure")
    # Three failures, counted at the ends of the first three periods.
    assert 3.0 <= failed_at_s < 3.3
    assert all(verdict == "unknown" for at_s, verdict in seen if at_s < failed_at_s)


def test_failure_ends_with_the_next_success() -> None:
    probe = spec(periodSeconds=1, failureThreshold=1)
    state = decide_probe(probe, first_state(probe, 0), success=False, now_s=0)
    assert state.verdict is Verdict.FAILURE
    assert decide_probe(probe, state, success=True, now_s=1).verdict is Verdict.SUCCESS
