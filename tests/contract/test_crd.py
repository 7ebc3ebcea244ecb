"""The CRDs as the API server takes them: structural, bounded, described, and the committed files are the generated ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, Field

from emberline_contract import names
from emberline_contract.crd import all_crds, structural_schema
from emberline_contract.region import InferenceRegionSpec
from emberline_contract.resources import InferenceEndpointSpec

ROOT = Path(__file__).resolve().parents[2]
CRDS = all_crds()
RELEASED = ROOT / "tests" / "golden" / "input" / "released-crds"
"""The CRDs of the last release; `make gen` does not write them, a release does."""
INFINITE = 1 << 60
# What a structural schema may hold, of that what we use.
ALLOWED = {
    "type", "format", "description", "default", "enum", "properties", "required", "items", "additionalProperties",
    "minimum", "maximum", "minLength", "maxLength", "maxItems", "minProperties", "maxProperties", "pattern", "x-kubernetes-validations",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


def parts() -> Iterator[tuple[str, dict[str, Any]]]:
    for crd in CRDS.values():
        for part in ("spec", "status"):
            if part in schema_of(crd)["properties"]:
                yield from nodes(schema_of(crd)["properties"][part], f"{crd['spec']['names']['kind']}.{part}")


@pytest.mark.parametrize(("path", "node"), [pytest.param(path, node, id=path) for path, node in parts()])
def test_a_node_is_structural_and_bounded(path: str, node: dict[str, Any]) -> None:
    assert node.keys() <= ALLOWED
    match node["type"]:
        case "string":
            assert "maxLength" in node or "enum" in node
        case "array":
            assert "maxItems" in node
            assert node["x-kubernetes-list-type"] in ("atomic", "map")
        case "object":
            assert "properties" in node or ("additionalProperties" in node and "maxProperties" in node)
        case "integer" if ".spec." in path:
            assert "minimum" in node
            assert "maximum" in node
        case kind:
            assert kind in ("integer", "boolean", "number")


@pytest.mark.parametrize(("path", "node"), [pytest.param(path, node, id=path) for path, node in parts()])
def test_a_field_is_described(path: str, node: dict[str, Any]) -> None:
    if not path.endswith(("[]", "{}")):
        assert node["description"].endswith(".")


def bare(value: Any) -> Any:
    """Without empty lists and maps: they are as good as none, and are left out of the schema's defaults."""
    if isinstance(value, dict):
        inside = {key: bare(child) for key, child in value.items()}
        return {key: child for key, child in inside.items() if child not in ([], {})}
    return value


def test_defaults_are_what_the_models_say() -> None:
    spec = schema_of(CRDS["emberline.dev_inferenceendpoints.yaml"])["properties"]["spec"]
    defaults = InferenceEndpointSpec.model_validate({"model": {"source": "pvc://models/x"}}).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    del defaults["model"]
    seen = {name: child["default"] for name, child in spec["properties"].items() if "default" in child}
    assert bare(seen) == bare(defaults)
    # Objects default as well, so that `spec: {model: ...}` is enough; `model` alone must be given.
    assert spec["required"] == ["model"]


def defaults_in(schema: dict[str, Any]) -> dict[str, Any]:
    """Path -> default of every field that has one."""
    return {path: node["default"] for path, node in nodes(schema, "") if "default" in node}


def test_defaults_of_the_last_release_are_kept() -> None:
    """A changed default is a changed spec for every stored object, so none changes and none goes."""
    for name, crd in CRDS.items():
        released = yaml.safe_load((RELEASED / name).read_text())
        before, now = defaults_in(schema_of(released)), defaults_in(schema_of(crd))
        for path, default in before.items():
            # An object's default may gain fields: they are new ones, with defaults of their own.
            kept = {k: v for k, v in now[path].items() if k in default} if isinstance(default, dict) else now[path]
            assert kept == default, f"{name}: {path}"


def test_what_the_last_release_took_is_still_taken() -> None:
    """No field of a served version goes, no enum loses a value, no bound gets tighter."""
    for name, crd in CRDS.items():
        released = yaml.safe_load((RELEASED / name).read_text())
        now = dict(nodes(schema_of(crd)["properties"]["spec"], ""))
        for path, before in nodes(schema_of(released)["properties"]["spec"], ""):
            assert path in now, f"{name}: {path} is gone"
            assert now[path]["type"] == before["type"], f"{name}: {path}"
            assert set(before.get("enum", ())) <= set(now[path].get("enum", ())), f"{name}: {path}"
            for least in ("minimum", "minLength", "minProperties"):
                assert now[path].get(least, 0) <= before.get(least, 0), f"{name}: {path} {least}"
            for most in ("maximum", "maxLength", "maxItems", "maxProperties"):
                assert now[path].get(most, INFINITE) >= before.get(most, INFINITE), f"{name}: {path} {most}"


def test_identity() -> None:
    assert {crd["metadata"]["name"] for crd in CRDS.values()} == {
        f"{plural}.{names.GROUP}" for plural in (names.ENDPOINT_PLURAL, names.REGION_PLURAL)
    }
    endpoint, region = CRDS.values()
    assert endpoint["spec"]["scope"] == "Namespaced"
    assert region["spec"]["scope"] == "Cluster"
    assert endpoint["spec"]["names"]["shortNames"] == ["iep"]
    assert endpoint["spec"]["names"]["categories"] == ["inference"]
    assert endpoint["spec"]["versions"][0]["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    columns = [column["name"] for column in endpoint["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["Ready", "Reason", "Replicas", "Regions", "Precision", "Model", "URL", "Age"]


def test_a_column_has_one_value() -> None:
    """Of several matches the API server prints the first one only."""
    for crd in CRDS.values():
        for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]:
            assert "[*]" not in column["jsonPath"], column


def test_rules_name_the_field_that_they_are_about() -> None:
    messages = [
        rule["message"]
        for crd in CRDS.values()
        for _, node in nodes(schema_of(crd), "")
        for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(messages) >= 20
    for message in messages:
        assert re.match(
            r"(replicas|nodeSelector|(metadata|model|accelerator|placement|scaling|serving|rollout|podTemplate|gpuPools)\.\w+)",
            message,
        )


def test_columns_and_selectable_fields_point_at_fields_that_exist() -> None:
    for crd in CRDS.values():
        version = crd["spec"]["versions"][0]
        known = {path.removeprefix("x"): node for path, node in nodes(schema_of(crd), "x")}
        for column in version["additionalPrinterColumns"]:
            path = re.sub(r"\[[^]]*\]", "[]", column["jsonPath"])
            assert path in known or path == ".metadata.creationTimestamp", column
        for selectable in version.get("selectableFields", ()):
            assert known[selectable["jsonPath"]]["type"] == "string"


def test_the_committed_files_are_the_generated_ones() -> None:
    committed = {file.name: yaml.safe_load(file.read_text()) for file in (ROOT / "crds").iterdir()}
    assert committed == CRDS


def test_a_field_of_two_types_is_refused() -> None:
    class Two(BaseModel):
        both: int | str = Field(default=1)

    with pytest.raises(ValueError, match="a CRD field must have one type"):
        structural_schema(Two)


def test_the_models_are_the_same_for_a_region() -> None:
    assert InferenceRegionSpec.model_validate({"nodeSelector": {"a": "b"}}).node_selector == {"a": "b"}
