"""How many engines a region has, and who says so (design 3: who writes replicas, rules 2 to 5).

| mode | 0 -> 1 | 0 -> floor, n -> 0 | the rest |
|---|---|---|---|
| HPA | gateway | operator | HorizontalPodAutoscaler |
| Operator | gateway | operator | operator, by the autoscaler's formula |
| External | nobody | operator, as `spec.replicas` says | operator, as `spec.replicas` says |

Whoever writes is alone: the operator deletes its autoscaler and looks whether it is gone before it writes what the autoscaler
would have written. Where somebody else's autoscaler has taken a Deployment of ours, ours goes, for two of them stop each other;
the operator then keeps to 0 -> floor and n -> 0 and says so. n -> 0 is a handshake with the gateways but where a user stops the
endpoint, and where a start has failed: nothing can be in flight at an engine that has never answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import RegionPlacement
from emberline_operator.desired.child import Child
from emberline_operator.desired.hpa import make_hpa
from emberline_operator.plan.actions import Action, Apply, Ask, Delete, FillReplicas, Scale, Sleep
from emberline_operator.plan.conditions import Verdict
from emberline_operator.plan.follow import LOOK_S, follow
from emberline_operator.plan.idle import Idleness, judge_idleness
from emberline_operator.plan.ownership import is_outdated
from emberline_operator.plan.replicas import replicas_of, scale_to
from emberline_operator.plan.scaling_verdict import Scaled, judge_scaling
from emberline_operator.plan.start import Start, judge_start
from emberline_operator.plan.trouble import awake_since
from emberline_operator.plan.via import HPA_KIND, Via, rival_of
from emberline_operator.pods import staying_unknown
from emberline_operator.schedules import Floor, floor_at
from emberline_operator.snapshot import Json, PodState, Recommendation, Ref, Snapshot

BUSY_RETRY_S: Final = 10.0
GONE_POLL_S: Final = 15.0
"""Nobody tells when somebody else's autoscaler goes."""


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What is done about one region's replicas."""

    verdict: Verdict
    """The condition ScalingActive, as far as this region is concerned."""
    actions: tuple[Action, ...] = ()
    recommendations: tuple[Recommendation, ...] | None = None
    """What the next pass shall find in its snapshot; None: the region is not in it."""
    check_in_s: float | None = None
    """When to look again although nothing happened."""
    last_active: datetime | None = None
    """When a gateway last saw a request, as far as known."""
    start: Start = field(default_factory=Start)
    """How the region's start stands."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What is looked at."""

    spec: InferenceEndpointSpec
    seen: Snapshot
    placement: RegionPlacement
    live: Json
    hpa: Json | None
    """Ours."""
    via: Via
    now: datetime
    pods: tuple[PodState, ...]
    """The region's."""
    rival: Json | None
    """Somebody else's autoscaler of this Deployment, or one that has the name of ours."""
    start: Start
    floor: Floor
    idleness: Idleness | None = None

    @property
    def replicas(self) -> int:
        return replicas_of(self.live)

    @property
    def may_grow(self) -> bool:
        return self.placement.may_start and self.placement.is_wanted

    @property
    def wants_hpa(self) -> bool:
        return self.via.mode == "HPA" and self.may_grow and self.rival is None

    @property
    def hpa_ref(self) -> Ref:
        return Ref(HPA_KIND, str(self.live["metadata"]["name"]))


@dataclass(frozen=True, slots=True)
class _Wish:
    """How many engines there should be, and why."""

    replicas: int
    why: str
    is_sleep: bool = False
    """Only if all gateways agree."""
    is_fence: bool = False
    """Because no engine may come to be: whatever has happened to the Deployment meanwhile."""


def plan_scaling(
    spec: InferenceEndpointSpec,
    seen: Snapshot,
    placement: RegionPlacement,
    live: Json,
    hpa: Json | None,
    via: Via,
    now: datetime,
    *,
    is_busy: bool = False,
) -> ScalePlan | Ask:
    """The writes of replicas and of the autoscaler. `live` is the region's Deployment, `hpa` our autoscaler of it if there is one.

    `is_busy`: this pass writes the Deployment, which moves its resourceVersion; replicas then wait for the next pass.
    """
    pods = tuple(pod for pod in seen.pods if pod.region == placement.region)
    namesake = seen.looked_up.get(Ref(HPA_KIND, live["metadata"]["name"])) if hpa is None else None
    if namesake is not None and seen.controls(namesake):
        hpa, namesake = namesake, None
    start = judge_start(spec, seen, placement, live, now)
    if isinstance(start, Ask):
        return start
    floor = floor_at(spec.scaling, now)
    case = _Case(spec, seen, placement, live, hpa, via, now, pods, rival_of(seen, live) or namesake, start, floor)
    if case.replicas > 0 and via.mode != "External":
        demand = seen.demands.get(placement.region)
        if demand is None:
            return Ask(demand_of=placement.region)
        case = replace(
            case,
            idleness=judge_idleness(
                demand, idle_after_s=spec.scaling.idle_after_s, awake_since=awake_since(pods), now=now
            ),
        )
    return _plan(case, is_busy=is_busy)


