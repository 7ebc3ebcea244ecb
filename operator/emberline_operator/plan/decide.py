"""The pass's decision: `(snapshot, install, now) -> Plan`, or a question whose answer it needs first."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import ScalingSpec
from emberline_operator.accept import Accepted, Rejection, accept
from emberline_operator.placement import Placement, Unplaced, place
from emberline_operator.plan.actions import Action, Apply, Ask, Plan, Scale, Sleep
from emberline_operator.plan.children import (
    Belonging,
    find,
    is_ours,
    is_template_new,
    make_desired,
    plan_children,
    sort_out,
)
from emberline_operator.plan.idle import Idleness, judge_idleness
from emberline_operator.plan.readiness import awake_since
from emberline_operator.plan.replicas import clamp, replicas_of, scale_to
from emberline_operator.plan.status import Findings, make_status
from emberline_operator.plan.weights import judge_claim
from emberline_operator.precision import choose_precision
from emberline_operator.settings import Install
from emberline_operator.snapshot import Json, Ref, Snapshot

LEFTOVER_POLL_S: Final = 2.0
TAKEN_POLL_S: Final = 15.0
"""Nobody tells when somebody else's object goes."""
BUSY_RETRY_S: Final = 10.0


def decide(seen: Snapshot, install: Install, now: datetime) -> Plan | Ask:
    """What to do about one endpoint. Pure: the same arguments give the same answer."""
    found = Findings(seen, url=f"{install.public_url}/{seen.namespace}/{seen.name}/v1")
    accepted = accept(seen.endpoint)
    if isinstance(accepted, Rejection):
        return _rejected(found, accepted, now)
    placement = place(accepted.spec.placement, seen.regions)
    found = replace(
        found,
        scaling=accepted.spec.scaling,
        placement=placement,
        precision=choose_precision(accepted.spec.precision),
        weights=judge_claim(accepted.source, seen.claims.get(accepted.source.claim)),
    )
    if isinstance(placement, Unplaced):
        return _with_scaling(found, accepted, (), now)
    return _placed(found, accepted, placement, install, now)


def _placed(found: Findings, accepted: Accepted, placement: Placement, install: Install, now: datetime) -> Plan | Ask:
    seen = found.seen
    assert found.precision is not None
    desired = make_desired(seen, accepted, placement, found.precision, install)
    belonging = sort_out([Ref(body["kind"], body["metadata"]["name"]) for body in desired.objects], seen)
    match belonging:
        case Ask():
            return belonging
        case Belonging(strangers=strangers) if strangers:
            taken = "; ".join(f"{ref} ({owner})" for ref, owner in sorted(strangers.items()))
            message = (
                f"somebody else's object has a name that this endpoint needs: {taken}."
                " It is never taken over; delete it or give the endpoint another name"
            )
            return _rejected(found, Rejection(Reason.NAME_TAKEN, message), now, TAKEN_POLL_S)
        case Belonging(leftovers=leftovers) if leftovers:
            # The garbage collector deletes what an earlier endpoint of this name left.
            return Plan((), make_status(found, now), LEFTOVER_POLL_S)
        case Belonging():
            pass
    live = find(seen, Ref("Deployment", desired.child.name))
    found = replace(found, deployment=live, is_template_new=is_template_new(desired, live))
    return _with_scaling(found, accepted, plan_children(desired, seen, accepted), now)


def _rejected(found: Findings, rejection: Rejection, now: datetime, again_s: float | None = None) -> Plan:
    """Nothing is touched. What runs goes on, and status still tells of it."""
    found = replace(found, rejection=rejection, deployment=_own_deployment(found.seen))
    return Plan((), make_status(found, now), again_s)


def _with_scaling(found: Findings, accepted: Accepted, children: tuple[Action, ...], now: datetime) -> Plan | Ask:
    is_placed = isinstance(found.placement, Placement)
    live = found.deployment if is_placed else _own_deployment(found.seen)
    found = replace(found, deployment=live)
    if live is None or "deletionTimestamp" in live["metadata"]:
        return Plan(children, make_status(found, now))
    scaling = accepted.spec.scaling
    idleness: Idleness | None = None
    if replicas_of(live) > 0:
        if found.seen.demand is None:
            return Ask(demand_of=found.region)
        idleness = judge_idleness(
            found.seen.demand,
            idle_after_s=scaling.idle_after_s,
            awake_since=awake_since(found.seen.pods, live),
            now=now,
        )
        found = replace(found, idleness=idleness)
    # A write of the Deployment moves its resourceVersion; scaling waits for the next pass, which follows at once.
    is_busy = any(isinstance(action, Apply) and action.ref.kind == "Deployment" for action in children)
    scale = None if is_busy else _scale(live, scaling, idleness, is_placed=is_placed)
    actions = children if scale is None else (*children, scale)
    return Plan(actions, make_status(found, now), idleness.check_in_s if idleness else None)


def _scale(live: Json, scaling: ScalingSpec, idleness: Idleness | None, *, is_placed: bool) -> Scale | Sleep | None:
    clamped = clamp(live, scaling, may_start=is_placed)
    if clamped is not None:
        return clamped
    if idleness is None or not idleness.is_idle or replicas_of(live) <= scaling.min_replicas:
        return None
    region = live["metadata"].get("labels", {}).get(names.LABEL_REGION, names.DEFAULT_REGION)
    down = scale_to(live, scaling.min_replicas, f"no request for scaling.idleAfter {scaling.idle_after}")
    return Sleep(region, down, retry_s=min(BUSY_RETRY_S, scaling.idle_after_s))


def _own_deployment(seen: Snapshot) -> Json | None:
    """The Deployment of ours that exists, in whatever region; the one with engines first."""
    own = [live for ref, live in sorted(seen.children.items()) if ref.kind == "Deployment" and is_ours(live, seen)]
    return max(own, key=replicas_of, default=None)
