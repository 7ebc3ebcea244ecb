"""When the API server asks for patience, all requests of a connection have it. Pure: time and chance are arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_PAUSE_S: Final = 30.0
"""A longer wish is not believed: leadership and watches would go stale over it."""
DEFAULT_PAUSE_S: Final = 1.0
"""When a 429 does not say how long."""
SPREAD: Final = 0.5
"""Requests that have waited go on within this part of the pause, each at a time of its own."""


def retry_after_s(header: str | None) -> float | None:
    """The seconds of a Retry-After header; None without one. A date is not understood: Kubernetes sends seconds."""
    return float(header) if header is not None and header.strip().isdecimal() else None


class Throttle:
    """The pause that is on. `chance` gives numbers from 0 to 1."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self._chance = chance
        self._until_s = 0.0
        self._spread_s = 0.0

    def heard(self, status: int, wish_s: float | None, now_s: float) -> None:
        """An answer: a 429, or a 503 that says how long, begins or prolongs the pause."""
        if status == 429 or (status == 503 and wish_s is not None):
            pause_s = min(MAX_PAUSE_S, DEFAULT_PAUSE_S if wish_s is None else wish_s)
            if now_s + pause_s > self._until_s:
                self._until_s = now_s + pause_s
                self._spread_s = SPREAD * pause_s

    def pause_s(self, now_s: float) -> float:
        """How long a request must wait before it asks here again; 0: it may go."""
        left_s = self._until_s - now_s
        return left_s + self._spread_s * self._chance() if left_s > 0 else 0.0
