"""Regions that drain take turns: while one has no engine of the newest template that answers, the next keeps those it has.

What is live tells whose turn it is. A region whose new engine cannot start keeps the later ones from following it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emberline_operator.accept import Accepted
from emberline_operator.decision import RegionPlacement
from emberline_operator.desired.deployment import strategy_of
from emberline_operator.desired.template import signature
from emberline_operator.plan.belonging import own
from emberline_operator.plan.children import Desired, is_template_new, keep_template
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.rollout import Rollout
from emberline_operator.snapshot import PodState, Snapshot


def take_turns(
    desired: Sequence[Desired], placements: Sequence[RegionPlacement], accepted: Accepted, seen: Snapshot
) -> list[Desired]:
    """The same, but for regions that would begin to drain and wait for another one."""
    regions = list(zip(placements, desired, strict=True))
    taken = []
    for i, (placement, one) in enumerate(regions):
        earlier, later = regions[:i], regions[i + 1 :]
        awaited = [at.region for at, it in earlier if _counts(at, it, seen) and not _has_newest(it, at.region, seen)]
        awaited += [at.region for at, it in later if _counts(at, it, seen) and _is_coming(at.region, seen)]
        must_wait = awaited and _begins_drain(one, placement.region, seen)
        taken.append(_wait(one, placement, awaited[0], accepted, seen) if must_wait else one)
    return taken


def _begins_drain(one: Desired, region: str, seen: Snapshot) -> bool:
    """Whether it would stop an engine that answers to make room for one of the newest template, and does not do so already."""
    live = own(seen, one.deployment_ref)
    if live is None or one.rollout is None or one.rollout.strategy != "Drain" or one.rollout.is_over:
        return False
    has_begun = strategy_of(live) == "Drain" and not is_template_new(one, live)
    return not has_begun and any(pod.is_routable for pod in _in(region, seen))


def _counts(placement: RegionPlacement, one: Desired, seen: Snapshot) -> bool:
    """Whether engines of the newest template shall run there."""
    if not (placement.is_wanted and placement.may_start and one.deployment is not None):
        return False
    live = own(seen, one.deployment_ref)
    return (one.first_replicas if live is None else replicas_of(live)) > 0


def _has_newest(one: Desired, region: str, seen: Snapshot) -> bool:
    assert one.deployment is not None
    newest = signature(one.deployment["spec"]["template"])
    return any(pod.is_routable and pod.template_hash == newest for pod in _in(region, seen))


def _is_coming(region: str, seen: Snapshot) -> bool:
    """Whether none answers there, and one is on its way: a roll-out that an edit overtakes."""
    pods = _in(region, seen)
    if any(pod.is_routable for pod in pods):
        return False
    return any(pod.terminating or (pod.node and not pod.failure) for pod in pods)


def _wait(one: Desired, placement: RegionPlacement, awaited: str, accepted: Accepted, seen: Snapshot) -> Desired:
    live = own(seen, one.deployment_ref)
    assert live is not None
    assert one.rollout is not None
    assert placement.decision is not None
    message = (
        f"engines in {placement.region} go on until one of the newest generation answers in {awaited}; regions that stop an"
        " engine first are replaced one after another"
    )
    kept = keep_template(one.child, live, placement.decision, accepted, seen)
    rollout = Rollout(strategy_of(live), one.rollout.reason, message, is_over=False)
    return replace(kept, rollout=rollout, is_held_back=True)


def _in(region: str, seen: Snapshot) -> list[PodState]:
    return [pod for pod in seen.pods if pod.region == region]
