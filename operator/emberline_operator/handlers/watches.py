"""Registers the watches with kopf: `on.event` only, so kopf writes no annotation and no finalizer of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

import kopf

from emberline_contract import names
from emberline_operator.cluster.caches import Caches, Key, endpoint_of, key_of, version_of
from emberline_operator.cluster.kinds import API_SERVICES, CLAIMS, ENDPOINTS, NODES, REGIONS, WATCHED, Kind
from emberline_operator.reconcile.observe import METRICS_API_SERVICES, claim_of
from emberline_operator.snapshot import Json

MAX_RETRY_S: Final = 5.0


def concerned(caches: Caches, obj: Json) -> Iterable[Key]:
    """Endpoints to look at when an object has changed."""
    namespace, name = key_of(obj)
    match obj["kind"]:
        case ENDPOINTS.kind:
            return {(namespace, name), *caches.index.take_rivals()}
        case NODES.kind:
            if caches.index.node_kinds.take_news():
                # Whether there is a place may have changed for anybody.
                return [key_of(endpoint) for endpoint in caches[ENDPOINTS]]
            return caches.index.endpoints_on(name) | caches.index.waiting
        case REGIONS.kind:
            # Another region's labels, and those of a region that was left, tell where pods are, too.
            bound = [e for e in caches[ENDPOINTS] if e.get("spec", {}).get("placement", {}).get("regions")]
            return [key_of(endpoint) for endpoint in bound]
        case CLAIMS.kind:
            users = [e for e in caches[ENDPOINTS] if key_of(e)[0] == namespace and claim_of(e) == name]
            return [key_of(endpoint) for endpoint in users]
        case API_SERVICES.kind:
            is_asked = name in METRICS_API_SERVICES
            return [key_of(e) for e in caches[ENDPOINTS] if _via(e) in ("Auto", "HPA")] if is_asked else []
        case _:
            endpoint = endpoint_of(obj)
            return [endpoint] if endpoint else []


def _regions_of(endpoint: Json) -> set[str]:
    """Regions that an endpoint names, and those that it has left and still has engines in."""
    named = endpoint.get("spec", {}).get("placement", {}).get("regions", ())
    return {*named, *(region["name"] for region in endpoint.get("status", {}).get("regions", ()))}


def _via(endpoint: Json) -> str:
    return str(endpoint.get("spec", {}).get("scaling", {}).get("via", "Auto"))


def register(
    registry: kopf.OperatorRegistry,
    caches: Caches,
    enqueue: Callable[[Key], None],
    enqueue_first: Callable[[Key], None],
    on_event: Callable[[Kind, Key, int], None],
) -> None:
    """One handler per watched kind. `on_event` is told of each event: the object's kind, key and version.

    An endpoint whose spec has changed goes first: somebody waits for it.
    """
    for kind in WATCHED:
        _register(registry, kind, caches, enqueue, enqueue_first, on_event)


def _register(
    registry: kopf.OperatorRegistry,
    kind: Kind,
    caches: Caches,
    enqueue: Callable[[Key], None],
    enqueue_first: Callable[[Key], None],
    on_event: Callable[[Kind, Key, int], None],
) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"watch-{kind.plural}")
    async def handle(event: Any, **_: Any) -> None:
        # Events of a list carry no kind.
        obj: Json = {**event["object"], "kind": kind.kind}
        cache, key = caches[kind], key_of(obj)
        # kopf watches all kinds in each namespace; of the system's own, only what is asked for there is taken.
        if not caches.reads(kind, key[0]):
            return
        on_event(kind, key, version_of(obj))
        if kind is ENDPOINTS and is_spec_new(cache.get(key), obj):
            enqueue_first(key)
        has_changed = cache.remove(obj) if event["type"] == "DELETED" else cache.put(obj)
        if has_changed:
            for endpoint in concerned(caches, obj):
                enqueue(endpoint)


def is_spec_new(known: Json | None, obj: Json) -> bool:
    """Whether an object has a generation that is not known yet."""
    generation: int = obj["metadata"].get("generation", 0)
    return known is None or bool(generation > known["metadata"].get("generation", 0))


class _Patience:
    """kopf's delays between attempts of a request: endless, since giving one watch up would end the whole process."""

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((0.5, 1, 2), itertools.repeat(MAX_RETRY_S))


def scope(namespaces: Collection[str]) -> dict[str, Any]:
    """What kopf is told to watch: the whole cluster, or some namespaces and the one that gateways run in."""
    if not namespaces:
        return {"clusterwide": True}
    return {"namespaces": sorted({*namespaces, names.SYSTEM_NAMESPACE})}


def kopf_settings() -> kopf.OperatorSettings:
    """Settings of an operator that only watches."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = _Patience()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 500
    settings.queueing.error_delays = [1, 2, 5, 10, 30]
    settings.queueing.exit_timeout = 2
    settings.process.ultimate_exiting_timeout = 25
    for kind in WATCHED:
        if kind.selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    return settings
