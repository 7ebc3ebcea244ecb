"""Finds engines that have fallen silent and clients that do not read, outside the hot path.

An engine that says nothing for a while may be busy with a long prompt or a full batch, so silence alone cuts nothing: its
`/live` is asked, which answers while the engine makes steps. Only one that fails this is taken for lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

import aiohttp

from emberline_contract.http import LIVE
from emberline_gateway.exchange import Cause, Exchange
from emberline_gateway.logs import log
from emberline_gateway.objects import Pod

ROUND_S: Final = 1.0
ENGINE_SILENCE_S: Final = 5.0
LIVE_TIMEOUT_S: Final = 2.0
CLIENT_SILENCE_S: Final = 120.0
"""A client that takes nothing for so long, while its buffers are full, is cut off."""


class Patrol:
    """Looks at every request that is under way, once a second."""

    def __init__(
        self, exchanges: Iterable[Exchange], session: aiohttp.ClientSession, clock: Callable[[], float]
    ) -> None:
        self._exchanges = exchanges
        self._session = session
        self._clock = clock
        self._asked_s: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """One look."""
        now_s = self._clock()
        silent: dict[str, Pod] = {}
        for exchange in list(self._exchanges):
            since_s = exchange.sending_since_s
            if since_s is not None and now_s - since_s > CLIENT_SILENCE_S:
                exchange.interrupt(Cause.CLIENT_STALLED)
            elif exchange.pod is not None and now_s - exchange.heard_s > ENGINE_SILENCE_S:
                silent[exchange.pod.uid] = exchange.pod
        self._asked_s = {uid: at for uid, at in self._asked_s.items() if now_s - at < ENGINE_SILENCE_S}
        due = [pod for uid, pod in silent.items() if uid not in self._asked_s]
        self._asked_s |= {pod.uid: now_s for pod in due}
        for pod, is_alive in zip(due, await asyncio.gather(*map(self._is_alive, due)), strict=True):
            if not is_alive:
                self._give_up(pod)

    def _give_up(self, pod: Pod) -> None:
        log(logging.WARNING, "engine stalled", pod=pod.name)
        now_s = self._clock()
        for exchange in list(self._exchanges):
            at_pod = exchange.pod is not None and exchange.pod.uid == pod.uid
            if at_pod and now_s - exchange.heard_s > ENGINE_SILENCE_S:
                exchange.interrupt(Cause.BACKEND_STALLED)

    async def _is_alive(self, pod: Pod) -> bool:
        timeout = aiohttp.ClientTimeout(total=LIVE_TIMEOUT_S)
        try:
            async with self._session.get(pod.url + LIVE, timeout=timeout) as response:
                return response.status < 500
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
