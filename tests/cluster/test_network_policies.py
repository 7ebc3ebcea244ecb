"""What the manifests render to is valid word for word on the API server; who reaches whom by it is a table of unit tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from support.plane import TestPlane

pytestmark = pytest.mark.cluster

MANIFESTS = Path(__file__).parents[2] / "manifests"


def rendered(plane: TestPlane, folder: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(plane.kubectl("kustomize", str(MANIFESTS / folder))))


def refusals(plane: TestPlane, documents: list[dict[str, Any]]) -> str:
    """The API server's words under strict validation; nothing is stored."""
    text = "\n---\n".join(json.dumps(document) for document in documents)
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--field-manager=manifest-test")
    done = plane.run_kubectl("apply", *flags, "--force-conflicts", "-f", "-", stdin=text)
    return done.stderr


@pytest.mark.parametrize("folder", ["base", "overlays/local", "samples/team-a"])
def test_rendered_manifests_are_valid(plane: TestPlane, folder: str) -> None:
    documents = rendered(plane, folder)
    assert any(document["kind"] == "NetworkPolicy" for document in documents)
    # What lies in a namespace needs it, dry run or not.
    plane.apply(*(document for document in documents if document["kind"] == "Namespace"))
    said = refusals(plane, documents)
    if folder.startswith("samples/"):
        plane.kubectl("delete", "namespace", "team-a", "--wait=false")
    assert said == ""


def test_the_check_sees_a_field_that_does_not_exist(plane: TestPlane) -> None:
    (policy, *_) = (d for d in rendered(plane, "samples/team-a") if d["kind"] == "NetworkPolicy")
    policy["metadata"]["namespace"] = "default"
    policy["spec"]["ingress"][0]["form"] = policy["spec"]["ingress"][0].pop("from")
    assert ".spec.ingress[0].form: field not declared in schema" in refusals(plane, [policy])


def test_the_owner_gets_a_restricted_namespace(plane: TestPlane) -> None:
    documents = rendered(plane, "samples/team-a")
    (namespace,) = (d for d in documents if d["kind"] == "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {d["metadata"]["namespace"] for d in documents if d["kind"] == "NetworkPolicy"} == {"team-a"}
    assert names.LABEL_MANAGED_BY not in namespace["metadata"]["labels"], "it is the owner's"
