"""Which pod takes the next request. Pure: time and the turn that breaks ties are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emberline_gateway.objects import Pod

LEAVE_OUT_S: Final = 1.0
"""How long a pod is left out that refused, or stalled before its first byte; doubles with each time in a row."""
MAX_LEAVE_OUT_S: Final = 15.0


class Load:
    """What this gateway has outstanding at each pod, and which pods it leaves out for a while."""

    def __init__(self) -> None:
        self._outstanding: dict[str, int] = {}
        self._left_out: dict[str, tuple[float, int]] = {}

    def num_outstanding(self, pod: Pod) -> int:
        """Requests dispatched to it and not ended."""
        return self._outstanding.get(pod.uid, 0)

    def add(self, pod: Pod) -> None:
        """A request goes to the pod."""
        self._outstanding[pod.uid] = self._outstanding.get(pod.uid, 0) + 1

    def remove(self, pod: Pod) -> None:
        """A request to the pod has ended."""
        left = self._outstanding[pod.uid] - 1
        if left:
            self._outstanding[pod.uid] = left
        else:
            del self._outstanding[pod.uid]

    def leave_out(self, pod: Pod, now_s: float) -> float:
        """It failed before its first byte: gets nothing for the seconds returned."""
        until_s, in_a_row = self._left_out.get(pod.uid, (now_s, 0))
        if until_s > now_s:  # several requests see the same failure; it counts once
            return until_s - now_s
        pause_s = min(LEAVE_OUT_S * float(2**in_a_row), MAX_LEAVE_OUT_S)
        self._left_out[pod.uid] = (now_s + pause_s, min(in_a_row + 1, 10))
        return pause_s

    def forgive(self, pod_uid: str) -> None:
        """It answered, or is another life of the pod: the next failure is the first again."""
        self._left_out.pop(pod_uid, None)

    def is_left_out(self, pod: Pod, now_s: float) -> bool:
        """Whether it gets nothing now."""
        left_out = self._left_out.get(pod.uid)
        return left_out is not None and left_out[0] > now_s


def choose(pods: Sequence[Pod], load: Load, now_s: float, turn: int, avoid: str = "") -> Pod | None:
    """The pod with the least outstanding requests; ties go round by `turn`.

    The pod of uid `avoid` is taken only when there is no other: a request that was lost there is tried elsewhere first.
    """
    candidates = [pod for pod in pods if not load.is_left_out(pod, now_s)]
    if avoid and len(candidates) > 1:
        candidates = [pod for pod in candidates if pod.uid != avoid]
    if not candidates:
        return None
    if len(candidates) == 1:
        return candidates[0]
    least = min(load.num_outstanding(pod) for pod in candidates)
    tied = [pod for pod in candidates if load.num_outstanding(pod) == least]
    return tied[turn % len(tied)]
