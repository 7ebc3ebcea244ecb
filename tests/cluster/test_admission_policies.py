"""The node agent may change labels of ours on a Node and nothing else, whatever its RBAC says; others are not concerned.

And what Pod Security admits: all our pods run where it enforces `restricted`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.aio import client
from kubernetes.aio.client.exceptions import ForbiddenException

from emberline_contract import names
from emberline_operator.cluster.kinds import REGIONS
from support.operator_rig import operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster

BASE = Path(__file__).parents[2] / "manifests" / "base"
MANIFEST = BASE / "node-labels-policy.yaml"
AGENT = f"system:serviceaccount:{names.WEIGHTS_NAMESPACE}:{names.NODE_AGENT_NAME}"
NEIGHBOUR = f"system:serviceaccount:{names.WEIGHTS_NAMESPACE}:another"
NODE = "policy-node"
REGION = names.LABEL_TOPOLOGY_REGION
WEIGHTS = f"{names.GROUP}/weights-0123456789abcdef"
RIGHTS = "policy-test-all-of-nodes"

ONLY_LABELS = "the node agent may change only labels that begin with emberline.dev/"
ONLY_METADATA = "the node agent may change nothing of a Node but its labels"
ONLY_UPDATES = "the node agent may neither create nor delete a Node, nor write its status"


def node(name: str = NODE) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {REGION: "eu", WEIGHTS: "loading"}, "annotations": {"a": "1"}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    }


def labels(**changes: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": changes}}


# A merge patch of the Node, and the words of the refusal; empty where it is allowed.
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "changes a label of ours": (labels(**{WEIGHTS: "ready"}), ""),
    "adds a label of ours": (labels(**{f"{names.GROUP}/weights-fedcba9876543210": "ready"}), ""),
    "removes a label of ours": (labels(**{WEIGHTS: None}), ""),
    "changes nothing": (labels(**{WEIGHTS: "loading"}), ""),
    "repeats a label of others": (labels(**{WEIGHTS: "ready", REGION: "eu"}), ""),
    "moves the node to another region": (labels(**{REGION: "us"}), ONLY_LABELS),
    "takes the region away": (labels(**{REGION: None}), ONLY_LABELS),
    "adds a label of others": (labels(**{"nvidia.com/gpu.product": "NVIDIA-H200"}), ONLY_LABELS),
    "adds a label without a prefix": (labels(weights="ready"), ONLY_LABELS),
    "adds a label that only looks like ours": (labels(**{f"not-{names.GROUP}/weights": "ready"}), ONLY_LABELS),
    "adds a label below ours": (labels(**{f"sub.{names.GROUP}/weights": "ready"}), ONLY_LABELS),
    "removes all labels": ({"metadata": {"labels": None}}, ONLY_LABELS),
    "changes one of ours and one of others": (labels(**{WEIGHTS: "ready", REGION: "us"}), ONLY_LABELS),
    "changes an annotation": ({"metadata": {"annotations": {"a": "2"}}}, ONLY_METADATA),
    "adds an annotation of ours": ({"metadata": {"annotations": {f"{names.GROUP}/a": "1"}}}, ONLY_METADATA),
    "removes the annotations": ({"metadata": {"annotations": None}}, ONLY_METADATA),
    "adds a finalizer": ({"metadata": {"finalizers": [f"{names.GROUP}/keep"]}}, ONLY_METADATA),
    "adds an owner": (
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "y"}]}},
        ONLY_METADATA,
    ),
    "cordons": ({"spec": {"unschedulable": True}}, ONLY_METADATA),
    "adds a taint": ({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}, ONLY_METADATA),
    "removes the taints": ({"spec": {"taints": None}}, ONLY_METADATA),
    "sets the provider": ({"spec": {"providerID": "cloud://another"}}, ONLY_METADATA),
}


@pytest.fixture(scope="module")
def installed(plane: TestPlane) -> Iterator[TestPlane]:
    """The plane with the policy, a node, and two accounts that may do anything to nodes as far as RBAC goes."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": RIGHTS},
        "rules": [{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["*"]}],
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": RIGHTS},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RIGHTS},
        "subjects": [{"kind": "User", "name": user} for user in (AGENT, NEIGHBOUR)],
    }
    plane.apply(*yaml.safe_load_all(MANIFEST.read_text()), role, binding, node())
    yield plane
    plane.kubectl("delete", "node", NODE)
    plane.kubectl("delete", "clusterrole,clusterrolebinding", RIGHTS)


def said_to(plane: TestPlane, user: str, *arguments: str, stdin: str | None = None) -> str:
    """The refusal of a kubectl command of that user that only pretends; empty if it is allowed."""
    done = plane.run_kubectl(*arguments, f"--as={user}", "--dry-run=server", stdin=stdin)
    return done.stderr if done.returncode else ""


@asynccontextmanager
async def nodes_as(plane: TestPlane, user: str) -> AsyncIterator[client.CoreV1Api]:
    """A client of that user."""
    async with plane.client() as api:
        api.set_default_header("Impersonate-User", user)
        yield client.CoreV1Api(api)


