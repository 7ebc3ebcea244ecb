"""A cluster for the operator's bench: control plane, nodes that only say they run, a played gateway, and the operator's process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from emberline_contract import http, metrics, names
from emberline_contract.crd import all_crds
from emberline_contract.http import DemandAnswer, EndpointDemand
from emberline_local.node_api import NodeApi
from emberline_local.plane import Plane

BASE = Path(__file__).resolve().parent.parent / "manifests" / "base"
OPERATOR = str(Path(__file__).resolve().parent / "operator_scale.py")
USER = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.OPERATOR_NAME}"
GROUP_PATH = f"/apis/{names.GROUP}/{names.VERSION}"
MERGE = "application/merge-patch+json"
NUM_NAMESPACES = 10
CHURN_NAMESPACE = "bench-churn"
AT_ONCE = 32
GATEWAY_ADDRESS = "127.0.88.1"
GATEWAY_TOKEN = "bench"
Raw = dict[str, Any]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Operator:
    """The process that is measured."""

    process: asyncio.subprocess.Process
    health_port: int

    async def num_passes(self) -> int:
        """Passes since its start; 0 while it does not answer yet."""
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.health_port}{http.METRICS}") as answer,
            ):
                text = await answer.text()
        except aiohttp.ClientError:
            return 0
        name = f"{metrics.OPERATOR_PASSES}_total{{"
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name)))

    @property
    def rss_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the operator has ended")

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Audit:
    """Answered requests of the operator since the last look."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0

    def read(self) -> list[Raw]:
        with self._file.open("rb") as log:
            log.seek(self._at)
            data = log.read()
        whole = data.rfind(b"\n") + 1
        self._at += whole
        events = [json.loads(line) for line in data[:whole].splitlines()]
        return [event for event in events if event["user"]["username"] == USER]


def is_write(event: Raw) -> bool:
    """Whether a request changed something; the Lease is renewed whatever happens."""
    return event["verb"] not in ("get", "list", "watch") and event["objectRef"]["resource"] != "leases"


