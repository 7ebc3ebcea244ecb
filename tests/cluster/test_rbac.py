"""The operator's rights: enough for all it does, and no more.

That they are enough is held against every test of the session: `plane` fails at its end if the operator was refused anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from emberline_contract import names
from emberline_operator.cluster.api import APPLY, Api
from emberline_operator.cluster.kinds import CONFIGMAPS, ENDPOINTS
from emberline_operator.errors import RefusedError
from support.audit import OPERATOR_USER, lacked_rights, requests_of
from support.operator_rig import BASE, Raw, endpoint_yaml, install_account, kubeconfig_of, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
RIGHTS = BASE / "operator-rights.yaml"
NAMESPACED = BASE.parent / "overlays" / "namespaced" / "rights.yaml"
READ_ONLY = ("get", "list", "watch")

# What the operator must never be able to do: verb, resource, and where.
FORBIDDEN = [
    ("get", "secrets", ""),
    ("list", "secrets", ""),
    ("get", "secrets", names.SYSTEM_NAMESPACE),
    ("create", "serviceaccounts/token", names.SYSTEM_NAMESPACE),
    ("impersonate", "serviceaccounts", ""),
    ("create", "pods", ""),
    ("create", "pods/exec", ""),
    ("create", "pods/eviction", ""),
    ("update", "inferenceendpoints.emberline.dev", ""),
    ("patch", "inferenceendpoints.emberline.dev", ""),
    ("create", "inferenceendpoints.emberline.dev", ""),
    ("delete", "inferenceendpoints.emberline.dev", ""),
    ("patch", "inferenceregions.emberline.dev", ""),
    ("patch", "nodes", ""),
    ("delete", "nodes", ""),
    ("create", "apiservices.apiregistration.k8s.io", ""),
    ("create", "clusterroles.rbac.authorization.k8s.io", ""),
    ("bind", "clusterroles.rbac.authorization.k8s.io", ""),
    ("patch", "validatingadmissionpolicies.admissionregistration.k8s.io", ""),
    ("delete", "namespaces", ""),
    ("deletecollection", "pods", ""),
    ("update", "leases.coordination.k8s.io", ""),
    ("patch", "networkpolicies.networking.k8s.io", ""),
    ("create", "daemonsets.apps", ""),
    ("create", "jobs.batch", ""),
]


def may(plane: TestPlane, verb: str, resource: str, namespace: str) -> bool:
    where = ("-n", namespace) if namespace else ("--all-namespaces",)
    done = plane.run_kubectl("auth", "can-i", verb, resource, f"--as={OPERATOR_USER}", *where)
    assert done.stdout.strip() in ("yes", "no"), done.stderr
    return done.stdout.strip() == "yes"


def test_what_the_operator_cannot_do(plane: TestPlane) -> None:
    install_account(plane)
    assert may(plane, "patch", "deployments.apps", ""), "the question is understood"
    assert may(plane, "delete", "pods", "")
    found = [entry for entry in FORBIDDEN if may(plane, *entry)]
    assert not found


async def test_the_check_of_the_session_sees_what_is_lacked(plane: TestPlane, namespace: str) -> None:
    plane.kubectl("-n", namespace, "create", "serviceaccount", "clerk")
    plane.kubectl("-n", namespace, "create", "role", "clerk", "--verb=patch", "--resource=configmaps")
    plane.kubectl(
        "-n", namespace, "create", "rolebinding", "clerk", "--role=clerk", f"--serviceaccount={namespace}:clerk"
    )
    api = await Api.connect(kubeconfig_of(plane, "clerk", namespace))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": namespace}}
    try:
        with pytest.raises(RefusedError):
            await api.request("GET", f"/api/v1/namespaces/{namespace}/secrets")
        with pytest.raises(RefusedError, match="cannot create"):
            await api.request(
                "PATCH",
                CONFIGMAPS.path(namespace, "x"),
                body=body,
                query=[("fieldManager", "clerk")],
                content_type=APPLY,
            )
    finally:
        await api.close()
    lacked = lacked_rights(plane.audit_file, f"system:serviceaccount:{namespace}:clerk")
    assert len(lacked) == 2
    assert any('cannot list resource "secrets"' in words for words in lacked)
    assert any('cannot create resource "configmaps"' in words for words in lacked)


def of_another_account(account: str, namespace: str) -> list[Raw]:
    """The rights of the namespaced overlay, for an account of this test's own and with its namespace as the chosen one."""
    overlay = list(yaml.safe_load_all(NAMESPACED.read_text()))
    base = list(yaml.safe_load_all(RIGHTS.read_text()))
    kept = [d for d in base if not (d["kind"] == "ClusterRoleBinding" and d["metadata"]["name"].endswith("-endpoints"))]
    bindings = [d for d in [*kept, *overlay] if d["kind"].endswith("Binding")]
    roles = [d for d in [*kept, *overlay] if d["kind"].endswith("Role")]
    for binding in bindings:
        binding["metadata"]["name"] = f"{account}-{binding['metadata']['name']}"
        binding["subjects"][0]["name"] = account
        if binding["metadata"].get("namespace") in ("team-a", "team-b"):
            binding["metadata"]["namespace"] = namespace
    system = {"name": account, "namespace": names.SYSTEM_NAMESPACE}
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": system}, *roles, *bindings]


async def test_namespaced_mode_does_with_its_rights_and_touches_no_other_namespace(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    account, other = f"namespaced-{namespace}", f"{namespace}-other"
    user = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{account}"
    install_account(plane)
    plane.kubectl("create", "namespace", other)
    plane.apply(*of_another_account(account, namespace))
    kubeconfig = kubeconfig_of(plane, account)
    async with operator_rig(plane, namespace, tmp_path) as rig:
        await rig.claim()
        foreign = endpoint_yaml("foreign", other)
        await rig.admin.request("POST", ENDPOINTS.path(other), body=foreign)
        async with rig.gateway(), rig.operator(kubeconfig=kubeconfig, watch_namespaces=(namespace,)):
            await rig.endpoint("tiny", scaling={"minReplicas": 1})
            (pod,) = await rig.pods("tiny")
            await rig.set_pod(pod, ready=True)
            await rig.settled("tiny", "Serving")
        left = await rig.admin.request("GET", ENDPOINTS.path(other, "foreign"))
        assert left["status"] == {"observedGeneration": -1}, "nobody has looked at it"
        assert await rig.admin.request("DELETE", ENDPOINTS.path(other, "foreign"))
    assert lacked_rights(plane.audit_file, user) == set()
    seen = list(requests_of(plane.audit_file, user))
    written = {event["objectRef"].get("namespace") for event in seen if event["verb"] not in READ_ONLY}
    assert written == {namespace, names.SYSTEM_NAMESPACE}, "its Lease is in its own"
    plane.kubectl("delete", "namespace", other, "--wait=false")
    plane.kubectl("delete", "clusterrolebinding", f"{account}-{names.OPERATOR_NAME}")
