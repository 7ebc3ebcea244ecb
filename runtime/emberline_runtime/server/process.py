"""The serving process: puts engine, app and uvicorn together, follows signals, ends with the right code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import time
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Final

import uvicorn
import uvloop
from typing_extensions import override

from emberline_contract.engine_config import EngineConfig
from emberline_runtime.engine.lifecycle import Engine
from emberline_runtime.errors import StartRefused
from emberline_runtime.executors.registry import Selection
from emberline_runtime.models.errors import ModelFolderError
from emberline_runtime.server.generation import Service
from emberline_runtime.server.metrics import Metrics
from emberline_runtime.server.prompts import Prompts
from emberline_runtime.server.protocol import BoundedProtocol
from emberline_runtime.server.request_log import RequestLog
from emberline_runtime.server.routes import make_app, package_version
from emberline_runtime.text.chat_template import PLAIN_TEMPLATE, ChatTemplate, load_chat_template
from emberline_runtime.text.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

logger = logging.getLogger("emberline")

FLUSH_S: Final = 5.0
"""After the engine's last word, clients have this long to read it."""
JOIN_S: Final = 3.0
"""The engine thread has this long to give the device back."""
KEEP_ALIVE_S: Final = 75
EXIT_CLEAN: Final = 0
EXIT_LOST: Final = 1


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: a signal means drain here, and readiness must tell before sockets close."""

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class EngineProcess:
    """One engine behind one socket. In tests it runs in a loop of theirs; `run_process` is the program's."""

    def __init__(
        self,
        config: EngineConfig,
        selection: Selection,
        *,
        log_requests: bool,
        started_s: float,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_idle` is called once, when the start is over and nobody waits."""
        self._config = config
        self._on_idle = on_idle
        self._selection = selection
        self.metrics = Metrics(config.served_names[0])
        self.engine = Engine(selection.make, selection.model, config, self.metrics, started_s=started_s)
        self._workers = ThreadPoolExecutor(1, thread_name_prefix="text")
        self._service = Service(
            config=config,
            engine=self.engine,
            observer=self.metrics,
            log=RequestLog(enabled=log_requests),
            clock=time.monotonic,
            wall_clock=time.time,
            draw_seed=lambda: secrets.randbits(64),
            draw_id=lambda: uuid.uuid4().hex,
        )
        self.is_stopped = False
        """After `serve`: the engine thread has ended."""
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    def stop(self) -> None:
        """Drain, then end. Calling it again changes nothing: a signal may come twice, to the process and to its group."""
        self._stop.set()

    def interrupt(self) -> None:
        """Drain, then end; a second call ends what still runs at once (Ctrl-C, and again)."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def serve(self, listener: socket.socket) -> int:
        """Serve until stopped or lost; returns the process's exit code."""
        app = make_app(self._service, self.metrics, int(time.time()))
        server = _Server(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(FLUSH_S),
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        starting = asyncio.create_task(self._start())
        is_failed = True
        try:
            is_failed = not await self._until_over(starting)
        finally:
            starting.cancel()
            server.should_exit = True
            await serving
            # A load cannot be interrupted; nothing is lost with it either.
            self.is_stopped = await asyncio.to_thread(self.engine.stop, JOIN_S if self.engine.limits else 0.0)
            self._workers.shutdown(wait=False, cancel_futures=True)
        return EXIT_LOST if is_failed else EXIT_CLEAN

    async def _start(self) -> None:
        """Load executor and tokenizer side by side, then take requests."""
        loaded = self.engine.start()
        loop = asyncio.get_running_loop()
        tokenizer, template = await loop.run_in_executor(self._workers, self._load_text)
        limits = await loaded
        self._service.prompts = Prompts(tokenizer, template, limits, self._workers)
        self.engine.serve()
        selection, config = self._selection, self._config
        details = {phase.value: round(seconds, 3) for phase, seconds in self.engine.startup_s.items()}
        logger.info("ready", extra={"details": {"executor": selection.name, "startup_s": details}})
        spec = selection.model.spec
        stored_weights = None if spec is None else spec.stored_weights
        self.metrics.set_info(selection.name, config, stored_weights, package_version())
        await self._service.prompts.idle()
        self._on_idle()

    def _load_text(self) -> tuple[Tokenizer, ChatTemplate | None]:
        folder = Path(self._config.model_path)
        tokenizer = load_tokenizer(folder, allow_bytes=self._selection.name == "oracle")
        if isinstance(tokenizer, ByteTokenizer):
            return tokenizer, ChatTemplate(PLAIN_TEMPLATE, tokenizer.special_tokens, _now)
        return tokenizer, load_chat_template(folder, tokenizer.special_tokens, _now)

    async def _until_over(self, starting: asyncio.Task[None]) -> bool:
        """Wait until a signal was followed (True), or the start or the executor failed (False)."""
        stop = asyncio.create_task(self._stop.wait())
        lost = asyncio.create_task(self.engine.lost.wait())
        try:
            await asyncio.wait({stop, lost, starting}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done() and not self._stop.is_set() and not self._has_failed(starting):
                await asyncio.wait({stop, lost}, return_when=asyncio.FIRST_COMPLETED)
            if self._has_failed(starting):
                return False
            await self._drain()
            return not self._has_failed(starting)
        finally:
            stop.cancel()
            lost.cancel()

    def _has_failed(self, starting: asyncio.Task[None]) -> bool:
        error = starting.exception() if starting.done() and not starting.cancelled() else None
        error = self.engine.lost_reason or error
        if error is None:
            return False
        if isinstance(error, StartRefused | ModelFolderError):
            logger.error("cannot start: %s", error)
        else:
            logger.error("the engine failed: %s", error, exc_info=error)
        return True

    async def _drain(self) -> None:
        self.metrics.set_draining(True)
        timeout_s = self._config.drain_timeout_s
        logger.info("draining", extra={"details": {"active": self.engine.num_active, "timeout_s": timeout_s}})
        draining = asyncio.create_task(self.engine.drain(timeout_s))
        hurry = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait({draining, hurry}, return_when=asyncio.FIRST_COMPLETED)
        is_clean = draining.done() and draining.result()
        draining.cancel()
        hurry.cancel()
        if not is_clean and not self.engine.lost.is_set():
            logger.warning("ending what still runs", extra={"details": {"active": self.engine.num_active}})
            self.engine.end_all("the engine stops; send the request again")


def run_process(
    config: EngineConfig, selection: Selection, listener: socket.socket, *, log_requests: bool, started_s: float
) -> int:
    """The program: serve on `listener` until SIGTERM or SIGINT; returns the exit code."""

    async def main() -> tuple[int, bool]:
        process = EngineProcess(
            config, selection, log_requests=log_requests, started_s=started_s, on_idle=_settle_garbage
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, process.stop)
        loop.add_signal_handler(signal.SIGINT, process.interrupt)
        return await process.serve(listener), process.is_stopped

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, is_stopped = runner.run(main())
    if not is_stopped:
        # A thread inside native code would be torn down under its feet by the interpreter's own end.
        logging.shutdown()
        os._exit(code)
    return code


def _settle_garbage() -> None:
    """Leave what the start made out of every later collection, and collect rarely: p99 of streams 25-35 -> 5 ms, measured."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)


def _now() -> datetime:
    return datetime.now().astimezone()
