"""Keeps the metrics API while this process leads: looks, decides, does. It asks little: the watch tells of APIServices and endpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from emberline_contract import names
from emberline_operator.cluster.api import APPLY, Api
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import API_SERVICES as KIND
from emberline_operator.cluster.kinds import ENDPOINTS, SERVICES
from emberline_operator.errors import ClusterError, NotFoundError, RefusedError
from emberline_operator.metrics_api.decide import API_SERVICES, Remove, Seen, Steps, Write, decide, wants_metrics
from emberline_operator.plan.via import OUR_SERVICE, service_of
from emberline_operator.snapshot import Json

ROUND_S: Final = 2.0
"""Between two looks at the caches."""
LOOK_AGAIN: Final = timedelta(minutes=1)
"""After which the certificate is looked at although nothing has changed."""
FIRST_PAUSE: Final = timedelta(seconds=5)
LAST_PAUSE: Final = timedelta(minutes=10)
"""Bounds of the pause after a failure; a refusal is no passing one and has the long one."""
_ROLE: Final = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{names.OPERATOR_NAME}"
_NAMESPACE: Final = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}"
_SECRET: Final = f"{_NAMESPACE}/secrets/{names.METRICS_TLS_SECRET}"
_log = logging.getLogger(__name__)


class Keeper:
    """The metrics API's APIServices and certificate."""

    def __init__(self, api: Api, caches: Caches, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._caches = caches
        self._clock = clock
        self._known: object = None
        self._due = clock()
        self._pause = FIRST_PAUSE
        self._problem = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(ROUND_S)

    async def round(self) -> None:
        """One look at the caches, and what is to be done if something has changed or is due."""
        now = self._clock()
        is_wanted, group = wants_metrics(self._caches[ENDPOINTS]), self._group()
        known = (is_wanted, tuple((it["metadata"]["name"], it["metadata"]["uid"], service_of(it)) for it in group))
        if now < self._due and known == self._known:
            return
        try:
            steps = await self._look_and_do(is_wanted, group, now)
        except ClusterError as error:
            # Once is enough for what stays so, as where the operator looks after some namespaces alone and has no right to this.
            if known != self._known or not isinstance(error, RefusedError):
                _log.warning("the metrics API cannot be kept: %s", error)
            self._pause = LAST_PAUSE if isinstance(error, RefusedError) else min(2 * self._pause, LAST_PAUSE)
            self._due, self._known = now + self._pause, known
            return
        if steps.problem and steps.problem != self._problem:
            _log.warning("the metrics API is not served: %s", steps.problem)
        self._problem, self._pause = steps.problem, FIRST_PAUSE
        # What was done comes back by the watch and is looked at once more.
        self._due, self._known = now + LOOK_AGAIN, known

    async def leave(self) -> None:
        """The process ends: if its namespace does too, the APIServices go now. Left behind they would keep it from ending."""
        try:
            if "deletionTimestamp" not in (await self._api.request("GET", _NAMESPACE))["metadata"]:
                return
            ours = await self._ours(self._group())
            for step in decide(Seen(is_wanted=False, group=(), ours=ours), self._clock()).steps:
                await self._do(step)
        except ClusterError as error:
            _log.warning("the metrics API's APIServices may be left behind: %s", error)

    def _group(self) -> tuple[Json, ...]:
        return tuple(it for it in self._caches[KIND] if it["metadata"]["name"].endswith(f".{names.METRICS_GROUP}"))

    async def _look_and_do(self, is_wanted: bool, group: tuple[Json, ...], now: datetime) -> Steps:
        ours = await self._ours(group)
        if not is_wanted and not ours:
            return Steps()
        service = await self._get(SERVICES.path(names.SYSTEM_NAMESPACE, names.METRICS_SERVICE))
        seen = Seen(
            is_wanted,
            group,
            ours,
            secret=await self._get(_SECRET),
            owner=await self._get(_ROLE),
            port=service["spec"]["ports"][0]["port"] if service is not None else None,
        )
        steps = decide(seen, now)
        for step in steps.steps:
            await self._do(step)
        return steps

    async def _ours(self, group: tuple[Json, ...]) -> tuple[Json, ...]:
        names_there = [it["metadata"]["name"] for it in group if service_of(it) == OUR_SERVICE]
        found = [await self._get(KIND.path("", name)) for name in names_there if name in API_SERVICES]
        # It may have been pointed elsewhere since the watch told of it.
        return tuple(it for it in found if it is not None and service_of(it) == OUR_SERVICE)

    async def _get(self, path: str) -> Json | None:
        try:
            return await self._api.request("GET", path)
        except NotFoundError:
            return None

    async def _do(self, step: Write | Remove) -> None:
        match step:
            case Write(body=body):
                path = _SECRET if body["kind"] == "Secret" else KIND.path("", body["metadata"]["name"])
                await self._api.request(
                    "PATCH",
                    path,
                    body=body,
                    query=[("fieldManager", names.OPERATOR_MANAGER), ("force", "true")],
                    content_type=APPLY,
                )
            case Remove(name=name, uid=uid):
                try:
                    await self._api.request(
                        "DELETE",
                        KIND.path("", name),
                        body={"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}},
                    )
                except NotFoundError:
                    return
        _log.info("metrics API: %s", step.why)
