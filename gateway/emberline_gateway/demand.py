"""What the operator asks on the admin port: who wants what, and to close an endpoint before it goes to zero."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from emberline_contract import metrics
from emberline_contract.http import METRICS, CloseAnswer, CloseRequest, CloseState, DemandAnswer, EndpointDemand
from emberline_gateway.desk import Desk, Desks
from emberline_gateway.directory import Directory
from emberline_gateway.logs import log
from emberline_gateway.objects import Pod, Target

ENGINE_TIMEOUT_S: Final = 2.0
_UNFINISHED: Final = (metrics.NUM_REQUESTS_RUNNING, metrics.NUM_REQUESTS_WAITING)


class Demand:
    """Answers for one gateway."""

    def __init__(
        self, directory: Directory, desks: Desks, session: aiohttp.ClientSession, clock: Callable[[], float]
    ) -> None:
        self._directory = directory
        self._desks = desks
        self._session = session
        self._clock = clock
        self._started_s = clock()

    def answer(self) -> DemandAnswer:
        """Every endpoint, those without demand too."""
        return DemandAnswer(
            uptime_s=self._clock() - self._started_s,
            endpoints=[
                EndpointDemand(
                    namespace=desk.target.namespace,
                    name=desk.target.name,
                    region=desk.target.region,
                    held=desk.num_held,
                    dispatched=desk.num_dispatched,
                    idle_s=desk.idle_s(),
                    held_s=desk.held_s(),
                    pods=desk.outstanding(),
                )
                for desk in self._desks.known()
            ],
        )

    async def close(self, request: CloseRequest) -> CloseAnswer:
        """Closes first and looks afterwards, so that nothing slips in between; a busy answer has reopened already."""
        desk = self._desks.at(Target(request.namespace, request.name, request.region))
        answer = await (self._reopen(desk, request) if request.reopen else self._close(desk, request))
        log(
            logging.INFO,
            "close",
            target=str(desk.target),
            epoch=request.epoch,
            reopen=request.reopen,
            state=answer.state.value,
            reason=answer.reason,
        )
        return answer

    async def _reopen(self, desk: Desk, request: CloseRequest) -> CloseAnswer:
        if desk.reopen(request.epoch):
            return CloseAnswer(state=CloseState.OPEN, epoch=request.epoch)
        return _busy(request, f"epoch {desk.gate.epoch} is in force, {request.epoch} is older")

    async def _close(self, desk: Desk, request: CloseRequest) -> CloseAnswer:
        if not self._directory.is_complete:
            return _busy(request, "this gateway has not read the cluster yet")
        if not desk.close(request.epoch, request.ttl_s):
            return _busy(request, f"epoch {desk.gate.epoch} is in force, {request.epoch} is older")
        try:
            reason = _unfinished_here(desk) or await self._unfinished_at_engines(desk) or _unfinished_here(desk)
        except BaseException:
            desk.reopen(request.epoch)
            raise
        if not reason and not (desk.is_closed and desk.gate.epoch == request.epoch):
            reason = f"the close of epoch {request.epoch} ended while the engines were asked"
        if not reason:
            return CloseAnswer(state=CloseState.CLOSED, epoch=request.epoch)
        desk.reopen(request.epoch)
        return _busy(request, reason)

    async def _unfinished_at_engines(self, desk: Desk) -> str:
        """Requests that reached an engine by another way, or that it has not ended yet."""
        pods = [pod for pod in desk.pods() if pod.url]
        reasons = await asyncio.gather(*map(self._unfinished_at, pods))
        return next(filter(None, reasons), "")

    async def _unfinished_at(self, pod: Pod) -> str:
        timeout = aiohttp.ClientTimeout(total=ENGINE_TIMEOUT_S)
        try:
            async with self._session.get(pod.url + METRICS, timeout=timeout) as response:
                text = await response.text()
                num_unfinished = count_unfinished(text) if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            num_unfinished = None
        if num_unfinished is None:
            # One that is not ready may have no metrics yet, or crash for ever; nothing has been sent to it.
            return f"the engine in pod {pod.name} does not tell what it does" if pod.is_ready else ""
        return f"the engine in pod {pod.name} has {num_unfinished:g} requests" if num_unfinished else ""


def count_unfinished(text: str) -> float | None:
    """Running and waiting requests of an engine's metrics; None when it does not expose them. Raises ValueError."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name in _UNFINISHED:
            found[family.name] = sum(sample.value for sample in family.samples)
    return sum(found.values()) if len(found) == len(_UNFINISHED) else None


def _unfinished_here(desk: Desk) -> str:
    if desk.num_held or desk.num_dispatched:
        return f"{desk.num_held} requests held, {desk.num_dispatched} dispatched"
    return ""


def _busy(request: CloseRequest, reason: str) -> CloseAnswer:
    return CloseAnswer(state=CloseState.BUSY, epoch=request.epoch, reason=reason)
