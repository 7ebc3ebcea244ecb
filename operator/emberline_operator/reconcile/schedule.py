"""Which key is worked on when. Pure: time is an argument.

A key is never worked on twice at once; what happens to it meanwhile makes it due again afterwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_S: Final = 0.2
LAST_RETRY_S: Final = 60.0


def retry_delay_s(num_failures: int) -> float:
    """Delay after that many failures in a row."""
    return min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** (min(num_failures, 30) - 1))


class Schedule(Generic[K]):
    """Keys with the time they are due; the earliest wish for a key counts."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._running: set[K] = set()
        self._order = 0

    def __len__(self) -> int:
        return len(self._due)

    @property
    def num_running(self) -> int:
        """Keys that are being worked on."""
        return len(self._running)

    def add(self, key: K, due_s: float) -> None:
        """Make a key due, unless it is due earlier already."""
        if self._due.get(key, float("inf")) <= due_s:
            return
        self._due[key] = due_s
        self._push(key)

    def take(self, now_s: float) -> K | None:
        """The key that has been due longest and is not worked on; it is now worked on until `done`."""
        while self._heap and self._heap[0][0] <= now_s:
            due_s, _, key = heapq.heappop(self._heap)
            # Keys in work come back by `done`; entries that another wish has overtaken are void.
            if self._due.get(key) == due_s and key not in self._running:
                del self._due[key]
                self._running.add(key)
                return key
        return None

    def done(self, key: K) -> None:
        """The work on a key has ended."""
        self._running.discard(key)
        if key in self._due:
            self._push(key)

    def next_due_s(self) -> float | None:
        """When `take` may have something, as far as known; None: not before `add` or `done`."""
        while self._heap:
            due_s, _, key = self._heap[0]
            if self._due.get(key) == due_s and key not in self._running:
                return due_s
            heapq.heappop(self._heap)
        return None

    def _push(self, key: K) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self._due[key], self._order, key))
