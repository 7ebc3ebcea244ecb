"""The status of an endpoint, from what a pass found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.resources import ScalingSpec
from emberline_operator.accept import Rejection
from emberline_operator.desired.child import Child
from emberline_operator.placement import Placement, Unplaced
from emberline_operator.plan.conditions import Truth, Verdict, stamp, truth
from emberline_operator.plan.idle import Idleness
from emberline_operator.plan.readiness import judge_degraded, judge_ready
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.weights import WeightsState
from emberline_operator.precision import Precision
from emberline_operator.snapshot import Json, PodState, Snapshot, time_of, time_text

_PENDING = "not looked at: see the condition Accepted"


@dataclass(frozen=True, slots=True)
class Findings:
    """What a pass found out, as far as it got."""

    seen: Snapshot
    url: str
    rejection: Rejection | None = None
    scaling: ScalingSpec | None = None
    placement: Placement | Unplaced | None = None
    weights: WeightsState | None = None
    precision: Precision | None = None
    deployment: Json | None = None
    """The Deployment that serves, whatever its region."""
    is_template_new: bool = False
    idleness: Idleness | None = None
    """None while nothing runs."""

    @property
    def region(self) -> str:
        """Region of the Deployment that serves."""
        labels: Mapping[str, str] = (self.deployment or {}).get("metadata", {}).get("labels", {})
        return labels.get(names.LABEL_REGION, names.DEFAULT_REGION)


def make_status(found: Findings, now: datetime) -> Json:
    """The whole status. What is not in it is removed."""
    seen = found.seen
    before = seen.endpoint.get("status", {})
    status: Json = {
        "observedGeneration": seen.generation,
        "conditions": stamp(_verdicts(found, before), before, seen.generation, now),
        "replicas": 0,
        "readyReplicas": sum(pod.is_routable for pod in seen.pods),
    }
    if found.rejection is None:
        status["url"] = found.url
    if found.precision is not None:
        status["precision"] = {"format": found.precision.dtype, "reason": found.precision.reason}
    if found.deployment is not None:
        child = Child(seen.namespace, seen.name, seen.uid, found.region)
        status["replicas"] = sum(not pod.terminating for pod in seen.pods)
        status["selector"] = ",".join(f"{key}={value}" for key, value in sorted(child.selector.items()))
        status["regions"] = [
            {"name": found.region, "desired": replicas_of(found.deployment), "ready": status["readyReplicas"]}
        ]
    active = _last_active(before, found.idleness)
    status["scaling"] = {"via": "Operator", **({"lastActiveTime": active} if active else {})}
    return status


def _last_active(before: Json, idleness: Idleness | None) -> str | None:
    """To the minute, and never back: a gateway that restarted has forgotten what it saw."""
    moments = [time_of(text) for text in (before.get("scaling", {}).get("lastActiveTime"),) if text]
    if idleness is not None and idleness.last_active is not None:
        moments.append(idleness.last_active)
    return time_text(max(moments).replace(second=0, microsecond=0)) if moments else None


def _verdicts(found: Findings, before: Json) -> list[Verdict]:
    accepted, placed = _accepted(found), _placed(found)
    blocked = next((verdict for verdict in (accepted, placed) if verdict.status == "False"), None)
    verdicts = [
        accepted,
        placed,
        _weights(found),
        judge_ready(
            blocked=blocked,
            weights=found.weights,
            deployment=found.deployment,
            pods=found.seen.pods,
            may_sleep=found.scaling is not None and found.scaling.min_replicas == 0,
            before=before,
            generation=found.seen.generation,
        ),
        _scaling(found),
        judge_degraded(found.seen.pods, found.deployment, before, found.seen.generation),
    ]
    reconciling = _reconciling(found, blocked)
    if reconciling is not None:
        verdicts.append(reconciling)
    if found.rejection is not None:
        verdicts.append(
            Verdict(ConditionType.STALLED, "True", found.rejection.reason, "nothing is done until this is corrected:"
                    f" {found.rejection.message}")
        )  # fmt: skip
    return verdicts


def _accepted(found: Findings) -> Verdict:
    if found.rejection is not None:
        return Verdict(ConditionType.ACCEPTED, "False", found.rejection.reason, found.rejection.message)
    return Verdict(ConditionType.ACCEPTED, "True", Reason.VALID, "the spec is valid")


def _placed(found: Findings) -> Verdict:
    place = found.placement
    if place is None:
        return Verdict(ConditionType.PLACED, "Unknown", Reason.PENDING, _PENDING)
    return Verdict(ConditionType.PLACED, truth(isinstance(place, Placement)), place.reason, place.message)


def _weights(found: Findings) -> Verdict:
    if found.weights is None:
        return Verdict(ConditionType.WEIGHTS_READY, "Unknown", Reason.PENDING, _PENDING)
    return Verdict(ConditionType.WEIGHTS_READY, found.weights.status, found.weights.reason, found.weights.message)


def _scaling(found: Findings) -> Verdict:
    kind = ConditionType.SCALING_ACTIVE
    if found.scaling is None:
        return Verdict(kind, "Unknown", Reason.PENDING, _PENDING)
    if found.deployment is None:
        return Verdict(kind, "Unknown", Reason.PENDING, "there is nothing to scale yet")
    scaling = found.scaling
    if scaling.min_replicas == scaling.max_replicas:
        return Verdict(kind, "True", Reason.FIXED_REPLICAS, f"always {scaling.max_replicas}: minReplicas = maxReplicas")
    if replicas_of(found.deployment) == 0:
        return Verdict(kind, "True", Reason.SCALED_TO_ZERO, "the first request wakes the endpoint")
    if found.idleness is not None and found.idleness.unknown:
        status: Truth = "Unknown" if found.idleness.has_gateway else "False"
        return Verdict(kind, status, Reason.DEMAND_UNKNOWN, found.idleness.unknown)
    floor = f"its floor of {scaling.min_replicas}" if scaling.min_replicas else "zero"
    message = f"{scaling.idle_after} without any request put the endpoint back to {floor}"
    return Verdict(kind, "True", Reason.FOLLOWS_DEMAND, message)


def _reconciling(found: Findings, blocked: Verdict | None) -> Verdict | None:
    """While the newest template is not in all pods. A wake or a sleep is no roll-out."""
    if blocked is not None:
        return None
    if found.deployment is None or found.is_template_new:
        message = "the newest generation is being written to the endpoint's objects"
        return Verdict(ConditionType.RECONCILING, "True", Reason.ROLLING_OUT, message)
    old = _old_pods(found.seen.pods, found.deployment)
    if not old:
        return None
    message = f"{len(old)} engines of an older generation are still to be replaced: {', '.join(old[:5])}"
    return Verdict(ConditionType.RECONCILING, "True", Reason.ROLLING_OUT, message)


def _old_pods(pods: Sequence[PodState], deployment: Json) -> list[str]:
    annotations = deployment["spec"]["template"].get("metadata", {}).get("annotations", {})
    newest = annotations.get(names.ANNOTATION_TEMPLATE_HASH, "")
    return [pod.name for pod in pods if pod.template_hash != newest and not pod.terminating]