class PlayedGateway:
    """A gateway that says what the bench wants of each endpoint."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []
        self.is_busy = False
        self._turn = 0

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get(http.ADMIN_DEMAND, self._demand)
        return app

    async def _demand(self, _: web.Request) -> web.Response:
        self._turn += 1
        seen = [
            EndpointDemand(
                namespace=namespace,
                name=name,
                region=names.DEFAULT_REGION,
                held=(self._turn + rank) % 3 if self.is_busy else 0,
                dispatched=20 + (self._turn * 7 + rank) % 40 if self.is_busy else 0,
                idle_s=0.0 if self.is_busy else 1.0,
            )
            for rank, (namespace, name) in enumerate(self.names)
        ]
        return web.json_response(text=DemandAnswer(uptime_s=3600.0, endpoints=seen).model_dump_json())


class Bench:
    """The cluster and what is done to it."""

    def __init__(self, plane: Plane, kubectl: Callable[..., Awaitable[str]], api: NodeApi, folder: Path) -> None:
        self.plane = plane
        self.kubectl = kubectl
        self.api = api
        self.folder = folder
        self.audit = Audit(plane.audit_file)
        self.gateway = PlayedGateway()
        self.admin_port = free_port()
        self.namespaces = [f"bench-{n}" for n in range(NUM_NAMESPACES)]

    # Preparing

    async def prepare(self) -> None:
        """CRDs, the operator's account, claims, and the gateway's pod."""
        await self._apply(all_crds().values())
        await self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        rendered = list(yaml.safe_load_all(await self.kubectl("kustomize", str(BASE))))
        kinds = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        await self._apply(d for d in rendered if d["kind"] in kinds)
        for namespace in (*self.namespaces, CHURN_NAMESPACE):
            await self.api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
            await self._claim(namespace)
        await self._account()
        await self._gateway_pod()

    async def _apply(self, documents: Iterable[Raw]) -> None:
        text = "\n---\n".join(json.dumps(document) for document in documents)
        await self.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    async def _claim(self, namespace: str) -> None:
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": "models"}
        volume = {**common, "capacity": {"storage": "1Gi"}, "claimRef": claim, "hostPath": {"path": "/nowhere"}}
        body = {"metadata": {"name": namespace}, "spec": {**volume, "persistentVolumeReclaimPolicy": "Retain"}}
        await self.api.request("POST", "/api/v1/persistentvolumes", body=body)
        spec = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": namespace}
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        await self.api.request("POST", path, body={"metadata": {"name": "models"}, "spec": spec})

    async def _account(self) -> None:
        token = await self.kubectl(
            "-n", names.SYSTEM_NAMESPACE, "create", "token", names.OPERATOR_NAME, "--duration=6h"
        )
        admin = yaml.safe_load(self.plane.kubeconfig.read_text())
        document = {
            **admin,
            "users": [{"name": "operator", "user": {"token": token.strip()}}],
            "contexts": [{"name": "b", "context": {"cluster": admin["clusters"][0]["name"], "user": "operator"}}],
            "current-context": "b",
        }
        (self.folder / "operator.kubeconfig").write_text(json.dumps(document))
        (self.folder / "token").write_text(GATEWAY_TOKEN)

    async def _gateway_pod(self) -> None:
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        spec = {
            "nodeName": "played",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "gateway", "image": "i", "securityContext": restricted}],
            "tolerations": [{"operator": "Exists"}],
        }
        metadata = {"name": "gateway", "labels": {names.LABEL_APP: names.GATEWAY_NAME}}
        path = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/pods"
        await self.api.request("POST", path, body={"metadata": metadata, "spec": spec})
        running = {"name": "gateway", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        status = {
            "phase": "Running",
            "podIP": GATEWAY_ADDRESS,
            "podIPs": [{"ip": GATEWAY_ADDRESS}],
            "containerStatuses": [{**running, "state": state}],
        }
        await self.api.request("PATCH", f"{path}/gateway/status", body={"status": status}, content_type=MERGE)

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        """Run the operator inside, ended as SIGTERM ends it."""
        told: Raw = {
            "health_port": free_port(),
            "kubeconfig": str(self.folder / "operator.kubeconfig"),
            "token": str(self.folder / "token"),
            "admin_port": self.admin_port,
        }
        log = (self.folder / "operator.log").open("ab")
        process = await asyncio.create_subprocess_exec(
            sys.executable, OPERATOR, "--operator", json.dumps(told), stdout=log, stderr=log
        )
        try:
            yield Operator(process, told["health_port"])
            if process.returncode is not None:
                raise RuntimeError(f"the operator ended: {(self.folder / 'operator.log').read_text()[-3000:]}")
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                await asyncio.wait_for(process.wait(), 60)

    # Acting

    async def each(self, items: Iterable[Any], act: Callable[[Any], Awaitable[Any]]) -> None:
        """Do something for each, some at once."""
        waiting = asyncio.Semaphore(AT_ONCE)

        async def one(item: Any) -> None:
            async with waiting:
                await act(item)

        await asyncio.gather(*(one(item) for item in items))

    async def create(self, key: tuple[str, str], **scaling: int) -> None:
        namespace, name = key
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.ENDPOINT_KIND,
            "metadata": {"name": name},
            "spec": {"model": {"source": "pvc://models/llama-3.1-8b"}, "scaling": scaling},
        }
        await self.api.request("POST", f"{GROUP_PATH}/namespaces/{namespace}/{names.ENDPOINT_PLURAL}", body=body)

    async def patch(self, key: tuple[str, str], spec: Raw) -> None:
        path = f"{GROUP_PATH}/namespaces/{key[0]}/{names.ENDPOINT_PLURAL}/{key[1]}"
        await self.api.request("PATCH", path, body={"spec": spec}, content_type=MERGE)

    async def delete(self, key: tuple[str, str]) -> None:
        await self.api.request("DELETE", f"{GROUP_PATH}/namespaces/{key[0]}/{names.ENDPOINT_PLURAL}/{key[1]}")

    async def count_ready(self, namespace: str = "") -> int:
        """Endpoints whose newest generation is Ready."""
        within = f"/namespaces/{namespace}" if namespace else ""
        listed = await self.api.request("GET", f"{GROUP_PATH}{within}/{names.ENDPOINT_PLURAL}")
        return sum(_is_ready(item) for item in listed["items"])

    async def count(self, path: str) -> int:
        return len((await self.api.request("GET", path))["items"])

    async def until(self, what: str, is_so: Callable[[], Awaitable[bool]], timeout_s: float) -> float:
        began_s = time.monotonic()
        while not await is_so():
            if time.monotonic() - began_s > timeout_s:
                raise RuntimeError(f"not within {timeout_s:g} s: {what}")
            await asyncio.sleep(0.5)
        return time.monotonic() - began_s

    async def until_quiet(self, quiet_s: float, timeout_s: float = 300) -> int:
        """Wait until the operator has written nothing for so long; gives the number of writes until then."""
        num_writes, last_s, began_s = 0, time.monotonic(), time.monotonic()
        while time.monotonic() - last_s < quiet_s:
            found = sum(is_write(event) for event in self.audit.read())
            if found:
                num_writes, last_s = num_writes + found, time.monotonic()
            if time.monotonic() - began_s > timeout_s:
                raise RuntimeError(f"the operator has written something every {quiet_s:g} s for {timeout_s:g} s")
            await asyncio.sleep(0.5)
        return num_writes


def _is_ready(endpoint: Raw) -> bool:
    status = endpoint.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    is_current = status.get("observedGeneration") == endpoint["metadata"]["generation"]
    return is_current and conditions.get("Ready", {}).get("status") == "True" and "Reconciling" not in conditions
