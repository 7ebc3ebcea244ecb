"""A gateway in the test's own loop, between the real openai client and engines and a cluster that tests command."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from emberline_contract import http, metrics, names
from emberline_gateway import server
from emberline_gateway.activation import ClusterError, WakeOutcome
from emberline_gateway.callers import Caller
from emberline_gateway.directory import Directory
from emberline_gateway.gateway import Gateway, gateway
from emberline_gateway.objects import Target

Raw = dict[str, Any]
_uids = itertools.count(1)


def make_endpoint(
    name: str = "tiny",
    namespace: str = "default",
    *,
    regions: tuple[str, ...] = (),
    max_queue: int = 100,
    heartbeat: str = "10s",
    activation_timeout: str = "10m",
    refusal: str = "",
) -> Raw:
    """An InferenceEndpoint as the API server shows it."""
    raw: Raw = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "generation": 1,
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "model": {"source": "pvc://models/tiny"},
            "placement": {"regions": list(regions)},
            "scaling": {"activationTimeout": activation_timeout},
            "serving": {"maxQueue": max_queue, "heartbeat": heartbeat},
        },
    }
    if refusal:
        raw["status"] = {
            "conditions": [
                {
                    "type": "Accepted",
                    "status": "False",
                    "reason": "InvalidSpec",
                    "message": refusal,
                    "observedGeneration": 1,
                }
            ]
        }
    return raw


def make_pod(
    state: str = "ready",
    *,
    url: str = "http://127.0.0.1:8000",
    name: str = "tiny",
    namespace: str = "default",
    region: str = names.DEFAULT_REGION,
    uid: str = "",
    message: str = "",
) -> Raw:
    """An engine's pod: `pending`, `starting`, `loading`, `ready` or `leaving`."""
    address, port = url.removeprefix("http://").split(":")
    uid = uid or f"uid-{next(_uids)}"
    status: Raw = {"phase": "Pending" if state in ("pending", "starting") else "Running"}
    scheduled = {"type": "PodScheduled", "status": "False" if state == "pending" else "True"}
    if state == "pending":
        scheduled["message"] = message
    ready = {"type": "Ready", "status": "True" if state in ("ready", "leaving") else "False"}
    status["conditions"] = [scheduled, ready]
    if state == "starting":
        status["containerStatuses"] = [
            {"name": names.ENGINE_CONTAINER, "state": {"waiting": {"reason": "ContainerCreating", "message": message}}}
        ]
    elif state != "pending":
        status["podIP"] = address
        status["containerStatuses"] = [{"name": names.ENGINE_CONTAINER, "state": {"running": {}}}]
    meta: Raw = {
        "uid": uid,
        "name": f"{name}-{uid}",
        "namespace": namespace,
        "labels": {names.LABEL_ENDPOINT: name, names.LABEL_REGION: region},
    }
    if state == "leaving":
        meta["deletionTimestamp"] = "2026-01-02T03:04:06Z"
    ports = [{"name": names.PORT_NAME_HTTP, "containerPort": int(port)}]
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": names.ENGINE_CONTAINER, "ports": ports}]},
        "status": status,
    }


class FakeCluster:
    """Plays API server, operator and nodes: what tests put into it reaches the gateway as watch events do."""

    def __init__(self, *endpoints: Raw) -> None:
        self.endpoints = list(endpoints)
        self.pods: dict[str, Raw] = {}
        self.num_replicas: dict[Target, int] = {}
        self.wakes: list[tuple[float, Target]] = []
        """When and what was really scaled from 0 to 1."""
        self.num_attempts = 0
        self.failure = ""
        """While set, every scale request fails with it."""
        self.on_wake: Callable[[Target], None] = lambda _target: None
        self.tokens: dict[str, str] = {}
        self.num_reviews = 0
        self._directory: Directory | None = None

    async def watch(self, directory: Directory) -> None:
        self._directory = directory
        directory.endpoint_sink.replace(self.endpoints)
        directory.pod_sink.replace(self.pods.values())
        await asyncio.Event().wait()

    async def wake(self, target: Target) -> WakeOutcome:
        self.num_attempts += 1
        await asyncio.sleep(0)
        if self.failure:
            raise ClusterError(self.failure)
        if self.num_replicas.get(target, 0) != 0:
            return WakeOutcome.AWAKE_ALREADY
        self.num_replicas[target] = 1
        self.wakes.append((asyncio.get_running_loop().time(), target))
        self.on_wake(target)
        return WakeOutcome.WOKE

    async def replicas(self, target: Target) -> int:
        await asyncio.sleep(0)
        if self.failure:
            raise ClusterError(self.failure)
        return self.num_replicas.get(target, 0)

    async def review(self, token: str, audience: str) -> Caller | None:
        self.num_reviews += 1
        assert audience == names.ADMIN_AUDIENCE
        return Caller(self.tokens[token]) if token in self.tokens else None

    def put_pod(self, raw: Raw) -> Raw:
        """Creates or changes a pod."""
        self.pods[raw["metadata"]["uid"]] = raw
        if self._directory is not None:
            self._directory.pod_sink.put(raw)
        return raw

    def pod_of(self, url: str) -> Raw:
        """The pod whose engine listens there."""
        port = int(url.rsplit(":", 1)[1])
        return next(p for p in self.pods.values() if p["spec"]["containers"][0]["ports"][0]["containerPort"] == port)

    def drop_pod(self, raw: Raw) -> None:
        """The pod is gone."""
        del self.pods[raw["metadata"]["uid"]]
        if self._directory is not None:
            self._directory.pod_sink.drop(raw)

    def put_endpoint(self, raw: Raw) -> None:
        """Creates or changes an endpoint."""
        assert self._directory is not None
        self._directory.endpoint_sink.put(raw)

    def drop_endpoint(self, raw: Raw) -> None:
        """The endpoint is deleted."""
        assert self._directory is not None
        self._directory.endpoint_sink.drop(raw)


