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
MAX_VOID: Final = 1000
"""Overtaken entries that are kept, beyond as many as there are keys."""


def retry_delay_s(num_failures: int) -> float:
    """Delay after that many failures in a row."""
    return min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** (min(num_failures, 30) - 1))


class Schedule(Generic[K]):
    """Keys with the time they are due; the earliest wish for a key counts."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, int]] = {}
        """When a key is due, and the number of the wish, by which keys that are due at once take turns."""
        self._heap: list[tuple[float, int, K]] = []
        self._running: set[K] = set()
        self._num_wishes = 0

    def __len__(self) -> int:
        return len(self._due)

    @property
    def num_running(self) -> int:
        """Keys that are being worked on."""
        return len(self._running)

    def add(self, key: K, due_s: float) -> None:
        """Make a key due, unless it is due earlier already."""
        if key in self._due and self._due[key][0] <= due_s:
            return
        self._num_wishes += 1
        self._due[key] = (due_s, self._num_wishes)
        self._push(key)

    def take(self, now_s: float) -> K | None:
        """The key that has been due longest and is not worked on; it is now worked on until `done`."""
        while self._heap and self._heap[0][0] <= now_s:
            entry = heapq.heappop(self._heap)
            if self._is_valid(entry):
                key = entry[2]
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
            if self._is_valid(self._heap[0]):
                return self._heap[0][0]
            heapq.heappop(self._heap)
        return None

    def _is_valid(self, entry: tuple[float, int, K]) -> bool:
        """Keys in work come back by `done`; entries that another wish has overtaken are void."""
        due_s, number, key = entry
        return self._due.get(key) == (due_s, number) and key not in self._running

    def _push(self, key: K) -> None:
        heapq.heappush(self._heap, (*self._due[key], key))
        if len(self._heap) > 2 * len(self._due) + MAX_VOID:
            # A void entry would stay until its time, and busy keys leave one behind with each pass.
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)
