"""A real engine server for tests: uvicorn on loopback, the oracle executor behind it, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from emberline_contract.engine_config import EngineConfig
from emberline_runtime.cli import listen
from emberline_runtime.core.step import StepPlan, StepResult
from emberline_runtime.executors.base import Executor, ExecutorLost, ModelFolder
from emberline_runtime.executors.oracle import OracleExecutor
from emberline_runtime.executors.registry import Selection
from emberline_runtime.server.process import EngineProcess

MODEL = "tests/model"
ALIAS = "model"


class GatedOracle(OracleExecutor):
    """An oracle that computes a step only when a test lets it, so that tests need no clock."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps = threading.Semaphore(0)
        self.is_open = False

    def allow(self, num_steps: int) -> None:
        self.steps.release(num_steps)

    def open(self) -> None:
        """Let it run free from now on."""
        self.is_open = True
        self.steps.release()

    def collect(self) -> StepResult:
        if not self.is_open:
            self.steps.acquire()
        return super().collect()


class LosingOracle(OracleExecutor):
    """An oracle whose device goes away when a test says so."""

    is_lost = False

    def launch(self, plan: StepPlan) -> None:
        if self.is_lost:
            raise ExecutorLost("the device is gone")
        super().launch(plan)


@dataclass
class EngineServer:
    """A running server and ways to talk to it."""

    url: str
    process: EngineProcess
    http: aiohttp.ClientSession
    serving: asyncio.Task[int]
    aborted: list[str]
    """Requests that the engine was told to abort."""

    async def post(self, path: str, body: object, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Status and parsed body."""
        async with self.http.post(self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.http.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def gauge(self, name: str) -> float:
        """A gauge's or counter's value, summed over its labels."""
        async with self.http.get(self.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until `condition` holds."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.002)

    async def until_idle(self) -> None:
        """Wait until the engine holds nothing, and see that the gauges say so."""
        await self.until(lambda: self.process.engine.num_active == 0)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            assert await self.gauge(name) == 0, name


@contextlib.asynccontextmanager
async def serving(
    folder: Path, executor: Executor | None = None, *, log_requests: bool = False, ready: bool = True, **options: Any
) -> AsyncIterator[EngineServer]:
    """A server over `folder`; `options` are EngineConfig's fields."""
    config = EngineConfig(model_path=str(folder), served_names=(MODEL, ALIAS), executor="oracle", **options)
    made = executor or OracleExecutor()
    selection = Selection("oracle", ModelFolder(folder, None), lambda: made, {})
    process = EngineProcess(config, selection, log_requests=log_requests, started_s=time.monotonic())
    listener = listen("127.0.0.1", "0")
    port = listener.getsockname()[1]
    task = asyncio.create_task(process.serve(listener))
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as http:
            server = EngineServer(f"http://127.0.0.1:{port}", process, http, task, _spy_on_aborts(process))
            if ready:
                await server.until(lambda: process.engine.is_ready or task.done())
            yield server
    finally:
        if isinstance(made, GatedOracle):
            made.open()
        process.interrupt()
        process.interrupt()
        await asyncio.wait({task}, timeout=10)
        listener.close()


def _spy_on_aborts(process: EngineProcess) -> list[str]:
    aborted: list[str] = []
    abort = process.engine.abort

    def spy(request_id: str) -> None:
        aborted.append(request_id)
        abort(request_id)

    process.engine.abort = spy  # type: ignore[method-assign]
    return aborted


def sse_events(text: str) -> list[str]:
    """Payloads of a whole stream's data events."""
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]


def chat(content: str = "hi", **parameters: Any) -> dict[str, Any]:
    """A chat request's body."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **parameters}


def completion(prompt: str | Sequence[Any] = "hi", **parameters: Any) -> dict[str, Any]:
    """A completion request's body."""
    return {"model": MODEL, "prompt": prompt, **parameters}
