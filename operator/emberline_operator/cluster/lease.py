"""The Lease that says who leads: read, created and replaced, always on the condition that it is as last read."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from emberline_contract import names
from emberline_operator.cluster.api import Api
from emberline_operator.errors import NotFoundError
from emberline_operator.leadership import Record
from emberline_operator.snapshot import Json

LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.SYSTEM_NAMESPACE}/leases"


class Lease:
    """The operator's Lease. `api` must be no other requests' connection: a renewal may not queue behind them.

    `clock` gives the wall-clock times that are written for people; nothing is decided by them.
    """

    def __init__(self, api: Api, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock

    async def read(self) -> Record | None:
        """The record; None if there is no Lease."""
        try:
            return record_of(await self._api.request("GET", f"{LEASES}/{names.OPERATOR_NAME}"))
        except NotFoundError:
            return None

    async def take(self, before: Record | None, identity: str, duration_s: float) -> Record:
        """Write a new leader into the record as it was read. Raises ConflictError if it is another by now."""
        transitions = 0 if before is None else before.transitions + 1
        return await self._write(Record(identity, duration_s, before.version if before else "", transitions))

    async def renew(self, held: Record) -> Record:
        """Show that the leader lives. Raises ConflictError if somebody has written the Lease meanwhile."""
        return await self._write(held)

    async def release(self, held: Record) -> None:
        """Leave the Lease without a holder, so that nobody needs to wait. Raises ConflictError if it is another's by now."""
        await self._write(Record("", held.duration_s, held.version, held.transitions))

    async def _write(self, record: Record) -> Record:
        now = self._clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        body = lease_of(record, now)
        if record.version:
            return record_of(await self._api.request("PUT", f"{LEASES}/{names.OPERATOR_NAME}", body=body))
        return record_of(await self._api.request("POST", LEASES, body=body))


def record_of(lease: Json) -> Record:
    """The record in a Lease, whoever wrote it."""
    spec = lease.get("spec", {})
    return Record(
        holder=spec.get("holderIdentity") or "",
        duration_s=float(spec.get("leaseDurationSeconds") or 0),
        version=lease["metadata"]["resourceVersion"],
        transitions=int(spec.get("leaseTransitions") or 0),
        acquired=spec.get("acquireTime") or "",
    )


def lease_of(record: Record, now: str) -> Json:
    """The Lease of a record. A Lease without a holder leaves the field out: the API server refuses an empty one."""
    metadata = {"name": names.OPERATOR_NAME, "namespace": names.SYSTEM_NAMESPACE}
    holder = {"holderIdentity": record.holder} if record.holder else {}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {**metadata, "resourceVersion": record.version} if record.version else metadata,
        "spec": {
            **holder,
            "leaseDurationSeconds": max(1, math.ceil(record.duration_s)),
            "acquireTime": record.acquired or now,
            "renewTime": now,
            "leaseTransitions": record.transitions,
        },
    }
