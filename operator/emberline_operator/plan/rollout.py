"""How engines of a new template come in: with a surge where a GPU is free, else by draining an old engine first.

A surge is an attempt, because GPUs of other workloads are not known: when the new engine has found no node for a while and
stopping an old one would make room, the strategy is turned round within the same roll-out. It stays so until the roll-out is
over, which the live Deployment itself remembers; between roll-outs its strategy is left as it is. Replicas are never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import parse_source
from emberline_operator.choice import Choice
from emberline_operator.decision import Decision
from emberline_operator.desired.deployment import Strategy, strategy_of
from emberline_operator.desired.template import signature
from emberline_operator.plan.ownership import owned_fields
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.room import could_run, heir_of, num_free_places, num_pool_places, num_rivals
from emberline_operator.plan.weights import WeightsState, is_awaited, judge_claim
from emberline_operator.snapshot import Json, PodState, Snapshot, Waiter, time_of, time_text

PATIENCE_S: Final = 30.0
OVERDUE_S: Final = 60.0
"""An engine that is still there so long after its end has an end that nobody can foretell: a node's trouble, not a drain."""
HEIR_POLL_S: Final = 5.0
"""How often to look whether another endpoint's engine still waits for the GPU that a drain would free."""
_COMPLETE: Final = "NewReplicaSetAvailable"
_QUOTA: Final = "exceeded quota"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One region's roll-out: what its Deployment shall do, and what keeps the newest template from the engines."""

    strategy: Strategy
    reason: Reason = Reason.NOT_BLOCKED
    """For RolloutBlocked, which is False with `NotBlocked` and True with all others."""
    message: str = "no roll-out is under way"
    check_in_s: float | None = None
    """When to look again although nothing happens."""
    is_over: bool = True
    """Whether all engines are of the newest template, and as many as replaced older ones are there."""


@dataclass(frozen=True, slots=True)
class _Pods:
    """A region's pods by what they are to the roll-out."""

    new: tuple[PodState, ...]
    old: tuple[PodState, ...]
    leaving: tuple[PodState, ...]
    """Terminating; until they have ended they hold their GPUs."""

    @property
    def waiting(self) -> tuple[PodState, ...]:
        """New ones that no node can take."""
        return tuple(pod for pod in self.new if pod.unschedulable)

    @property
    def dispensable(self) -> tuple[PodState, ...]:
        """Bound pods one of which the controller would stop to make room."""
        return tuple(pod for pod in self.old or self.new if pod.node)


def judge_rollout(
    spec: InferenceEndpointSpec,
    seen: Snapshot,
    region: str,
    live: Json | None,
    template: Json,
    decision: Decision,
    now: datetime,
    *,
    patience_s: float = PATIENCE_S,
) -> Rollout:
    """What the Deployment's strategy is to be, and how its roll-out stands. `template` is the one that it is to have."""
    if live is None:
        return Rollout(_first_strategy(spec), message="the Deployment is being created", is_over=False)
    pods = _sort(_in(region, seen), template)
    before = strategy_of(live)
    was_over = _is_over(live, _sort(_in(region, seen), live["spec"]["template"]))
    if signature(live["spec"]["template"]) != signature(template):
        if not pods.old and replicas_of(live) == 0:
            return Rollout(before, message="the newest template is being written; nothing runs", is_over=False)
        under_way = None if was_over else before
        strategy = _start(spec, seen, region, template, decision, replicas=replicas_of(live), under_way=under_way)
        return Rollout(strategy, message="the newest template is being written", is_over=False)
    if was_over:
        return Rollout(before)
    return _under_way(_Course(spec, seen, live, template, decision, pods, now, patience_s))


@dataclass(frozen=True, slots=True)
class _Course:
    """A roll-out that is under way."""

    spec: InferenceEndpointSpec
    seen: Snapshot
    live: Json
    template: Json
    decision: Decision
    pods: _Pods
    now: datetime
    patience_s: float

    @property
    def wants_gpu(self) -> bool:
        """Whether an engine needs GPUs."""
        return bool(self.decision.choice.resource_name)

    def would_have_room_by(self, pod: PodState) -> bool:
        """Whether the new engine could run where the pod is, once that has ended; not if it does not end when it should."""
        if pod.ends_by is not None and self.now > pod.ends_by + timedelta(seconds=OVERDUE_S):
            return False
        return _makes_room(pod, self.template, self.decision.choice, self.spec.accelerator.count, self.seen)


def _first_strategy(spec: InferenceEndpointSpec) -> Strategy:
    if spec.rollout.strategy != "Auto":
        return spec.rollout.strategy
    return "Surge" if spec.accelerator.kind == "Cpu" else "Drain"


