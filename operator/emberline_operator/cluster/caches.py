"""What the watches have told, by kind. The newest version of an object wins, whichever way it came.

An object comes from three sides: a watch, a list, and the answer to a write of our own. resourceVersions are ordered within a
resource (Kubernetes says so since 1.35), so an older version never replaces a newer one, and a deletion is remembered until
the next list, so that an older list cannot bring the object back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from emberline_contract import names
from emberline_operator.cluster.api import Api
from emberline_operator.cluster.kinds import WATCHED, Kind, trimmed
from emberline_operator.snapshot import Json

PAGE: Final = "500"

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
    """The endpoint that a child or pod is labelled with."""
    metadata = obj["metadata"]
    name = metadata.get("labels", {}).get(names.LABEL_ENDPOINT)
    return (metadata.get("namespace", ""), name) if name else None


class Cache:
    """Objects of one kind."""

    def __init__(self) -> None:
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
        """Keep a version of an object. False if it is known already, or older than what is known."""
        key, version = key_of(obj), version_of(obj)
        known = self._objects.get(key)
        if version <= self._gone.get(key, -1) or (known is not None and version <= version_of(known)):
            return False
        self._forget(key)
        self._objects[key] = trimmed(obj)
        endpoint = endpoint_of(obj)
        if endpoint is not None:
            self._by_endpoint[endpoint].add(key)
        return True

    def remove(self, obj: Json) -> bool:
        """Note a deletion. False if a newer object has the key."""
        key, version = key_of(obj), version_of(obj)
        self._gone[key] = max(version, self._gone.get(key, -1))
        known = self._objects.get(key)
        if known is None or version_of(known) > version:
            return False
        self._forget(key)
        return True

    def absorb(self, listed: list[Json], version: int) -> list[Json]:
        """Take over a whole list of that resourceVersion; gives the objects that it changed (a removed one as it was)."""
        present = {key_of(obj) for obj in listed}
        lost = [obj for key, obj in self._objects.items() if key not in present and version_of(obj) <= version]
        for obj in lost:
            self._forget(key_of(obj))
        changed = [obj for obj in listed if self.put(obj)]
        self._gone = {key: gone for key, gone in self._gone.items() if gone > version}
        return lost + changed

    def _forget(self, key: Key) -> None:
        known = self._objects.pop(key, None)
        endpoint = endpoint_of(known) if known else None
        if endpoint is not None:
            self._by_endpoint[endpoint].discard(key)
            if not self._by_endpoint[endpoint]:
                del self._by_endpoint[endpoint]


class Caches:
    """One cache per watched kind."""

    def __init__(self) -> None:
        self._caches = {kind.kind: Cache() for kind in WATCHED}

    def __getitem__(self, kind: Kind) -> Cache:
        return self._caches[kind.kind]

    async def list_all(self, api: Api) -> list[Json]:
        """List every watched kind; gives the objects that were not known as they are."""
        changed = []
        for kind in WATCHED:
            listed, version = await _list(api, kind)
            changed += self[kind].absorb(listed, version)
        return changed


async def _list(api: Api, kind: Kind) -> tuple[list[Json], int]:
    items: list[Json] = []
    query = [("limit", PAGE), *([("labelSelector", kind.selector)] if kind.selector else [])]
    more: list[tuple[str, str]] = []
    while True:
        page = await api.request("GET", kind.path(), query=[*query, *more])
        # Items of a list carry no kind of their own.
        items += [{**item, "kind": kind.kind} for item in page["items"]]
        token = page["metadata"].get("continue")
        if not token:
            return items, int(page["metadata"]["resourceVersion"])
        more = [("continue", token)]
