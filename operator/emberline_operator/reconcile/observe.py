"""Gathers one endpoint's snapshot from the caches; asks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from emberline_contract import names
from emberline_operator.accept import parse_source
from emberline_operator.cluster.caches import Caches, Key
from emberline_operator.cluster.kinds import API_SERVICES, CHILDREN, CLAIMS, ENDPOINTS, HPAS, PODS, REGIONS
from emberline_operator.memory import Memory
from emberline_operator.plan.via import read_metrics_api
from emberline_operator.pods import read_pod
from emberline_operator.snapshot import Features, Json, Recommendation, Ref, Room, Snapshot

METRICS_API_SERVICES: Final = tuple(f"{version}.{names.METRICS_GROUP}" for version in names.METRICS_VERSIONS)


@dataclass(slots=True)
class Remembered:
    """What this process knows of an endpoint besides the caches."""

    status_written: datetime | None = None
    recommendations: Mapping[str, tuple[Recommendation, ...]] = field(default_factory=dict)
    rooms: Mapping[str, Room] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)


def observe(caches: Caches, key: Key, features: Features, remembered: Remembered) -> Snapshot | None:
    """The snapshot; None if the endpoint is gone or going: its children go with it, by their owner references."""
    endpoint = caches[ENDPOINTS].get(key)
    if endpoint is None or "deletionTimestamp" in endpoint["metadata"]:
        return None
    claim = claim_of(endpoint)
    found = caches[CLAIMS].get((key[0], claim)) if claim else None
    services = [caches[API_SERVICES].get(("", name)) for name in METRICS_API_SERVICES]
    return Snapshot(
        endpoint=endpoint,
        regions={region["metadata"]["name"]: region for region in caches[REGIONS]},
        claims={claim: found} if claim and found else {},
        children={
            Ref(kind.kind, child["metadata"]["name"]): child
            for kind in CHILDREN
            for child in caches[kind].of_endpoint(key)
            if _is_labelled(child)
        },
        pods=tuple(
            read_pod(pod)
            for pod in caches[PODS].of_endpoint(key)
            if pod["metadata"]["labels"].get(names.LABEL_APP) == names.RUNTIME_NAME
        ),
        status_written=remembered.status_written,
        nodes=caches.index.nodes,
        gpus_in_use=caches.index.gpus_in_use,
        waiters=caches.index.waiters,
        metrics_api=read_metrics_api(s for s in services if s is not None),
        recommendations=remembered.recommendations,
        rooms=remembered.rooms,
        rivals=caches.index.rivals(key),
        is_shadowed=caches.index.is_shadowed(key),
        features=features,
        memory=remembered.memory,
        foreign_hpas=tuple(hpa for hpa in caches[HPAS].of_endpoint(key) if not _is_labelled(hpa)),
    )


def _is_labelled(child: Json) -> bool:
    """Whether it belongs to an endpoint by its label; an autoscaler may concern one that it does not belong to."""
    return names.LABEL_ENDPOINT in child["metadata"].get("labels", {})


def claim_of(endpoint: Json) -> str:
    """Name of the claim that an endpoint's model is in; empty if its source cannot be read."""
    source = parse_source(str(endpoint.get("spec", {}).get("model", {}).get("source", "")))
    return source.claim if source else ""
