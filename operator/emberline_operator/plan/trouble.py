"""What keeps an endpoint's pods from serving, in the words of who saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from emberline_contract.conditions import Reason
from emberline_operator.snapshot import Json, PodState, time_of


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that keeps pods from serving, in the words of who saw it."""

    reason: Reason
    message: str


def find_trouble(pods: Sequence[PodState], deployment: Json | None) -> Trouble | None:
    """The worst of what the pods and the Deployment report."""
    for pod in pods:
        if pod.failure and not pod.terminating:
            return Trouble(Reason.CONTAINER_FAILED, f"pod {pod.name}: {pod.failure}")
    for pod in pods:
        if pod.unschedulable and not pod.terminating:
            return Trouble(Reason.UNSCHEDULABLE, f"pod {pod.name}: {pod.unschedulable}")
    conditions = (deployment or {}).get("status", {}).get("conditions", ())
    for condition in conditions:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return Trouble(Reason.PODS_NOT_CREATED, condition.get("message", ""))
    return None


def awake_since(pods: Sequence[PodState], deployment: Json) -> datetime | None:
    """Since when the endpoint has been up, for its time of idling: since its oldest routable engine became ready.

    A start that fails counts from its first pod on, so that it is given up some time. None while a start makes progress.
    """
    alive = [pod for pod in pods if not pod.terminating]
    ready = [pod.ready_since for pod in alive if pod.ready_since is not None]
    if ready:
        return min(ready)
    if find_trouble(alive, deployment) is None:
        return None
    return min((pod.created for pod in alive), default=time_of(deployment["metadata"]["creationTimestamp"]))
