"""The pass's decision: `(snapshot, install, now) -> Plan`, or a question whose answer it needs first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from emberline_contract.conditions import Reason
from emberline_operator.accept import Accepted, Rejection, accept, residency_of
from emberline_operator.decision import RegionPlacement
from emberline_operator.hardware.gpu_table import make_table
from emberline_operator.plan.actions import Action, Ask, Evict, Plan
from emberline_operator.plan.belonging import Belonging, own_deployments, sort_out
from emberline_operator.plan.children import make_desired
from emberline_operator.plan.fence import fence, most_of
from emberline_operator.plan.findings import Findings, RegionFindings
from emberline_operator.plan.notices import notices_of
from emberline_operator.plan.region import Case, RegionPlan, plan_region, soonest
from emberline_operator.plan.status import make_status
from emberline_operator.plan.turns import take_turns
from emberline_operator.plan.upgrade import adopt
from emberline_operator.plan.via import choose_via
from emberline_operator.plan.weights import judge_claim
from emberline_operator.regions.place import place
from emberline_operator.regions.record import record_of
from emberline_operator.regions.residency import EVICTION_GRACE_S, judge
from emberline_operator.schedules import floor_at
from emberline_operator.settings import Install
from emberline_operator.snapshot import Ref, Snapshot

LEFTOVER_POLL_S: Final = 2.0
TAKEN_POLL_S: Final = 15.0
"""Nobody tells when somebody else's object goes."""


def decide(seen: Snapshot, install: Install, now: datetime) -> Plan | Ask:
    """What to do about one endpoint. Pure: the same arguments give the same answer."""
    found = Findings(seen, url=f"{install.public_url}/{seen.namespace}/{seen.name}/v1")
    accepted = accept(seen.endpoint)
    if isinstance(accepted, Rejection):
        return _rejected(found, accepted, now)
    spec = accepted.spec
    found = replace(
        found,
        spec=spec,
        via=choose_via(spec, seen),
        floor=floor_at(spec.scaling, now),
        weights=judge_claim(accepted.source, seen.claims.get(accepted.source.claim)),
    )
    return _accepted(found, accepted, adopt(seen, spec), install, now)


def _accepted(found: Findings, accepted: Accepted, seen: Snapshot, install: Install, now: datetime) -> Plan | Ask:
    placements = place(accepted.spec, seen, make_table(install.gpu_labels), now)
    found = replace(found, residency=judge(accepted.spec, seen, placements, now))
    heir = None if accepted.spec.scaling.via == "External" else _heir(seen, placements)
    desired = [
        make_desired(seen, accepted, placement, install, now, takes_over=placement.region == heir)
        for placement in placements
    ]
    desired = take_turns(desired, placements, accepted, seen)
    belonging = sort_out([ref for one in desired for ref in one.refs], seen)
    match belonging:
        case Ask():
            return belonging
        case Belonging(strangers=strangers) if strangers:
            return _rejected(found, _taken(strangers), now, placements)
        case Belonging(leftovers=leftovers) if leftovers:
            # The garbage collector deletes what an earlier endpoint of this name left.
            found = replace(found, regions=tuple(_bare(placement, seen) for placement in placements))
            return _plan(found, (), now, LEFTOVER_POLL_S)
        case Belonging():
            pass
    assert found.via is not None
    case = Case(seen, accepted.spec, found.via, now, answers=_answers(seen, placements))
    plans: list[RegionPlan] = []
    for placement, one in zip(placements, desired, strict=True):
        plan = plan_region(case, placement, one, takes_over=placement.region == heir)
        if isinstance(plan, Ask):
            return plan
        plans.append(plan)
    found = replace(found, regions=tuple(plan.found for plan in plans))
    actions = [action for plan in plans for action in plan.actions]
    return _plan(found, actions, now, soonest(*(plan.check_in_s for plan in plans)))


def _rejected(
    found: Findings, rejection: Rejection, now: datetime, placements: Sequence[RegionPlacement] | None = None
) -> Plan:
    """Nothing is touched but what residency forbids. What runs goes on, and status still tells of it.

    `placements`: None if the spec could not be read.
    """
    seen = found.seen
    live = own_deployments(seen)
    found = replace(
        found,
        rejection=rejection,
        regions=tuple(
            RegionFindings(
                name,
                decision=record_of(deployment, name),
                deployment=deployment,
                pods=tuple(pod for pod in seen.pods if pod.region == name),
            )
            for name, deployment in live.items()
        ),
    )
    if placements is not None:
        return _plan(found, fence(placements, seen), now, TAKEN_POLL_S)
    spec = residency_of(seen.endpoint, live)
    records = [
        RegionPlacement(
            name, record_of(deployment, name), may_start=False, is_wanted=True, reason=Reason.PENDING, message=""
        )
        for name, deployment in live.items()
    ]
    residency = judge(spec, seen, records, now)
    placements = [replace(it, most=most_of(spec, seen, it.region, it.decision, residency)) for it in records]
    return _plan(replace(found, residency=residency), fence(placements, seen), now, None)


def _plan(found: Findings, actions: Sequence[Action], now: datetime, again_s: float | None) -> Plan:
    status = make_status(found, now)
    residency = found.residency
    evictions = [
        Evict(eviction.pod, eviction.uid, EVICTION_GRACE_S, f"evict pod {eviction.pod}: {eviction.why}")
        for eviction in (residency.evictions if residency else ())
    ]
    return Plan(
        # After the writes of replicas: the ReplicaSet of a pod that goes makes another one.
        (*actions, *evictions),
        status,
        soonest(again_s, residency.check_in_s if residency else None),
        notices_of(found.seen.endpoint.get("status", {}), status),
        {
            region.name: region.scale.recommendations
            for region in found.regions
            if region.scale is not None and region.scale.recommendations is not None
        },
        {
            region.name: region.scale.start.room
            for region in found.regions
            if region.scale is not None and region.scale.start.room is not None
        },
    )


def _heir(seen: Snapshot, placements: Sequence[RegionPlacement]) -> str | None:
    """The region to start an engine in because a left one still runs and no wanted one does."""
    alive = {pod.region for pod in seen.pods if not pod.terminating}
    wanted = [placement for placement in placements if placement.is_wanted]
    left = [placement.region for placement in placements if not placement.is_wanted]
    if not alive.intersection(left) or alive.intersection(placement.region for placement in wanted):
        return None
    return next((placement.region for placement in wanted if placement.may_start), None)


def _answers(seen: Snapshot, placements: Sequence[RegionPlacement]) -> bool:
    wanted = {placement.region for placement in placements if placement.is_wanted}
    return any(pod.is_routable and pod.region in wanted for pod in seen.pods)


def _bare(placement: RegionPlacement, seen: Snapshot) -> RegionFindings:
    pods = tuple(pod for pod in seen.pods if pod.region == placement.region)
    return RegionFindings(placement.region, placement, placement.decision, pods=pods)


def _taken(strangers: Mapping[Ref, str]) -> Rejection:
    taken = "; ".join(f"{ref} ({owner})" for ref, owner in sorted(strangers.items()))
    return Rejection(
        Reason.NAME_TAKEN,
        f"somebody else's object has a name that this endpoint needs: {taken}."
        " It is never taken over; delete it or give the endpoint another name",
    )