def _start(
    spec: InferenceEndpointSpec,
    seen: Snapshot,
    region: str,
    template: Json,
    decision: Decision,
    *,
    replicas: int,
    under_way: Strategy | None,
) -> Strategy:
    """Of a roll-out that begins now; `under_way` is the strategy of one that it cuts in on."""
    if spec.rollout.strategy != "Auto":
        return spec.rollout.strategy
    choice, count = decision.choice, spec.accelerator.count
    own = [pod for pod in _in(region, seen) if _makes_room(pod, template, choice, count, seen)]
    if not own:
        # To stop an engine would make no room for a new one: what serves goes on until there is some.
        return "Surge"
    if _find_heir(own, seen, region, replicas) is not None:
        return "Surge"
    if under_way == "Drain":
        return "Drain"
    if not choice.resource_name:
        return "Surge"
    places = num_free_places(template, choice, count, seen) + num_pool_places(template, choice, count, region, seen)
    # Of its own engines those that are ending, that never got ready or are more than wanted leave their places to it, without
    # that one which must serve is stopped.
    places += len(own) - min(sum(pod.is_routable for pod in own), replicas)
    # Each other endpoint that surges now may take one of them: the one that came first has it.
    return "Surge" if places > num_rivals(template, choice, count, region, seen) else "Drain"


def _under_way(course: _Course) -> Rollout:
    strategy: Strategy = (
        course.spec.rollout.strategy if course.spec.rollout.strategy != "Auto" else strategy_of(course.live)
    )
    pods = course.pods
    rollout = Rollout(strategy, message=_progress(pods), is_over=False)
    failing = next((pod for pod in pods.new if pod.failure), None)
    if failing is not None:
        serving = _meanwhile(course) or "; no older engine is left to serve"
        message = f"pod {failing.name}: {failing.failure}{serving}. Correct the spec, or put back what it was"
        return replace(rollout, reason=Reason.NEW_ENGINE_FAILS, message=message)
    if course.live["spec"].get("paused") and not _is_ours(course.live):
        name = course.live["metadata"]["name"]
        message = (
            f"somebody has paused Deployment {name}; `kubectl rollout resume deployment/{name}` lets the roll-out go on"
        )
        return replace(rollout, reason=Reason.PAUSED, message=message)
    refused = _refusal(course.live)
    if not pods.waiting and refused is None:
        return rollout
    return _blocked(course, rollout, refused)


def _blocked(course: _Course, rollout: Rollout, refused: tuple[datetime, str] | None) -> Rollout:
    """A new engine has no place. Turns the strategy round if its time is over and that would help."""
    if course.pods.waiting:
        waiting = min(course.pods.waiting, key=lambda pod: pod.unschedulable_since or course.now)
        since, words = waiting.unschedulable_since or course.now, f"pod {waiting.name}: {waiting.unschedulable}"
        weights = _weights(course)
        if weights is not None and is_awaited(weights, words):
            message = f"pod {waiting.name} waits for its weights: {weights.message}{_meanwhile(course)}"
            return replace(rollout, reason=Reason.WEIGHTS_NOT_READY, message=message)
        leaving = [pod for pod in course.pods.leaving if course.would_have_room_by(pod)]
        if leaving:
            return replace(rollout, reason=Reason.WAITING_FOR_DRAIN, message=_drain_message(waiting, leaving))
        reason = Reason.WAITING_FOR_GPU if course.wants_gpu else Reason.UNSCHEDULABLE
    else:
        assert refused is not None
        since, words = refused
        reason = Reason.PODS_NOT_CREATED
        if course.pods.leaving and _QUOTA in words:
            return replace(rollout, reason=Reason.WAITING_FOR_DRAIN, message=_drain_message(None, course.pods.leaving))
    told = _told(course.seen)
    if told.get("reason") == Reason.WAITING_FOR_DRAIN.value:
        # Nothing drains any more: the scheduler is about to see the place, and its time begins anew with this turn of the condition.
        message = "an older engine has ended; the new one is about to take its place"
        return replace(rollout, message=message, check_in_s=course.patience_s)
    since = max(since, time_of(told["lastTransitionTime"])) if told else since
    left_s = (since + timedelta(seconds=_patience_s(course)) - course.now).total_seconds()
    if rollout.strategy == "Drain" or not _would_help(course, words):
        return replace(rollout, reason=reason, message=f"{words.rstrip('.')}. {_remedy(course, reason)}")
    if course.spec.rollout.strategy == "Surge":
        remedy = "make room, or set rollout.strategy to Auto or Drain to have an older engine stopped first"
        return replace(rollout, reason=reason, message=f"{words}; {remedy}")
    heir = _find_heir(course.pods.dispensable, course.seen, course.decision.region, replicas_of(course.live))
    if heir is not None:
        endpoint, waiter = heir
        message = (
            f"{words.rstrip('.')}. The GPU of an older engine would go to pod {waiter.pod} of endpoint {endpoint}, which waits"
            " for one, so none is stopped; add a GPU, or set rollout.strategy to Drain to have one stopped all the same"
        )
        return replace(rollout, reason=reason, message=message, check_in_s=HEIR_POLL_S)
    if left_s > 0:
        message = f"{words}. If there is no room in {left_s:.0f} s, an older engine is stopped first"
        return replace(rollout, reason=reason, message=message, check_in_s=left_s)
    message = f"{words}. An older engine is being stopped to make room; requests are held or go to the others"
    return replace(rollout, strategy="Drain", reason=reason, message=message)


