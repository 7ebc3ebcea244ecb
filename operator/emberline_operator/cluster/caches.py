"""What the watches have told, by kind. The newest version of an object wins, whichever way it came.

An object comes from three sides: a watch, a list, and the answer to a write of our own. resourceVersions are ordered within a
resource (Kubernetes says so since 1.35), so an older version never replaces a newer one, and a deletion is remembered until
the next list, so that an older list cannot bring the object back.

Memory is what a replica costs while it waits: only the part of an object that decisions look at is kept, and words that
occur in every object are kept once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from emberline_contract import names
from emberline_operator.cluster.api import Api
from emberline_operator.cluster.index import Index
from emberline_operator.cluster.kinds import PODS, WATCHED, Kind, trimmed
from emberline_operator.snapshot import Json

PAGE: Final = "500"
MAX_GONE: Final = 2000
"""Deletions that are remembered. A request that was answered so many deletions ago has long arrived."""
_MAX_SHARED: Final = 40
"""Longer texts are hardly ever those of other objects."""

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


def key_of(obj: Json) -> Key:
    """An object's key."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def version_of(obj: Json) -> int:
    """An object's resourceVersion as a number."""
    return int(obj["metadata"].get("resourceVersion", 0))


def endpoint_of(obj: Json) -> Key | None:
    """The endpoint that a child or pod is labelled with, or that has the Deployment which an autoscaler scales."""
    metadata = obj["metadata"]
    name = metadata.get("labels", {}).get(names.LABEL_ENDPOINT) or _scaled_endpoint(obj)
    return (metadata.get("namespace", ""), name) if name else None


def _scaled_endpoint(obj: Json) -> str:
    target = obj.get("spec", {}).get("scaleTargetRef", {})
    name, parts, _ = target.get("name", "").partition("--")
    return name if parts and target.get("kind") == "Deployment" else ""


@dataclass(frozen=True, slots=True)
class Absorbed:
    """What a list has told."""

    changed: list[Json]
    """Objects to look at: those that are not as they were known, and removed ones as they were."""
    news: dict[Key, int]
    """Versions that were not known before."""
    present: set[Key]
    """Keys of all objects that the list showed."""
    lost: set[Key]
    """Keys of known objects that were gone."""


