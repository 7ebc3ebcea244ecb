"""What the gateway knows of the cluster: endpoints by name, their pods, and which of them can take a request.

Pure: fed by `cluster`, read by everybody else. Endpoints come from the resources alone, never from pods, so that a sleeping
one is as well known as a busy one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from typing_extensions import override

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.health import WaitPhase
from emberline_contract.quantities import duration_s
from emberline_contract.resources import ScalingSpec, ServingSpec

T = TypeVar("T")
Raw = dict[str, Any]
"""An object of the API server as JSON gives it."""

_SCALING: Final = ScalingSpec()
_SERVING: Final = ServingSpec()
_MAX_DETAIL: Final = 300
_ENDED: Final = frozenset({"Succeeded", "Failed"})


class UnreadableError(ValueError):
    """An object of the API server lacks what the gateway needs of it."""


class UnknownModelError(LookupError):
    """No endpoint answers to that name; the text says which names would do."""


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
class Endpoint:
    """The part of an InferenceEndpoint that the gateway acts on."""

    namespace: str
    name: str
    target: Target
    created_s: int
    max_queue: int = _SERVING.max_queue
    heartbeat_s: float = _SERVING.heartbeat_s
    activation_timeout_s: float = _SCALING.activation_timeout_s
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
    """Takes only the fields it needs, so that a newer CRD does not stop an older gateway."""
    meta, spec = raw["metadata"], raw.get("spec") or {}
    scaling, serving = spec.get("scaling") or {}, spec.get("serving") or {}
    regions = (spec.get("placement") or {}).get("regions") or (names.DEFAULT_REGION,)
    namespace, name = meta["namespace"], meta["name"]
    try:
        return Endpoint(
            namespace=namespace,
            name=name,
            target=Target(namespace, name, regions[0]),
            created_s=_unix_s(meta.get("creationTimestamp")),
            max_queue=int(serving.get("maxQueue", _SERVING.max_queue)),
            heartbeat_s=duration_s(serving.get("heartbeat", _SERVING.heartbeat)),
            activation_timeout_s=duration_s(scaling.get("activationTimeout", _SCALING.activation_timeout)),
            refusal=_refusal(raw),
        )
    except ValueError as error:
        raise UnreadableError(f"InferenceEndpoint {namespace}/{name}: {error}") from error


def _unix_s(timestamp: str | None) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp()) if timestamp else 0


def _refusal(raw: Raw) -> str:
    generation = raw["metadata"].get("generation", 0)
    for condition in (raw.get("status") or {}).get("conditions") or ():
        is_current = condition.get("observedGeneration", generation) == generation
        if condition["status"] == "False" and is_current and _is_hopeless(condition):
            return f"{condition['reason']}: {condition.get('message', '')}"[:_MAX_DETAIL]
    return ""


def _is_hopeless(condition: Raw) -> bool:
    """Whether a false condition means that no engine can start before somebody changes something.

    A claim that is not bound yet is none: some volumes are bound only once a pod wants them.
    """
    return condition["type"] == ConditionType.ACCEPTED or condition["reason"] in (
        Reason.UNKNOWN_REGION,
        Reason.CLAIM_NOT_FOUND,
    )


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


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a list and the events after it go."""

    replace: Callable[[Iterable[Raw]], None]
    put: Callable[[Raw], None]
    drop: Callable[[Raw], None]


