"""What to do about the metrics API: `(what is there, now) -> steps`. Pure but for the keys of a new certificate.

The APIServices are there while an endpoint may be scaled by an autoscaler, and only where nobody else has the group: clients use one
of its versions, and which is not ours to say, so both are ours or none is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from emberline_contract import names
from emberline_operator.metrics_api.certificate import Certificate, is_due, make_certificate, read_certificate
from emberline_operator.plan.ownership import needs_write
from emberline_operator.plan.via import foreign_owners
from emberline_operator.snapshot import Json

API_SERVICES: Final = tuple(f"{version}.{names.METRICS_GROUP}" for version in names.METRICS_VERSIONS)
_PRIORITIES: Final = {"v1beta2": 200, "v1beta1": 100}
GROUP_PRIORITY: Final = 100
AUTOSCALED: Final = ("Auto", "HPA", "External")
"""Values of `scaling.via` with which an autoscaler may want the metrics: one of ours, or one of the user's."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is."""

    is_wanted: bool
    group: tuple[Json, ...]
    """All APIServices of the group, as the watch tells them."""
    ours: tuple[Json, ...]
    """Those of our names that point at our Service, whole."""
    secret: Json | None = None
    owner: Json | None = None
    """The ClusterRole that the APIServices go with."""
    port: int | None = None
    """Of our Service; None: there is none."""


@dataclass(frozen=True, slots=True)
class Write:
    """Apply an object."""

    body: Json
    why: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete an APIService."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Steps:
    """What to do, in this order."""

    steps: tuple[Write | Remove, ...] = ()
    problem: str = ""
    """What keeps the metrics API from being served; empty if nothing does."""


def wants_metrics(endpoints: Iterable[Json]) -> bool:
    """Whether an autoscaler may want the metrics of an endpoint."""
    return any(
        endpoint["spec"].get("scaling", {}).get("via", "Auto") in AUTOSCALED
        for endpoint in endpoints
        if "deletionTimestamp" not in endpoint["metadata"]
    )


def decide(seen: Seen, now: datetime) -> Steps:
    """The steps. What points elsewhere is never touched."""
    foreign = foreign_owners(seen.group)
    if foreign:
        return Steps(_remove(seen, f"the Service {foreign[0]} has {names.METRICS_GROUP}"))
    if not seen.is_wanted:
        return Steps(_remove(seen, "no endpoint is scaled by an autoscaler"))
    by_hand = [service["metadata"]["name"] for service in seen.ours if not _is_managed(service)]
    if by_hand:
        return Steps(
            problem=f"the APIService {', '.join(by_hand)} was made by somebody else, since it has no label"
            f" {names.LABEL_MANAGED_BY}: {names.MANAGED_BY}, and is left as it is; delete it to have it kept"
        )
    if seen.port is None:
        return Steps(problem=f"there is no Service {names.METRICS_SERVICE} in {names.SYSTEM_NAMESPACE}")
    if seen.secret is not None and not _is_managed(seen.secret):
        return Steps(
            problem=f"the Secret {names.METRICS_TLS_SECRET} in {names.SYSTEM_NAMESPACE} is somebody else's, since it has no label"
            f" {names.LABEL_MANAGED_BY}: {names.MANAGED_BY}; delete it, or give it another name"
        )
    held = read_certificate(seen.secret, now) if seen.secret is not None else None
    certificate = make_certificate(held, now) if held is None or is_due(held, now) else held
    services = [_api_service(name, certificate, seen.port, seen.owner) for name in API_SERVICES]
    live = {service["metadata"]["name"]: service for service in seen.ours}
    writes = [
        Write(body, f"point {body['metadata']['name']} at the gateways")
        for body in services
        if body["metadata"]["name"] not in live
        or needs_write(live[body["metadata"]["name"]], body, names.OPERATOR_MANAGER)
    ]
    if certificate is held:
        return Steps(tuple(writes))
    secret = Write(certificate.secret(), "a new certificate of the metrics API")
    # The API server must trust the new authority before a gateway shows what it has signed.
    return Steps((*writes, secret) if held is not None else (secret, *writes))


def _remove(seen: Seen, why: str) -> tuple[Remove, ...]:
    return tuple(
        Remove(service["metadata"]["name"], service["metadata"]["uid"], why)
        for service in seen.ours
        if _is_managed(service)
    )


def _api_service(name: str, certificate: Certificate, port: int, owner: Json | None) -> Json:
    version = name.split(".", 1)[0]
    metadata: Json = {
        "name": name,
        "labels": {names.LABEL_APP: names.GATEWAY_NAME, names.LABEL_MANAGED_BY: names.MANAGED_BY},
    }
    if owner is not None:
        # It goes with the ClusterRole: one that pointed at nothing would keep namespaces from ending.
        metadata["ownerReferences"] = [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
            }
        ]
    spec: dict[str, Any] = {
        "group": names.METRICS_GROUP,
        "version": version,
        "groupPriorityMinimum": GROUP_PRIORITY,
        "versionPriority": _PRIORITIES[version],
        "caBundle": certificate.ca_bundle,
        "service": {"namespace": names.SYSTEM_NAMESPACE, "name": names.METRICS_SERVICE, "port": port},
    }
    return {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": spec}


def _is_managed(obj: Json) -> bool:
    return bool(obj["metadata"].get("labels", {}).get(names.LABEL_MANAGED_BY) == names.MANAGED_BY)
