"""A process node: an asyncio agent that owns a Node object and runs the pods bound to it as local processes.

It does what a kubelet does as far as Emberline's own manifests need, and is no second kubelet. Not here: images,
user ids and capabilities of a security context, a read-only root, resource limits, sidecars, Events, the kubelet's API.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from kubernetes.aio.client import ApiClient

from emberline_local.addresses import AddressPool
from emberline_local.images import LocalImage, local_images
from emberline_local.node_api import NodeApi, Object
from emberline_local.node_lease import keep_node
from emberline_local.node_spec import NodeSpec, make_node
from emberline_local.pods import HOST_ADDRESS, PodHost, PodRunner
from emberline_local.process_pod import kill_strays
from emberline_local.restarts import BackOffRule

log = logging.getLogger(__name__)

_NUM_KEPT_LOGS = 50
_STOP_GRACE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class ApiServerAddress:
    """Where pods find the API server (their `KUBERNETES_SERVICE_HOST` and `_PORT`)."""

    host: str
    port: int


class ProcessNode:
    """One node; several live in one process and share its event loop, its `ApiClient` and its `AddressPool`.

    `api` acts with the rights of a cluster administrator and stays the caller's to close. The node writes below
    `state_dir / "nodes" / spec.name`, and the output of containers below `state_dir / "logs"` (see `pod_logs`).
    """

    def __init__(
        self,
        spec: NodeSpec,
        api: ApiClient,
        *,
        state_dir: Path,
        addresses: AddressPool,
        api_server: ApiServerAddress,
        images: Mapping[str, LocalImage] | None = None,
        back_off: BackOffRule | None = None,
        stop_grace_s: float = _STOP_GRACE_S,
        refresh_s: float = 60.0,
    ) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self._api = NodeApi(api)
        self._state_dir = state_dir
        self._dir = state_dir / "nodes" / spec.name
        self._addresses = addresses
        self._environment = {
            "KUBERNETES_SERVICE_HOST": api_server.host,
            "KUBERNETES_SERVICE_PORT": str(api_server.port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(api_server.port),
        }
        self._images = local_images() if images is None else images
        self._back_off = back_off or BackOffRule()
        self._stop_grace_s = stop_grace_s
        self._refresh_s = refresh_s
        self._runners: dict[str, tuple[PodRunner, asyncio.Task[None]]] = {}
        self._old_logs: deque[Path] = deque()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; `ready` is set once the Node is registered and its pods are watched.

        On return, also by cancellation, every process of the node and its folder are gone; the Node object and the
        pods stay in the API server, as with a kubelet. Must run on the main thread's loop: the kernel kills a pod
        when the thread that started it ends.
        """
        kill_leftovers(self._dir)
        pods_dir = self._dir / "pods"
        pods_dir.mkdir(parents=True, exist_ok=True)
        # Probes are short and of many addresses: a connection is never worth keeping.
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session:
            host = PodHost(
                api=self._api,
                state_dir=self._state_dir,
                pods_dir=pods_dir,
                addresses=self._addresses,
                images=self._images,
                environment=self._environment,
                environment_of=self.spec.environment_of,
                session=session,
                back_off=self._back_off,
                refresh_s=self._refresh_s,
            )
            registered = asyncio.Event()
            node = make_node(self.spec, kind="process", address=HOST_ADDRESS)
            serving = [
                asyncio.ensure_future(keep_node(self._api, node, registered=registered)),
                asyncio.ensure_future(self._follow_pods(host, registered)),
            ]
            stopping = asyncio.ensure_future(stop.wait())
            try:
                done, _ = await asyncio.wait({stopping, *serving}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    task.result()  # these never end by themselves: tells why
            finally:
                for task in (stopping, *serving):
                    task.cancel()
                await asyncio.gather(stopping, *serving, return_exceptions=True)
                await self._shut_down()

    async def _follow_pods(self, host: PodHost, registered: asyncio.Event) -> None:
        await registered.wait()
        query = {"fieldSelector": f"spec.nodeName={self.spec.name}"}
        async for kind, item in self._api.watch("/api/v1/pods", query):
            if kind == "LISTED":
                listed = {pod["metadata"]["uid"]: pod for pod in item["items"]}
                for uid in self._runners.keys() - listed.keys():
                    self._runners[uid][0].vanish()
                for pod in listed.values():
                    self._see(host, pod)
                self.ready.set()
            elif kind == "DELETED":
                if item["metadata"]["uid"] in self._runners:
                    self._runners[item["metadata"]["uid"]][0].vanish()
            else:
                self._see(host, item)

    def _see(self, host: PodHost, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._runners:
            self._runners[uid][0].update(pod)
        else:
            runner = PodRunner(host, pod)
            runner.update(pod)
            task = asyncio.ensure_future(runner.run())
            self._runners[uid] = (runner, task)
            task.add_done_callback(lambda _: self._forget(uid))

    def _forget(self, uid: str) -> None:
        runner, task = self._runners[uid]
        if task.cancelled():
            return  # by the node's stop, which still needs it
        del self._runners[uid]
        _log_failure(task)
        self._old_logs.append(runner.logs_dir)
        while len(self._old_logs) > _NUM_KEPT_LOGS:
            shutil.rmtree(self._old_logs.popleft(), ignore_errors=True)

    async def _shut_down(self) -> None:
        tasks = [task for _, task in self._runners.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(runner.shut_down(self._stop_grace_s) for runner, _ in self._runners.values()))
        self._runners.clear()
        kill_leftovers(self._dir)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a pod's task failed", exc_info=task.exception())


def kill_leftovers(node_dir: Path) -> int:
    """Kill what a node that was itself killed left running, and remove its folder; how many processes there were.

    For a node that starts again, and for taking a cluster down whose supervisor crashed.
    """
    pods_dir = node_dir / "pods"
    uids = [entry.name for entry in pods_dir.iterdir()] if pods_dir.is_dir() else []
    num_killed = kill_strays(uids) if uids else 0
    shutil.rmtree(node_dir, ignore_errors=True)
    return num_killed
