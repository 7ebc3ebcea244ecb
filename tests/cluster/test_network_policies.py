"""What the manifests render to is valid word for word on the API server; who reaches whom by it is a table of unit tests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from support.plane import TestPlane

pytestmark = pytest.mark.cluster

MANIFESTS = Path(__file__).parents[2] / "manifests"


def rendered(plane: TestPlane, folder: str, namespace: str) -> list[dict[str, Any]]:
    """With the test's namespace in place of those that the samples name."""
    text = plane.kubectl("kustomize", str(MANIFESTS / folder))
    return list(yaml.safe_load_all(re.sub(r"\bteam-[ab]\b", namespace, text)))


def refusals(plane: TestPlane, documents: list[dict[str, Any]]) -> str:
    """The API server's words under strict validation; nothing is stored."""
    text = "\n---\n".join(json.dumps(document) for document in documents)
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--field-manager=manifest-test")
    done = plane.run_kubectl("apply", *flags, "--force-conflicts", "-f", "-", stdin=text)
    return done.stderr


@pytest.mark.parametrize("folder", ["base", "overlays/local", "overlays/namespaced", "samples/team-a"])
async def test_rendered_manifests_are_valid(plane: TestPlane, namespace: str, folder: str) -> None:
    documents = rendered(plane, folder, namespace)
    assert any(document["kind"] == "NetworkPolicy" for document in documents)
    # What lies in a namespace needs it, dry run or not.
    system = [d for d in documents if d["kind"] == "Namespace" and d["metadata"]["name"] == names.SYSTEM_NAMESPACE]
    plane.apply(*(system or [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]))
    assert refusals(plane, documents) == ""


async def test_the_check_sees_a_field_that_does_not_exist(plane: TestPlane, namespace: str) -> None:
    documents = rendered(plane, "samples/team-a", namespace)
    (policy,) = (document for document in documents if document["kind"] == "NetworkPolicy")
    policy["spec"]["ingress"][0]["form"] = policy["spec"]["ingress"][0].pop("from")
    assert ".spec.ingress[0].form: field not declared in schema" in refusals(plane, [policy])


async def test_the_owner_gets_a_restricted_namespace(plane: TestPlane, namespace: str) -> None:
    documents = rendered(plane, "samples/team-a", namespace)
    (owned,) = (document for document in documents if document["kind"] == "Namespace")
    assert owned["metadata"]["name"] == namespace
    assert owned["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {d["metadata"]["namespace"] for d in documents if d["kind"] == "NetworkPolicy"} == {namespace}
    assert names.LABEL_MANAGED_BY not in owned["metadata"]["labels"], "it is the owner's"
