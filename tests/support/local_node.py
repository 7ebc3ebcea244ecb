"""Process nodes for tests, and pods that tell their state by name."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberline_local.addresses import AddressPool
from emberline_local.node import ApiServerAddress, ProcessNode
from emberline_local.node_api import NodeApi, NodeApiError, pod_path
from emberline_local.node_spec import NodeSpec
from emberline_local.restarts import BackOffRule
from support.plane import TestPlane

IMAGE = "emberline/operator:dev"

# An HTTP server in a few lines, since importing http.server costs 60 ms. It answers each path with a file's content,
# `/env/NAME` with a variable; `/ready` is 200 until `/unready` was asked.
SERVER = """
import os, socket
ready = True
listener = socket.create_server((os.environ["POD_IP"], 8000))
while True:
    connection, _ = listener.accept()
    path = (connection.recv(4096).split() + [b"", b""])[1].decode()
    status, body = 200, b""
    if path == "/unready": ready = False
    elif path == "/crash": os._exit(3)
    elif path == "/ready": status = 200 if ready else 503
    elif path.startswith("/env/"): body = os.environ.get(path[5:], "").encode()
    else:
        try: body = open(path, "rb").read()
        except OSError as error: status, body = 404, str(error).encode()
    connection.sendall(b"HTTP/1.1 %d x\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % (status, len(body)) + body)
    connection.close()
"""

POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
READY = {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 1}


@dataclass(frozen=True)
class RunningNode:
    """A process node and what tests ask of it."""

    name: str
    api: NodeApi
    state_dir: Path
    namespace: str

    def pod(self, name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
        """A pod bound to this node with one container `main`."""
        filled = {"name": "main", "image": IMAGE, **container}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"colour": "blue"}},
            "spec": {
                "nodeName": self.name,
                "containers": [filled],
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
                "tolerations": [{"operator": "Exists"}],
                **spec,
            },
        }

    async def create(self, item: dict[str, Any]) -> dict[str, Any]:
        """Create a namespaced object of the core API."""
        plural = item["kind"].lower() + "s"
        return await self.api.request("POST", f"/api/v1/namespaces/{self.namespace}/{plural}", body=item)

    async def delete(self, pod: dict[str, Any], *, grace_s: int | None = None) -> None:
        """Ask for a pod's deletion."""
        body = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        await self.api.request("DELETE", pod_path(pod), body=body)

    async def wait(
        self, pod: dict[str, Any], seen: Callable[[dict[str, Any]], bool], *, timeout_s: float = 40
    ) -> dict[str, Any]:
        """The pod as soon as `seen` says so of it."""
        last: dict[str, Any] = {}
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    last = await self.api.request("GET", pod_path(pod))
                    if seen(last):
                        return last
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not seen within {timeout_s} s; the pod's status is {last.get('status')}") from None

    async def wait_gone(self, pod: dict[str, Any], *, timeout_s: float = 40) -> float:
        """Seconds until the API server no longer has the pod."""
        begin_s = time.monotonic()
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(NodeApiError):
                while True:
                    await self.api.request("GET", pod_path(pod))
                    await asyncio.sleep(0.01)
        return time.monotonic() - begin_s


def is_ready(pod: dict[str, Any]) -> bool:
    """Its condition Ready is True."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """Status of its only container; a waiting one without a reason if the node has not seen it yet."""
    statuses: list[dict[str, Any]] = pod.get("status", {}).get("containerStatuses") or [{"state": {"waiting": {}}}]
    return statuses[0]


def waiting_reason(pod: dict[str, Any]) -> str:
    """Why its container waits, or empty."""
    reason: str = container(pod)["state"].get("waiting", {}).get("reason", "")
    return reason


@asynccontextmanager
async def running_node(
    plane: TestPlane, namespace: str, state_dir: Path, *, name: str, num_taken: int = 0, **options: Any
) -> AsyncIterator[RunningNode]:
    """A process node of that name, with restarts that back off by 0.2 s and more; gone with its Node at the end.

    `num_taken` pod addresses are somebody else's.
    """
    pool = AddressPool.claim()
    for _ in range(num_taken):
        pool.take()
    stop = asyncio.Event()
    async with plane.client() as client:
        api = NodeApi(client)
        options = {"back_off": BackOffRule(base_s=0.2), "stop_grace_s": 0.2, **options}
        address = ApiServerAddress(host="127.0.0.1", port=plane.api_port)
        spec = options.pop("spec", NodeSpec(name=name))
        node = ProcessNode(spec, client, state_dir=state_dir, addresses=pool, api_server=address, **options)
        serving = asyncio.ensure_future(node.run(stop))
        try:
            await asyncio.wait_for(node.ready.wait(), 10)
            yield RunningNode(spec.name, api, state_dir, namespace)
        finally:
            stop.set()
            await asyncio.wait_for(serving, 15)
            pool.close()
            await api.request("DELETE", f"/api/v1/nodes/{spec.name}")
