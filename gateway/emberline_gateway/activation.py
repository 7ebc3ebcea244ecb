"""Wakes sleeping endpoints: one wave a target, from the first held request until nothing is held.

The first act of a wave at zero is the scale-up itself; afterwards the Deployment is looked at while requests are held, so that
a scale-up that failed, was undone, or could not be written yet is made good.
"""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from typing import Final, Protocol

from emberline_gateway.desk import Desk
from emberline_gateway.logs import log
from emberline_gateway.measures import Measures
from emberline_gateway.objects import Target

RECHECK_S: Final = 0.5
"""Time between looks at the Deployment while something is held."""
MIN_BACKOFF_S: Final = 0.2
MAX_BACKOFF_S: Final = 5.0


class ClusterError(Exception):
    """The API server refused, or did not answer; the text says what it said."""


class WakeOutcome(StrEnum):
    """What became of a scale-up."""

    WOKE = "woke"
    AWAKE_ALREADY = "awake-already"
    """Replicas were not 0: somebody else was faster."""


class Scaler(Protocol):
    """The Deployments' replicas."""

    async def wake(self, target: Target) -> WakeOutcome:
        """Writes replicas 0 -> 1, or nothing if they are not 0. Raises ClusterError."""
        ...

    async def replicas(self, target: Target) -> int:
        """`spec.replicas` now. Raises ClusterError."""
        ...


class Activation:
    """The waves that run."""

    def __init__(self, scaler: Scaler, measures: Measures) -> None:
        self._scaler = scaler
        self._measures = measures
        self._waves: dict[Target, asyncio.Task[None]] = {}

    def wanted(self, desk: Desk) -> None:
        """A request is held there: starts a wave unless one runs."""
        if desk.target not in self._waves:
            self._waves[desk.target] = asyncio.get_running_loop().create_task(self._wave(desk))

    async def stop(self) -> None:
        """Ends every wave."""
        waves = list(self._waves.values())
        for wave in waves:
            wave.cancel()
        await asyncio.gather(*waves, return_exceptions=True)

    async def _wave(self, desk: Desk) -> None:
        backoff_s = MIN_BACKOFF_S
        is_asleep = _looks_asleep(desk)
        try:
            # Between the test and leaving the dictionary there is no await: a request held later starts the next wave.
            while desk.num_held:
                try:
                    if is_asleep and desk.may_wake:
                        await self._wake(desk)
                    pause_s, backoff_s = RECHECK_S, MIN_BACKOFF_S
                    desk.wake_error = ""
                except ClusterError as error:
                    log(logging.WARNING, "wake failed", target=str(desk.target), error=str(error))
                    desk.wake_error = str(error)
                    pause_s, backoff_s = backoff_s, min(2 * backoff_s, MAX_BACKOFF_S)
                was_drained = await _is_set_within(desk.drained, pause_s)
                is_asleep = _looks_asleep(desk) if was_drained else await self._is_asleep(desk)
        finally:
            del self._waves[desk.target]

    async def _is_asleep(self, desk: Desk) -> bool:
        try:
            return await self._scaler.replicas(desk.target) == 0
        except ClusterError as error:
            desk.wake_error = str(error)
            return not desk.pods()  # the write may succeed where the read failed; its test protects it

    async def _wake(self, desk: Desk) -> None:
        outcome = await self._scaler.wake(desk.target)
        log(logging.INFO, "wake", target=str(desk.target), outcome=outcome.value, held=desk.num_held)
        if outcome is WakeOutcome.WOKE:
            self._measures.wakes.labels(desk.target.namespace, desk.target.name).inc()
        if desk.is_closed:
            # The close has reached its aim, or 0 had been written by somebody else: nothing is left to wait for.
            desk.reopen(desk.gate.epoch)


def _looks_asleep(desk: Desk) -> bool:
    """Worth a scale-up without another look: if replicas are not 0 after all, its test fails and nothing is written."""
    return not desk.is_closed and not desk.pods()


async def _is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
