"""The condition ScalingActive: whether replicas follow what they should follow, and what to do if they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import RegionPlacement
from emberline_operator.plan.conditions import Truth, Verdict
from emberline_operator.plan.idle import Idleness
from emberline_operator.plan.start import Start
from emberline_operator.plan.via import Via
from emberline_operator.schedules import Floor
from emberline_operator.snapshot import Json, time_text


@dataclass(frozen=True, slots=True)
class Scaled:
    """What is known of one region's scaling."""

    spec: InferenceEndpointSpec
    placement: RegionPlacement
    via: Via
    replicas: int
    hpa: Json | None
    rival: Json | None
    """Somebody else's autoscaler of the same Deployment, or one that has the name of ours."""
    idleness: Idleness | None
    floor: Floor
    start: Start


def judge_scaling(scaled: Scaled) -> Verdict:
    """The verdict on one region."""
    if not (scaled.placement.may_start and scaled.placement.is_wanted):
        return _verdict("False", Reason.NOT_PLACED, f"no engine is added: {scaled.placement.message}")
    if scaled.rival is not None:
        what = f"the {_name(scaled.rival)}, which is not Emberline's, scales these engines or has that name"
        return _by_others(what, is_external=scaled.via.mode == "External")
    if scaled.via.mode == "External":
        return _external(scaled)
    scaling = scaled.spec.scaling
    if scaled.via.mode == "HPA":
        trouble = _hpa_trouble(scaled.hpa) if scaled.hpa else None
        if trouble is not None:
            return trouble
    if scaled.via.reason is Reason.METRICS_UNAVAILABLE:
        message = (
            f"scaling.via is HPA, and {scaled.via.message}. Meanwhile the operator follows demand by the same formula;"
            " set scaling.via to Auto or Operator if that is as it should be"
        )
        return _verdict("False", Reason.METRICS_UNAVAILABLE, message)
    if scaled.replicas == 0 and scaled.floor.replicas == 0:
        return _verdict("True", Reason.SCALED_TO_ZERO, _asleep(scaled.start))
    if scaled.idleness is not None and scaled.idleness.unknown:
        return _verdict(
            "Unknown" if scaled.idleness.has_gateway else "False", Reason.DEMAND_UNKNOWN, scaled.idleness.unknown
        )
    if scaled.floor.replicas == scaling.max_replicas:
        fixed = f"always {scaling.max_replicas}: minReplicas = maxReplicas"
        if scaled.floor.schedule:
            fixed = f"{scaling.max_replicas} while schedule {scaled.floor.schedule} lasts, which is maxReplicas"
        return _verdict("True", Reason.FIXED_REPLICAS, fixed)
    return _following(scaled)


def join_verdicts(by_region: Sequence[tuple[str, Verdict]]) -> Verdict:
    """One verdict for all regions: the worst one, with its region's name if there are several."""
    if not by_region:
        return _verdict("Unknown", Reason.PENDING, "there is nothing to scale yet")
    region, worst = min(by_region, key=lambda item: _rank(item[1]))
    alike = {verdict.message for _, verdict in by_region}
    if len(alike) == 1:
        return worst
    return _verdict(worst.status, worst.reason, f"region {region}: {worst.message}")


def _rank(verdict: Verdict) -> int:
    order = {"False": 0, "Unknown": 1, "True": 2}[verdict.status]
    return order + (verdict.reason is Reason.SCALED_TO_ZERO)


def _asleep(start: Start) -> str:
    if start.failed is None or not start.waits:
        return "the first request wakes the endpoint"
    return f"the last start failed: the first request from {time_text(start.failed.retry_time)} on wakes the endpoint"


def _external(scaled: Scaled) -> Verdict:
    wanted = scaled.spec.replicas
    if wanted is None:
        return _verdict("Unknown", Reason.PENDING, f"spec.replicas is being filled with what runs: {scaled.replicas}")
    if wanted == 0:
        message = "spec.replicas is 0: no engine runs and requests are refused until it is raised"
        return _verdict("True", Reason.STOPPED, message)
    return _verdict("True", Reason.EXTERNAL, f"spec.replicas decides: {wanted}; Emberline does not change it")


def _following(scaled: Scaled) -> Verdict:
    scaling = scaled.spec.scaling
    end = f"; {scaling.idle_after} without any request put it to zero" if scaled.floor.replicas == 0 else ""
    if scaled.floor.schedule:
        end = f" while schedule {scaled.floor.schedule} lasts"
    span = f"between {max(1, scaled.floor.replicas)} and {scaling.max_replicas} engines follow demand{end}"
    if scaled.via.mode == "Operator":
        why = f" ({scaled.via.message})" if scaled.via.message else ""
        return _verdict("True", Reason.FOLLOWS_DEMAND, f"by the operator{why}: {span}")
    if scaled.hpa is None:
        return _verdict("Unknown", Reason.PENDING, "the HorizontalPodAutoscaler is being created")
    limit = _condition(scaled.hpa, "ScalingLimited")
    if limit.get("status") == "True" and limit.get("reason") == "TooManyReplicas":
        span += "; demand asks for more than scaling.maxReplicas"
    return _verdict("True", Reason.FOLLOWS_HPA, f"by the {_name(scaled.hpa)}: {span}")


def _hpa_trouble(hpa: Json) -> Verdict | None:
    """What the autoscaler itself says is wrong. At zero replicas it does nothing, which is as it should be."""
    active = _condition(hpa, "ScalingActive")
    if active.get("status") == "False" and active.get("reason") != "ScalingDisabled":
        if active.get("reason") == "AmbiguousSelector":
            return _by_others(f"{_name(hpa)} stands still: {active.get('message', '')}")
        message = f"{_name(hpa)} gets no metrics, so replicas stay as they are: {active.get('message', '')}"
        return _verdict("False", Reason.METRICS_UNAVAILABLE, message)
    able = _condition(hpa, "AbleToScale")
    if able.get("status") == "False" and able.get("reason") == "FailedGetScale":
        message = f"{_name(hpa)} cannot read the scale of its Deployment: {able.get('message', '')}"
        return _verdict("False", Reason.METRICS_UNAVAILABLE, message)
    return None


def _by_others(what: str, *, is_external: bool = False) -> Verdict:
    if is_external:
        message = f"{what}, so spec.replicas decides nothing: delete it, or let it scale the InferenceEndpoint instead"
        return _verdict("False", Reason.SCALED_BY_OTHERS, message)
    message = (
        f"{what}. Two autoscalers of the same engines stop each other, so Emberline's stands back: delete the other one, or set"
        " scaling.via to External and let it scale the InferenceEndpoint"
    )
    return _verdict("False", Reason.SCALED_BY_OTHERS, message)


def _condition(hpa: Json, kind: str) -> Json:
    conditions: list[Json] = hpa.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _name(hpa: Json) -> str:
    return f"HorizontalPodAutoscaler {hpa['metadata']['name']}"


def _verdict(status: Truth, reason: Reason, message: str) -> Verdict:
    return Verdict(ConditionType.SCALING_ACTIVE, status, reason, message)
