"""The kinds that the operator watches or writes, with their paths and the part of each object that is kept in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emberline_contract import names
from emberline_operator.snapshot import Json


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

CHILDREN: Final = (DEPLOYMENTS, SERVICES, CONFIGMAPS)
WATCHED: Final = (ENDPOINTS, REGIONS, CLAIMS, *CHILDREN, PODS)
BY_KIND: Final = {kind.kind: kind for kind in WATCHED}

_POD_SPEC: Final = frozenset({"volumes"})
_POD_STATUS: Final = frozenset(
    {"phase", "reason", "message", "podIP", "conditions", "containerStatuses", "initContainerStatuses"}
)


def trimmed(obj: Json) -> Json:
    """The part of an object that decisions look at; a thousand endpoints shall fit in little memory."""
    metadata = dict(obj["metadata"])
    match obj.get("kind"):
        case "Pod":
            metadata.pop("managedFields", None)
            spec = {key: value for key, value in obj.get("spec", {}).items() if key in _POD_SPEC}
            status = {key: value for key, value in obj.get("status", {}).items() if key in _POD_STATUS}
            return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        case "PersistentVolumeClaim":
            kept = {key: metadata[key] for key in ("name", "namespace", "resourceVersion") if key in metadata}
            status = {"phase": obj.get("status", {}).get("phase", "Pending")}
            return {"kind": "PersistentVolumeClaim", "metadata": kept, "status": status}
        case _:
            if "managedFields" in metadata:
                metadata["managedFields"] = [_entry(e) for e in metadata["managedFields"] if _matters(e)]
            return {**obj, "metadata": metadata}


def _matters(entry: Json) -> bool:
    """Entries of our own manager, and whatever owns replicas (replica rule 1)."""
    owns_replicas = "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
    return entry.get("manager") == names.OPERATOR_MANAGER or owns_replicas


def _entry(entry: Json) -> Json:
    return {key: value for key, value in entry.items() if key not in ("time", "fieldsType", "apiVersion")}
