"""Gathers one endpoint's snapshot from the caches; asks nothing."""

from __future__ import annotations

from datetime import datetime

from emberline_contract import names
from emberline_operator.accept import parse_source
from emberline_operator.cluster.caches import Caches, Key
from emberline_operator.cluster.kinds import CHILDREN, CLAIMS, ENDPOINTS, PODS, REGIONS
from emberline_operator.snapshot import Json, Ref, Snapshot, read_pod


def observe(caches: Caches, key: Key, status_written: datetime | None) -> Snapshot | None:
    """The snapshot; None if the endpoint is gone or going: its children go with it, by their owner references."""
    endpoint = caches[ENDPOINTS].get(key)
    if endpoint is None or "deletionTimestamp" in endpoint["metadata"]:
        return None
    claim = claim_of(endpoint)
    found = caches[CLAIMS].get((key[0], claim)) if claim else None
    return Snapshot(
        endpoint=endpoint,
        regions={region["metadata"]["name"]: region for region in caches[REGIONS]},
        claims={claim: found} if claim and found else {},
        children={
            Ref(kind.kind, child["metadata"]["name"]): child
            for kind in CHILDREN
            for child in caches[kind].of_endpoint(key)
        },
        pods=tuple(
            read_pod(pod)
            for pod in caches[PODS].of_endpoint(key)
            if pod["metadata"]["labels"].get(names.LABEL_APP) == names.RUNTIME_NAME
        ),
        status_written=status_written,
    )


def claim_of(endpoint: Json) -> str:
    """Name of the claim that an endpoint's model is in; empty if its source cannot be read."""
    source = parse_source(str(endpoint.get("spec", {}).get("model", {}).get("source", "")))
    return source.claim if source else ""
