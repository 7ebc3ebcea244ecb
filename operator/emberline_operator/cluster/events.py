"""Events on InferenceEndpoints: at most one per endpoint and reason in ten minutes, whoever leads.

An Event's name holds its endpoint, reason and the ten minutes that it falls into, so that a second one collides. What this
process has told it remembers; after a change of leader the Event of the ten minutes before is looked up.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from emberline_contract import names
from emberline_operator.cluster.api import Api
from emberline_operator.errors import ClusterError, ConflictError, NotFoundError
from emberline_operator.plan.actions import Notice
from emberline_operator.snapshot import Json, time_of

_log = logging.getLogger(__name__)
PERIOD: Final = timedelta(minutes=10)
_ACTION: Final = "Reconcile"
_MAX_NOTE: Final = 1024
"""The API server's own bound."""


class EventWriter:
    """Writes what a pass wants to be noticed. A failure is logged and costs nothing else: status says the same."""

    def __init__(self, api: Api, instance: str, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._instance = instance
        """Name of this process, for `reportingInstance`."""
        self._clock = clock
        self._told: dict[tuple[str, str], datetime] = {}

    async def tell(self, endpoint: Json, notice: Notice) -> None:
        """Write one Event, unless the same was told within the period."""
        now = self._clock()
        key = (endpoint["metadata"]["uid"], notice.reason.value)
        self._told = {told: at for told, at in self._told.items() if now - at < PERIOD}
        if key in self._told:
            return
        try:
            at = await self._told_before(endpoint, notice, now) or await self._create(endpoint, notice, now)
        except ClusterError as error:
            # Such as a namespace that is being deleted.
            _log.warning("no event %s for %s: %s", notice.reason, endpoint["metadata"]["name"], error)
            return
        self._told[key] = at

    async def _told_before(self, endpoint: Json, notice: Notice, now: datetime) -> datetime | None:
        """When another process told it within the period."""
        try:
            told = await self._api.request("GET", _path(endpoint, event_name(endpoint, notice, now - PERIOD)))
        except NotFoundError:
            return None
        at = time_of(told["eventTime"])
        return at if now - at < PERIOD else None

    async def _create(self, endpoint: Json, notice: Notice, now: datetime) -> datetime:
        """When it was told: now, or some time in these very ten minutes, by another process."""
        body = event(endpoint, notice, now, self._instance)
        try:
            await self._api.request("POST", _path(endpoint), body=body)
        except ConflictError:
            return now - timedelta(seconds=now.timestamp() % PERIOD.total_seconds())
        return now


def event_name(endpoint: Json, notice: Notice, moment: datetime) -> str:
    """`<endpoint>.<hash>`, the same for all moments of the same ten minutes."""
    bucket = int(moment.timestamp() // PERIOD.total_seconds())
    text = f"{endpoint['metadata']['uid']}/{notice.reason.value}/{bucket}"
    return f"{endpoint['metadata']['name']}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def event(endpoint: Json, notice: Notice, now: datetime, instance: str) -> Json:
    """The Event object (events.k8s.io/v1)."""
    metadata = endpoint["metadata"]
    note = notice.message if len(notice.message) <= _MAX_NOTE else f"{notice.message[: _MAX_NOTE - 1]}…"
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(endpoint, notice, now), "namespace": metadata["namespace"]},
        "eventTime": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": f"{names.GROUP}/{names.OPERATOR_NAME}",
        "reportingInstance": instance,
        "action": _ACTION,
        "reason": notice.reason.value,
        "type": notice.type,
        "note": note,
        "regarding": {
            "apiVersion": names.API_VERSION,
            "kind": names.ENDPOINT_KIND,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }


def _path(endpoint: Json, name: str = "") -> str:
    base = f"/apis/events.k8s.io/v1/namespaces/{endpoint['metadata']['namespace']}/events"
    return f"{base}/{name}" if name else base
