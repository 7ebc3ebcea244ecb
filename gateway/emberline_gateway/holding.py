"""Requests that wait for an engine, and the gate that the operator closes before it scales to zero. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from typing_extensions import override

from emberline_contract.health import WaitPhase
from emberline_gateway.objects import Endpoint, Pod

T = TypeVar("T")


@dataclass(slots=True, order=True)
class Held(Generic[T]):
    """One waiting request. `arrival` numbers are unique and rise; they are the order of release."""

    arrival: int
    waiter: T = field(compare=False)
    since_s: float = field(default=0.0, compare=False)
    """When it began to wait."""


class HoldQueue(Generic[T]):
    """First come, first released, also for a request that was released before and had to come back."""

    def __init__(self) -> None:
        self._held: list[Held[T]] = []

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, held: Held[T], max_queue: int) -> bool:
        """False when `max_queue` are held already; then nothing has changed."""
        if len(self._held) >= max_queue:
            return False
        insort(self._held, held)
        return True

    def leave(self, held: Held[T]) -> bool:
        """The client has gone, or its time is over. False when it had been released before."""
        index = bisect_left(self._held, held)
        if index < len(self._held) and self._held[index] is held:
            del self._held[index]
            return True
        return False

    def first(self) -> Held[T] | None:
        """Whose turn it is."""
        return self._held[0] if self._held else None

    def since_s(self) -> float | None:
        """When the one that has waited longest began; one that had to come back began again."""
        return min((held.since_s for held in self._held), default=None)

    def release(self) -> Held[T]:
        """Takes the first out."""
        return self._held.pop(0)


@dataclass(slots=True)
class Gate:
    """Open, or closed for one epoch until a time: while closed nothing is dispatched and everything is held."""

    epoch: int = -1
    closed_until_s: float = float("-inf")

    def is_closed(self, now_s: float) -> bool:
        """Whether dispatching stands still."""
        return now_s < self.closed_until_s

    def close(self, epoch: int, ttl_s: float, now_s: float) -> bool:
        """False when a younger close is in force; repeating the one in force extends it."""
        if self.is_closed(now_s) and epoch < self.epoch:
            return False
        self.epoch = epoch
        self.closed_until_s = now_s + ttl_s
        return True

    def reopen(self, epoch: int, now_s: float) -> bool:
        """Ends the close of `epoch`; False when a younger one is in force, which stays."""
        if self.is_closed(now_s) and epoch < self.epoch:
            return False
        self.closed_until_s = float("-inf")
        return True


@dataclass(frozen=True, slots=True)
class Wait:
    """What a held request waits for."""

    phase: WaitPhase
    detail: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.phase.value} ({self.detail})" if self.detail else self.phase.value


_PROGRESS = (WaitPhase.SCALING, WaitPhase.SCHEDULING, WaitPhase.STARTING, WaitPhase.LOADING)


def decide_wait(pods: Sequence[Pod], wake_error: str) -> Wait:
    """The phase of the pod that has come furthest; without pods the scale-up is what is waited for, or what fails."""
    if not pods:
        return Wait(WaitPhase.SCALING, wake_error)
    foremost = max(pods, key=lambda pod: _PROGRESS.index(pod.phase))
    return Wait(foremost.phase, foremost.detail)


def timeout_message(endpoint: Endpoint, wait: Wait) -> str:
    """What a client reads whose request was held for too long."""
    return (
        f"{endpoint.qualified} was not ready within {endpoint.activation_timeout_s:g} s (scaling.activationTimeout);"
        f" it is still {wait}. Try again later, or see `kubectl describe iep -n {endpoint.namespace} {endpoint.name}`"
    )
