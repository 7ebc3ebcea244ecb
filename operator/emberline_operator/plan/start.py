"""Whether a region's start has failed: each phase has a deadline of its own, and what makes progress is never cut off.

A start has failed when no engine answers, none makes progress and the time of all of them is over:

| phase | how long |
|---|---|
| Scheduling | `scaling.unschedulableTimeout`; `scaling.activationTimeout` where a node may still come: a declared pool has room, or a cluster autoscaler has taken the pod up. Not while an engine that ends still holds its place |
| Image, Container | `scaling.activationTimeout` since the pod was made, or last ready; not while the container runs once more |
| Loading | the startup probe's own deadline |

A failure is told in status before anything is done about it, so that no gateway wakes the region anew and a new operator goes on
counting. It is forgotten when an engine becomes ready or the spec changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_contract.status import StartPhase
from emberline_operator.accept import parse_source
from emberline_operator.decision import RegionPlacement
from emberline_operator.desired.template import annotation_of
from emberline_operator.plan.actions import Ask
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.room import num_pool_places
from emberline_operator.plan.weights import is_awaited, judge_claim
from emberline_operator.snapshot import Json, PodState, Room, Snapshot, time_of

FIRST_RETRY_S: Final = 30.0
LAST_RETRY_S: Final = 600.0
OVERDUE_S: Final = 60.0
"""An engine that is still there so long after its end holds its place for a reason that nobody can foretell."""
TELL_S: Final = 0.2
"""What has failed is told first; then it is looked at again."""


@dataclass(frozen=True, slots=True)
class FailedStart:
    """The last start, which failed."""

    phase: StartPhase
    message: str
    count: int
    """Failed starts in a row."""
    retry_time: datetime
    """Until then nothing is started for a request."""

    @property
    def failed_at(self) -> datetime:
        """When it failed."""
        return self.retry_time - timedelta(seconds=retry_delay_s(self.count))


@dataclass(frozen=True, slots=True)
class Start:
    """How a region's start stands."""

    failed: FailedStart | None = None
    """What status shall tell."""
    waits: bool = False
    """Whether a request may not start an engine yet."""
    is_given_up: bool = False
    """Whether the start goes on for nothing: it has failed, and that is told."""
    check_in_s: float | None = None
    room: Room | None = None
    """What the next pass shall find in its snapshot."""


@dataclass(frozen=True, slots=True)
class _Stuck:
    """What keeps an engine from getting on, and until when that may last."""

    phase: StartPhase
    message: str
    until: datetime
    pod: str = ""
    """Its name, where a cluster autoscaler may make a node for it."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What is looked at."""

    spec: InferenceEndpointSpec
    seen: Snapshot
    placement: RegionPlacement
    live: Json
    now: datetime

    @property
    def pods(self) -> tuple[PodState, ...]:
        return tuple(pod for pod in self.seen.pods if pod.region == self.placement.region and not pod.has_ended)

    @property
    def alive(self) -> tuple[PodState, ...]:
        return tuple(pod for pod in self.pods if not pod.terminating)

    @property
    def newest(self) -> tuple[PodState, ...]:
        """Those of the newest template: older ones that fail are about to be replaced."""
        template = self.live["spec"].get("template", {"metadata": {}})
        newest = annotation_of(template, names.ANNOTATION_TEMPLATE_HASH)
        return tuple(pod for pod in self.alive if pod.template_hash == newest)

    @property
    def activation(self) -> timedelta:
        return timedelta(seconds=self.spec.scaling.activation_timeout_s)


def retry_delay_s(count: int) -> float:
    """How long nothing is started after so many failures in a row."""
    return min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** (min(count, 30) - 1))


def recorded_start(seen: Snapshot, region: str) -> FailedStart | None:
    """What the live status tells of the last start at this generation."""
    if not _is_observed(seen):
        return None
    shown_regions = seen.endpoint["status"].get("regions", ())
    regions = (shown.get("failedStart") for shown in shown_regions if shown["name"] == region)
    told = next(regions, None)
    if told is None:
        return None
    return FailedStart(told["phase"], told.get("message", ""), told["count"], time_of(told["retryTime"]))


