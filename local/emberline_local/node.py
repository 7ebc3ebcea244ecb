"""A process node: an asyncio agent that owns a Node object and runs the pods bound to it as local processes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio.client import ApiClient

from emberline_local.addresses import AddressPool
from emberline_local.node_spec import NodeSpec


@dataclass(frozen=True, kw_only=True)
class ApiServerAddress:
    """Where pods find the API server (their `KUBERNETES_SERVICE_HOST` and `_PORT`)."""

    host: str
    port: int


class ProcessNode:
    """One node; several live in one process and share its event loop, its `ApiClient` and its `AddressPool`.

    `api` acts with the rights of a cluster administrator and stays the caller's to close. Everything the node writes
    lies under `state_dir / "nodes" / spec.name`.
    """

    def __init__(
        self,
        spec: NodeSpec,
        api: ApiClient,
        *,
        state_dir: Path,
        addresses: AddressPool,
        api_server: ApiServerAddress,
    ) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self._api = api
        self._state_dir = state_dir / "nodes" / spec.name
        self._addresses = addresses
        self._api_server = api_server

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`; `ready` is set once the Node is registered and its pods are watched.

        On return every process of the node is gone, its Node object is deleted, and so is its state. Must run on the
        main thread's loop: the kernel kills a pod when the thread that started it ends.
        """
        await stop.wait()