@dataclass
class Call:
    """One request that an engine received."""

    path: str
    headers: dict[str, str]
    body: bytes
    was_cancelled: bool = False


def stream_chunks(texts: tuple[str, ...] = ("Hello", ", ", "world"), model: str = "tiny") -> list[bytes]:
    """A chat stream as an engine writes it."""
    deltas: list[Raw] = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts)]
    events = [
        json.dumps(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            }
        ).encode()
        for delta in deltas
    ]
    return [b"data: " + event + b"\n\n" for event in (*events, b"[DONE]")]


ANSWER: Raw = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello, world"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
}


@dataclass
class FakeEngine:
    """An HTTP server on its own port that answers as it is told."""

    address: str = "127.0.0.1"
    port: int = 0
    url: str = ""
    chunks: list[bytes] = field(default_factory=stream_chunks)
    pace_s: float = 0.0
    break_after: int | None = None
    """Chunks after which the connection is cut."""
    status: int = 200
    """Other than 200: answers with it and an error body."""
    is_stuck: bool = False
    """Takes requests and answers nothing, not even /live."""
    cut_before_answer: int = 0
    """So many requests are cut before any byte."""
    num_running: int = 0
    has_metrics: bool = True
    metrics_handler: Callable[[web.Request], Awaitable[web.Response]] | None = None
    """Answers /metrics instead."""
    gate: asyncio.Event | None = None
    """If set, answers wait for it after the first chunk."""
    calls: list[Call] = field(default_factory=list)
    runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post(http.CHAT_COMPLETIONS, self._answer)
        app.router.add_post(http.COMPLETIONS, self._answer)
        app.router.add_get(http.LIVE, self._live)
        app.router.add_get(http.METRICS, self._metrics)
        self.runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, self.address, self.port)
        await site.start()
        host, port = self.runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        if self.runner is not None:
            await self.runner.cleanup()
            self.runner = None

    async def _live(self, _request: web.Request) -> web.Response:
        if self.is_stuck:
            await asyncio.sleep(30)
        return web.json_response({})

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.metrics_handler is not None:
            return await self.metrics_handler(request)
        if not self.has_metrics:
            return web.Response(status=500)
        lines = (
            f'{metrics.NUM_REQUESTS_RUNNING}{{model_name="tiny"}} {self.num_running}',
            f'{metrics.NUM_REQUESTS_WAITING}{{model_name="tiny"}} 0',
        )
        return web.Response(text="".join(line + "\n" for line in lines))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.raw_path, {k.lower(): v for k, v in request.headers.items()}, await request.read())
        self.calls.append(call)
        try:
            return await self._answer_call(request, call)
        except asyncio.CancelledError:
            call.was_cancelled = True
            raise

    async def _answer_call(self, request: web.Request, call: Call) -> web.StreamResponse:
        if self.is_stuck:
            await asyncio.sleep(30)
        assert request.transport is not None
        if self.cut_before_answer:
            self.cut_before_answer -= 1
            request.transport.abort()
            return web.Response()
        if self.status != 200:
            return web.json_response(
                http.error_body("the engine says no", http.ErrorType.BAD_REQUEST, self.status), status=self.status
            )
        if not json.loads(call.body).get("stream"):
            if self.gate is not None:
                await self.gate.wait()
            return web.json_response(ANSWER, headers={"x-request-id": call.headers["x-request-id"]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-engine": "1"})
        await response.prepare(request)
        for index, chunk in enumerate(self.chunks):
            if index == self.break_after:
                request.transport.abort()
                return response
            await response.write(chunk)
            if self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(self.pace_s)
        return response


@asynccontextmanager
async def running_engine(**options: Any) -> AsyncIterator[FakeEngine]:
    """An engine on a free port."""
    engine = FakeEngine(**options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@dataclass
class Running:
    """A gateway that serves."""

    gateway: Gateway
    url: str
    admin_url: str


@asynccontextmanager
async def running_gateway(cluster: Any, grace_s: float = 5.0) -> AsyncIterator[Running]:
    """The real gateway on free ports, in this loop."""
    public = server.listen("127.0.0.1", 0, num_listeners=2)
    admin = server.listen("127.0.0.1", 0, num_listeners=1)
    urls = [f"http://127.0.0.1:{sockets[0].getsockname()[1]}" for sockets in (public, admin)]
    async with gateway(cluster, grace_s) as made:
        serving = asyncio.create_task(made.serve(public, admin))
        try:
            yield Running(made, *urls)
        finally:
            if made.why_not_ready() != "stopping":
                await made.stop(0.0, 0.0)
            await serving


async def eventually(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Waits until the condition holds; fails with it when it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
