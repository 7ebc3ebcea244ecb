"""The objects that a pod refers to: which ones (pure), and reading them all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from emberline_local.node_api import NodeApi, NodeApiError, Object


@dataclass(frozen=True)
class TokenNeed:
    """A ServiceAccount token in a projected volume."""

    volume: str
    path: str
    audience: str | None
    lifetime_s: int


@dataclass(frozen=True)
class Needed:
    """Names of what a pod refers to."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    claims: frozenset[str]
    tokens: frozenset[TokenNeed]


@dataclass(frozen=True)
class Token:
    """A ServiceAccount token and its times in Unix seconds."""

    text: str = field(repr=False)
    issued_s: float
    expires_s: float

    @property
    def renew_at_s(self) -> float:
        """When to ask for the next one: at 80 % of its life, as a kubelet does."""
        return self.issued_s + 0.8 * (self.expires_s - self.issued_s)


@dataclass(frozen=True)
class Sources:
    """What was found; a name that is missing here does not exist."""

    config_maps: Mapping[str, Object] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, Object] = field(default_factory=dict, repr=False)
    volumes: Mapping[str, Object] = field(default_factory=dict)
    """PersistentVolumes by the claim's name."""
    tokens: Mapping[TokenNeed, Token] = field(default_factory=dict)

    @property
    def renew_at_s(self) -> float | None:
        """When the first token wants renewal, in Unix seconds."""
        return min((token.renew_at_s for token in self.tokens.values()), default=None)


def needed_sources(pod: Mapping[str, Any]) -> Needed:
    """What the pod's volumes and environments refer to."""
    config_maps: set[str] = set()
    secrets: set[str] = set()
    claims: set[str] = set()
    tokens: set[TokenNeed] = set()
    spec = pod["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for kind, reference in _environment_references(container):
            (config_maps if kind == "ConfigMap" else secrets).add(reference["name"])
    for volume in spec.get("volumes", ()):
        if "persistentVolumeClaim" in volume:
            claims.add(volume["persistentVolumeClaim"]["claimName"])
        for part in (volume, *volume.get("projected", {}).get("sources", ())):
            if "configMap" in part:
                config_maps.add(part["configMap"]["name"])
            if "secret" in part:
                secrets.add(part["secret"].get("secretName") or part["secret"]["name"])
            if "serviceAccountToken" in part:
                token = part["serviceAccountToken"]
                lifetime_s = token.get("expirationSeconds", 3600)
                tokens.add(TokenNeed(volume["name"], token["path"], token.get("audience"), lifetime_s))
    return Needed(frozenset(config_maps), frozenset(secrets), frozenset(claims), frozenset(tokens))


def _environment_references(container: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for entry in container.get("envFrom", ()):
        if "configMapRef" in entry:
            yield "ConfigMap", entry["configMapRef"]
        if "secretRef" in entry:
            yield "Secret", entry["secretRef"]
    for entry in container.get("env", ()):
        origin = entry.get("valueFrom", {})
        if "configMapKeyRef" in origin:
            yield "ConfigMap", origin["configMapKeyRef"]
        if "secretKeyRef" in origin:
            yield "Secret", origin["secretKeyRef"]


async def read_sources(api: NodeApi, pod: Object, needed: Needed, *, previous: Sources, now_s: float) -> Sources:
    """Read everything at once; tokens of `previous` that need no renewal at `now_s` (Unix time) are kept.

    Raises NodeApiError, but not for objects that do not exist.
    """
    namespace = f"/api/v1/namespaces/{pod['metadata']['namespace']}"

    async def read_all(kind: str, names: frozenset[str]) -> dict[str, Object]:
        found = await asyncio.gather(*(_read(api, f"{namespace}/{kind}/{name}") for name in names))
        return {name: item for name, item in zip(names, found, strict=True) if item is not None}

    async def read_volumes() -> dict[str, Object]:
        claims = await read_all("persistentvolumeclaims", needed.claims)
        bound = {name: claim["spec"]["volumeName"] for name, claim in claims.items() if claim["spec"].get("volumeName")}
        found = await asyncio.gather(*(_read(api, f"/api/v1/persistentvolumes/{name}") for name in bound.values()))
        return {claim: item for claim, item in zip(bound, found, strict=True) if item is not None}

    async def read_tokens() -> dict[TokenNeed, Token]:
        kept = {need: token for need, token in previous.tokens.items() if now_s < token.renew_at_s}
        missing = [need for need in needed.tokens if need not in kept]
        fresh = await asyncio.gather(*(_request_token(api, pod, need) for need in missing))
        return {**kept, **dict(zip(missing, fresh, strict=True))}

    config_maps, secrets, volumes, tokens = await asyncio.gather(
        read_all("configmaps", needed.config_maps), read_all("secrets", needed.secrets), read_volumes(), read_tokens()
    )
    return Sources(config_maps, secrets, volumes, tokens)


async def _read(api: NodeApi, path: str) -> Object | None:
    try:
        return await api.request("GET", path)
    except NodeApiError as error:
        if error.status == 404:
            return None
        raise


async def _request_token(api: NodeApi, pod: Object, need: TokenNeed) -> Token:
    metadata = pod["metadata"]
    account = pod["spec"].get("serviceAccountName", "default")
    answer = await api.request(
        "POST",
        f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token",
        body={
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [need.audience] if need.audience else [],
                "expirationSeconds": need.lifetime_s,
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
            },
        },
    )
    expires_s = datetime.fromisoformat(answer["status"]["expirationTimestamp"]).timestamp()
    issued_s = expires_s - answer["spec"].get("expirationSeconds", need.lifetime_s)
    return Token(answer["status"]["token"], issued_s, expires_s)
