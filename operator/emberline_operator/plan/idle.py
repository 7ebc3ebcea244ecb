"""Whether an endpoint has been idle for long enough to go back to its floor.

Nothing is scaled down while a gateway that runs cannot be asked, and nothing without any gateway: unknown is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from emberline_contract import names
from emberline_operator.snapshot import Demand

POLL_S: Final = 30.0
"""An endpoint that is awake is looked at this often at least, so that a silent gateway shows in its status."""
UNKNOWN_POLL_S: Final = 5.0
SOONEST_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Idleness:
    """The judgement."""

    is_idle: bool
    check_in_s: float
    """When to judge again."""
    unknown: str = ""
    """Why demand is not known, if it is not."""
    has_gateway: bool = True
    last_active: datetime | None = None
    """When a gateway last saw a request, as far as known."""


def judge_idleness(demand: Demand, *, idle_after_s: float, awake_since: datetime | None, now: datetime) -> Idleness:
    """Judge an endpoint that is awake since then, None while it makes progress in starting: a start is never cut off."""
    last_active = _last_active(demand, now)
    if not demand.views and not demand.silent:
        message = (
            f"no gateway runs in {names.SYSTEM_NAMESPACE}, so nobody knows the demand and nothing is scaled down;"
            f" start the Deployment {names.GATEWAY_NAME}"
        )
        return Idleness(is_idle=False, check_in_s=UNKNOWN_POLL_S, unknown=message, has_gateway=False)
    if demand.silent:
        message = (
            f"a gateway cannot be asked ({'; '.join(demand.silent)}), so nothing is scaled down;"
            " it goes on when every gateway that runs answers"
        )
        return Idleness(is_idle=False, check_in_s=UNKNOWN_POLL_S, unknown=message, last_active=last_active)
    if any(view.unfinished for view in demand.views):
        return Idleness(is_idle=False, check_in_s=_bounded(idle_after_s), last_active=last_active)
    if awake_since is None:
        return Idleness(is_idle=False, check_in_s=POLL_S, last_active=last_active)
    quiet_s = min((now - awake_since).total_seconds(), *(view.idle_s for view in demand.views))
    left_s = idle_after_s - quiet_s
    return Idleness(is_idle=left_s <= 0, check_in_s=_bounded(left_s), last_active=last_active)


def _bounded(seconds: float) -> float:
    return min(POLL_S, max(SOONEST_S, seconds))


def _last_active(demand: Demand, now: datetime) -> datetime | None:
    seen = [
        now if view.unfinished else now - timedelta(seconds=view.idle_s) for view in demand.views if view.ever_active
    ]
    return max(seen, default=None)
