"""Registers the watches with kopf: `on.event` only, so kopf writes no annotation and no finalizer of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import kopf

from emberline_operator.cluster.caches import Caches, Key, endpoint_of, key_of
from emberline_operator.cluster.kinds import CLAIMS, ENDPOINTS, REGIONS, WATCHED, Kind
from emberline_operator.reconcile.observe import claim_of
from emberline_operator.snapshot import Json


def concerned(caches: Caches, obj: Json) -> Iterable[Key]:
    """Endpoints to look at when an object has changed."""
    namespace, name = key_of(obj)
    match obj["kind"]:
        case ENDPOINTS.kind:
            return [(namespace, name)]
        case REGIONS.kind:
            named = [e for e in caches[ENDPOINTS] if name in e.get("spec", {}).get("placement", {}).get("regions", ())]
            return [key_of(endpoint) for endpoint in named]
        case CLAIMS.kind:
            users = [e for e in caches[ENDPOINTS] if key_of(e)[0] == namespace and claim_of(e) == name]
            return [key_of(endpoint) for endpoint in users]
        case _:
            endpoint = endpoint_of(obj)
            return [endpoint] if endpoint else []


def register(
    registry: kopf.OperatorRegistry,
    caches: Caches,
    enqueue: Callable[[Key], None],
    on_event: Callable[[str], None],
) -> None:
    """One handler per watched kind. `on_event` is told the plural of each event's kind."""
    for kind in WATCHED:
        _register(registry, kind, caches, enqueue, on_event)


def _register(
    registry: kopf.OperatorRegistry,
    kind: Kind,
    caches: Caches,
    enqueue: Callable[[Key], None],
    on_event: Callable[[str], None],
) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=f"watch-{kind.plural}")
    async def handle(event: Any, **_: Any) -> None:
        on_event(kind.plural)
        # Events of a list carry no kind.
        obj: Json = {**event["object"], "kind": kind.kind}
        cache = caches[kind]
        has_changed = cache.remove(obj) if event["type"] == "DELETED" else cache.put(obj)
        if has_changed:
            for key in concerned(caches, obj):
                enqueue(key)


def kopf_settings() -> kopf.OperatorSettings:
    """Settings of an operator that only watches."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.error_backoffs = [1, 1, 2, 3, 5, 8, 13]
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
