"""A pod's status from the states of its containers, in the API's shape. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Waiting:
    """Not started, or between two starts."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    """The program runs."""

    started_at: str


@dataclass(frozen=True)
class Terminated:
    """The program ended."""

    exit_code: int
    started_at: str
    finished_at: str
    message: str = ""

    @property
    def reason(self) -> str:
        """As a kubelet calls it."""
        return "Completed" if self.exit_code == 0 else "Error"


State = Waiting | Running | Terminated

CREATING = Waiting("ContainerCreating")
INITIALIZING = Waiting("PodInitializing")


@dataclass(frozen=True, kw_only=True)
class ContainerView:
    """One container as the status shows it."""

    name: str
    image: str
    state: State
    last: Terminated | None = None
    num_restarts: int = 0
    is_started: bool = False
    """Running, and past its startup probe."""
    is_ready: bool = False


@dataclass(frozen=True, kw_only=True)
class PodView:
    """Everything that a pod's status is made of."""

    inits: Sequence[ContainerView]
    containers: Sequence[ContainerView]
    address: str
    host_address: str
    started_at: str
    is_over: bool
    """No container will be started again."""


def make_status(pod: Mapping[str, Any], view: PodView, previous: Mapping[str, Any], now: str) -> dict[str, Any]:
    """The status at `now` (RFC 3339). `previous` is the last one, whose times stay for conditions that did not change."""
    status: dict[str, Any] = {
        "phase": _phase(view),
        "hostIP": view.host_address,
        "hostIPs": [{"ip": view.host_address}],
        "podIP": view.address,
        "podIPs": [{"ip": view.address}],
        "startTime": view.started_at,
        "containerStatuses": [_container_status(container) for container in view.containers],
        "conditions": _conditions(pod, view, previous, now),
    }
    if view.inits:
        status["initContainerStatuses"] = [_container_status(container) for container in view.inits]
    return status


def is_initialized(inits: Sequence[ContainerView]) -> bool:
    """Every init container has done its work."""
    return all(isinstance(init.state, Terminated) and init.state.exit_code == 0 for init in inits)


def _phase(view: PodView) -> str:
    if view.is_over:
        ended = [c.state for c in (*view.inits, *view.containers) if isinstance(c.state, Terminated)]
        return "Failed" if any(state.exit_code for state in ended) else "Succeeded"
    has_run = any(not isinstance(c.state, Waiting) or c.last is not None for c in view.containers)
    return "Running" if has_run else "Pending"


def _state(state: State) -> dict[str, Any]:
    match state:
        case Waiting():
            return {"waiting": {"reason": state.reason, **({"message": state.message} if state.message else {})}}
        case Running():
            return {"running": {"startedAt": state.started_at}}
        case Terminated():
            ended = {
                "exitCode": state.exit_code,
                "reason": state.reason,
                "startedAt": state.started_at,
                "finishedAt": state.finished_at,
            }
            return {"terminated": {**ended, **({"message": state.message} if state.message else {})}}


def _container_status(view: ContainerView) -> dict[str, Any]:
    return {
        "name": view.name,
        "image": view.image,
        "imageID": "",
        "state": _state(view.state),
        "lastState": _state(view.last) if view.last else {},
        "restartCount": view.num_restarts,
        "started": view.is_started,
        "ready": view.is_ready,
    }


def _conditions(pod: Mapping[str, Any], view: PodView, previous: Mapping[str, Any], now: str) -> list[dict[str, Any]]:
    unready = [container.name for container in view.containers if not container.is_ready]
    is_ready = not unready and not view.is_over
    if view.is_over:
        why = {"reason": "PodCompleted"}
    else:
        why = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{' '.join(unready)}]"}
    waiting = [init.name for init in view.inits if not is_initialized([init])]
    not_done = {
        "reason": "ContainersNotInitialized",
        "message": f"containers with incomplete status: [{' '.join(waiting)}]",
    }
    wanted = [
        _condition("PodScheduled", is_true=True, why_not={}),
        _condition("Initialized", is_true=not waiting, why_not=not_done),
        _condition("ContainersReady", is_true=is_ready, why_not=why),
        _condition("Ready", is_true=is_ready, why_not=why),
    ]
    before = {c["type"]: c for c in (*pod.get("status", {}).get("conditions", ()), *previous.get("conditions", ()))}
    for condition in wanted:
        old = before.get(condition["type"], {})
        same = old.get("status") == condition["status"]
        condition["lastTransitionTime"] = old["lastTransitionTime"] if same and "lastTransitionTime" in old else now
    return wanted


def _condition(kind: str, *, is_true: bool, why_not: Mapping[str, str]) -> dict[str, Any]:
    if is_true:
        # Explicit nulls: a strategic merge would keep the reason of a former False.
        return {"type": kind, "status": "True", "reason": None, "message": None}
    return {"type": kind, "status": "False", "message": None, **why_not}
