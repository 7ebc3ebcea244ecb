"""One endpoint on a real API server whose operator is run pass by pass, cut off after any write and left with old news.

Everybody else is played: gateways, kubelets, the autoscaler's writes, users. Every write of the operator that moves replicas is
judged when it happens, by what the operator had seen and by what is really there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from emberline_contract import names
from emberline_contract.http import CloseRequest
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.cluster.api import APPLY, JSON, Api
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import (
    API_SERVICES,
    CHILDREN,
    DEPLOYMENTS,
    ENDPOINTS,
    HPAS,
    NODES,
    PODS,
    REGIONS,
)
from emberline_operator.cluster.writes import Writer
from emberline_operator.errors import ClusterError, ConflictError, NotFoundError, RefusedError
from emberline_operator.plan import via
from emberline_operator.plan.actions import Notice
from emberline_operator.plan.replicas import others_own_replicas
from emberline_operator.plan.start import recorded_start
from emberline_operator.plan.via import Via, choose_via
from emberline_operator.reconcile.observe import Remembered, observe
from emberline_operator.reconcile.passes import Reconciler
from emberline_operator.settings import Install
from emberline_operator.snapshot import Demand, Features, GatewayView, Json, Snapshot

Raw = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
OUR_SERVICE = dict(zip(("namespace", "name"), via.OUR_SERVICE.split("/"), strict=True))


class CrashError(Exception):
    """The operator's process ends here."""


@dataclass
class PlayedGateways:
    """All gateways as one."""

    clock: Any
    held: dict[str, int] = field(default_factory=dict)
    dispatched: dict[str, int] = field(default_factory=dict)
    last_active: datetime | None = None
    is_silent: bool = False
    closed: str = ""
    """Region that is closed now."""
    arrives_while_closing: bool = False

    def touch(self) -> None:
        self.last_active = self.clock()

    def unfinished(self, region: str) -> int:
        return self.held.get(region, 0) + self.dispatched.get(region, 0)

    async def demand(self, namespace: str, name: str, region: str) -> Demand:
        if self.is_silent:
            return Demand((), ("gw-1: no answer",))
        active = self.last_active or self.clock() - timedelta(hours=1)
        idle_s = 0.0 if self.unfinished(region) else (self.clock() - active).total_seconds()
        held = self.held.get(region, 0)
        view = GatewayView("gw-1", self.unfinished(region), idle_s, True, held, held_s=5.0 if held else 0.0)
        return Demand((view,))

    async def close(self, request: CloseRequest) -> str:
        if self.is_silent:
            return "gw-1: no answer"
        if self.unfinished(request.region):
            return "gw-1 is busy"
        self.closed = request.region
        if self.arrives_while_closing:
            self.held[request.region] = self.held.get(request.region, 0) + 1
        return ""

    async def reopen(self, request: CloseRequest) -> None:
        self.closed = ""


class Mute:
    """Events are another test's."""

    async def tell(self, endpoint: Json, notice: Notice) -> None: ...