def _plan(case: _Case, *, is_busy: bool) -> ScalePlan | Ask:
    wish, recommendations = _wish(case)
    # Until the autoscaler is seen gone nobody else writes.
    is_free = case.wants_hpa or case.hpa is None
    is_write = wish is not None and is_free and not is_busy
    is_fill = case.via.mode == "External" and case.spec.replicas is None and is_free
    is_known = case.hpa is not None or case.hpa_ref in case.seen.looked_up
    if not is_known and (case.wants_hpa or is_write or is_fill):
        return Ask(objects=frozenset({case.hpa_ref}))
    actions = _autoscaler(case)
    if is_write and wish is not None:
        actions.append(_write(case, wish))
    if is_fill:
        version = str(case.seen.endpoint["metadata"]["resourceVersion"])
        why = f"fill spec.replicas, which scaling.via External needs, with what runs: {case.replicas}"
        actions.append(FillReplicas(case.replicas, version, why))
    scaled = Scaled(
        case.spec, case.placement, case.via, case.replicas, case.hpa, case.rival, case.idleness, case.floor, case.start
    )
    last_active = case.idleness.last_active if case.idleness else None
    check_in_s = _check_in_s(case, recommendations)
    return ScalePlan(judge_scaling(scaled), tuple(actions), recommendations, check_in_s, last_active, case.start)


def _autoscaler(case: _Case) -> list[Action]:
    """Bring our autoscaler to be as it should be, or not to be."""
    ref, hpa = case.hpa_ref, case.hpa
    if hpa is not None and "deletionTimestamp" in hpa["metadata"]:
        return []
    if not case.wants_hpa:
        if hpa is None:
            return []
        why = "somebody else's autoscaler" if case.rival else f"scaling is via {case.via.mode}"
        why = why if case.may_grow else "no engine may be started in the region now"
        return [Delete(ref, str(hpa["metadata"]["uid"]), f"delete {ref}: {why}")]
    child = Child(case.seen.namespace, case.seen.name, case.seen.uid, case.placement.region)
    has_tolerance = case.seen.features.hpa_tolerance
    body = make_hpa(child, case.spec, floor=case.floor.replicas, has_tolerance=has_tolerance)
    if hpa is None:
        return [Apply(body, names.OPERATOR_MANAGER, f"create {ref}")]
    if not is_outdated(hpa, body, case.seen.memory):
        return []
    return [
        Apply(
            {**body, "metadata": {**body["metadata"], "uid": hpa["metadata"]["uid"]}},
            names.OPERATOR_MANAGER,
            f"update {ref}",
        )
    ]


def _wish(case: _Case) -> tuple[_Wish | None, tuple[Recommendation, ...] | None]:
    """What the operator would write, if it may, and what it remembers of the demand."""
    wish, recommendations = _by_mode(case)
    if case.may_grow:
        return wish, recommendations
    alive = _alive(case)
    if min(case.replicas, wish.replicas if wish else case.replicas) > alive:
        return _Wish(alive, "no engine may be started in the region now", is_fence=True), recommendations
    return (wish if wish is not None and wish.replicas < case.replicas else None), recommendations


def _by_mode(case: _Case) -> tuple[_Wish | None, tuple[Recommendation, ...] | None]:
    scaling, replicas = case.spec.scaling, case.replicas
    if case.via.mode == "External":
        wanted = replicas if case.spec.replicas is None else case.spec.replicas
        if case.rival is not None and wanted > 0:
            return None, None
        return _unless_same(case, wanted, f"spec.replicas is {wanted}"), None
    if replicas == 0:
        return _unless_same(case, case.floor.replicas, f"fewer than {case.floor.words}"), None
    if case.start.failed is not None and case.start.is_given_up and case.floor.replicas == 0:
        return _Wish(0, f"no engine could be started: {case.start.failed.message}"), None
    assert case.idleness is not None
    if case.idleness.is_idle and case.floor.replicas == 0:
        return _Wish(0, f"no request for scaling.idleAfter {scaling.idle_after}", is_sleep=True), None
    if case.via.mode == "HPA" or case.rival is not None:
        return None, None
    followed = follow(
        case.spec, case.seen, case.placement.region, replicas, case.now,
        is_known=not case.idleness.unknown, is_up=case.start.is_given_up or awake_since(case.pods) is not None,
    )  # fmt: skip
    return _unless_same(case, followed.replicas, followed.why), followed.recommendations


def _unless_same(case: _Case, replicas: int, why: str) -> _Wish | None:
    return None if replicas == case.replicas else _Wish(replicas, why)


def _alive(case: _Case) -> int:
    """Engines that may stay. Where it is unknown where the region is, they had a node before it became so."""
    decision, most = case.placement.decision, case.placement.most
    since = decision.unknown_since if decision else None
    if since is not None:
        staying = len(staying_unknown(case.pods, since))
        return staying if most is None else min(staying, most)
    alive = [pod for pod in case.pods if not pod.terminating]
    return sum(bool(pod.node) for pod in alive) if most is None else min(len(alive), most)


def _write(case: _Case, wish: _Wish) -> Scale | Sleep:
    scale = scale_to(case.live, wish.replicas, wish.why)
    if wish.is_fence:
        # Engines that come and go there change the Deployment faster than it can be read, and nothing else would stop them.
        return replace(scale, resource_version="")
    if not wish.is_sleep:
        return scale
    return Sleep(case.placement.region, scale, retry_s=min(BUSY_RETRY_S, case.spec.scaling.idle_after_s))


def _check_in_s(case: _Case, recommendations: tuple[Recommendation, ...] | None) -> float | None:
    times = [case.idleness.check_in_s] if case.idleness else []
    if recommendations is not None:
        times.append(LOOK_S)
    if case.rival is not None:
        times.append(GONE_POLL_S)
    if case.start.check_in_s is not None:
        times.append(case.start.check_in_s)
    if case.via.mode != "External" and case.floor.until is not None:
        times.append((case.floor.until - case.now).total_seconds())
    return min(times, default=None)