def judge_start(
    spec: InferenceEndpointSpec, seen: Snapshot, placement: RegionPlacement, live: Json, now: datetime
) -> Start | Ask:
    """How the start of a region's engines stands. `live` is its Deployment."""
    case = _Case(spec, seen, placement, live, now)
    room = _room(case)
    if any(pod.is_routable for pod in case.alive):
        return Start(room=room)
    before = recorded_start(seen, placement.region)
    waits = before is not None and now < before.retry_time
    wait_s = (before.retry_time - now).total_seconds() if before is not None and waits else None
    goes_on = Start(before, waits, check_in_s=wait_s, room=room)
    if replicas_of(live) == 0 or not placement.may_start:
        return goes_on
    stuck = _stuck(case, room)
    if not stuck:
        return goes_on
    until = max(it.until for it in stuck)
    if before is not None and waits and until <= now and all(pod.created <= before.failed_at for pod in case.newest):
        return Start(before, waits, is_given_up=True, check_in_s=wait_s, room=room)
    if until <= now and not _is_observed(seen):
        # What fails may be what the change has just mended.
        return replace(goes_on, check_in_s=TELL_S)
    if until <= now:
        unasked = frozenset(it.pod for it in stuck if it.pod and it.pod not in seen.taken_up)
        if unasked:
            return Ask(autoscaler_of=unasked)
        count = before.count + 1 if before else 1
        retry_time = now + timedelta(seconds=retry_delay_s(count))
        failed = FailedStart(stuck[0].phase, stuck[0].message, count, retry_time)
        return Start(failed, waits=True, check_in_s=TELL_S, room=room)
    left_s = (until - now).total_seconds()
    return Start(before, waits, check_in_s=left_s if wait_s is None else min(left_s, wait_s), room=room)


def _is_observed(seen: Snapshot) -> bool:
    """Whether the live status speaks of the spec as it is now."""
    return bool(seen.endpoint.get("status", {}).get("observedGeneration") == seen.generation)


def _room(case: _Case) -> Room | None:
    """Whether an ending engine holds its place, or since when none does any more: the scheduler needs time to see that."""
    overdue = timedelta(seconds=OVERDUE_S)
    leaving = [pod for pod in case.pods if pod.terminating and pod.node]
    if any(pod.ends_by is None or case.now <= pod.ends_by + overdue for pod in leaving):
        return Room(is_held=True, since=case.now)
    before = case.seen.rooms.get(case.placement.region)
    return Room(is_held=False, since=case.now) if before is not None and before.is_held else before


def _stuck(case: _Case, room: Room | None) -> list[_Stuck]:
    """What keeps the engines from getting on; empty if one of them does."""
    if not case.newest:
        refused = _refused(case, room)
        return [refused] if refused else []
    found = [_stuck_pod(pod, case, room) for pod in case.newest]
    return [] if None in found else [it for it in found if it is not None]


def _stuck_pod(pod: PodState, case: _Case, room: Room | None) -> _Stuck | None:
    """None: it makes progress."""
    if pod.unschedulable:
        return _without_node(pod, case, room)
    if not pod.failure:
        return None
    message = f"pod {pod.name}: {pod.failure}"
    if pod.loading_s is not None and pod.loading_s >= _startup_deadline_s(case.live):
        return _Stuck("Loading", message, case.now)
    if pod.is_trying:
        return None
    since = max(pod.created, pod.not_ready_since or pod.created)
    return _Stuck("Image" if pod.lacks_image else "Container", message, since + case.activation)


def _without_node(pod: PodState, case: _Case, room: Room | None) -> _Stuck | None:
    if room is not None and room.is_held:
        return None
    since = pod.unschedulable_since or pod.created
    since = since if room is None else max(since, room.since)
    may_come = _awaits_weights(pod, case) or _has_pool(case) or case.seen.taken_up.get(pod.name, False)
    patience = case.activation if may_come else timedelta(seconds=case.spec.scaling.unschedulable_timeout_s)
    message = f"pod {pod.name}: {pod.unschedulable}"
    return _Stuck("Scheduling", message, since + patience, "" if may_come else pod.name)


def _has_pool(case: _Case) -> bool:
    """Whether a declared pool that fits may still get a node."""
    decision = case.placement.decision
    if decision is None or not decision.choice.resource_name:
        return False
    template, count = case.live["spec"]["template"], case.spec.accelerator.count
    return num_pool_places(template, decision.choice, count, case.placement.region, case.seen) > 0


def _awaits_weights(pod: PodState, case: _Case) -> bool:
    source = parse_source(case.spec.model.source)
    return source is not None and is_awaited(judge_claim(source, case.seen.claims.get(source.claim)), pod.unschedulable)


def _refused(case: _Case, room: Room | None) -> _Stuck | None:
    """Pods that the API server does not let be."""
    if room is not None and room.is_held:
        return None
    for condition in case.live.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            since = time_of(condition["lastTransitionTime"])
            since = since if room is None else max(since, room.since)
            return _Stuck("Scheduling", condition.get("message", ""), since + case.activation)
    return None


def _startup_deadline_s(live: Json) -> float:
    """How long the kubelet lets an engine load. The last time of asking may come a period early."""
    containers: Sequence[Json] = live["spec"].get("template", {}).get("spec", {}).get("containers", ())
    probes = [container["startupProbe"] for container in containers if "startupProbe" in container]
    deadlines = [(it.get("failureThreshold", 3) - 1) * it.get("periodSeconds", 10) for it in probes]
    return float(min(deadlines, default=float("inf")))