class Cache:
    """Objects of one kind. `on_change` is told what was and what is; None: not there."""

    def __init__(self, on_change: Callable[[Json | None, Json | None], None] = lambda _old, _new: None) -> None:
        self._on_change = on_change
        self._objects: dict[Key, Json] = {}
        self._gone: dict[Key, int] = {}
        self._by_endpoint: defaultdict[Key, set[Key]] = defaultdict(set)

    def __iter__(self) -> Iterator[Json]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Json | None:
        """The object, or None."""
        return self._objects.get(key)

    def of_endpoint(self, endpoint: Key) -> list[Json]:
        """Objects labelled with the endpoint."""
        return [self._objects[key] for key in sorted(self._by_endpoint.get(endpoint, ()))]

    def put(self, obj: Json) -> bool:
        """Keep a version of an object. False if nothing that decisions look at is news: known already, older, or only touched."""
        if not self._is_news(obj):
            return False
        key, kept = key_of(obj), trimmed(obj)
        known = self._objects.get(key)
        if known is not None and _equal_but_for_version(known, kept):
            # Nearly all of the known one goes on being used; it itself may be part of a snapshot and is not changed.
            metadata = {**known["metadata"], "resourceVersion": kept["metadata"]["resourceVersion"]}
            self._objects[key] = {**known, "metadata": metadata}
            return False
        old = self._forget(key)
        self._objects[key] = _shared(kept)
        endpoint = endpoint_of(obj)
        if endpoint is not None:
            self._by_endpoint[endpoint].add(key)
        self._on_change(old, self._objects[key])
        return True

    def remove(self, obj: Json) -> bool:
        """Note a deletion. False if a newer object has the key."""
        key, version = key_of(obj), version_of(obj)
        self._gone[key] = max(version, self._gone.get(key, -1))
        if len(self._gone) > MAX_GONE:
            newest = sorted(self._gone.items(), key=lambda gone: gone[1])[MAX_GONE // 2 :]
            self._gone = dict(newest)
        known = self._objects.get(key)
        if known is None or version_of(known) > version:
            return False
        self._on_change(self._forget(key), None)
        return True

    def absorb(self, listed: list[Json], version: int, namespace: str = "") -> Absorbed:
        """Take over a whole list of that resourceVersion: of one namespace, or of all."""
        present = {key_of(obj) for obj in listed}
        lost = [
            obj
            for key, obj in self._objects.items()
            if _is_within(key, namespace) and key not in present and version_of(obj) <= version
        ]
        for obj in lost:
            self._on_change(self._forget(key_of(obj)), None)
        news = {key_of(obj): version_of(obj) for obj in listed if self._is_news(obj)}
        changed = [obj for obj in listed if self.put(obj)]
        self._gone = {key: gone for key, gone in self._gone.items() if gone > version or not _is_within(key, namespace)}
        return Absorbed(lost + changed, news, present, {key_of(obj) for obj in lost})

    def _is_news(self, obj: Json) -> bool:
        key, version = key_of(obj), version_of(obj)
        known = self._objects.get(key)
        return version > self._gone.get(key, -1) and (known is None or version > version_of(known))

    def _forget(self, key: Key) -> Json | None:
        known = self._objects.pop(key, None)
        endpoint = endpoint_of(known) if known else None
        if endpoint is not None:
            self._by_endpoint[endpoint].discard(key)
            if not self._by_endpoint[endpoint]:
                del self._by_endpoint[endpoint]
        return known


def _is_within(key: Key, namespace: str) -> bool:
    return not namespace or key[0] == namespace


def _equal_but_for_version(known: Json, other: Json) -> bool:
    metadata = {**known["metadata"], "resourceVersion": other["metadata"].get("resourceVersion")}
    return {**known, "metadata": metadata} == other


def _shared(value: Any) -> Any:
    """The same with field names and short texts that exist once in the process: each document brings its own otherwise."""
    match value:
        case dict():
            return {sys.intern(name): _shared(part) for name, part in value.items()}
        case list():
            return [_shared(part) for part in value]
        case str() if len(value) <= _MAX_SHARED:
            return sys.intern(value)
        case _:
            return value


class Caches:
    """One cache per watched kind. `namespaces`: those whose objects are read; none means all.

    Gateways run in the system namespace, so pods are read there too.
    """

    def __init__(self, namespaces: Collection[str] = ()) -> None:
        self.index = Index()
        self._caches = {kind.kind: Cache(self.index.change) for kind in WATCHED}
        self._namespaces = tuple(sorted(namespaces))

    def __getitem__(self, kind: Kind) -> Cache:
        return self._caches[kind.kind]

    def reads(self, kind: Kind, namespace: str) -> bool:
        """Whether objects of that kind and namespace are read."""
        return not self._namespaces or not kind.is_namespaced or namespace in self._read_of(kind)

    async def refresh(self, api: Api, kind: Kind) -> Absorbed:
        """List a kind and take over what has come."""
        parts = [await self._refresh(api, kind, namespace) for namespace in self._read_of(kind)]
        return Absorbed(
            changed=[obj for part in parts for obj in part.changed],
            news={key: version for part in parts for key, version in part.news.items()},
            present={key for part in parts for key in part.present},
            lost={key for part in parts for key in part.lost},
        )

    def _read_of(self, kind: Kind) -> tuple[str, ...]:
        """Namespaces to list a kind in; an empty one stands for the whole cluster."""
        if not self._namespaces or not kind.is_namespaced:
            return ("",)
        return tuple(sorted({*self._namespaces, *((names.SYSTEM_NAMESPACE,) if kind is PODS else ())}))

    async def _refresh(self, api: Api, kind: Kind, namespace: str) -> Absorbed:
        listed, version = await _list(api, kind, namespace)
        return self[kind].absorb(listed, version, namespace)


async def _list(api: Api, kind: Kind, namespace: str) -> tuple[list[Json], int]:
    items: list[Json] = []
    query = [("limit", PAGE), *([("labelSelector", kind.selector)] if kind.selector else [])]
    more: list[tuple[str, str]] = []
    while True:
        page = await api.request("GET", kind.path(namespace), query=[*query, *more])
        # Items of a list carry no kind of their own.
        items += [{**item, "kind": kind.kind} for item in page["items"]]
        token = page["metadata"].get("continue")
        if not token:
            return items, int(page["metadata"]["resourceVersion"])
        more = [("continue", token)]
