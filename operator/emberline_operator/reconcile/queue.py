"""Runs passes: many keys at once, one worker a key, retries with back-off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from emberline_operator.cluster.caches import Key
from emberline_operator.errors import ClusterError, ConflictError, LostLeadershipError
from emberline_operator.reconcile.schedule import Schedule, retry_delay_s

FIRST: Final = float("-inf")
"""Due before everything else."""
_log = logging.getLogger(__name__)
MAX_BUSY_PASSES: Final = 5
"""Passes in a row that may follow each other at once because each has written; more are slowed down like failures."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a pass ended that did not fail."""

    has_written: bool = False
    """Look again at once: the writes have changed what there is to see."""
    again_s: float | None = None
    """Look again after this time although nothing happened."""


class Queue:
    """Keys to work on. `enqueue` may be called from anywhere in the loop's thread."""

    def __init__(self, work: Callable[[Key], Awaitable[Outcome]], clock: Callable[[], float]) -> None:
        self._work = work
        self._clock = clock
        self._schedule: Schedule[Key] = Schedule()
        self._in_a_row: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._is_closing = False
        self._idle = asyncio.Event()

    def __len__(self) -> int:
        return len(self._schedule) + self._schedule.num_running

    def enqueue(self, key: Key, delay_s: float = 0.0) -> None:
        """Work on a key after a delay, or earlier if somebody else asks for it."""
        self._schedule.add(key, self._clock() + delay_s)
        self._wake.set()

    def enqueue_first(self, key: Key) -> None:
        """Work on a key before all that is due: somebody waits for it, as nobody does for the regular looks of a busy cluster."""
        self._schedule.add(key, FIRST)
        self._wake.set()

    async def close(self, timeout_s: float) -> bool:
        """Begin no more passes, and wait until those that run have ended. False if that took too long."""
        self._is_closing = True
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_s):
                while self._schedule.num_running:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self, num_workers: int) -> None:
        """Work until cancelled. Raises LostLeadershipError, in a group, when a pass meets one."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                while self._schedule.num_running < num_workers and not self._is_closing:
                    key = self._schedule.take(self._clock())
                    if key is None:
                        break
                    group.create_task(self._process(key), name=f"pass {'/'.join(key)}")
                    # A pass that has nothing to write computes without a pause. Begun one a turn, they leave the loop to the
                    # answers that others wait for; sixteen in one turn made each answer of theirs wait for all of them.
                    await asyncio.sleep(0)
                await self._rest(num_workers)

    async def _rest(self, num_workers: int) -> None:
        may_begin = self._schedule.num_running < num_workers and not self._is_closing
        due_s = self._schedule.next_due_s() if may_begin else None
        timeout_s = None if due_s is None else max(0.0, due_s - self._clock())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _process(self, key: Key) -> None:
        try:
            outcome = await self._work(key)
        except LostLeadershipError:
            # Nobody may go on from here: it ends the process.
            raise
        except ConflictError as error:
            _log.info("pass of %s: %s; looking again", "/".join(key), error)
            self._slow_down(key)
        except ClusterError as error:
            _log.warning("pass of %s failed: %s", "/".join(key), error)
            self._slow_down(key)
        except Exception:  # noqa: BLE001
            # The loop's top: one endpoint's unforeseen failure must not stop the others.
            _log.exception("pass of %s failed", "/".join(key))
            self._slow_down(key)
        else:
            self._continue(key, outcome)
        finally:
            self._schedule.done(key)
            self._wake.set()
            self._idle.set()

    def _slow_down(self, key: Key) -> None:
        self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
        self.enqueue(key, retry_delay_s(self._in_a_row[key]))

    def _continue(self, key: Key, outcome: Outcome) -> None:
        if outcome.has_written:
            num_writes = self._in_a_row.get(key, 0) + 1
            self._in_a_row[key] = num_writes
            self.enqueue(key, 0.0 if num_writes <= MAX_BUSY_PASSES else retry_delay_s(num_writes - MAX_BUSY_PASSES))
            return
        self._in_a_row.pop(key, None)
        if outcome.again_s is not None:
            self.enqueue(key, outcome.again_s)