class WatchedApi:
    """The operator's connection: its writes are counted, judged, and end after so many."""

    def __init__(self, api: Api, world: World) -> None:
        self._api = api
        self._world = world
        self.writes_left: int | None = None
        self.num_writes = 0
        """Besides status."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = JSON,
    ) -> Json:
        if method == "GET":
            return await self._api.request(method, path, query=query)
        if self.writes_left is not None:
            if self.writes_left == 0:
                raise CrashError
            self.writes_left -= 1
        is_deployment = "/deployments/" in path and method == "PATCH"
        before = await self._world.at(path.removesuffix("/scale")) if is_deployment else None
        hpas = await self._world.hpas() if is_deployment else []
        answer = await self._api.request(method, path, body=body, query=query, content_type=content_type)
        if not path.endswith("/status"):
            self.num_writes += 1
        if is_deployment:
            child = path.removesuffix("/scale").rsplit("/", 1)[1]
            had = None if before is None else before["spec"]["replicas"]
            has, region = answer["spec"].get("replicas", 0), child.partition("--")[2]
            if "replicas" not in (body or {})["spec"] and others_own_replicas(answer):
                # Whoever owns the number may have moved it at the same moment: the real autoscaler does.
                had = has
            self._world.judge(region, had, has, hpas, is_guarded=_is_guarded(path, body or {}))
        return answer


@dataclass
class World:
    """The endpoint and everybody around it."""

    api: Api
    namespace: str
    name: str
    regions: tuple[str, str]
    """Two InferenceRegions of the test's own."""

    def __post_init__(self) -> None:
        self.offset = timedelta()
        self.gateways = PlayedGateways(self.now)
        self.key = (self.namespace, self.name)
        self.metrics = "none"
        self.wrong: list[str] = []
        self.history: list[str] = []
        self._version = 0
        self.restart()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    # The operator.

    def restart(self) -> None:
        """A new process: no memory, and caches that have yet to be filled."""
        self.caches = Caches([self.namespace])
        self.watched = WatchedApi(self.api, self)
        writer = Writer(cast(Api, self.watched), self.caches, lambda kind, verb: None)
        install = Install("emberline/runtime:dev", "http://127.0.0.1:8080")
        self.reconciler = Reconciler(self.caches, writer, self.gateways, Mute(), install, self.now)
        self.is_filled = False

    async def catch_up(self) -> None:
        """What the watches have yet to tell."""
        await asyncio.gather(*(self.caches.refresh(self.api, kind) for kind in (ENDPOINTS, REGIONS, *CHILDREN, PODS)))
        for region in (*self.regions, "else"):
            self.caches[NODES].put(self._news(_node(region), NODES.kind))
        target = {
            "ours": OUR_SERVICE,
            "late": OUR_SERVICE,
            "theirs": {"namespace": "m", "name": "adapter"},
            "none": None,
        }
        available = {"type": "Available", "status": str(self.metrics != "late"), "message": "no endpoints"}
        service = {
            "metadata": {"name": f"{names.METRICS_VERSIONS[0]}.{names.METRICS_GROUP}"},
            "spec": {"group": names.METRICS_GROUP, "service": target[self.metrics]},
            "status": {"conditions": [available]},
        }
        self.caches[API_SERVICES].put(self._news(service, API_SERVICES.kind))
        self.is_filled = True

    def _news(self, obj: Raw, kind: str) -> Raw:
        self._version += 1
        return {**obj, "kind": kind, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}

    async def run_pass(self, *, fresh: bool = True, crash_after: int | None = None) -> int:
        """One pass; gives the number of writes besides status. After a crash another process begins."""
        if fresh or not self.is_filled:
            await self.catch_up()
        self.watched.writes_left, before = crash_after, self.watched.num_writes
        try:
            await self.reconciler.reconcile(self.key)
        except CrashError:
            self.restart()
            return 1
        except ClusterError:
            return 1
        finally:
            self.watched.writes_left = None
        return self.watched.num_writes - before

    async def settle(self) -> None:
        """Pass after pass on fresh news until nothing is written."""
        for _ in range(20):
            if await self.run_pass() == 0:
                return
        self.wrong.append("never quiet")

    def seen(self) -> Snapshot | None:
        """What the operator sees."""
        return observe(self.caches, self.key, Features(), Remembered())

    # What is there.

    async def at(self, path: str) -> Raw | None:
        try:
            return await self.api.request("GET", path)
        except NotFoundError:
            return None

    async def endpoint(self) -> Raw:
        return await self.api.request("GET", ENDPOINTS.path(*self.key))

    async def spec(self) -> InferenceEndpointSpec:
        return InferenceEndpointSpec.model_validate((await self.endpoint())["spec"])

    def child(self, region: str) -> str:
        return names.child_name(self.name, region)

    async def deployment(self, region: str) -> Raw | None:
        return await self.at(DEPLOYMENTS.path(self.namespace, self.child(region)))

    async def deployments(self) -> dict[str, Raw]:
        """Those of the endpoint by region, whether it still wants them or not."""
        found = {region: await self.deployment(region) for region in (*self.regions, names.DEFAULT_REGION)}
        return {region: live for region, live in found.items() if live and "deletionTimestamp" not in live["metadata"]}

    async def hpas(self) -> list[Raw]:
        """Autoscalers of any of the endpoint's Deployments."""
        listed = (await self.api.request("GET", HPAS.path(self.namespace)))["items"]
        start = f"{self.name}--"
        return [hpa for hpa in listed if hpa["spec"]["scaleTargetRef"]["name"].startswith(start)]

    async def pods(self, region: str) -> list[Raw]:
        selector = f"{names.LABEL_ENDPOINT}={self.name},{names.LABEL_REGION}={region}"
        page = await self.api.request("GET", PODS.path(self.namespace), query=[("labelSelector", selector)])
        return [pod for pod in page["items"] if "deletionTimestamp" not in pod["metadata"]]

    # Others' writes.

    async def write(
        self, method: str, path: str, body: Any, content_type: str = MERGE, manager: str = "kubectl"
    ) -> None:
        """Somebody's write; who is told that the object has just changed writes again, as kubectl does."""
        query = [("fieldManager", manager)] + ([("force", "true")] if content_type == APPLY else [])
        for attempt in range(5):
            try:
                await self.api.request(method, path, body=body, query=query, content_type=content_type)
            except ConflictError:
                if attempt == 4:
                    raise
            else:
                return

    async def edit(self, **spec: Any) -> bool:
        """A user edits the endpoint; False if the API server refuses it."""
        try:
            await self.write("PATCH", ENDPOINTS.path(*self.key), {"spec": spec})
        except RefusedError:
            return False
        return True

    async def scale(self, region: str, replicas: int, manager: str) -> None:
        """Somebody scales the Deployment through its scale subresource."""
        path = DEPLOYMENTS.path(self.namespace, self.child(region), "scale")
        await self.write("PATCH", path, {"spec": {"replicas": replicas}}, manager=manager)

    async def apply_replicas(self, region: str, replicas: int | None, manager: str) -> None:
        """Somebody applies the Deployment with a number, or leaves it out again."""
        body = {
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": self.child(region), "namespace": self.namespace},
            "spec": {} if replicas is None else {"replicas": replicas},
        }  # fmt: skip
        path = DEPLOYMENTS.path(self.namespace, self.child(region))
        await self.write("PATCH", path, body, APPLY, manager)

    async def kubelet(self, region: str) -> None:
        """All pods that there should be are bound to a node of the region and ready."""
        live = await self.deployment(region)
        for _ in range(60):
            pods = await self.pods(region)
            if live is None or len(pods) >= live["spec"]["replicas"]:
                break
            await asyncio.sleep(0.05)
        await asyncio.gather(*(self._start(pod, region) for pod in pods))

    async def _start(self, pod: Raw, region: str) -> None:
        name, now = pod["metadata"]["name"], datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body: Raw = {"status": {"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": now}]}}  # fmt: skip
        try:
            if not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": _node(region)["metadata"]["name"]}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
                await self.api.request("POST", PODS.path(self.namespace, name, "binding"), body=binding)
            await self.write("PATCH", PODS.path(self.namespace, name, "status"), body, STRATEGIC)
        except (NotFoundError, ConflictError):
            return  # it has just gone

    # Judging.

    def judge(self, region: str, had: int | None, has: int, hpas: list[Raw], *, is_guarded: bool) -> None:
        """A write of the operator has made of `had` replicas (None: no Deployment) `has`."""
        seen = self.seen()
        assert seen is not None
        spec = InferenceEndpointSpec.model_validate(seen.endpoint["spec"])
        case = Judged(self, seen, spec, choose_via(spec, seen), region)
        why = case.complaint(had, has, [hpa for hpa in hpas if _is_ours(hpa, self.child(region))])
        if not is_guarded and (case.is_open or has > (had or 0)):
            why = "a write of replicas that does not say which Deployment it has seen"
        self.history.append(f"{region}: {had} -> {has}")
        if why:
            scaling = spec.scaling
            self.wrong.append(
                f"{region}: {had} -> {has}: {why} (via {case.via.mode}, floor {scaling.min_replicas}, max"
                f" {scaling.max_replicas}, spec.replicas {spec.replicas}, {self.gateways})"
            )


