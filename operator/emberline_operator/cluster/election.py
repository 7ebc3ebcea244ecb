"""Gains, keeps and gives up the leadership."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from emberline_operator.cluster.lease import Lease
from emberline_operator.errors import ClusterError, ConflictError, LostLeadershipError
from emberline_operator.leadership import Gate, Record, Seen, Step, decide, seen_now
from emberline_operator.settings import LeaseTimes

_log = logging.getLogger(__name__)


class Election:
    """One process as a candidate. `gate` is open as long as it leads; `clock` gives monotonic seconds."""

    def __init__(
        self,
        lease: Lease,
        gate: Gate,
        identity: str,
        times: LeaseTimes,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._lease = lease
        self._gate = gate
        self._identity = identity
        self._times = times
        self._clock = clock
        self._sleep = sleep
        self._held: Record | None = None
        self._renewed_s = 0.0

    @property
    def has_won(self) -> bool:
        """Whether this process leads, or has led and is about to end."""
        return self._held is not None

    async def win(self) -> None:
        """Return when this process leads."""
        seen: Seen | None = None
        while self._held is None:
            wait_s = self._times.retry_s
            try:
                # The time after the answer: an early one would let us count from before the record was so.
                record = await self._lease.read()
                seen = seen_now(seen, record, self._clock())
                decision = decide(seen, None, self._identity, self._times, self._clock())
                if decision.step is Step.ACQUIRE:
                    begun_s = self._clock()
                    self._lead(await self._lease.take(record, self._identity, self._times.duration_s), begun_s)
                    return
                wait_s = decision.after_s
            except ConflictError:
                _log.info("another replica was faster to take the Lease")
            except ClusterError as error:
                _log.warning("cannot see who leads: %s", error)
            await self._sleep(wait_s)

    async def hold(self) -> NoReturn:
        """Renew for ever. Raises LostLeadershipError; nothing may go on then."""
        while True:
            left_s = self._renewed_s + self._times.renew_deadline_s - self._clock()
            await self._sleep(max(0.0, min(self._times.retry_s, left_s)))
            self._check()
            begun_s = self._clock()
            try:
                assert self._held is not None
                self._lead(await self._lease.renew(self._held), begun_s)
            except ConflictError:
                await self._look()
            except ClusterError as error:
                _log.warning("the Lease could not be renewed: %s", error)

    async def release(self) -> None:
        """Give the Lease up, if it is ours, so that the next one need not wait. Nothing can be written from here on."""
        self._gate.close()
        try:
            if self._held is not None:
                try:
                    await self._lease.release(self._held)
                except ConflictError:
                    # A renewal whose answer was not waited for.
                    record = await self._lease.read()
                    if record is not None and record.holder == self._identity:
                        await self._lease.release(record)
        except ClusterError as error:
            _log.warning("the Lease could not be released; the next leader waits until it expires: %s", error)

    def _lead(self, held: Record, begun_s: float) -> None:
        self._held, self._renewed_s = held, begun_s
        self._gate.open(begun_s)

    def _check(self) -> None:
        assert self._held is not None
        decision = decide(
            Seen(self._held, self._renewed_s), self._renewed_s, self._identity, self._times, self._clock()
        )
        if decision.step is Step.LOST:
            self._gate.close()
            raise LostLeadershipError(decision.why)

    async def _look(self) -> None:
        """Somebody has written the Lease: either another leads, or it is ours still with a version of its own."""
        try:
            record = await self._lease.read()
        except ClusterError as error:
            _log.warning("cannot see who leads: %s", error)
            return
        self._held = record or Record("", 0.0, "")
        self._check()