class Directory:
    """Endpoints and pods as the watches last saw them.

    `on_change` is told each target whose pods, settings or existence changed; set it before the first list is fed.
    """

    def __init__(self, on_unreadable: Callable[[str], None] = lambda _text: None) -> None:
        self.on_change: Callable[[Target], None] = lambda _target: None
        self._on_unreadable = on_unreadable
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._namespaces: dict[str, set[str]] = {}
        self._pods: dict[str, Pod] = {}
        self._by_target: dict[Target, dict[str, Pod]] = {}
        self._ready: dict[Target, tuple[Pod, ...]] = {}
        self._lists_read: set[str] = set()
        self.endpoint_sink = Sink(self._replace_endpoints, self._put_endpoint, self._drop_endpoint)
        self.pod_sink = Sink(self._replace_pods, self._put_pod, self._drop_pod)

    @property
    def is_complete(self) -> bool:
        """Both lists have been read once."""
        return len(self._lists_read) == 2

    def endpoint(self, namespace: str, name: str) -> Endpoint | None:
        """The endpoint of that name."""
        return self._endpoints.get((namespace, name))

    def endpoints(self) -> list[Endpoint]:
        """All, by qualified name."""
        return sorted(self._endpoints.values(), key=lambda endpoint: endpoint.qualified)

    def model_names(self, endpoint: Endpoint) -> tuple[str, ...]:
        """What clients may put in `model`: always `<namespace>/<name>`, and the name alone when no other namespace has it."""
        if len(self._namespaces[endpoint.name]) == 1:
            return (endpoint.qualified, endpoint.name)
        return (endpoint.qualified,)

    def pods(self, target: Target) -> tuple[Pod, ...]:
        """Pods that are not on their way out, ready or not."""
        return tuple(pod for pod in self._by_target.get(target, {}).values() if not pod.is_leaving)

    def ready_pods(self, target: Target) -> tuple[Pod, ...]:
        """Pods that can take a request now."""
        ready = self._ready.get(target)
        if ready is None:
            ready = self._ready[target] = tuple(pod for pod in self.pods(target) if pod.is_ready)
        return ready

    def resolve(self, model: str | None, path: tuple[str, str] | None) -> Endpoint:
        """The endpoint that a request asks for by its `model`, or by the path `/{namespace}/{name}/`.

        On the path form an absent model is left to the engine to judge, and both names of the endpoint are right whatever
        other namespaces hold. Raises UnknownModelError.
        """
        if path is not None:
            endpoint = self._endpoints.get(path)
            if endpoint is None:
                raise UnknownModelError(f"there is no InferenceEndpoint {path[1]!r} in namespace {path[0]!r}")
            if model is not None and model not in (endpoint.qualified, endpoint.name):
                raise UnknownModelError(
                    f"this path serves the models {endpoint.qualified!r} and {endpoint.name!r}, not {model!r}"
                )
            return endpoint
        if model is None:
            raise UnknownModelError("the request names no model")
        namespace, slash, name = model.partition("/")
        if slash:
            endpoint = self._endpoints.get((namespace, name))
            if endpoint is not None:
                return endpoint
            raise UnknownModelError(f"the model {model!r} does not exist; GET /v1/models lists those that do")
        namespaces = self._namespaces.get(model, set())
        if len(namespaces) == 1:
            (namespace,) = namespaces
            return self._endpoints[namespace, model]
        if namespaces:
            raise UnknownModelError(f"several namespaces have a model {model!r}; write <namespace>/{model}")
        raise UnknownModelError(f"the model {model!r} does not exist; GET /v1/models lists those that do")

    # Endpoints

    def _replace_endpoints(self, raws: Iterable[Raw]) -> None:
        fresh = {(e.namespace, e.name): e for e in self._readable(raws, read_endpoint)}
        changed = {e.target for e in self._endpoints.values()} | {e.target for e in fresh.values()}
        self._endpoints = fresh
        self._namespaces = {}
        for namespace, name in fresh:
            self._namespaces.setdefault(name, set()).add(namespace)
        self._lists_read.add("endpoints")
        self._tell(changed)

    def _put_endpoint(self, raw: Raw) -> None:
        for endpoint in self._readable((raw,), read_endpoint):
            key = (endpoint.namespace, endpoint.name)
            previous = self._endpoints.get(key)
            self._endpoints[key] = endpoint
            self._namespaces.setdefault(endpoint.name, set()).add(endpoint.namespace)
            if previous != endpoint:
                self._tell({endpoint.target} | ({previous.target} if previous else set()))

    def _drop_endpoint(self, raw: Raw) -> None:
        namespace, name = raw["metadata"]["namespace"], raw["metadata"]["name"]
        gone = self._endpoints.pop((namespace, name), None)
        if gone is not None:
            self._namespaces[name].discard(namespace)
            if not self._namespaces[name]:
                del self._namespaces[name]
            self._tell({gone.target})

    # Pods

    def _replace_pods(self, raws: Iterable[Raw]) -> None:
        changed = set(self._by_target)
        self._pods, self._by_target, self._ready = {}, {}, {}
        for pod in self._readable(raws, read_pod):
            self._pods[pod.uid] = pod
            self._by_target.setdefault(pod.target, {})[pod.uid] = pod
            changed.add(pod.target)
        self._lists_read.add("pods")
        self._tell(changed)

    def _put_pod(self, raw: Raw) -> None:
        for pod in self._readable((raw,), read_pod):
            previous = self._pods.get(pod.uid)
            if previous == pod:
                continue
            if previous is not None:
                self._forget(previous)
            self._pods[pod.uid] = pod
            self._by_target.setdefault(pod.target, {})[pod.uid] = pod
            self._ready.pop(pod.target, None)
            self._tell({pod.target} | ({previous.target} if previous else set()))

    def _drop_pod(self, raw: Raw) -> None:
        pod = self._pods.get(raw["metadata"]["uid"])
        if pod is not None:
            self._forget(pod)
            self._tell({pod.target})

    def _forget(self, pod: Pod) -> None:
        del self._pods[pod.uid]
        siblings = self._by_target[pod.target]
        del siblings[pod.uid]
        if not siblings:
            del self._by_target[pod.target]
        self._ready.pop(pod.target, None)

    def _readable(self, raws: Iterable[Raw], read: Callable[[Raw], T]) -> Iterator[T]:
        for raw in raws:
            try:
                yield read(raw)
            except UnreadableError as error:
                self._on_unreadable(str(error))
            except (KeyError, TypeError) as error:  # one strange object must not stop the gateway for all others
                self._on_unreadable(f"{raw.get('kind', 'object')} {raw.get('metadata', {}).get('name')}: {error!r}")

    def _tell(self, targets: Iterable[Target]) -> None:
        for target in targets:
            self.on_change(target)
