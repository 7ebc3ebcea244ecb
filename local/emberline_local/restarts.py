"""Whether and when a container is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class BackOffRule:
    """The first restart is immediate, the next waits `base_s`, each further one twice as long, at most `most_s`."""

    base_s: float = 10.0
    most_s: float = 300.0
    forget_after_s: float = 600.0
    """A container that ran this long starts from the beginning."""


@dataclass(frozen=True)
class BackOff:
    """How often a container ended lately."""

    num_restarts: int = 0

    def after_run(self, rule: BackOffRule, ran_s: float) -> tuple[BackOff, float]:
        """The state after one more run, and the seconds to wait before the next start."""
        num_before = 0 if ran_s >= rule.forget_after_s else self.num_restarts
        delay_s = 0.0 if num_before == 0 else min(rule.base_s * 2.0 ** (num_before - 1), rule.most_s)
        return replace(self, num_restarts=num_before + 1), delay_s


def is_restarted(restart_policy: str, exit_code: int) -> bool:
    """Whether a container that ended with `exit_code` runs again."""
    return restart_policy == "Always" or (restart_policy == "OnFailure" and exit_code != 0)