@dataclass(frozen=True)
class Judged:
    """One write of replicas, and what the operator knew."""

    world: World
    seen: Snapshot
    spec: InferenceEndpointSpec
    via: Via
    region: str

    @property
    def is_open(self) -> bool:
        """Whether engines may be started in the region."""
        named = self.spec.placement.regions or (names.DEFAULT_REGION,)
        return self.region in named and (self.region == names.DEFAULT_REGION or self.region in self.seen.regions)

    @property
    def is_stopped(self) -> bool:
        return self.spec.scaling.via == "External" and self.spec.replicas == 0

    @property
    def others_run(self) -> bool:
        """Whether engines of a region that the endpoint has left still run: one here takes over."""
        named = self.spec.placement.regions or (names.DEFAULT_REGION,)
        return any(pod.region not in named and not pod.terminating for pod in self.seen.pods)

    def complaint(self, had: int | None, has: int, own_hpas: list[Raw]) -> str:
        """What is wrong with it; empty if nothing is."""
        if had == has:
            return ""
        if had is None:
            return self._at_creation(has)
        if own_hpas and not (had == 0 or has == 0):
            return "the autoscaler is there and writes that"
        if own_hpas and self.via.mode != "HPA":
            return "the autoscaler was to be gone before anybody else writes"
        if had == 0:
            return self._at_waking(has)
        if has == 0:
            return self._at_sleeping()
        return self._up(has) if has > had else self._down(had)

    def _at_creation(self, has: int) -> str:
        scaling = self.spec.scaling
        first = max(scaling.min_replicas, scaling.initial_replicas)
        if scaling.via == "External" and self.spec.replicas is not None:
            first = self.spec.replicas
        allowed = {first} | ({max(first, 1)} if self.others_run and not self.is_stopped else set())
        return "" if has in allowed and self.is_open else f"created with another number than {allowed}"

    def _at_waking(self, has: int) -> str:
        if not self.is_open:
            return "woken where no engine may be started"
        if self.via.mode == "External":
            return "" if has == self.spec.replicas else "nobody asked for that"
        if has == self.spec.scaling.min_replicas or (has == 1 and self.others_run):
            return ""
        return "it woke by itself"

    def _at_sleeping(self) -> str:
        gateways = self.world.gateways
        if self.is_stopped or not self.is_open:
            return ""
        if self.via.mode == "External":
            return "nobody asked for that"
        if self._has_failed_to_start:
            return ""
        if gateways.dispatched.get(self.region, 0):
            return "stopped with work"
        return "" if gateways.closed == self.region else "the gateways had not closed"

    @property
    def _has_failed_to_start(self) -> bool:
        """Whether nothing can be in flight, and gateways have been told why."""
        answers = any(pod.region == self.region and pod.is_routable for pod in self.seen.pods)
        return not answers and recorded_start(self.seen, self.region) is not None

    def _up(self, has: int) -> str:
        if not self.is_open:
            return "more where no engine may be started"
        if self.via.mode == "External":
            return "" if has == self.spec.replicas else "nobody asked for that"
        if self.via.mode == "HPA":
            return "growing is the autoscaler's"
        return "" if has <= self.spec.scaling.max_replicas else "more than maxReplicas"

    def _down(self, had: int) -> str:
        if not self.is_open or self.via.mode == "External":
            return ""
        if self.via.mode == "HPA":
            return "shrinking is the autoscaler's"
        is_known = not self.world.gateways.is_silent
        return "" if is_known or had > self.spec.scaling.max_replicas else "fewer although demand is not known"


def _is_guarded(path: str, body: Raw) -> bool:
    """Whether a write of replicas fails if the Deployment is another one, or not as it was."""
    metadata = body.get("metadata", {})
    return not path.endswith("/scale") or bool(metadata.get("uid") and metadata.get("resourceVersion"))


def _is_ours(hpa: Raw, child: str) -> bool:
    target = hpa["spec"]["scaleTargetRef"]["name"]
    return target == child and names.LABEL_ENDPOINT in hpa["metadata"].get("labels", {})


def _node(region: str) -> Raw:
    labels = {names.LABEL_TOPOLOGY_REGION: region}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": f"node-{region}", "labels": labels}, "spec": {}, "status": status}
