"""The engine as the server's loop sees it: start by phases, requests with their listeners, heartbeat, drain, end.

Everything here runs on the asyncio loop but `_thread`, which is the engine thread's body.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from emberline_contract.engine_config import EngineConfig
from emberline_contract.health import Phase
from emberline_runtime.core.admission import Refused
from emberline_runtime.core.request import Request, Update
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import ExecutorLimits
from emberline_runtime.engine.loop import Abort, Command, EngineLoop, Finish, Output, Stop, Submit
from emberline_runtime.executors.base import Executor, ModelFolder

STALL_S = 30.0
"""The engine is not alive if it has had work for this long without a step."""
STALL_CHECK_S = 1.0
_LOST = "the engine failed; the request may be sent again"
logger = logging.getLogger("emberline")


class Listener(Protocol):
    """Hears of one request, on the asyncio loop. After the update with `finish`, a refusal or a loss it hears nothing more."""

    def on_update(self, update: Update, time_s: float) -> None:
        """New tokens, or the end."""

    def on_refused(self, refused: Refused) -> None:
        """The request was not taken."""

    def on_lost(self, message: str) -> None:
        """The engine will not go on with the request: it stops, or it failed."""


class StepObserver(Protocol):
    """Hears of every step, on the asyncio loop (metrics)."""

    def on_output(self, output: Output) -> None:
        """A step was committed, or commands were obeyed."""


class Engine:
    """One engine thread and its requests."""

    def __init__(
        self,
        make_executor: Callable[[], Executor],
        folder: ModelFolder,
        config: EngineConfig,
        observer: StepObserver,
        *,
        started_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_executor = make_executor
        self._folder = folder
        self._config = config
        self._observer = observer
        self._clock = clock
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        self._outputs: list[Output] = []
        self._outputs_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: threading.Thread | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._phase_began_s = started_s
        self._progress_s = started_s
        self.phase = Phase.IMPORTS
        self.startup_s: dict[Phase, float] = {}
        """Seconds that each finished phase of the start took."""
        self.limits: ExecutorLimits | None = None
        """The executor's, from the end of its load on."""
        self.loaded: asyncio.Future[ExecutorLimits] | None = None
        """Done when the executor can serve; carries the exception if it cannot."""
        self.lost = asyncio.Event()
        """Set when the executor cannot compute any more: the process has to end."""
        self.lost_reason: BaseException | None = None

    def start(self) -> asyncio.Future[ExecutorLimits]:
        """Begin to load on the engine thread. The result is done when the executor can serve."""
        self._loop = asyncio.get_running_loop()
        self.loaded = self._loop.create_future()
        self._worker = threading.Thread(target=self._thread, name="engine", daemon=True)
        self._worker.start()
        return self.loaded

    def serve(self) -> None:
        """Executor and tokenizer are there: from here on requests are taken."""
        self._enter(Phase.READY, self._clock())

    @property
    def is_ready(self) -> bool:
        """Requests are taken."""
        return self.phase is Phase.READY

    @property
    def num_active(self) -> int:
        """Requests that have not ended."""
        return len(self._listeners)

    def stalled_s(self) -> float | None:
        """Seconds of work without a step if they are too many, else None."""
        silent_s = self._clock() - self._progress_s
        return silent_s if self._listeners and silent_s > STALL_S else None

    def submit(self, request: Request, listener: Listener) -> None:
        """Hand a request to the engine thread."""
        if self.lost.is_set():
            listener.on_lost(_LOST)
            return
        if not self._listeners:
            self._progress_s = self._clock()
        self._listeners[request.id] = listener
        self._idle.clear()
        self._inbox.put(Submit(request))

    def abort(self, request_id: str) -> None:
        """Give a request up; its last update comes when its place is free."""
        if request_id in self._listeners:
            self._inbox.put(Abort(request_id))

    def finish(self, request_id: str, num_tokens: int) -> None:
        """A stop string ended the answer after `num_tokens` tokens."""
        if request_id in self._listeners:
            self._inbox.put(Finish(request_id, num_tokens))

    async def drain(self, timeout_s: float) -> bool:
        """Take nothing new and let what runs finish. False if something still ran after `timeout_s`, or does not progress."""
        self.phase = Phase.DRAINING
        deadline_s = self._clock() + timeout_s
        while not self._idle.is_set():
            left_s = deadline_s - self._clock()
            if left_s <= 0 or self.stalled_s() is not None:
                return False
            try:
                await asyncio.wait_for(self._idle.wait(), min(left_s, STALL_CHECK_S))
            except TimeoutError:
                continue
        return True

    def end_all(self, message: str) -> None:
        """End every request now; their listeners hear `message`."""
        for request_id, listener in list(self._listeners.items()):
            self._inbox.put(Abort(request_id))
            listener.on_lost(message)
        self._listeners.clear()
        self._idle.set()

    def stop(self, timeout_s: float) -> bool:
        """Stop the engine thread and free the device. False if it did not end in time."""
        if self._worker is None:
            return True
        self._inbox.put(Stop())
        self._worker.join(timeout_s)
        return not self._worker.is_alive()

    def _thread(self) -> None:
        executor: Executor | None = None
        try:
            executor = self._make_executor()
            executor.load(self._folder, self._config, self._report)
            self._run(executor)
        except BaseException as error:  # noqa: BLE001 - the thread's top: whatever ended it, the loop must hear of it
            self._call(self._on_lost, error)
        finally:
            if executor is not None:
                executor.close()

    def _run(self, executor: Executor) -> None:
        limits, config = executor.limits, self._config
        scheduler = Scheduler(
            limits,
            max_batch_tokens=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            max_queued_requests=config.max_queued_requests,
            prefix_caching=config.prefix_caching,
        )
        self._call(self._on_loaded, limits)
        EngineLoop(executor, scheduler, self._inbox, self._publish, self._clock).run()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Have the loop call a function; from the engine thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop is closed: the process is ending and nobody is left to hear.
            return

    def _report(self, phase: Phase) -> None:
        self._call(self._enter, phase, self._clock())

    def _publish(self, output: Output) -> None:
        """At most one call is on its way to the loop; a loop that lags finds several outputs."""
        with self._outputs_lock:
            self._outputs.append(output)
            if len(self._outputs) > 1:
                return
        self._call(self._deliver)

    def _deliver(self) -> None:
        with self._outputs_lock:
            outputs, self._outputs = self._outputs, []
        for output in outputs:
            if output.num_step_tokens:
                self._progress_s = output.time_s
            for request_id, refused in output.refusals:
                listener = self._listeners.pop(request_id, None)
                if listener is not None:
                    listener.on_refused(refused)
            for update in output.updates:
                self._deliver_update(update, output.time_s)
            self._observer.on_output(output)
        if not self._listeners:
            self._idle.set()

    def _deliver_update(self, update: Update, time_s: float) -> None:
        listener = self._listeners.get(update.request_id)
        if listener is None:
            return
        if update.finish is not None:
            del self._listeners[update.request_id]
        try:
            listener.on_update(update, time_s)
        except Exception:  # the top of this request's work on the loop: the other requests of the step go on
            logger.exception("an update could not be taken in")
            self._listeners.pop(update.request_id, None)
            self._inbox.put(Abort(update.request_id))
            listener.on_lost("an internal error ended this request")

    def _enter(self, phase: Phase, time_s: float) -> None:
        if self.phase not in (Phase.DRAINING, Phase.FAILED):
            self.startup_s[self.phase] = self.startup_s.get(self.phase, 0.0) + time_s - self._phase_began_s
            self.phase, self._phase_began_s = phase, time_s

    def _on_loaded(self, limits: ExecutorLimits) -> None:
        self.limits = limits
        if self.loaded is not None and not self.loaded.done():
            self.loaded.set_result(limits)

    def _on_lost(self, error: BaseException) -> None:
        self.phase = Phase.FAILED
        self.lost_reason = error
        if self.loaded is not None and not self.loaded.done():
            self.loaded.set_exception(error)
        for listener in list(self._listeners.values()):
            listener.on_lost(_LOST)
        self._listeners.clear()
        self._idle.set()
        self.lost.set()
