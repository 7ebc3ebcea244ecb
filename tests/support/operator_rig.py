"""The operator in the test's own loop, under its own ServiceAccount and nothing but its own RBAC, against a real API server.

Tests play what is not there: kubelets (pods are bound and given a status by hand) and gateways (an admin port each).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from aiohttp import web

from emberline_contract import http, names
from emberline_contract.http import CloseAnswer, CloseRequest, CloseState, DemandAnswer, EndpointDemand
from emberline_local.node_options import GPUS
from emberline_operator import main
from emberline_operator.cluster.api import APPLY, Api
from emberline_operator.cluster.kinds import CHILDREN, CLAIMS, DEPLOYMENTS, ENDPOINTS, NODES, PODS, REGIONS, Kind
from emberline_operator.errors import ConflictError, NotFoundError
from emberline_operator.settings import Install, LeaseTimes, Settings
from support.audit import OPERATOR_USER
from support.plane import TestPlane

Raw = dict[str, Any]
T = TypeVar("T")
BASE = Path(__file__).parents[2] / "manifests" / "base"
ACCOUNT_KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
VOLUMES = "/api/v1/persistentvolumes"
_octets = itertools.count(11)


async def eventually(read: Callable[[], Awaitable[T | None]], what: str, timeout_s: float = 20.0) -> T:
    """The first true thing that `read` gives."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = await read()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(0.05)


def condition(endpoint: Raw, kind: str) -> Raw:
    """One condition of an endpoint; empty if it is not there."""
    conditions: list[Raw] = endpoint.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def endpoint_yaml(name: str, namespace: str, **spec: Any) -> Raw:
    """An InferenceEndpoint of a tiny model on CPUs; keyword arguments replace parts of the spec."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.ENDPOINT_KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"model": {"source": "pvc://models/tiny"}, "accelerator": {"kind": "Cpu"}, **spec},
    }


@functools.cache
def install_account(plane: TestPlane) -> Path:
    """Apply namespace, ServiceAccount and RBAC of manifests/base, once a session; gives a kubeconfig of that account."""
    documents = yaml.safe_load_all(plane.kubectl("kustomize", str(BASE)))
    wanted = [
        document
        for document in documents
        if document["kind"] == "Namespace"
        or (document["kind"] in ACCOUNT_KINDS
            and document["metadata"]["labels"].get(names.LABEL_APP) == names.OPERATOR_NAME)
    ]  # fmt: skip
    assert {document["kind"] for document in wanted} == {"Namespace", *ACCOUNT_KINDS}
    plane.apply(*wanted)
    return kubeconfig_of(plane, names.OPERATOR_NAME)


def kubeconfig_of(plane: TestPlane, account: str, namespace: str = names.SYSTEM_NAMESPACE) -> Path:
    """A kubeconfig with nothing but a token of that ServiceAccount."""
    token = plane.kubectl("-n", namespace, "create", "token", account).strip()
    cluster = {"server": f"https://127.0.0.1:{plane.api_port}", "certificate-authority": str(plane.ca_file)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "plane", "cluster": cluster}],
        "users": [{"name": "operator", "user": {"token": token}}],
        "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "operator"}}],
        "current-context": "plane",
    }
    path = plane.state_dir / f"{namespace}-{account}.kubeconfig"
    path.write_text(json.dumps(document))
    return path


@dataclass
class PlayedGateway:
    """A gateway's pod and admin port, saying what the test wants."""

    name: str
    address: str
    namespace: str
    """What is asked about other namespaces (what earlier tests left) is answered and not recorded."""
    idle_s: float = 0.0
    held: int = 0
    busy: str = ""
    uptime_s: float = 3600.0
    token: str = "played-token"
    requests: list[CloseRequest] = field(default_factory=list)
    endpoints: list[tuple[str, str, str]] = field(default_factory=list)
    """Namespace, name and region of what has been called; others are unknown to it."""
    pods: dict[str, int] = field(default_factory=dict)
    """Requests at each engine, for every endpoint that has been called."""
    on_close: Callable[[], Awaitable[None]] | None = None

    @property
    def closes(self) -> list[CloseRequest]:
        return [request for request in self.requests if not request.reopen]

    @property
    def reopens(self) -> list[CloseRequest]:
        return [request for request in self.requests if request.reopen]

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(http.ADMIN_DEMAND, self._demand)
        app.router.add_post(http.ADMIN_CLOSE, self._close)
        return app

    def _check(self, request: web.Request) -> None:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized

    async def _demand(self, request: web.Request) -> web.Response:
        self._check(request)
        seen = [
            EndpointDemand(
                namespace=ns,
                name=name,
                region=region,
                held=self.held,
                held_s=5.0 if self.held else 0.0,
                dispatched=sum(self.pods.values()),
                idle_s=self.idle_s,
                pods=self.pods,
            )
            for ns, name, region in self.endpoints
        ]
        return web.json_response(text=DemandAnswer(uptime_s=self.uptime_s, endpoints=seen).model_dump_json())

    async def _close(self, request: web.Request) -> web.Response:
        self._check(request)
        close = CloseRequest.model_validate_json(await request.text())
        if close.namespace != self.namespace:
            return web.json_response(text=CloseAnswer(state=CloseState.BUSY, epoch=close.epoch).model_dump_json())
        self.requests.append(close)
        if close.reopen:
            state = CloseState.OPEN
        else:
            state = CloseState.BUSY if self.busy else CloseState.CLOSED
            if self.on_close is not None:
                await self.on_close()
        return web.json_response(text=CloseAnswer(state=state, epoch=close.epoch, reason=self.busy).model_dump_json())