async def patch(nodes: client.CoreV1Api, change: dict[str, Any], *, of_status: bool = False) -> str:
    """The refusal of a merge patch that only pretends; empty if it is allowed."""
    call = nodes.patch_node_status if of_status else nodes.patch_node
    try:
        await call(NODE, change, dry_run="All", _content_type="application/merge-patch+json")
    except ForbiddenException as error:
        return str(json.loads(error.body)["message"])
    return ""


async def until_enforced(plane: TestPlane) -> None:
    """The API server takes up a new policy a moment after it is stored."""
    async with nodes_as(plane, AGENT) as nodes, asyncio.timeout(20):
        while ONLY_METADATA not in await patch(nodes, {"spec": {"unschedulable": True}}):  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_the_node_agent_changes_only_labels_of_ours(installed: TestPlane) -> None:
    await until_enforced(installed)
    wrong = []
    async with nodes_as(installed, AGENT) as nodes:
        for case, (change, words) in CHANGES.items():
            said = await patch(nodes, change)
            if (words not in said) if words else said:
                wrong.append(f"{case}: expected {words or 'no refusal'!r}, got {said!r}")
    assert not wrong, "\n".join(wrong)


async def test_server_side_apply_and_whole_updates_of_the_node_agent(installed: TestPlane) -> None:
    await until_enforced(installed)
    ours = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {WEIGHTS: "ready"}}}
    others = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"zone": "a"}}}
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=agent", "-f", "-")
    assert said_to(installed, AGENT, *apply, stdin=json.dumps(ours)) == ""
    assert ONLY_LABELS in said_to(installed, AGENT, *apply, stdin=json.dumps(others))
    live = json.loads(installed.kubectl("get", "node", NODE, "-o", "json"))
    live["metadata"]["labels"][WEIGHTS] = "ready"
    assert said_to(installed, AGENT, "replace", "-f", "-", stdin=json.dumps(live)) == ""
    live["spec"]["taints"] = []
    assert ONLY_METADATA in said_to(installed, AGENT, "replace", "-f", "-", stdin=json.dumps(live))


async def test_the_node_agent_creates_and_deletes_no_node_and_writes_no_status(installed: TestPlane) -> None:
    await until_enforced(installed)
    create = said_to(installed, AGENT, "create", "-f", "-", stdin=json.dumps(node("policy-node-2")))
    assert ONLY_UPDATES in create
    assert ONLY_UPDATES in said_to(installed, AGENT, "delete", "node", NODE)
    status = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
    async with nodes_as(installed, AGENT) as nodes:
        assert ONLY_UPDATES in await patch(nodes, status, of_status=True)


async def test_others_are_not_concerned(installed: TestPlane) -> None:
    await until_enforced(installed)
    async with nodes_as(installed, NEIGHBOUR) as nodes:
        for change in ({"spec": {"unschedulable": True}}, labels(**{REGION: "us"})):
            assert await patch(nodes, change) == ""
    assert said_to(installed, NEIGHBOUR, "delete", "node", NODE) == ""


# Pod Security.

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def refusal_of_pod(plane: TestPlane, namespace: str, spec: dict[str, Any]) -> str:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": namespace}, "spec": spec}
    done = plane.run_kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    return done.stderr if done.returncode else ""


def test_pods_of_operator_and_gateway_are_admitted_where_pod_security_is_restricted(
    plane: TestPlane, namespace: str
) -> None:
    plane.kubectl("label", "namespace", namespace, *(f"{key}={value}" for key, value in RESTRICTED.items()))
    specs = {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for file in ("operator.yaml", "gateway.yaml")
        for document in yaml.safe_load_all((BASE / file).read_text())
        if document["kind"] == "Deployment"
    }
    assert specs.keys() == {names.OPERATOR_NAME, names.GATEWAY_NAME}
    for name, spec in specs.items():
        plane.kubectl("create", "serviceaccount", name, "-n", namespace)
        assert refusal_of_pod(plane, namespace, spec) == ""
        spec["hostNetwork"] = True
        assert "violates PodSecurity" in refusal_of_pod(plane, namespace, spec), (
            "the check sees a pod that it must refuse"
        )


async def test_pods_of_endpoints_are_admitted_where_pod_security_is_restricted(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    plane.kubectl("label", "namespace", namespace, *(f"{key}={value}" for key, value in RESTRICTED.items()))
    region = f"psa-{namespace[-5:]}"
    pool = {"name": "big", "nodeSelector": {"pool": "big"}, "computeCapability": "9.0", "memory": "80Gi"}
    body = {"apiVersion": names.API_VERSION, "kind": names.REGION_KIND, "metadata": {"name": region}}
    async with operator_rig(plane, namespace, tmp_path) as rig, rig.operator():
        await rig.create(REGIONS, {**body, "spec": {"gpuPools": [pool]}})
        await rig.claim()
        always = {"minReplicas": 1, "maxReplicas": 1}
        await rig.endpoint(
            "cpu", scaling=always, podTemplate={"sharedMemory": "64Mi", "env": [{"name": "A", "value": "1"}]}
        )
        model = {"source": "pvc://models/tiny", "parameters": "1B"}
        await rig.endpoint(
            "gpu", scaling=always, accelerator={"kind": "Nvidia"}, model=model, placement={"regions": [region]}
        )
        # The Pod Security admission judges pods, not Deployments: they are really created.
        for name in ("cpu", "gpu"):
            await rig.pods(name)
        await rig.delete(REGIONS, region)
