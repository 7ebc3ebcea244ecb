"""The endpoints and pods that the gateway acts on, as it reads them from the API server. Pure.

Takes only the fields it needs, so that a newer CRD does not stop an older gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from typing_extensions import override

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.health import WaitPhase
from emberline_contract.quantities import duration_s
from emberline_contract.resources import ScalingSpec, ServingSpec

Raw = dict[str, Any]
"""An object of the API server as JSON gives it."""

_SCALING: Final = ScalingSpec()
_SERVING: Final = ServingSpec()
_MAX_DETAIL: Final = 300
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class UnreadableError(ValueError):
    """An object of the API server lacks what the gateway needs of it."""


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint in one region: what is scaled, closed and counted."""

    namespace: str
    name: str
    region: str

    @property
    def child(self) -> str:
        """Name of the Deployment behind it."""
        return names.child_name(self.name, self.region)

    @override
    def __str__(self) -> str:
        return f"{self.namespace}/{self.child}"


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A region's last start, which failed."""

    region: str
    message: str
    retry_unix_s: float
    """Wall-clock time before which nothing is started there for a request."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The part of an InferenceEndpoint that the gateway acts on."""

    namespace: str
    name: str
    targets: tuple[Target, ...]
    """One a region: those it names, in its order, then those it has left whose engines still serve."""
    created_s: int
    alias: str = ""
    """`model.servedName`; empty without one."""
    may_wake: bool = True
    """Whether the gateway may start it; `scaling.via: External` leaves that to somebody else."""
    max_queue: int = _SERVING.max_queue
    heartbeat_s: float = _SERVING.heartbeat_s
    activation_timeout_s: float = _SCALING.activation_timeout_s
    failed_starts: tuple[FailedStart, ...] = ()
    """Regions whose last start failed, as the operator says of the spec that is in force."""
    left: frozenset[str] = frozenset()
    """Regions that it names no longer: nothing is started there."""
    refusal: str = ""
    """Why no engine can start, in the operator's words; empty when one can or nothing has been said."""

    @property
    def qualified(self) -> str:
        """The model name that always reaches it."""
        return names.qualified_name(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Pod:
    """An engine's pod."""

    uid: str
    namespace: str
    name: str
    target: Target
    url: str
    """Base of the engine's paths; empty while the pod has no address."""
    is_ready: bool
    is_leaving: bool
    """Being deleted, or ended."""
    phase: WaitPhase
    detail: str
    """What the scheduler or the node says about a pod that does not come up."""


def read_endpoint(raw: Raw) -> Endpoint:
    """Raises UnreadableError for values that make no sense."""
    meta, spec = raw["metadata"], raw.get("spec") or {}
    scaling, serving = spec.get("scaling") or {}, spec.get("serving") or {}
    namespace, name = meta["namespace"], meta["name"]
    try:
        return Endpoint(
            namespace=namespace,
            name=name,
            targets=tuple(Target(namespace, name, region) for region in _regions(raw)),
            created_s=_unix_s(meta.get("creationTimestamp")),
            alias=(spec.get("model") or {}).get("servedName") or "",
            may_wake=scaling.get("via") != "External",
            max_queue=int(serving.get("maxQueue", _SERVING.max_queue)),
            heartbeat_s=duration_s(serving.get("heartbeat", _SERVING.heartbeat)),
            activation_timeout_s=duration_s(scaling.get("activationTimeout", _SCALING.activation_timeout)),
            failed_starts=_failed_starts(raw),
            left=frozenset(_told(raw)) - frozenset(_named(raw)),
            refusal=_refusal(raw),
        )
    except ValueError as error:
        raise UnreadableError(f"InferenceEndpoint {namespace}/{name}: {error}") from error


def _regions(raw: Raw) -> tuple[str, ...]:
    """Those that can start an engine, as far as status tells; then the others that it names; then those it has left."""
    named, told = _named(raw), _told(raw)
    in_trouble = [name for name in named if told.get(name, {}).get("message")]
    return (*(name for name in named if name not in in_trouble), *in_trouble, *(told.keys() - set(named)))


def _named(raw: Raw) -> tuple[str, ...]:
    return tuple(((raw.get("spec") or {}).get("placement") or {}).get("regions") or (names.DEFAULT_REGION,))


def _told(raw: Raw) -> dict[str, Raw]:
    return {region["name"]: region for region in (raw.get("status") or {}).get("regions") or ()}


def _failed_starts(raw: Raw) -> tuple[FailedStart, ...]:
    generation = raw["metadata"].get("generation", 0)
    if (raw.get("status") or {}).get("observedGeneration", generation) != generation:
        return ()  # of another spec: what failed may be mended
    return tuple(
        FailedStart(
            name,
            f"{failed['phase']}: {failed.get('message', '')}"[:_MAX_DETAIL],
            datetime.fromisoformat(failed["retryTime"]).timestamp(),
        )
        for name, region in _told(raw).items()
        if (failed := region.get("failedStart"))
    )


def _unix_s(timestamp: str | None) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0


def _refusal(raw: Raw) -> str:
    generation = raw["metadata"].get("generation", 0)
    for condition in (raw.get("status") or {}).get("conditions") or ():
        is_current = condition.get("observedGeneration", generation) == generation
        if is_current and _is_hopeless(condition):
            return f"{condition['reason']}: {condition.get('message', '')}"[:_MAX_DETAIL]
    return ""


def _is_hopeless(condition: Raw) -> bool:
    """Whether a condition means that no engine can start before somebody changes something.

    A claim that is not bound yet is none: some volumes are bound only once a pod wants them.
    """
    if condition["reason"] == Reason.STOPPED:
        return bool(condition["type"] == ConditionType.READY)
    if condition["status"] != "False":
        return False
    is_placing = condition["type"] in (ConditionType.ACCEPTED, ConditionType.PLACED)
    return is_placing or condition["reason"] == Reason.CLAIM_NOT_FOUND


def read_pod(raw: Raw) -> Pod:
    """Raises UnreadableError for a pod that carries no endpoint's labels."""
    meta, status = raw["metadata"], raw.get("status") or {}
    labels = meta.get("labels") or {}
    try:
        target = Target(meta["namespace"], labels[names.LABEL_ENDPOINT], labels[names.LABEL_REGION])
    except KeyError as error:
        raise UnreadableError(f"pod {meta['namespace']}/{meta['name']} has no label {error}") from error
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    address = status.get("podIP") or ""
    phase, detail = _phase(status, conditions)
    return Pod(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        target=target,
        url=_url(address, _port(raw)) if address else "",
        is_ready=bool(address) and conditions.get("Ready", {}).get("status") == "True",
        is_leaving=bool(meta.get("deletionTimestamp")) or status.get("phase") in _ENDED,
        phase=phase,
        detail=detail[:_MAX_DETAIL],
    )


def _url(address: str, port: int) -> str:
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _port(raw: Raw) -> int:
    for container in (raw.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == names.PORT_NAME_HTTP:
                return int(port["containerPort"])
    return names.ENGINE_PORT


def _phase(status: Raw, conditions: dict[str, Raw]) -> tuple[WaitPhase, str]:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") != "True" and not status.get("podIP"):
        return WaitPhase.SCHEDULING, scheduled.get("message", "")
    for container in status.get("containerStatuses") or ():
        if container["name"] != names.ENGINE_CONTAINER:
            continue
        state = container.get("state") or {}
        if "running" in state:
            return WaitPhase.LOADING, ""
        for kind in ("waiting", "terminated"):
            if kind in state:
                what = state[kind] or {}
                return WaitPhase.STARTING, " ".join(filter(None, (what.get("reason"), what.get("message"))))
    return WaitPhase.STARTING, ""
