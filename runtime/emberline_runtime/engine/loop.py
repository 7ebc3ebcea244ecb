"""The engine thread: commands in, steps through the executor, updates out. It alone touches scheduler and executor."""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from emberline_runtime.core.admission import Refused
from emberline_runtime.core.request import Request, Update
from emberline_runtime.core.scheduler import Scheduler, SchedulerStats
from emberline_runtime.core.step import StepPlan
from emberline_runtime.executors.base import Executor

STALLED_RETRY_S = 0.05
"""Time between tries to schedule when there is work and nothing can run."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """The caller gave the request up."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """A stop string ended the answer after `num_tokens` tokens."""

    request_id: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the loop."""


Command = Submit | Abort | Finish | Stop


@dataclass(slots=True)
class Output:
    """Everything that happened since the last output, for the server's loop."""

    updates: list[Update] = field(default_factory=list)
    refusals: list[tuple[str, Refused]] = field(default_factory=list)
    stats: SchedulerStats | None = None
    num_step_tokens: int = 0
    """Rows that the committed step computed; 0 where no step was committed."""
    time_s: float = 0.0


class EngineLoop:
    """Runs on the engine thread until told to stop, or until the executor is lost (then the exception leaves `run`)."""

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        inbox: queue.SimpleQueue[Command],
        publish: Callable[[Output], None],
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._inbox = inbox
        self._publish = publish
        self._clock = clock
        self._in_flight: deque[StepPlan] = deque()
        self._stopping = False
        self._output = Output()
        self._has_news = False

    def run(self) -> None:
        """Step until told to stop. Sleeps while there is nothing to do."""
        while not self._stopping:
            self._obey()
            self._launch()
            # What the commands led to need not wait for the step that is now computed.
            self._flush()
            if self._in_flight:
                plan = self._in_flight.popleft()
                self._output.updates += self._scheduler.commit(self._executor.collect())
                self._output.num_step_tokens = sum(rows.num_rows for rows in plan.rows)
                self._has_news = True
                self._flush()

    def _flush(self) -> None:
        if not self._has_news:
            return
        output, self._output, self._has_news = self._output, Output(), False
        output.stats = self._scheduler.stats()
        output.time_s = self._clock()
        self._publish(output)

    def _obey(self) -> None:
        """Take all commands that are there; wait for one if there is nothing else to do."""
        if not self._in_flight and not self._scheduler.has_work:
            self._obey_one(self._inbox.get())
        while True:
            try:
                command = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._obey_one(command)

    def _obey_one(self, command: Command) -> None:
        self._has_news = True
        update: Update | None = None
        match command:
            case Submit(request):
                refused = self._scheduler.submit(request)
                if refused is not None:
                    self._output.refusals.append((request.id, refused))
            case Abort(request_id):
                update = self._scheduler.abort(request_id)
            case Finish(request_id, num_tokens):
                update = self._scheduler.finish(request_id, num_tokens)
            case Stop():
                self._stopping = True
        if update is not None:
            self._output.updates.append(update)

    def _launch(self) -> None:
        """Keep the executor fed with as many plans as it takes."""
        while len(self._in_flight) < self._executor.limits.max_in_flight:
            plan = self._scheduler.schedule(self._clock())
            if plan is None:
                break
            self._executor.launch(plan)
            self._executor.sample(plan.step)
            self._in_flight.append(plan)
        if not self._in_flight and self._scheduler.has_work and not self._stopping:
            # Nothing can run although something waits. The next command may change that; the heartbeat tells if none does.
            with contextlib.suppress(queue.Empty):
                self._obey_one(self._inbox.get(timeout=STALLED_RETRY_S))
