"""The kinds that the operator watches or writes, with their paths and the part of each object that is kept in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emberline_contract import names
from emberline_operator.snapshot import Json, is_gpu


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API."""

    kind: str
    group: str
    version: str
    plural: str
    is_namespaced: bool = True
    selector: str = ""
    """Label selector of the objects that are watched; empty: all."""

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of the collection or of one object."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return "/".join(part for part in (f"{root}{within}/{self.plural}", name, subresource) if part)


_OURS: Final = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY},{names.LABEL_ENDPOINT}"

ENDPOINTS: Final = Kind(names.ENDPOINT_KIND, names.GROUP, names.VERSION, names.ENDPOINT_PLURAL)
REGIONS: Final = Kind(names.REGION_KIND, names.GROUP, names.VERSION, names.REGION_PLURAL, is_namespaced=False)
CLAIMS: Final = Kind("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims")
DEPLOYMENTS: Final = Kind("Deployment", "apps", "v1", "deployments", selector=_OURS)
SERVICES: Final = Kind("Service", "", "v1", "services", selector=_OURS)
CONFIGMAPS: Final = Kind("ConfigMap", "", "v1", "configmaps", selector=_OURS)
PODS: Final = Kind(
    "Pod", "", "v1", "pods", selector=f"{names.LABEL_APP} in ({names.RUNTIME_NAME},{names.GATEWAY_NAME})"
)

PDBS: Final = Kind("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets", selector=_OURS)
HPAS: Final = Kind("HorizontalPodAutoscaler", "autoscaling", "v2", "horizontalpodautoscalers")
"""All of them: somebody else's that scales a Deployment of ours must be seen (replica rule 5)."""
NODES: Final = Kind("Node", "", "v1", "nodes", is_namespaced=False)
API_SERVICES: Final = Kind("APIService", "apiregistration.k8s.io", "v1", "apiservices", is_namespaced=False)

CHILDREN: Final = (DEPLOYMENTS, SERVICES, CONFIGMAPS, PDBS, HPAS)
WATCHED: Final = (NODES, API_SERVICES, REGIONS, ENDPOINTS, CLAIMS, *CHILDREN, PODS)
BY_KIND: Final = {kind.kind: kind for kind in WATCHED}

_POD_STATUS: Final = frozenset({"phase", "reason", "message", "podIP", "containerStatuses", "initContainerStatuses"})
_CONDITION: Final = frozenset({"type", "status", "reason", "message", "lastTransitionTime"})
_HPA_STATUS: Final = frozenset({"currentReplicas", "desiredReplicas"})


def trimmed(obj: Json) -> Json:
    """The part of an object that decisions look at: little memory for a thousand endpoints, and no news that are none.

    A node tells every few seconds that it is there, an HPA what it measured last: neither is a reason to look again.
    """
    metadata, status = dict(obj["metadata"]), obj.get("status", {})
    match obj.get("kind"):
        case PODS.kind:
            metadata.pop("managedFields", None)
            return {"kind": obj["kind"], "metadata": metadata, "spec": _pod_spec(obj), "status": _pod_status(status)}
        case CLAIMS.kind:
            return {
                "kind": obj["kind"],
                "metadata": _identity(obj),
                "status": {"phase": status.get("phase", "Pending")},
            }
        case NODES.kind:
            return _node(obj)
        case API_SERVICES.kind:
            spec = {key: value for key, value in obj.get("spec", {}).items() if key in ("group", "service")}
            return {"kind": obj["kind"], "metadata": _identity(obj), "spec": spec, "status": _conditions(status)}
        case DEPLOYMENTS.kind:
            return {**obj, "metadata": _signed(metadata), "status": {**status, **_conditions(status)}}
        case HPAS.kind if names.LABEL_ENDPOINT not in metadata.get("labels", {}):
            spec = {"scaleTargetRef": obj["spec"]["scaleTargetRef"]}
            return {"kind": obj["kind"], "metadata": _identity(obj), "spec": spec}
        case HPAS.kind:
            kept = {key: value for key, value in status.items() if key in _HPA_STATUS}
            return {**obj, "metadata": _signed(metadata), "status": {**kept, **_conditions(status)}}
        case PDBS.kind:
            return {**{key: value for key, value in obj.items() if key != "status"}, "metadata": _signed(metadata)}
        case _:
            return {**obj, "metadata": _signed(metadata)}


def _identity(obj: Json) -> Json:
    metadata = obj["metadata"]
    return {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in metadata}


def _node(node: Json) -> Json:
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready = [{"type": c["type"], "status": c["status"]} for c in status.get("conditions", ()) if c["type"] == "Ready"]
    return {
        "kind": NODES.kind,
        "metadata": {**_identity(node), "labels": metadata.get("labels", {})},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {
            "allocatable": {name: count for name, count in status.get("allocatable", {}).items() if is_gpu(name)},
            "conditions": ready,
        },
    }


def _pod_spec(pod: Json) -> Json:
    spec = pod.get("spec", {})
    # Where it may go matters until it is there.
    where = () if spec.get("nodeName") else ("nodeSelector", "affinity", "tolerations")
    return {
        **{key: spec[key] for key in ("nodeName", "volumes", *where) if key in spec},
        "containers": [{"resources": container.get("resources", {})} for container in spec.get("containers", ())],
    }


def _pod_status(status: Json) -> Json:
    return {**{key: value for key, value in status.items() if key in _POD_STATUS}, **_conditions(status)}


def _conditions(status: Json) -> Json:
    """Without the times at which a condition was looked at last."""
    conditions = status.get("conditions", ())
    return {"conditions": [{key: value for key, value in c.items() if key in _CONDITION} for c in conditions]}


def _signed(metadata: Json) -> Json:
    """Metadata with what is needed of managedFields."""
    if "managedFields" in metadata:
        metadata["managedFields"] = [_entry(e) for e in metadata["managedFields"] if _matters(e)]
    return metadata


def _matters(entry: Json) -> bool:
    """Entries of our own manager, and whatever owns replicas (replica rule 1)."""
    owns_replicas = "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    return entry.get("manager") == names.OPERATOR_MANAGER or owns_replicas


def _entry(entry: Json) -> Json:
    return {key: value for key, value in entry.items() if key not in ("time", "fieldsType", "apiVersion")}
