"""One region's part of a pass: its objects, its replicas, its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import RegionPlacement
from emberline_operator.plan.actions import Action, Apply, Ask, Scale, Sleep
from emberline_operator.plan.belonging import own
from emberline_operator.plan.children import Desired, is_template_new, plan_children, remove_region
from emberline_operator.plan.findings import RegionFindings
from emberline_operator.plan.replicas import replicas_of, scale_to
from emberline_operator.plan.scaling import ScalePlan, plan_scaling
from emberline_operator.plan.termination import deletion_costs
from emberline_operator.plan.via import Via
from emberline_operator.snapshot import Json, Ref, Snapshot


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """What is done in a region, and what is found there."""

    found: RegionFindings
    actions: tuple[Action, ...] = ()
    check_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What a region is looked at with."""

    seen: Snapshot
    spec: InferenceEndpointSpec
    via: Via
    now: datetime
    answers: bool
    """Whether an engine of a region where engines shall run can answer."""


def plan_region(case: Case, placement: RegionPlacement, desired: Desired, *, takes_over: bool) -> RegionPlan | Ask:
    """The writes in a region. What is there is known to be absent or ours."""
    seen = case.seen
    live = own(seen, desired.deployment_ref)
    found = RegionFindings(
        placement.region,
        placement,
        placement.decision,
        live,
        tuple(pod for pod in seen.pods if pod.region == placement.region),
        is_template_new(desired, live),
        desired.is_held_back,
        desired.rollout,
    )
    if not placement.is_wanted and (case.answers or not found.lives):
        return RegionPlan(found, remove_region(placement.region, seen), placement.check_in_s)
    children = plan_children(desired, seen)
    check_in_s = soonest(placement.check_in_s, desired.rollout.check_in_s if desired.rollout else None)
    if live is None or "deletionTimestamp" in live["metadata"]:
        return RegionPlan(found, children if live is None else (), check_in_s)
    is_fenced = not placement.may_start
    # A write of the Deployment moves its resourceVersion; replicas wait for the next pass, which follows at once. Where no engine
    # may be started, fewer replicas come first: a pod that is evicted would be made anew.
    is_busy = any(isinstance(action, Apply) and action.ref.kind == "Deployment" for action in children)
    hpa = own(seen, Ref("HorizontalPodAutoscaler", desired.child.name))
    scaled = plan_scaling(case.spec, seen, placement, live, hpa, case.via, case.now, is_busy=is_busy and not is_fenced)
    if isinstance(scaled, Ask):
        return scaled
    if is_fenced and any(isinstance(action, Scale | Sleep) for action in scaled.actions):
        children = ()
    actions = (*children, *scaled.actions, *_take_over(live, scaled, wanted=takes_over and not is_busy))
    costs = deletion_costs(seen, placement.region, case.now)
    if isinstance(costs, Ask):
        return costs
    check_in_s = soonest(check_in_s, scaled.check_in_s, costs.check_in_s)
    return RegionPlan(replace(found, scale=scaled), (*actions, *costs.actions), check_in_s)


def soonest(*times_s: float | None) -> float | None:
    """The earliest of some times that may not be given."""
    return min((time_s for time_s in times_s if time_s is not None), default=None)


def _take_over(live: Json, scaled: ScalePlan, *, wanted: bool) -> tuple[Action, ...]:
    """Start an engine in the region that engines elsewhere are waiting for."""
    if (
        not wanted
        or replicas_of(live) > 0
        or scaled.start.waits
        or any(isinstance(action, Scale | Sleep) for action in scaled.actions)
    ):
        return ()
    return (scale_to(live, 1, "engines of a region that the endpoint has left go on until one answers here"),)
