"""The conditions Ready and Degraded: what the endpoint's pods say, in the order of what a user wants to know first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.decision import Eviction
from emberline_operator.plan.conditions import Truth, Verdict, engines, truth
from emberline_operator.plan.findings import Findings, RegionFindings
from emberline_operator.plan.start import FailedStart
from emberline_operator.plan.trouble import Trouble, find_trouble
from emberline_operator.plan.weights import is_awaited
from emberline_operator.snapshot import Json, time_text

NEVER_READY: Final = "No engine has been ready at this generation yet"
_TOLD: Final = (
    Reason.SCALED_TO_ZERO,
    Reason.STARTING,
    Reason.UNSCHEDULABLE,
    Reason.CONTAINER_FAILED,
    Reason.PODS_NOT_CREATED,
    Reason.WEIGHTS_NOT_READY,
    Reason.START_FAILED,
)
"""Reasons whose message says that no engine has been ready, where that is so."""

_OF_PODS: Final = (Reason.CONTAINER_FAILED, Reason.UNSCHEDULABLE, Reason.PODS_NOT_CREATED)
_REMEDIES: Final = {
    Reason.UNSCHEDULABLE: "free what it lacks on a node, add such a node, or change accelerator, placement or podTemplate",
    Reason.PODS_NOT_CREATED: "raise the namespace's quota, or change what its policies refuse",
}
"""What a failing container needs is said by the container, or in its log."""


def judge_ready(found: Findings, blocked: Verdict | None, before: Json) -> Verdict:
    """Whether a request sent now will be answered.

    `blocked` is the verdict on Accepted or Placed if that one is False; `before` the endpoint's live status. An endpoint that
    may sleep stays ready while it wakes, once an engine of this generation has been ready: a request is held and answered.
    """
    if found.num_ready:
        num_wanted = max(found.num_ready, found.desired)
        return _ready("True", Reason.SERVING, f"{found.num_ready} of {engines(num_wanted)} ready")
    if blocked is not None:
        reason = Reason.NOT_PLACED if blocked.type is ConditionType.PLACED else Reason.NOT_ACCEPTED
        return _ready("False", reason, blocked.message)
    has_served = _has_served(before, found.seen.generation)
    never = "" if has_served else f". {NEVER_READY}"
    weights = found.weights
    if found.is_stopped and not found.desired:
        message = "spec.replicas is 0: stopped by hand; requests are refused until it is raised"
        return _ready("True", Reason.STOPPED, message)
    if weights is not None and weights.reason is Reason.CLAIM_NOT_FOUND:
        return _ready("False", Reason.WEIGHTS_NOT_READY, f"{weights.message}{never}")
    if not found.is_there:
        return _ready("Unknown", Reason.PENDING, "the endpoint's objects are being created")
    failed = found.back_off
    if failed is not None:
        then = "requests are answered 503 until" if found.desired else "a request may start one again at"
        message = f"{failed_words(failed)}; {then} {time_text(failed.retry_time)}{never}"
        return _ready("False", Reason.START_FAILED, message)
    if not found.desired:
        if weights is not None and weights.status != "True":
            return _ready("Unknown", Reason.WEIGHTS_NOT_READY, f"{weights.message}{never}")
        return _ready("True", Reason.SCALED_TO_ZERO, f"nothing runs; the first request starts an engine{never}")
    trouble = _worst_trouble(found)
    if trouble is not None:
        return _ready("False", trouble.reason, f"{trouble.message}{never}")
    num_up = sum(region.num_alive for region in found.regions)
    message = f"{num_up} of {engines(found.desired)} starting; requests are held{never}"
    may_sleep = found.floor is not None and found.floor.replicas == 0
    return _ready(truth(may_sleep and has_served), Reason.STARTING, message)


def judge_degraded(found: Findings) -> Verdict:
    """Whether something fails, also while requests are answered.

    What made a start fail is still so of an endpoint that has gone to sleep after it, until the spec changes or an engine becomes
    ready.
    """
    if found.residency is not None and found.residency.violations:
        message = _where_they_must_not_be(found.residency.violations)
        return Verdict(ConditionType.DEGRADED, "True", Reason.RESIDENCY_VIOLATION, message)
    trouble = _worst_trouble(found)
    if trouble is None:
        trouble = _failed_start(found)
    if trouble is None:
        return Verdict(ConditionType.DEGRADED, "False", Reason.AS_EXPECTED, "nothing fails")
    return Verdict(ConditionType.DEGRADED, "True", trouble.reason, trouble.message)


def _worst_trouble(found: Findings) -> Trouble | None:
    """Of what the regions report, what is first in the order of `_OF_PODS`; with the remedy."""
    troubles = [trouble for region in found.regions if (trouble := _trouble(region)) is not None]
    worst = min(troubles, key=lambda trouble: _OF_PODS.index(trouble.reason), default=None)
    if worst is None:
        return None
    if worst.reason is Reason.UNSCHEDULABLE and found.weights is not None and is_awaited(found.weights, worst.message):
        return Trouble(Reason.WEIGHTS_NOT_READY, found.weights.message)
    words = worst.message.rstrip(".! ")
    return Trouble(worst.reason, "; ".join(filter(None, (words, _REMEDIES.get(worst.reason)))))


def _trouble(region: RegionFindings) -> Trouble | None:
    """What keeps pods from serving there, but for what every roll-out without a spare GPU goes through: its new engine has no
    node while an old one drains or goes on serving. RolloutBlocked tells of that.
    """
    waits = region.rollout.reason if region.rollout else Reason.NOT_BLOCKED
    is_told = waits in (Reason.WAITING_FOR_GPU, Reason.WEIGHTS_NOT_READY) and region.num_ready > 0
    is_expected = waits is Reason.WAITING_FOR_DRAIN or is_told
    if not is_expected:
        return find_trouble(region.pods, region.deployment)
    return find_trouble([pod for pod in region.pods if not pod.unschedulable], None)


def _where_they_must_not_be(violations: Sequence[Eviction]) -> str:
    """All pods by name, those of one reason together: there is one Event of it in ten minutes."""
    pods: dict[str, list[str]] = {}
    for violation in violations:
        pods.setdefault(violation.why, []).append(violation.pod)
    words = "; ".join(f"pod {', '.join(names)}: {why}" for why, names in pods.items())
    many = len(violations) > 1
    what = (
        f"{len(violations)} engines are where they must not be and are"
        if many
        else "1 engine is where it must not be and is"
    )
    return f"{what} being stopped: {words}"


def _failed_start(found: Findings) -> Trouble | None:
    for region in found.regions:
        if region.failed_start is not None:
            where = f"{region.name}: " if region.name != names.DEFAULT_REGION else ""
            return Trouble(Reason.START_FAILED, f"{where}{failed_words(region.failed_start)}")
    return None


def failed_words(failed: FailedStart) -> str:
    """What has failed, and how often."""
    again = f" {failed.count} times in a row" if failed.count > 1 else ""
    remedy = _REMEDIES[Reason.UNSCHEDULABLE] if failed.phase == "Scheduling" else ""
    words = "; ".join(filter(None, (failed.message.rstrip(".! "), remedy)))
    return f"no engine could be started{again}: {words}"


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
