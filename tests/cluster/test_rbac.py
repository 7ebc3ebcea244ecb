"""The operator's rights: enough for all it does, and no more.

That they are enough is held against every test of the session: `plane` fails at its end if the operator was refused anything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from emberline_contract import names
from emberline_local.node_spec import NodeSpec
from emberline_operator.cluster.api import APPLY, Api
from emberline_operator.cluster.kinds import CHILDREN, CONFIGMAPS, ENDPOINTS, HPAS, PODS
from emberline_operator.errors import RefusedError
from emberline_operator.plan import idle
from support.audit import OPERATOR_USER, Right, lacked_rights, requests_of, used_rights
from support.metrics_adapter import metrics_adapter
from support.operator_rig import (
    BASE,
    OperatorRig,
    PlayedGateway,
    Raw,
    endpoint_yaml,
    eventually,
    install_account,
    kubeconfig_of,
    operator_rig,
)
from support.plane import TestPlane
from support.region_rig import RegionRig, region_rig

pytestmark = pytest.mark.cluster
RIGHTS = BASE / "operator-rights.yaml"
NAMESPACED = BASE.parent / "overlays" / "namespaced" / "rights.yaml"
READ_ONLY = ("get", "list", "watch")

# What the operator must never be able to do in any namespace, its own included: verb, API group, resource.
FORBIDDEN = [
    ("get", "", "secrets"),
    ("list", "", "secrets"),
    ("watch", "", "secrets"),
    ("create", "", "serviceaccounts/token"),
    ("impersonate", "", "serviceaccounts"),
    ("create", "", "pods"),
    ("create", "", "pods/exec"),
    ("create", "", "pods/eviction"),
    ("deletecollection", "", "pods"),
    ("update", "emberline.dev", "inferenceendpoints"),
    ("patch", "emberline.dev", "inferenceendpoints"),
    ("create", "emberline.dev", "inferenceendpoints"),
    ("delete", "emberline.dev", "inferenceendpoints"),
    ("patch", "emberline.dev", "inferenceregions"),
    ("patch", "", "nodes"),
    ("delete", "", "nodes"),
    ("create", "apiregistration.k8s.io", "apiservices"),
    ("create", "rbac.authorization.k8s.io", "clusterroles"),
    ("bind", "rbac.authorization.k8s.io", "clusterroles"),
    ("escalate", "rbac.authorization.k8s.io", "roles"),
    ("patch", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("delete", "", "namespaces"),
    ("update", "coordination.k8s.io", "leases"),
    ("delete", "coordination.k8s.io", "leases"),
    ("patch", "networking.k8s.io", "networkpolicies"),
    ("create", "apps", "daemonsets"),
    ("create", "batch", "jobs"),
]


async def may(admin: Api, user: str, verb: str, group: str, resource: str, namespace: str) -> bool:
    """What the API server's own authorizer says."""
    plural, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": namespace}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes},
    }
    answer = await admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=body)
    return bool(answer["status"]["allowed"])


async def test_what_the_operator_cannot_do(plane: TestPlane, namespace: str) -> None:
    install_account(plane)
    admin = await Api.connect(plane.kubeconfig)
    try:
        assert await may(admin, OPERATOR_USER, "patch", "apps", "deployments", namespace), "the question is understood"
        assert await may(admin, OPERATOR_USER, "patch", "emberline.dev", "inferenceendpoints/status", namespace)
        places = (namespace, names.SYSTEM_NAMESPACE, "kube-system", "")
        found = [
            (*entry, where) for entry in FORBIDDEN for where in places if await may(admin, OPERATOR_USER, *entry, where)
        ]
        assert not found
    finally:
        await admin.close()


# Of the API's own roles, bound in one namespace: who may do it to endpoints there.
OF_USERS: dict[tuple[str, str], set[str]] = {
    ("get", "inferenceendpoints"): {"view", "edit", "admin"},
    ("watch", "inferenceendpoints"): {"view", "edit", "admin"},
    ("create", "inferenceendpoints"): {"edit", "admin"},
    ("patch", "inferenceendpoints"): {"edit", "admin"},
    ("delete", "inferenceendpoints"): {"edit", "admin"},
    ("get", "inferenceendpoints/scale"): {"view", "edit", "admin"},
    ("patch", "inferenceendpoints/scale"): {"edit", "admin"},
    ("patch", "inferenceendpoints/status"): set(),
    ("update", "inferenceendpoints/status"): set(),
    ("update", "inferenceendpoints/finalizers"): set(),
}


async def test_the_apis_own_roles_extend_to_endpoints(plane: TestPlane, namespace: str) -> None:
    plane.apply(*yaml.safe_load_all((BASE / "user-roles.yaml").read_text()))
    roles = ("view", "edit", "admin")
    for role in roles:
        plane.kubectl("-n", namespace, "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}-user")
    admin = await Api.connect(plane.kubeconfig)

    async def who_may(verb: str, resource: str) -> set[str]:
        return {role for role in roles if await may(admin, f"{role}-user", verb, names.GROUP, resource, namespace)}

    async def is_as_told() -> bool:
        return {key: await who_may(*key) for key in OF_USERS} == OF_USERS

    try:
        # The API server joins roles a moment after they are there.
        await eventually(is_as_told, "the roles have what the table says")
        assert not await may(admin, "admin-user", "create", names.GROUP, names.ENDPOINT_PLURAL, "default")
        assert not await may(admin, "admin-user", "patch", names.GROUP, names.REGION_PLURAL, "")
    finally:
        await admin.close()


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


