"""Who decides how many engines run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.snapshot import Json, MetricsApi, Snapshot

HPA_KIND: Final = "HorizontalPodAutoscaler"
OUR_SERVICE: Final = f"{names.SYSTEM_NAMESPACE}/{names.GATEWAY_NAME}"


@dataclass(frozen=True, slots=True)
class Via:
    """The one who decides."""

    mode: Literal["HPA", "Operator", "External"]
    reason: Reason
    message: str = ""
    """Why it is not the one that was asked for, or not the first choice."""


def choose_via(spec: InferenceEndpointSpec, seen: Snapshot) -> Via:
    """The mode in force. An autoscaler is made only where its metrics can be had, and stays while our metrics API is only out of
    order: a gateway that restarts shall not tear down a thousand autoscalers.
    """
    asked, api = spec.scaling.via, seen.metrics_api
    if asked == "External":
        return Via("External", Reason.EXTERNAL)
    if asked == "Operator":
        return Via("Operator", Reason.FOLLOWS_DEMAND)
    is_out_of_order = bool(api.message) and not api.owner
    if api.is_ours or (is_out_of_order and _has_hpa(seen)):
        return Via("HPA", Reason.FOLLOWS_HPA)
    why = _why_not(api)
    if asked == "HPA":
        return Via("Operator", Reason.METRICS_UNAVAILABLE, why)
    return Via("Operator", Reason.FOLLOWS_DEMAND, why if api.owner else "")


def read_metrics_api(api_services: Iterable[Json]) -> MetricsApi:
    """Whose `custom.metrics.k8s.io` is, from the APIServices of a cluster.

    Clients use one version of a group, and which is not ours to say: so all that are there must be ours, or none is.
    """
    services = [s for s in api_services if s["metadata"]["name"].endswith(f".{names.METRICS_GROUP}")]
    services = [s for s in services if s.get("spec", {}).get("service")]
    owners = {f"{s['spec']['service'].get('namespace', '')}/{s['spec']['service'].get('name', '')}" for s in services}
    foreign = sorted(owners - {OUR_SERVICE})
    if not services or foreign:
        return MetricsApi(owner=foreign[0] if foreign else "")
    for service in services:
        conditions: list[Json] = service.get("status", {}).get("conditions", [])
        available = next((c for c in conditions if c["type"] == "Available"), {})
        if available.get("status") != "True":
            return MetricsApi(message=available.get("message") or "the API server has not asked it yet")
    return MetricsApi(is_ours=True)


def rival_of(seen: Snapshot, live: Json) -> Json | None:
    """Somebody else's autoscaler of a Deployment of ours."""
    for hpa in seen.foreign_hpas:
        target = hpa["spec"]["scaleTargetRef"]
        if target["kind"] == "Deployment" and target["name"] == live["metadata"]["name"]:
            return hpa
    return None


def _has_hpa(seen: Snapshot) -> bool:
    return any(ref.kind == HPA_KIND and seen.controls(child) for ref, child in seen.children.items())


def _why_not(api: MetricsApi) -> str:
    if api.owner:
        return f"{names.METRICS_GROUP} is served by the Service {api.owner} and not by Emberline, which takes it from nobody"
    if api.message:
        return f"Emberline's metrics API is not available: {api.message}"
    return f"there is no APIService of {names.METRICS_GROUP} that points at the Service {OUR_SERVICE}"
