"""The CRDs as dicts, made from the resource models: structural schema, defaults, CEL rules, printer columns.

`python -m emberline_contract.crd` prints them as JSON documents; `make gen` writes the YAML.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from pydantic import BaseModel

from emberline_contract import names
from emberline_contract.region import InferenceRegionSpec
from emberline_contract.resources import ENDPOINT_RULES, REGION_RULES, SPEC_RULES, InferenceEndpointSpec
from emberline_contract.status import InferenceEndpointStatus

Schema = dict[str, Any]


def structural_schema(model: type[BaseModel]) -> Schema:
    """OpenAPI v3 schema of a model as a CRD takes it: no references, no titles, no null branches, no additionalProperties."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(raw, raw.get("$defs", {}))


def _structural(node: Schema, definitions: Schema) -> Schema:
    node = copy.copy(node)
    if "$ref" in node:
        target = definitions[node.pop("$ref").rsplit("/", 1)[1]]
        node = {**target, **node}
    if "anyOf" in node:
        branches = [branch for branch in node.pop("anyOf") if branch.get("type") != "null"]
        if len(branches) != 1:
            raise ValueError(f"a CRD field must have one type, not {branches}")
        node = {**_structural(branches[0], definitions), **node}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    for key in ("title", "$defs"):
        node.pop(key, None)
    if "default" in node and node["default"] is None:
        del node["default"]
    if node.get("additionalProperties") is False:
        del node["additionalProperties"]
    properties = node.get("properties")
    if properties is not None:
        node["properties"] = {name: _structural(child, definitions) for name, child in properties.items()}
        if all("default" in c for n, c in node["properties"].items() if n in node.get("required", ())):
            node.pop("required", None)
    if isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _structural(node["additionalProperties"], definitions)
        node.pop("propertyNames", None)
    if isinstance(node.get("items"), dict):
        node["items"] = _structural(node["items"], definitions)
        node.setdefault("x-kubernetes-list-type", "atomic")
    if "default" in node and isinstance(node["default"], dict):
        # In full: the API server checks a default against its CEL rules before it fills in the children's defaults.
        properties = node.get("properties", {})
        node["default"] = {name: child["default"] for name, child in properties.items() if "default" in child}
    if isinstance(node.get("default"), (list, tuple)) and not node["default"]:
        del node["default"]
    return node


def _crd(
    kind: str,
    plural: str,
    short: str,
    scope: str,
    schema: Schema,
    columns: list[dict[str, Any]],
    *,
    subresources: dict[str, Any] | None = None,
    selectable: tuple[str, ...] = (),
) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    if subresources:
        version["subresources"] = subresources
    if selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": scope,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": [names.CATEGORY],
            },
            "versions": [version],
        },
    }


def _column(name: str, path: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    if priority:
        column["priority"] = priority
    return column


_AGE = _column("Age", ".metadata.creationTimestamp", "date")


def endpoint_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of InferenceEndpoint."""
    schema: Schema = {
        "type": "object",
        "description": InferenceEndpointSpec.__doc__,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**structural_schema(InferenceEndpointSpec), **SPEC_RULES},
            # Until the operator has seen it: kstatus (Flux, `wait: true`) takes an object without any status for done.
            "status": {**structural_schema(InferenceEndpointStatus), "default": {"observedGeneration": -1}},
        },
        **ENDPOINT_RULES,
    }
    columns = [
        _column("Ready", ".status.conditions[?(@.type=='Ready')].status"),
        _column("Reason", ".status.conditions[?(@.type=='Ready')].reason"),
        # Texts of their own: of a path with several matches the API server shows the first one only.
        _column("Replicas", ".status.readyOfDesired"),
        _column("Regions", ".status.regionNames"),
        _column("Precision", ".status.precision.format"),
        _column("Model", ".spec.model.source", priority=1),
        _column("URL", ".status.url", priority=1),
        _AGE,
    ]
    return _crd(
        names.ENDPOINT_KIND,
        names.ENDPOINT_PLURAL,
        names.ENDPOINT_SHORT,
        "Namespaced",
        schema,
        columns,
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        selectable=(".spec.model.source", ".spec.model.servedName", ".spec.accelerator.kind", ".spec.scaling.via"),
    )


def region_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of InferenceRegion."""
    schema: Schema = {
        "type": "object",
        "description": InferenceRegionSpec.__doc__,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**structural_schema(InferenceRegionSpec), "default": {}},
        },
        **REGION_RULES,
    }
    columns = [
        # Shown as JSON, and so in full. A region has no status to hold a text for the table, and the pools do not fit as JSON.
        _column("Jurisdictions", ".spec.jurisdictions"),
        _AGE,
    ]
    return _crd(names.REGION_KIND, names.REGION_PLURAL, names.REGION_SHORT, "Cluster", schema, columns)


def all_crds() -> dict[str, dict[str, Any]]:
    """File name in `crds/` -> CustomResourceDefinition."""
    return {
        f"{names.GROUP}_{names.ENDPOINT_PLURAL}.yaml": endpoint_crd(),
        f"{names.GROUP}_{names.REGION_PLURAL}.yaml": region_crd(),
    }


if __name__ == "__main__":
    print(json.dumps(all_crds(), indent=2))
