"""What `up` puts into a fresh control plane: CRDs, operator and gateway, and the volume with the model.

The makers are pure; `Cluster` does the I/O, by kubectl where objects of many kinds are applied.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from emberline_contract import names
from emberline_local.errors import ClusterError
from emberline_local.node_api import NodeApi, NodeApiError
from emberline_local.node_spec import LABEL_NODE_KIND

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, which holds `manifests/`."""
OVERLAY = ROOT / "manifests" / "overlays" / "local"

MODELS_NAMESPACE = "default"
MODELS_CLAIM = "models"

Object = dict[str, Any]
_POLL_S = 0.2
_CANNOT_START = ("ErrImagePull", "ImagePullBackOff", "CreateContainerConfigError", "CreateContainerError")
_NUM_CRASHES = 3
_PATIENCE_S = 5.0
"""What a pod needs may come a moment after it, such as its namespace's `kube-root-ca.crt`."""
_FIRST_KINDS = ("Namespace", "CustomResourceDefinition")


def make_models_volume(folder: Path) -> list[Object]:
    """A PersistentVolume over a folder of this machine and the claim `models` that is bound to it and to nothing else."""
    name = f"{MODELS_NAMESPACE}-{MODELS_CLAIM}"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    size = "100Gi"  # demanded by the API, and never looked at
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **common,
            "capacity": {"storage": size},
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": str(folder)},
            "claimRef": {"namespace": MODELS_NAMESPACE, "name": MODELS_CLAIM},
            # Every node of a local cluster sees this machine's files.
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]}
                    ]
                }
            },
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": MODELS_CLAIM, "namespace": MODELS_NAMESPACE},
        "spec": {**common, "volumeName": name, "resources": {"requests": {"storage": size}}},
    }
    return [volume, claim]


def for_this_machine(documents: Iterable[Object], url: str) -> list[Object]:
    """The manifests with the operator's EMBERLINE_PUBLIC_URL set, and with all pods on nodes that really run them.

    Raises ClusterError if there is no operator in them.
    """
    changed = [json.loads(json.dumps(document)) for document in documents]
    deployments = [document for document in changed if document["kind"] == "Deployment"]
    if names.OPERATOR_NAME not in (deployment["metadata"]["name"] for deployment in deployments):
        raise ClusterError(f"the manifests hold no Deployment {names.OPERATOR_NAME}; restore manifests/base")
    for deployment in deployments:
        pod = deployment["spec"]["template"]["spec"]
        pod["nodeSelector"] = {**pod.get("nodeSelector", {}), LABEL_NODE_KIND: "process"}
        if deployment["metadata"]["name"] == names.OPERATOR_NAME:
            for container in pod["containers"]:
                others = [entry for entry in container.get("env", ()) if entry["name"] != names.ENV_PUBLIC_URL]
                container["env"] = [*others, {"name": names.ENV_PUBLIC_URL, "value": url}]
    return changed


def in_order(documents: Iterable[Object]) -> list[Object]:
    """What others need comes first; else as given."""
    return sorted(documents, key=lambda d: d["kind"] not in _FIRST_KINDS)


def unavailable(deployments: Iterable[Object]) -> list[str]:
    """Names of the Deployments that do not have all their replicas available, each with how many it has."""
    waiting = []
    for deployment in deployments:
        metadata, wanted, status = deployment["metadata"], deployment["spec"]["replicas"], deployment.get("status", {})
        is_seen = status.get("observedGeneration", 0) >= metadata["generation"]
        num_available = status.get("availableReplicas", 0) if is_seen else 0
        if not is_seen or num_available < wanted or status.get("updatedReplicas", 0) < wanted:
            waiting.append(f"{metadata['name']} {num_available}/{wanted}")
    return waiting


