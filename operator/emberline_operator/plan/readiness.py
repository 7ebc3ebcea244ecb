"""The conditions Ready and Degraded: what the endpoint's pods say, in the order of what a user wants to know first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.plan.conditions import Truth, Verdict, truth
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.weights import WeightsState
from emberline_operator.snapshot import Json, PodState, time_of

NEVER_READY: Final = "No engine has been ready at this generation yet."
_TOLD: Final = (
    Reason.SCALED_TO_ZERO,
    Reason.STARTING,
    Reason.UNSCHEDULABLE,
    Reason.CONTAINER_FAILED,
    Reason.PODS_NOT_CREATED,
    Reason.WEIGHTS_NOT_READY,
)
"""Reasons whose message says that no engine has been ready, where that is so."""

_OF_PODS: Final = (Reason.CONTAINER_FAILED, Reason.UNSCHEDULABLE, Reason.PODS_NOT_CREATED)


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


def judge_ready(
    *,
    blocked: Verdict | None,
    weights: WeightsState | None,
    deployment: Json | None,
    pods: Sequence[PodState],
    may_sleep: bool,
    before: Json,
    generation: int,
) -> Verdict:
    """Whether a request sent now will be answered.

    `blocked` is the verdict on Accepted or Placed if that one is False; `before` the endpoint's live status. An endpoint that
    may sleep stays ready while it wakes, once an engine of this generation has been ready: a request is held and answered.
    """
    num_routable = sum(pod.is_routable for pod in pods)
    if num_routable:
        num_wanted = max(num_routable, replicas_of(deployment) if deployment else 0)
        return _ready("True", Reason.SERVING, f"{num_routable} of {num_wanted} engines are ready")
    if blocked is not None:
        reason = Reason.NOT_PLACED if blocked.type is ConditionType.PLACED else Reason.NOT_ACCEPTED
        return _ready("False", reason, blocked.message)
    has_served = _has_served(before, generation)
    never = "" if has_served else f" {NEVER_READY}"
    if weights is not None and weights.reason is Reason.CLAIM_NOT_FOUND:
        return _ready("False", Reason.WEIGHTS_NOT_READY, _then(weights.message, never))
    if deployment is None:
        return _ready("Unknown", Reason.PENDING, "the endpoint's objects are being created")
    if replicas_of(deployment) == 0:
        if weights is not None and weights.status != "True":
            return _ready("Unknown", Reason.WEIGHTS_NOT_READY, _then(weights.message, never))
        return _ready("True", Reason.SCALED_TO_ZERO, f"nothing runs; the first request starts an engine.{never}")
    trouble = find_trouble(pods, deployment)
    if trouble is not None:
        return _ready("False", trouble.reason, _then(trouble.message, never))
    num_up = sum(not pod.terminating for pod in pods)
    message = f"{num_up} of {replicas_of(deployment)} engines are starting; requests are held.{never}"
    return _ready(truth(may_sleep and has_served), Reason.STARTING, message)


def judge_degraded(pods: Sequence[PodState], deployment: Json | None, before: Json, generation: int) -> Verdict:
    """Whether something fails, also while requests are answered.

    What made a start fail is still so at zero replicas, until the spec changes or another start shows otherwise.
    """
    trouble = find_trouble(pods, deployment)
    if trouble is None and deployment is not None and replicas_of(deployment) == 0:
        trouble = _last_trouble(before, generation)
    if trouble is None:
        return Verdict(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, "nothing fails")
    return Verdict(ConditionType.DEGRADED, "True", trouble.reason, trouble.message)


def _last_trouble(before: Json, generation: int) -> Trouble | None:
    """What the live status tells of pods of this generation."""
    for condition in before.get("conditions", ()):
        is_it = condition["type"] == ConditionType.DEGRADED.value and condition.get("observedGeneration") == generation
        if is_it and condition["status"] == "True" and condition["reason"] in _OF_PODS:
            return Trouble(Reason(condition["reason"]), condition["message"])
    return None


def _then(message: str, sentence: str) -> str:
    """Another sentence after somebody's words, which may end without a full stop."""
    if not sentence or message.endswith((".", "!", "?")):
        return message + sentence
    return f"{message}.{sentence}"


def _ready(status: Truth, reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionType.READY, status, reason, message)


def _has_served(before: Json, generation: int) -> bool:
    """Whether an engine was ready at this generation, as the live status tells: its message says so while none was."""
    for condition in before.get("conditions", ()):
        if condition["type"] == ConditionType.READY.value and condition.get("observedGeneration") == generation:
            if condition["reason"] == Reason.SERVING.value:
                return True
            return condition["reason"] in _TOLD and NEVER_READY not in condition["message"]
    return False
