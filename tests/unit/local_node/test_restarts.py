from __future__ import annotations

import pytest

from emberline_local.restarts import BackOff, BackOffRule, is_restarted


def delays(rule: BackOffRule, *runs_s: float) -> list[float]:
    state, seen = BackOff(), []
    for ran_s in runs_s:
        state, delay_s = state.after_run(rule, ran_s)
        seen.append(delay_s)
    return seen


def test_first_restart_is_immediate_then_pauses_double_to_five_minutes() -> None:
    assert delays(BackOffRule(), *[1.0] * 9) == [0, 10, 20, 40, 80, 160, 300, 300, 300]


def test_long_run_is_forgiven() -> None:
    assert delays(BackOffRule(), 1, 1, 1, 600, 1) == [0, 10, 20, 0, 10]


def test_base_can_be_chosen() -> None:
    assert delays(BackOffRule(base_s=0.2, most_s=0.5), 0, 0, 0, 0) == [0, 0.2, 0.4, 0.5]


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 137, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_restart_policies(policy: str, code: int, again: bool) -> None:
    assert is_restarted(policy, code) is again