@dataclass
class OperatorRig:
    """One namespace, an administrator's connection and what an operator needs to run."""

    plane: TestPlane
    admin: Api
    namespace: str
    settings: Settings
    volumes: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def operator(self, **changes: Any) -> AsyncIterator[None]:
        """Run an operator inside; leaving it stops it as SIGTERM does. An operator that ends by itself fails the test."""
        stop, ready = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(main.run(replace(self.settings, **changes), stop=stop, ready=ready))
        waiting = asyncio.create_task(ready.wait())
        async with asyncio.timeout(20):
            await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await running
        try:
            yield
            assert not running.done(), "the operator ended by itself"
        finally:
            stop.set()
            async with asyncio.timeout(25):
                await running

    # Objects.

    async def create(self, kind: Kind, body: Raw) -> Raw:
        namespace = self.namespace if kind.is_namespaced else ""
        return await self.admin.request("POST", kind.path(namespace), body=body)

    async def endpoint(self, name: str, **spec: Any) -> Raw:
        return await self.create(ENDPOINTS, endpoint_yaml(name, self.namespace, **spec))

    async def claim(self, name: str = "models", *, bound: bool = True) -> None:
        """A claim, and with `bound` a volume made for it."""
        volume = f"{self.namespace}-{name}"
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        if bound:
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": self.namespace, "name": name}
            spec = {**common, "capacity": {"storage": "1Gi"}, "claimRef": claim, "hostPath": {"path": "/nowhere"}}
            body = {"metadata": {"name": volume}, "spec": {**spec, "persistentVolumeReclaimPolicy": "Retain"}}
            await self.admin.request("POST", VOLUMES, body=body)
            self.volumes.append(volume)
        spec = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume}
        await self.create(CLAIMS, {"metadata": {"name": name}, "spec": spec})

    async def region(self, name: str, **labels: str) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.REGION_KIND,
            "metadata": {"name": name},
            "spec": {"nodeSelector": labels} if labels else {},
        }
        await self.admin.request("POST", REGIONS.path(), body=body)

    @asynccontextmanager
    async def node(self, name: str, *, gpus: str = "", **labels: str) -> AsyncIterator[str]:
        """A Ready node of that name and labels while inside, with the GPUs of a word of `emberline-local`'s; nothing runs there.

        Its name is made unique to the test. Without a kubelet it stays Ready for 40 s.
        """
        unique = f"{self.namespace}-{name}"
        kind = GPUS.get(gpus)
        own = {"kubernetes.io/hostname": unique, **(kind.labels if kind else {}), **labels}
        await self.admin.request("POST", NODES.path(), body={"metadata": {"name": unique, "labels": own}})
        size = {"cpu": "64", "memory": "512Gi", "pods": "110", **(kind.capacity if kind else {})}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "Played", "message": "",
                 "lastHeartbeatTime": now, "lastTransitionTime": now}  # fmt: skip
        status = {"capacity": size, "allocatable": size, "conditions": [ready]}
        try:
            path = NODES.path("", unique, "status")
            await self.admin.request("PATCH", path, body={"status": status}, content_type=STRATEGIC)
            yield unique
        finally:
            await self.admin.request("DELETE", NODES.path("", unique))

    async def get(self, kind: Kind, name: str) -> Raw | None:
        namespace = self.namespace if kind.is_namespaced else ""
        try:
            return await self.admin.request("GET", kind.path(namespace, name))
        except NotFoundError:
            return None

    async def list(self, kind: Kind, selector: str = "") -> list[Raw]:
        query = [("labelSelector", selector)] if selector else []
        page = await self.admin.request("GET", kind.path(self.namespace), query=query)
        items: list[Raw] = page["items"]
        return items

    async def patch(self, kind: Kind, name: str, body: Raw, subresource: str = "", content_type: str = MERGE) -> Raw:
        path = kind.path(self.namespace, name, subresource)
        return await self.admin.request("PATCH", path, body=body, content_type=content_type)

    async def delete(self, kind: Kind, name: str, **options: Any) -> None:
        namespace = self.namespace if kind.is_namespaced else ""
        await self.admin.request("DELETE", kind.path(namespace, name), body=options or None)

    async def apply(self, body: Raw, manager: str = "kubectl") -> Raw:
        path = DEPLOYMENTS if body["kind"] == "Deployment" else ENDPOINTS
        return await self.admin.request(
            "PATCH",
            path.path(self.namespace, body["metadata"]["name"]),
            body=body,
            query=[("fieldManager", manager), ("force", "true")],
            content_type=APPLY,
        )

    async def children(self) -> list[str]:
        """Kind/name of all children in the namespace."""
        found = []
        for kind in CHILDREN:
            found += [f"{kind.kind}/{o['metadata']['name']}" for o in await self.list(kind, names.LABEL_ENDPOINT)]
        return sorted(found)

    async def versions(self) -> dict[str, str]:
        """resourceVersion of every endpoint and child of the namespace."""
        found = {}
        for kind in (ENDPOINTS, *CHILDREN):
            for obj in await self.list(kind, "" if kind is ENDPOINTS else names.LABEL_ENDPOINT):
                found[f"{kind.kind}/{obj['metadata']['name']}"] = obj["metadata"]["resourceVersion"]
        return found

    async def settled(self, name: str, reason: str, timeout_s: float = 20.0) -> Raw:
        """The endpoint once its Ready condition has that reason at its newest generation and nothing is rolled out."""

        async def read() -> Raw | None:
            endpoint = await self.get(ENDPOINTS, name)
            assert endpoint is not None
            ready = condition(endpoint, "Ready")
            is_current = endpoint.get("status", {}).get("observedGeneration") == endpoint["metadata"]["generation"]
            fits = ready.get("reason") == reason and is_current and not condition(endpoint, "Reconciling")
            return endpoint if fits else None

        try:
            return await eventually(read, f"endpoint {name} Ready with reason {reason}", timeout_s)
        except AssertionError as error:
            error.add_note(f"it is {json.dumps(((await self.get(ENDPOINTS, name)) or {}).get('status'), indent=1)}")
            raise

    async def deployment(self, name: str, region: str = names.DEFAULT_REGION) -> Raw:
        """The endpoint's Deployment, once replicas have been handed over."""

        async def read() -> Raw | None:
            live = await self.get(DEPLOYMENTS, names.child_name(name, region))
            return live if live and not owns_replicas(live, names.OPERATOR_MANAGER) else None

        return await eventually(read, f"the Deployment of {name} with its replicas handed over")

    async def scale(self, name: str, replicas: int) -> None:
        """As the gateway or a user scales."""
        child = names.child_name(name, names.DEFAULT_REGION)
        await self.patch(DEPLOYMENTS, child, {"spec": {"replicas": replicas}}, "scale")

    # Pods.

    async def pods(self, name: str, count: int = 1) -> list[Raw]:
        """The endpoint's pods that are not being deleted, once there are so many."""

        async def read() -> list[Raw] | None:
            listed = await self.list(PODS, f"{names.LABEL_ENDPOINT}={name}")
            alive = [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]
            return alive if len(alive) == count else None

        return await eventually(read, f"{count} pods of {name}")

    async def set_pod(self, pod: Raw, *, ready: bool = False, since: str = "", **container: Any) -> None:
        """Play the kubelet: bind the pod and report on its container."""
        name, now = pod["metadata"]["name"], since or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if not pod["spec"].get("nodeName"):
            # A node of its own: the pod collector removes pods of a node that it has long known to be missing.
            node = f"played-{name}"
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            try:
                await self.admin.request("POST", PODS.path(self.namespace, name, "binding"), body=body)
            except ConflictError:
                # Where the test has a node, the scheduler may have been faster.
                node = (await self.admin.request("GET", PODS.path(self.namespace, name)))["spec"]["nodeName"]
            pod["spec"]["nodeName"] = node
        state = container.pop("state", {"running": {"startedAt": now}})
        status = {
            "name": names.ENGINE_CONTAINER, "image": "i", "imageID": "", "ready": ready, "restartCount": 0,
            "state": state, **container,
        }  # fmt: skip
        body = {
            "status": {
                "phase": "Running",
                "podIP": "127.0.0.9",
                "podIPs": [{"ip": "127.0.0.9"}],
                "conditions": [
                    {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now},
                    {"type": "ContainersReady", "status": "True" if ready else "False", "lastTransitionTime": now},
                ],
                "containerStatuses": [status],
            }
        }
        await self.patch(PODS, name, body, "status", STRATEGIC)

    async def end_pods(self, name: str) -> None:
        """Play the kubelet: pods that are being deleted end at once."""
        for pod in await self.list(PODS, f"{names.LABEL_ENDPOINT}={name}"):
            if "deletionTimestamp" in pod["metadata"]:
                await self.delete(PODS, pod["metadata"]["name"], gracePeriodSeconds=0)

    # Gateways.

    @asynccontextmanager
    async def gateway(self, name: str = "", *, answers: bool = True, **state: Any) -> AsyncIterator[PlayedGateway]:
        """A gateway's pod; with `answers`, its admin port too."""
        played = PlayedGateway(
            name or f"played-gateway-{next(_octets)}", f"127.0.77.{next(_octets)}", self.namespace, **state
        )
        runner = web.AppRunner(played.app(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        if answers:
            await web.TCPSite(runner, played.address, self.settings.gateway_admin_port).start()
        path = PODS.path(names.SYSTEM_NAMESPACE)
        await self.admin.request("POST", path, body=_gateway_pod(played.name))
        status = {
            "phase": "Running",
            "podIP": played.address,
            "podIPs": [{"ip": played.address}],
            "containerStatuses": [
                {"name": "gateway", "image": "i", "imageID": "", "ready": True, "restartCount": 0,
                 "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
            ],
        }  # fmt: skip
        await self.admin.request(
            "PATCH", f"{path}/{played.name}/status", body={"status": status}, content_type=STRATEGIC
        )
        try:
            yield played
        finally:
            options = {"gracePeriodSeconds": 0}
            await self.admin.request("DELETE", f"{path}/{played.name}", body=options)
            await runner.cleanup()


def owns_replicas(live: Raw, manager: str) -> bool:
    """Whether a manager owns spec.replicas, by whatever operation."""
    return any(
        entry["manager"] == manager and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})
        for entry in live["metadata"]["managedFields"]
    )


def audit_of(plane: TestPlane, namespace: str, user: str) -> Iterator[Raw]:
    """Finished requests of a user about a namespace, from the audit log."""
    for line in plane.audit_file.read_text().splitlines():
        event = json.loads(line)
        if event["stage"] != "ResponseComplete" or event["user"]["username"] != user:
            continue
        if event.get("objectRef", {}).get("namespace") == namespace:
            yield event


def writes_of_operator(plane: TestPlane, namespace: str) -> list[str]:
    """Verb and object of every write of the operator in a namespace."""
    return [
        f"{event['verb']} {event['objectRef']['resource']}/{event['objectRef'].get('subresource', '')}"
        for event in audit_of(plane, namespace, OPERATOR_USER)
        if event["verb"] not in ("get", "list", "watch")
    ]


@asynccontextmanager
async def operator_rig(plane: TestPlane, namespace: str, folder: Path) -> AsyncIterator[OperatorRig]:
    """A rig for one test."""
    kubeconfig = install_account(plane)
    token = folder / "token"
    token.write_text("played-token\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        admin_port = free.getsockname()[1]
    settings = Settings(
        install=Install("emberline/runtime:dev", "http://127.0.0.1:8080"),
        health_port=0,
        kubeconfig=kubeconfig,
        admin_token_path=token,
        gateway_admin_port=admin_port,
        resync_s=60,
        # One after another in the same cluster: the next one need not wait long to see that the last has gone.
        lease=LeaseTimes(retry_s=0.2),
    )
    admin = await Api.connect(plane.kubeconfig)
    try:
        rig = OperatorRig(plane, admin, namespace, settings)
        yield rig
        # Later operators of the same session shall find nothing of this test.
        await admin.request("DELETE", ENDPOINTS.path(namespace))
        for volume in rig.volumes:
            await admin.request("DELETE", f"{VOLUMES}/{volume}")
    finally:
        await admin.close()


def _gateway_pod(name: str) -> Raw:
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "metadata": {"name": name, "labels": {names.LABEL_APP: names.GATEWAY_NAME}},
        "spec": {
            "nodeName": f"played-{name}",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "gateway", "image": "i", "securityContext": restricted}],
        },
    }
