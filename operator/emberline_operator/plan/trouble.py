"""What keeps an endpoint's pods from serving, in the words of who saw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from emberline_contract.conditions import Reason
from emberline_operator.snapshot import Json, PodState


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


def awake_since(pods: Sequence[PodState]) -> datetime | None:
    """Since when the endpoint has been up, for its time of idling: since its oldest routable engine became ready.

    None while none is: a start ends by an engine that answers, or by its own deadlines.
    """
    return min((pod.ready_since for pod in pods if pod.is_routable and pod.ready_since is not None), default=None)