def _patience_s(course: _Course) -> float:
    """A pool that may still get a node needs the time that a node takes to boot, which a held request is given too."""
    choice, count = course.decision.choice, course.spec.accelerator.count
    region = course.decision.region
    if choice.resource_name and num_pool_places(course.template, choice, count, region, course.seen):
        return max(course.patience_s, course.spec.scaling.activation_timeout_s)
    return course.patience_s


def _would_help(course: _Course, words: str) -> bool:
    """Whether the new engine could take the place of one that is stopped: never stop what serves for nothing."""
    if not course.pods.waiting and _QUOTA not in words:
        return False
    return any(course.would_have_room_by(pod) for pod in course.pods.dispensable)


def _makes_room(pod: PodState, template: Json, choice: Choice, count: int, seen: Snapshot) -> bool:
    """Whether an engine of the template could run where the pod is, once that has ended."""
    node = seen.nodes.get(pod.node)
    if node is None or (choice.resource_name and pod.gpus.get(choice.resource_name, 0) < count):
        return False
    return could_run(template, choice, count, node)


def _find_heir(pods: Sequence[PodState], seen: Snapshot, region: str, replicas: int) -> tuple[str, Waiter] | None:
    """Another endpoint's engine that may get the GPU of one that a drain stops; None also if none that serves would be stopped."""
    if sum(pod.is_routable for pod in _in(region, seen)) < replicas:
        return None
    return next((heir for pod in pods if (heir := heir_of(pod, seen)) is not None), None)


def _drain_message(waiting: PodState | None, leaving: Sequence[PodState]) -> str:
    last = min(leaving, key=lambda pod: (pod.ends_by is None, pod.ends_by, pod.name))
    until = f" until {time_text(last.ends_by)} at most" if last.ends_by else ""
    heir = f"pod {waiting.name}" if waiting else "a new one"
    return f"pod {last.name} finishes its requests on node {last.node}{until}; then {heir} takes its place"


def _remedy(course: _Course, reason: Reason) -> str:
    if reason is Reason.PODS_NOT_CREATED:
        return "Correct what it names, in the namespace or in the spec"
    back = "put back what the spec was" if course.pods.old else "change the spec"
    return f"Add a node that fits, or {back}{_meanwhile(course)}"


def _meanwhile(course: _Course) -> str:
    num_left = sum(pod.is_routable for pod in course.pods.old)
    if not num_left:
        return ""
    return "; one older engine goes on serving" if num_left == 1 else f"; {num_left} older engines go on serving"


def _weights(course: _Course) -> WeightsState | None:
    source = parse_source(course.spec.model.source)
    return judge_claim(source, course.seen.claims.get(source.claim)) if source else None


def _progress(pods: _Pods) -> str:
    num_ready = sum(pod.is_routable for pod in pods.new)
    return f"{num_ready} engines of the newest template are ready, {len(pods.old)} older ones are still to be replaced"


def _told(seen: Snapshot) -> Json:
    """The condition RolloutBlocked as the last pass has left it; empty if there is none."""
    conditions = seen.endpoint.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == ConditionType.ROLLOUT_BLOCKED.value), {})


def _in(region: str, seen: Snapshot) -> list[PodState]:
    return [pod for pod in seen.pods if pod.region == region]


def _sort(pods: Sequence[PodState], template: Json) -> _Pods:
    newest = signature(template)
    alive = [pod for pod in pods if not pod.terminating]
    return _Pods(
        new=tuple(pod for pod in alive if pod.template_hash == newest),
        old=tuple(pod for pod in alive if pod.template_hash != newest),
        leaving=tuple(pod for pod in pods if pod.terminating),
    )


def _is_over(live: Json, pods: _Pods) -> bool:
    """Whether the live template has replaced all others. Engines that start by a wake or a scale-up are no roll-out."""
    if replicas_of(live) == 0 and not pods.old:
        return True
    status = live.get("status", {})
    if pods.old or status.get("replicas", 0) != status.get("updatedReplicas", 0):
        return False
    newest = signature(live["spec"]["template"])
    is_replacing = any(pod.template_hash != newest for pod in pods.leaving)
    if is_replacing and not all(pod.is_routable for pod in pods.new):
        return False
    progressing = next((c for c in status.get("conditions", ()) if c["type"] == "Progressing"), None)
    # The controller keeps that word until the template changes, whatever becomes of pods and replicas.
    return progressing is None or progressing.get("reason") == _COMPLETE


def _is_ours(live: Json) -> bool:
    """Whether the operator itself has paused the roll-out, while it was unknown where the region lies; it goes on now."""
    return "f:paused" in owned_fields(live, names.OPERATOR_MANAGER).get("f:spec", {})


def _refusal(live: Json) -> tuple[datetime, str] | None:
    """Since when the API server has refused pods, and its words."""
    for condition in live.get("status", {}).get("conditions", ()):
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            return time_of(condition["lastTransitionTime"]), condition.get("message", "")
    return None
