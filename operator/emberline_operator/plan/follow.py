"""Replicas by demand as the operator computes them where no autoscaler can: up at once, down late and one by one.

What speaks against fewer engines is remembered as recommendations, each with the time until which it holds. They are in memory
only: after a restart the first one is what runs now, so a new leader never stops an engine on the first look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from emberline_contract.http import EngineQueue
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.demand_formula import Load, targets_of, wanted_replicas
from emberline_operator.desired.hpa import DOWN_PERIOD_S
from emberline_operator.schedules import floor_at
from emberline_operator.snapshot import Recommendation, Snapshot

LOOK_S: Final = 15.0
"""Between two looks at the demand of a region that is awake, as a HorizontalPodAutoscaler takes them."""
FRESH_S: Final = 5.0
"""What an engine has said longer ago says nothing of now."""
WAITED_S: Final = 1.0
"""What has waited for less is no reason for another engine."""
SETTLE: Final = timedelta(seconds=5)
"""What an engine that has just become ready needs to take what was held for it, and gateways to tell that it has."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How many engines a region should have now."""

    replicas: int
    why: str
    recommendations: tuple[Recommendation, ...]


def follow(
    spec: InferenceEndpointSpec,
    seen: Snapshot,
    region: str,
    replicas: int,
    now: datetime,
    *,
    is_known: bool,
    is_up: bool,
) -> Followed:
    """Replicas of a region that has some.

    `is_known`: every gateway has told its demand; else what is known may add engines and nothing stops one. `is_up`: an engine
    has been ready, or none will be; while the first ones start none is stopped.
    """
    scaling = spec.scaling
    lowest = max(1, floor_at(scaling, now).replicas)
    wanted = min(max(wanted_replicas(load_of(seen, region, now), targets_of(spec)), lowest), scaling.max_replicas)
    is_first = region not in seen.recommendations
    least = max(wanted, min(replicas, scaling.max_replicas)) if is_first or not is_known or not is_up else wanted
    window = timedelta(seconds=scaling.scale_down_stabilization_s)
    memory = [Recommendation(now + window, least)]
    memory += [r for r in seen.recommendations.get(region, ()) if r.until > now]
    if wanted > replicas:
        return Followed(wanted, f"demand asks for {wanted}", kept(memory))
    if replicas > scaling.max_replicas:
        return Followed(scaling.max_replicas, f"more than scaling.maxReplicas {scaling.max_replicas}", kept(memory))
    if max(r.replicas for r in memory) >= replicas:
        return Followed(replicas, "", kept(memory))
    memory.append(Recommendation(now + timedelta(seconds=DOWN_PERIOD_S), replicas - 1))
    why = f"demand has asked for fewer for scaling.scaleDownStabilization {scaling.scale_down_stabilization}"
    return Followed(replicas - 1, why, kept(memory))


def load_of(seen: Snapshot, region: str, now: datetime) -> Load:
    """What the gateways that answered say of a region: what they hold, and what waits at engines, each of which several may have asked.

    They hold requests only while no engine can take them.
    So what is said to wait for an engine that has just become ready waited for this very one: it asks for no other.
    """
    views = seen.demands[region].views
    engines = _engine_queues(seen, region)
    queue = sum(view.held for view in views) + sum(engine.waiting for engine in engines)
    ready = [p.ready_since for p in seen.pods if p.region == region and p.is_routable and p.ready_since is not None]
    return Load(
        unfinished=sum(view.unfinished for view in views),
        queue=queue,
        has_waited=any(it > WAITED_S for it in (*(v.held_s for v in views), *(e.waited_s for e in engines))),
        ready=sum(now - since >= SETTLE for since in ready),
    )


def _engine_queues(seen: Snapshot, region: str) -> list[EngineQueue]:
    """The newest word of each engine."""
    alive = {pod.name for pod in seen.pods if pod.region == region and not pod.terminating}
    newest: dict[str, EngineQueue] = {}
    for view in seen.demands[region].views:
        for pod, told in view.engines.items():
            if pod in alive and told.age_s <= FRESH_S and (pod not in newest or told.age_s < newest[pod].age_s):
                newest[pod] = told
    return list(newest.values())


def kept(memory: Iterable[Recommendation]) -> tuple[Recommendation, ...]:
    """Without those that say nothing more than another one: at most one for each number of engines."""
    found: list[Recommendation] = []
    for recommendation in sorted(memory, key=lambda r: (r.replicas, r.until), reverse=True):
        if not found or recommendation.until > found[-1].until:
            found.append(recommendation)
    return tuple(found)
