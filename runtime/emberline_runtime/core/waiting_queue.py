"""Requests that are not running, in the order in which they are to start."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from emberline_runtime.core.sequence import Sequence


def _place(sequence: Sequence) -> tuple[int, bool, int]:
    return (sequence.request.priority, sequence.num_preemptions == 0, sequence.order)


class WaitingQueue:
    """By priority; within one, preempted ones first, then first come, first served."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """From the head; the queue must not change meanwhile."""
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Put the sequence in its place."""
        insort(self._sequences, sequence, key=_place)

    def remove(self, sequence: Sequence) -> None:
        """Take the sequence, which must be in the queue, out of it."""
        index = bisect_left(self._sequences, _place(sequence), key=_place)
        if index == len(self._sequences) or self._sequences[index] is not sequence:
            raise ValueError(f"request {sequence.request.id} does not wait")
        del self._sequences[index]
