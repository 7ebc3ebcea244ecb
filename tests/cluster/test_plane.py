"""The control plane itself, as every other cluster test finds it."""

from __future__ import annotations

import json

import pytest
from kubernetes.aio.client import AuthenticationV1Api, CoreV1Api

from support.plane import TestPlane

pytestmark = pytest.mark.cluster


async def test_serves_the_version_of_its_source_to_both_kinds_of_client(plane: TestPlane, namespace: str) -> None:
    versions = json.loads(plane.kubectl("version", "-o", "json"))
    assert versions["clientVersion"]["gitVersion"] == versions["serverVersion"]["gitVersion"]
    async with plane.client() as api:
        listed = await CoreV1Api(api).list_namespace()
    assert namespace in {item.metadata.name for item in listed.items}


async def test_a_service_account_token_is_real(plane: TestPlane, namespace: str) -> None:
    async with plane.client() as api:
        token = await CoreV1Api(api).create_namespaced_service_account_token(
            "default", namespace, {"spec": {"audiences": ["somebody"]}}
        )
        review = await AuthenticationV1Api(api).create_token_review(
            {"spec": {"token": token.status.token, "audiences": ["somebody"]}}
        )
    assert review.status.authenticated
    assert review.status.user.username == f"system:serviceaccount:{namespace}:default"


def test_endpoints_have_their_short_name_and_rules(plane: TestPlane) -> None:
    bad = {
        "apiVersion": "emberline.dev/v1alpha1",
        "kind": "InferenceEndpoint",
        "metadata": {"name": "bad", "namespace": "default"},
        "spec": {"model": {"source": "pvc://models/smollm2"}, "scaling": {"minReplicas": 5, "maxReplicas": 2}},
    }
    refused = plane.run_kubectl("create", "-f", "-", stdin=json.dumps(bad))
    assert refused.returncode != 0
    assert "scaling.minReplicas must not be larger than scaling.maxReplicas" in refused.stderr
    # Other tests of the session may have left endpoints whose namespace is going.
    assert "/bad" not in plane.kubectl("get", "iep", "-A", "-o", "name")


def test_the_audit_log_names_who_asked_for_what(plane: TestPlane) -> None:
    plane.kubectl("get", "configmap", "never-made", "-n", "default", check=False)
    events = [json.loads(line) for line in plane.audit_file.read_text().splitlines()]
    asked = [event for event in events if event.get("objectRef", {}).get("name") == "never-made"]
    assert [(event["user"]["username"], event["verb"], event["responseStatus"]["code"]) for event in asked] == [
        ("emberline-local:admin", "get", 404)
    ]
