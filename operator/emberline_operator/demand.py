"""Asks the gateways: what is there to do, and may an endpoint be closed. The only HTTP client of the operator.

A gateway is every pod of the gateway whose container runs, ready or not: one that drains still has streams. One that runs and
does not answer makes demand unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from pydantic import ValidationError

from emberline_contract import http, names
from emberline_contract.http import CloseAnswer, CloseRequest, CloseState, DemandAnswer
from emberline_operator.snapshot import Demand, GatewayView, Json

ASK_TIMEOUT_S: Final = 3.0
FRESH_S: Final = 1.0
"""Answers are shared by all endpoints that ask within this time."""
CLOSE_TTL_S: Final = 15.0
HANDSHAKE_S: Final = 10.0
"""Closing and the write that it protects must be over by then: well before the first gateway opens again by itself."""
SLACK_S: Final = 0.5
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process."""

    name: str
    address: str


def running_gateways(pods: Iterable[Json]) -> list[Gateway]:
    """The gateways among pods: those of the system's namespace whose containers run, so that there is something to ask."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod.get("status", {})
        is_gateway = metadata.get("labels", {}).get(names.LABEL_APP) == names.GATEWAY_NAME
        # Anybody may give a pod of theirs that label; only those in our own namespace have a say.
        if not is_gateway or metadata["namespace"] != names.SYSTEM_NAMESPACE:
            continue
        containers = status.get("containerStatuses", ())
        is_up = status.get("phase") == "Running" and any("running" in c.get("state", {}) for c in containers)
        if is_up and status.get("podIP"):
            found.append(Gateway(metadata["name"], status["podIP"]))
    return sorted(found, key=lambda gateway: gateway.name)


class Gateways:
    """All gateways that run now."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        list_gateways: Callable[[], list[Gateway]],
        token_path: Path,
        port: int,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._list_gateways = list_gateways
        self._token_path = token_path
        self._port = port
        self._clock = clock
        """Monotonic seconds."""
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None
        self._answers: dict[str, DemandAnswer | str] = {}

    async def demand(self, namespace: str, name: str, region: str) -> Demand:
        """What the gateways say of one endpoint and region, at most FRESH_S old."""
        async with self._lock:
            now = self._clock()
            if self._asked_at is None or now - self._asked_at > FRESH_S:
                gateways = self._list_gateways()
                answers = await asyncio.gather(*(self._ask(gateway) for gateway in gateways))
                self._answers = {gateway.name: answer for gateway, answer in zip(gateways, answers, strict=True)}
                self._asked_at = self._clock()
        return demand_of(self._answers, namespace, name, region)

    async def close(self, request: CloseRequest) -> str:
        """Close an endpoint's region everywhere. Empty if every gateway is closed, else who objects and why."""
        gateways = self._list_gateways()
        if not gateways:
            return "no gateway runs"
        answers = await asyncio.gather(*(self._close(gateway, request) for gateway in gateways))
        newcomers = {gateway.name for gateway in self._list_gateways()} - {gateway.name for gateway in gateways}
        objections = [answer for answer in answers if answer] + [
            f"{name} has just started" for name in sorted(newcomers)
        ]
        return "; ".join(objections)

    async def reopen(self, request: CloseRequest) -> None:
        """End a close. A gateway that does not hear it reopens by itself when the time of the close is over."""
        request = request.model_copy(update={"reopen": True})
        await asyncio.gather(*(self._close(gateway, request) for gateway in self._list_gateways()))

    async def _ask(self, gateway: Gateway) -> DemandAnswer | str:
        try:
            return DemandAnswer.model_validate_json(await self._call(gateway, "GET", http.ADMIN_DEMAND, None))
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            return _why(error)

    async def _close(self, gateway: Gateway, request: CloseRequest) -> str:
        """Empty if closed, else the objection."""
        try:
            body = request.model_dump(mode="json")
            answer = CloseAnswer.model_validate_json(await self._call(gateway, "POST", http.ADMIN_CLOSE, body))
        except (aiohttp.ClientError, TimeoutError, OSError, ValidationError) as error:
            return f"{gateway.name}: {_why(error)}"
        if answer.state is CloseState.CLOSED and answer.epoch == request.epoch:
            return ""
        return f"{gateway.name} is {answer.state.value}: {answer.reason or f'epoch {answer.epoch}'}"

    async def _call(self, gateway: Gateway, method: str, path: str, body: Json | None) -> bytes:
        # The kubelet renews the projected token in its file; reading a kilobyte of tmpfs does not block.
        token = self._token_path.read_text().strip()
        host = f"[{gateway.address}]" if ":" in gateway.address else gateway.address
        async with self._session.request(
            method,
            f"http://{host}:{self._port}{path}",
            json=body,
            headers={"Authorization": f"Bearer {token}"},
            timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            response.raise_for_status()
            answer = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                answer += chunk
                if len(answer) > MAX_ANSWER_BYTES:
                    raise aiohttp.ClientPayloadError(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
            return bytes(answer)


def demand_of(answers: dict[str, DemandAnswer | str], namespace: str, name: str, region: str) -> Demand:
    """One endpoint's part of the gateways' answers, by gateway; a text is the reason why there is no answer."""
    views, silent = [], []
    for gateway, answer in sorted(answers.items()):
        if isinstance(answer, str):
            silent.append(f"{gateway}: {answer}")
            continue
        seen = answer.by_target.get((namespace, name, region))
        if seen is None:
            views.append(GatewayView(gateway, 0, answer.uptime_s, ever_active=False))
        else:
            unfinished = seen.held + seen.dispatched
            is_known = unfinished > 0 or seen.idle_s < answer.uptime_s - SLACK_S
            view = GatewayView(
                gateway, unfinished, seen.idle_s, ever_active=is_known, held=seen.held, pods=seen.pods,
                held_s=seen.held_s, engines=seen.engines,
            )  # fmt: skip
            views.append(view)
    return Demand(tuple(views), tuple(silent))


def _why(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"no answer within {ASK_TIMEOUT_S:g} s"
        case aiohttp.ClientResponseError():
            return f"it answered {error.status}"
        case ValidationError():
            return f"its answer does not fit the contract ({error.error_count()} errors)"
        case _:
            return f"{type(error).__name__}: {error}"
