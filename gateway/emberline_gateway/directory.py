"""What the gateway knows of the cluster: endpoints by name, their pods, and which of them can take a request.

Pure: fed by `cluster`, read by everybody else. Endpoints come from the resources alone, never from pods, so that a sleeping
one is as well known as a busy one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from emberline_gateway.objects import Endpoint, FailedStart, Pod, Raw, Target, UnreadableError, read_endpoint, read_pod

T = TypeVar("T")


class UnknownModelError(LookupError):
    """No endpoint answers to that name; the text says which names would do."""


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

    def __init__(
        self,
        on_unreadable: Callable[[str], None] = lambda _text: None,
        unix_clock: Callable[[], float] = time.time,
        own_region: str = "",
    ) -> None:
        self.on_change: Callable[[Target], None] = lambda _target: None
        self._on_unreadable = on_unreadable
        self._unix_clock = unix_clock
        self._own_region = own_region
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._namespaces: dict[str, set[str]] = {}
        self._aliases: dict[str, set[tuple[str, str]]] = {}
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
        """What clients may put in `model`: always `<namespace>/<name>`; its alias unless an older endpoint has that; and the name
        alone when no other namespace has it and nobody's alias is the same.
        """
        found = [endpoint.qualified]
        if endpoint.alias and self._named(endpoint.alias) == endpoint:
            found.append(endpoint.alias)
        if self._named(endpoint.name) == endpoint and endpoint.name not in found:
            found.append(endpoint.name)
        return tuple(found)

    def assign(self, endpoint: Endpoint) -> Target:
        """The region that a request goes to: the first that has a ready engine, else that has one at all, else that may start one.

        Of equals the gateway's own comes first. One whose start has failed comes after all others until it may be tried again.
        """
        targets = endpoint.targets
        if self._own_region and len(targets) > 1:
            targets = tuple(sorted(targets, key=lambda target: target.region != self._own_region))
        for target in targets:
            if self.ready_pods(target):
                return target
        usable = [target for target in targets if self.failed_start(target) is None]
        for target in usable:
            if self.pods(target):
                return target
        return next((target for target in usable if target.region not in endpoint.left), endpoint.targets[0])

    def failed_start(self, target: Target) -> FailedStart | None:
        """The start that failed there, while nothing may be started and no engine is ready."""
        endpoint = self._endpoints.get((target.namespace, target.name))
        if endpoint is None or not endpoint.failed_starts or self.ready_pods(target):
            return None
        for failed in endpoint.failed_starts:
            if failed.region == target.region and self._unix_clock() < failed.retry_unix_s:
                return failed
        return None

    def seconds_until(self, unix_s: float) -> int:
        """Whole seconds for a Retry-After; at least 1."""
        return max(1, ceil(unix_s - self._unix_clock()))

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
            right = tuple(filter(None, (endpoint.qualified, endpoint.name, endpoint.alias)))
            if model is not None and model not in right:
                raise UnknownModelError(f"this path serves the models {', '.join(map(repr, right))}, not {model!r}")
            return endpoint
        if model is None:
            raise UnknownModelError("the request names no model")
        found = self._named(model)
        if found is not None:
            return found
        if self._namespaces.get(model):
            raise UnknownModelError(f"several namespaces have a model {model!r}; write <namespace>/{model}")
        raise UnknownModelError(f"the model {model!r} does not exist; GET /v1/models lists those that do")

    def _named(self, model: str) -> Endpoint | None:
        """`<namespace>/<name>` wins over an alias, the oldest of several aliases over the others, an alias over a name."""
        namespace, _, name = model.partition("/")
        qualified = self._endpoints.get((namespace, name))
        if qualified is not None:
            return qualified
        aliased = [self._endpoints[key] for key in self._aliases.get(model, ())]
        if aliased:
            return min(aliased, key=lambda endpoint: (endpoint.created_s, endpoint.namespace, endpoint.name))
        namespaces = self._namespaces.get(model, ())
        if len(namespaces) == 1:
            (namespace,) = namespaces
            return self._endpoints[namespace, model]
        return None

    # Endpoints

    def _replace_endpoints(self, raws: Iterable[Raw]) -> None:
        before = list(self._endpoints.values())
        self._endpoints, self._namespaces, self._aliases = {}, {}, {}
        for endpoint in self._readable(raws, read_endpoint):
            self._enter(endpoint)
        self._lists_read.add("endpoints")
        self._tell({target for endpoint in (*before, *self._endpoints.values()) for target in endpoint.targets})

    def _put_endpoint(self, raw: Raw) -> None:
        for endpoint in self._readable((raw,), read_endpoint):
            previous = self._leave(endpoint.namespace, endpoint.name)
            self._enter(endpoint)
            if previous != endpoint:
                self._tell({*endpoint.targets, *(previous.targets if previous else ())})

    def _drop_endpoint(self, raw: Raw) -> None:
        gone = self._leave(raw["metadata"]["namespace"], raw["metadata"]["name"])
        if gone is not None:
            self._tell(set(gone.targets))

    def _enter(self, endpoint: Endpoint) -> None:
        key = (endpoint.namespace, endpoint.name)
        self._endpoints[key] = endpoint
        self._namespaces.setdefault(endpoint.name, set()).add(endpoint.namespace)
        if endpoint.alias:
            self._aliases.setdefault(endpoint.alias, set()).add(key)

    def _leave(self, namespace: str, name: str) -> Endpoint | None:
        gone = self._endpoints.pop((namespace, name), None)
        if gone is not None:
            _discard(self._namespaces, name, namespace)
            if gone.alias:
                _discard(self._aliases, gone.alias, (namespace, name))
        return gone

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


def _discard(index: dict[str, set[T]], key: str, value: T) -> None:
    index[key].discard(value)
    if not index[key]:
        del index[key]