UNSEEN = {("emberline.dev", "inferenceendpoints/finalizers", "update")}
"""Asked for by an admission plugin that this API server does not have on, and by no request."""


def granted(role: str, namespace: str | None = None) -> set[Right]:
    (rules,) = (
        d["rules"]
        for d in yaml.safe_load_all(RIGHTS.read_text())
        if d["kind"].endswith("Role") and d["metadata"]["name"] == role and d["metadata"].get("namespace") == namespace
    )
    return {(g, r, v) for rule in rules for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}


async def test_every_right_is_used(
    plane: TestPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day in the life of the operator uses each verb of each rule, so none is there for nothing."""
    monkeypatch.setattr(idle, "POLL_S", 1.0)
    install_account(plane)
    plane.kubectl("-n", names.SYSTEM_NAMESPACE, "delete", "lease", names.OPERATOR_NAME, "--ignore-not-found")
    begin_bytes = plane.audit_file.stat().st_size
    specs = [NodeSpec(name=name, region=name[:2]) for name in ("eu-1", "eu-2", "us-1")]
    async with (
        operator_rig(plane, namespace, tmp_path) as rig,
        metrics_adapter(rig.admin, tmp_path),
        region_rig(plane, rig, specs) as regions,
        rig.gateway() as gateway,
        rig.operator(),
    ):
        await rig.claim()
        for name in ("eu", "us"):
            await regions.region(name, name.upper())
        await external_replicas_are_filled(rig)
        await sleep(rig, gateway)
        await a_start_fails(rig)
        await an_endpoint_of_two_regions_loses_one(rig, regions, gateway)
        await residency_is_enforced(rig, regions)
    roles = ((names.OPERATOR_NAME, None), (f"{names.OPERATOR_NAME}-endpoints", None),
             (names.OPERATOR_NAME, names.SYSTEM_NAMESPACE))  # fmt: skip
    all_of_them = set().union(*(granted(*role) for role in roles))
    unused = all_of_them - used_rights(plane.audit_file, OPERATOR_USER, begin_bytes)
    assert unused == UNSEEN


async def external_replicas_are_filled(rig: OperatorRig) -> None:
    await rig.endpoint("mine", scaling={"via": "External"})

    async def is_filled() -> bool:
        live = await rig.get(ENDPOINTS, "mine")
        return live is not None and "replicas" in live["spec"]

    await eventually(is_filled, "spec.replicas")


async def a_start_fails(rig: OperatorRig) -> None:
    scaling = {"via": "Operator", "initialReplicas": 1, "unschedulableTimeout": "1s"}
    await rig.endpoint("lost", scaling=scaling, placement={"nodeSelector": {"example.com/none": "here"}})
    await rig.settled("lost", "StartFailed")


async def sleep(rig: OperatorRig, gateway: PlayedGateway) -> None:
    gateway.idle_s = 3600
    await rig.endpoint("sleepy", scaling={"via": "Operator", "idleAfter": "1s"})
    await rig.settled("sleepy", "ScaledToZero")
    await rig.deployment("sleepy")
    await rig.scale("sleepy", 1)
    await rig.settled("sleepy", "Serving")
    await rig.settled("sleepy", "ScaledToZero")


async def an_endpoint_of_two_regions_loses_one(rig: OperatorRig, regions: RegionRig, gateway: PlayedGateway) -> None:
    eu, us = regions.name("eu"), regions.name("us")
    await rig.endpoint(
        "wide", scaling={"via": "HPA", "minReplicas": 2, "maxReplicas": 3}, placement={"regions": [eu, us]}
    )
    child = names.child_name("wide", us)

    async def is_made() -> bool:
        label = f"{names.LABEL_REGION}={us}"
        return all([await rig.list(kind, label) for kind in CHILDREN])

    await eventually(is_made, "objects of every kind in both regions")
    pods = await rig.pods("wide", 4)
    busy = next(pod["metadata"]["name"] for pod in pods if pod["metadata"]["labels"][names.LABEL_REGION] == eu)
    gateway.pods = {busy: 3}
    gateway.endpoints = [(rig.namespace, "wide", eu), (rig.namespace, "wide", us)]
    await rig.settled("wide", "Serving")

    async def is_costed() -> bool:
        return any(names.POD_DELETION_COST in pod["metadata"].get("annotations", {}) for pod in await rig.list(PODS))

    await eventually(is_costed, "a deletion cost", 40)
    # One of its regions, its autoscaler and its configuration go.
    change = {"placement": {"regions": [eu]}, "scaling": {"via": "Operator"}, "engine": {"maxModelLen": 512}}
    await rig.patch(ENDPOINTS, "wide", {"spec": change})

    async def is_gone() -> bool:
        found = [key for key in await rig.children() if key.partition("/")[2].startswith(child)]
        return not found and await rig.get(HPAS, names.child_name("wide", eu)) is None

    await eventually(is_gone, f"nothing of {us} and no autoscaler", 40)


async def residency_is_enforced(rig: OperatorRig, regions: RegionRig) -> None:
    (pod, *_) = [pod for pod in regions.alive("eu") if pod.node]
    await regions.label(pod.node.removesuffix(f"-{regions.word}"), "us")

    async def is_gone() -> bool:
        return pod.gone_s is not None

    await eventually(is_gone, f"the pod on {pod.node} is gone")
