"""Keeping a Node registered and alive: its object, its Ready condition and its Lease."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

from emberline_local.node_api import STRATEGIC_MERGE, NodeApi, NodeApiError, Object

log = logging.getLogger(__name__)

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_LEASE_S = 40
_RENEW_S = 10.0
_RETRY_S = 1.0
_STATUS_EACH = 3
"""The status is written with every third renewal: brings a node back that was taken for lost while the machine slept."""


async def keep_node(api: NodeApi, node: Object, *, registered: asyncio.Event, renew_s: float = _RENEW_S) -> None:
    """Register the Node, set `registered`, and keep it Ready; never ends by itself."""
    name = node["metadata"]["name"]
    num_renewals = 0
    while True:
        try:
            if num_renewals % _STATUS_EACH == 0:
                await register(api, node)
            await _renew(api, name)
            registered.set()
            num_renewals += 1
            await asyncio.sleep(renew_s)
        except NodeApiError as error:
            log.warning("node %s: %s", name, error)
            num_renewals = 0
            await asyncio.sleep(_RETRY_S)


async def register(api: NodeApi, node: Object) -> None:
    """Create the Node or bring it to what `node` says, Ready as of now."""
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    status = {**node["status"], "conditions": [_ready_condition(datetime.now(UTC))]}
    try:
        await api.request("POST", "/api/v1/nodes", body={**node, "status": status})
    except NodeApiError as error:
        if error.status != 409:
            raise
        await api.request(
            "PATCH", path, body={"metadata": {"labels": node["metadata"]["labels"]}}, content_type=STRATEGIC_MERGE
        )
        await api.request("PATCH", f"{path}/status", body={"status": status}, content_type=STRATEGIC_MERGE)


def _ready_condition(now: datetime) -> dict[str, Any]:
    text = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "Ready",
        "status": "True",
        "reason": "NodeReady",
        "message": "runs pods as local processes",
        "lastHeartbeatTime": text,
        "lastTransitionTime": text,
    }


async def _renew(api: NodeApi, name: str) -> None:
    spec = {
        "holderIdentity": name,
        "leaseDurationSeconds": _LEASE_S,
        "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    try:
        await api.request(
            "PATCH", f"{_LEASES}/{name}", body={"spec": spec}, content_type="application/merge-patch+json"
        )
    except NodeApiError as error:
        if error.status != 404:
            raise
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": "kube-node-lease"},
            "spec": spec,
        }
        await api.request("POST", _LEASES, body=body)
