"""Status-only nodes: Node objects whose pods are said to run, while nothing is started. For thousands of pods.

One watch and one set of workers serve all nodes. A pod becomes Running and Ready after a delay, and a deleted one goes
after another, as if it had drained. Containers are never looked at: no image, volume or command can be wrong here.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kubernetes.aio.client import ApiClient

from emberline_local.containers import timestamp
from emberline_local.node_api import STRATEGIC_MERGE, NodeApi, NodeApiError, Object, delete_finally, pod_path
from emberline_local.node_lease import keep_node
from emberline_local.node_spec import NodeSpec, make_node
from emberline_local.pod_status import ContainerView, PodView, Running, make_status

log = logging.getLogger(__name__)

_NUM_WORKERS = 16
_RETRY_S = 1.0
_RENEW_S = 20.0
_NETWORK = "127.255"


class Step(Enum):
    """What is to be done with a pod."""

    START = "start"
    REMOVE = "remove"


@dataclass(frozen=True, kw_only=True)
class Delays:
    """How long the pods of status-only nodes take."""

    ready_s: float = 0.1
    """From the binding to Ready."""
    gone_s: float = 0.1
    """From the deletion to being gone; a shorter grace period of the pod wins."""


def decide_step(pod: Mapping[str, Any], delays: Delays) -> tuple[Step, float] | None:
    """What a pod needs next and after how many seconds; None if it is as it should be."""
    metadata = pod["metadata"]
    if "deletionTimestamp" in metadata:
        return Step.REMOVE, min(delays.gone_s, float(metadata.get("deletionGracePeriodSeconds", 0)))
    if pod.get("status", {}).get("phase", "Pending") == "Pending":
        return Step.START, delays.ready_s
    return None


def make_running_status(pod: Mapping[str, Any], address: str, now: str) -> dict[str, Any]:
    """Status of a pod all of whose containers run and are ready."""
    containers = [
        ContainerView(
            name=container["name"], image=container["image"], state=Running(now), is_started=True, is_ready=True
        )
        for container in pod["spec"]["containers"]
    ]
    view = PodView(
        inits=[], containers=containers, address=address, host_address="127.0.0.1", started_at=now, is_over=False
    )
    return make_status(pod, view, {}, now)


@dataclass(order=True)
class _Due:
    at_s: float
    order: int
    uid: str = field(compare=False)
    step: Step = field(compare=False)


class StatusOnlyNodes:
    """Some nodes that start nothing. `api` acts as a cluster administrator and stays the caller's to close."""

    def __init__(self, specs: Iterable[NodeSpec], api: ApiClient, *, delays: Delays | None = None) -> None:
        self.ready = asyncio.Event()
        self._specs = {spec.name: spec for spec in specs}
        self._api = NodeApi(api)
        self._delays = delays or Delays()
        self._pods: dict[str, Object] = {}
        self._planned: set[tuple[str, Step]] = set()
        self._queue: list[_Due] = []
        self._order = itertools.count()
        self._woken = asyncio.Event()
        self._addresses = _addresses()

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; `ready` is set once the Nodes are registered and their pods are watched."""
        work: asyncio.Queue[_Due] = asyncio.Queue()
        nodes = [make_node(spec, kind="status-only", address="127.0.0.1") for spec in self._specs.values()]
        registered = [asyncio.Event() for _ in nodes]
        serving = [
            *(
                asyncio.ensure_future(keep_node(self._api, node, registered=event, renew_s=_RENEW_S))
                for node, event in zip(nodes, registered, strict=True)
            ),
            asyncio.ensure_future(self._follow_pods(registered)),
            asyncio.ensure_future(self._keep_time(work)),
            *(asyncio.ensure_future(self._work(work)) for _ in range(_NUM_WORKERS)),
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

    async def _follow_pods(self, registered: Sequence[asyncio.Event]) -> None:
        for event in registered:
            await event.wait()
        # Pods that no node has are left out by the API server.
        async for kind, item in self._api.watch("/api/v1/pods", {"fieldSelector": "spec.nodeName!="}):
            if kind == "LISTED":
                self._pods.clear()
                for pod in item["items"]:
                    self._see(pod)
                self.ready.set()
            elif kind == "DELETED":
                self._pods.pop(item["metadata"]["uid"], None)
            else:
                self._see(item)

    def _see(self, pod: Object) -> None:
        if pod["spec"]["nodeName"] not in self._specs:
            return
        uid = pod["metadata"]["uid"]
        self._pods[uid] = pod
        decided = decide_step(pod, self._delays)
        if decided is not None and (uid, decided[0]) not in self._planned:
            self._plan(uid, *decided)

    def _plan(self, uid: str, step: Step, delay_s: float) -> None:
        self._planned.add((uid, step))
        heapq.heappush(self._queue, _Due(time.monotonic() + delay_s, next(self._order), uid, step))
        self._woken.set()

    async def _keep_time(self, work: asyncio.Queue[_Due]) -> None:
        while True:
            self._woken.clear()
            now_s = time.monotonic()
            while self._queue and self._queue[0].at_s <= now_s:
                work.put_nowait(heapq.heappop(self._queue))
            try:
                async with asyncio.timeout(self._queue[0].at_s - now_s if self._queue else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _work(self, work: asyncio.Queue[_Due]) -> None:
        while True:
            due = await work.get()
            self._planned.discard((due.uid, due.step))
            pod = self._pods.get(due.uid)
            if pod is None:
                continue
            try:
                await self._act(pod, due.step)
            except NodeApiError as error:
                if error.status not in (404, 409):
                    log.warning("pod %s: %s", pod["metadata"]["name"], error)
                    self._plan(due.uid, due.step, _RETRY_S)

    async def _act(self, pod: Object, step: Step) -> None:
        match step:
            case Step.START if "deletionTimestamp" not in pod["metadata"]:
                status = make_running_status(pod, next(self._addresses), timestamp())
                body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
                path = f"{pod_path(pod)}/status"
                await self._api.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE)
            case Step.REMOVE:
                await delete_finally(self._api, pod)
            case Step.START:
                pass  # it was deleted while it waited


def _addresses() -> Iterator[str]:
    """Loopback addresses at which nothing listens, over and over."""
    for index in itertools.cycle(range(256 * 250)):
        yield f"{_NETWORK}.{1 + index // 256}.{index % 256}"