def pod_troubles(pods: Iterable[Object]) -> list[str]:
    """A sentence for each pod that is not ready: what it waits for, or how it last ended."""
    found = []
    for pod in pods:
        name, status = pod["metadata"]["name"], pod.get("status", {})
        for container in status.get("containerStatuses", ()):
            if container.get("ready"):
                continue
            ended = container.get("lastState", {}).get("terminated")
            state = container.get("state", {}).get("waiting") or ended or {}
            words = [state.get("reason", "not ready"), state.get("message", "")]
            line = f"{name}/{container['name']}: {' '.join(filter(None, words))}"
            if ended:
                line += f"; see `emberline-local logs {pod['metadata'].get('namespace', 'default')}/{name}`"
            found.append(line)
        if not status.get("containerStatuses"):
            unmet = [c for c in status.get("conditions", ()) if c["status"] != "True" and c.get("message")]
            found.append(f"{name}: {unmet[0]['message'] if unmet else status.get('phase', 'not seen by a node')}")
    return found


def is_established(crd: Object) -> bool:
    """Whether a CRD is served."""
    conditions = crd.get("status", {}).get("conditions") or ()  # null in a CRD that was made a moment ago
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def is_hopeless(pod: Object) -> bool:
    """Whether waiting for the pod is in vain: it crashes again and again, or cannot be started as it is written."""
    for container in pod.get("status", {}).get("containerStatuses", ()):
        reason = container.get("state", {}).get("waiting", {}).get("reason")
        if reason in _CANNOT_START or (reason == "CrashLoopBackOff" and container["restartCount"] >= _NUM_CRASHES):
            return True
    return False


class Cluster:
    """A running control plane, as its administrator acts on it."""

    def __init__(self, program: Path, kubeconfig: Path, api: NodeApi) -> None:
        self._program = program
        self._kubeconfig = kubeconfig
        self._api = api

    async def render(self, folder: Path) -> list[Object]:
        """What `kubectl kustomize` makes of a folder."""
        text = await self._kubectl("kustomize", str(folder))
        return [document for document in yaml.safe_load_all(text) if document]

    async def apply(self, documents: Iterable[Object]) -> None:
        """Server-side apply, under strict validation."""
        text = "\n---\n".join(json.dumps(document) for document in in_order(documents))
        await self._kubectl(
            "apply", "--server-side", "--force-conflicts", "--field-manager=emberline-local", "-f", "-", stdin=text
        )

    async def wait_until_established(self) -> None:
        """Returns when every CRD is served, which is some moments after it was applied."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        while True:
            if all(is_established(crd) for crd in await self._list(path)):
                return
            await asyncio.sleep(_POLL_S)

    async def services(self, namespace: str) -> list[Object]:
        """Services of a namespace."""
        return await self._list(f"/api/v1/namespaces/{namespace}/services")

    async def wait_until_available(self, namespace: str, timeout_s: float, report: Callable[[str], None]) -> None:
        """Returns when every Deployment of the namespace is available. Raises ClusterError with what is in the way."""
        deployments, pods = f"/apis/apps/v1/namespaces/{namespace}/deployments", f"/api/v1/namespaces/{namespace}/pods"
        loop = asyncio.get_running_loop()
        told: list[str] = []
        hopeful_at_s = loop.time()
        try:
            async with asyncio.timeout(timeout_s):
                while waiting := unavailable(await self._list(deployments)):
                    if waiting != told:
                        told = waiting
                        report(", ".join(waiting))
                    hopeless = [pod for pod in await self._list(pods) if is_hopeless(pod)]
                    if not hopeless:
                        hopeful_at_s = loop.time()
                    elif loop.time() > hopeful_at_s + _PATIENCE_S:
                        raise ClusterError("\n".join(["a pod does not start:", *pod_troubles(hopeless)]))
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise ClusterError(
                "\n".join(
                    [f"after {timeout_s:.0f} s not available: {', '.join(told)}", *pod_troubles(await self._list(pods))]
                )
            ) from None

    async def _list(self, path: str) -> list[Object]:
        try:
            return list((await self._api.request("GET", path))["items"])
        except NodeApiError as error:
            raise ClusterError(f"the API server does not answer GET {path}: {error}") from error

    async def _kubectl(self, *args: str, stdin: str = "") -> str:
        process = await asyncio.create_subprocess_exec(
            str(self._program),
            "kubectl",
            "--kubeconfig",
            str(self._kubeconfig),
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await process.communicate(stdin.encode())
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            raise ClusterError(f"`kubectl {args[0]}` ended with code {process.returncode}:\n{errors.decode().strip()}")
        return output.decode()
