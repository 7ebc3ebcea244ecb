"""The gateway put together: what `main` runs in a pod, and tests run in their own loop with another cluster."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from typing import Protocol

from emberline_gateway.activation import Activation, Scaler
from emberline_gateway.app import PublicApp, make_admin
from emberline_gateway.callers import Callers, Reviewer
from emberline_gateway.demand import Demand
from emberline_gateway.desk import Desks, Tools
from emberline_gateway.directory import Directory
from emberline_gateway.exchange import Cause, Exchange
from emberline_gateway.logs import log
from emberline_gateway.measures import Measures
from emberline_gateway.patrol import Patrol
from emberline_gateway.proxy import Proxy, make_session
from emberline_gateway.routing import Load
from emberline_gateway.server import Server, make_server

LAST_WORDS_S = 5.0
"""Time between the end of the grace and the end of the process, for the error events to go out."""


class Kube(Scaler, Reviewer, Protocol):
    """All that the gateway needs of the API server."""

    async def watch(self, directory: Directory) -> None:
        """Feeds the directory until cancelled."""
        ...


class Gateway:
    """Both servers, what they share, and what runs beside them."""

    def __init__(
        self,
        directory: Directory,
        demand: Demand,
        proxy: Proxy,
        servers: tuple[Server, Server],
        beside: Sequence[Callable[[], Coroutine[None, None, None]]],
    ) -> None:
        self.directory = directory
        self.demand = demand
        self._proxy = proxy
        self._public, self._admin = servers
        self._beside = (*beside, self._public.sweep, self._admin.sweep)
        self._is_stopping = False

    @property
    def exchanges(self) -> AbstractSet[Exchange]:
        """Requests that are under way."""
        return self._proxy.exchanges

    def why_not_ready(self) -> str:
        """Empty when requests are welcome."""
        if self._is_stopping:
            return "stopping"
        return "" if self.directory.is_complete else "reading the cluster"

    async def serve(self, public: list[socket.socket], admin: list[socket.socket]) -> None:
        """Until `stop` has come to its end. A failure of what runs beside ends it too: stale knowledge is worse."""
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(start()) for start in self._beside]
            servers = (self._public.serve(public), self._admin.serve(admin))
            await asyncio.wait([group.create_task(server) for server in servers])
            for task in beside:
                task.cancel()

    async def stop(self, unready_s: float, grace_s: float) -> None:
        """Not ready first; after `unready_s` no new connections; after `grace_s` the streams that still run get an error."""
        log(logging.INFO, "stopping", exchanges=len(self._proxy.exchanges), grace_s=grace_s)
        self._is_stopping = True
        await asyncio.sleep(unready_s)
        self._public.should_exit = True
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + grace_s
        while self._proxy.exchanges and (left_s := deadline_s - clock()) > 0:
            await asyncio.wait([exchange.task for exchange in self._proxy.exchanges], timeout=left_s)
        for exchange in list(self._proxy.exchanges):
            exchange.interrupt(Cause.SHUTDOWN)
        self._admin.should_exit = True  # not earlier: the operator counts what still runs here


@asynccontextmanager
async def gateway(cluster: Kube, grace_s: float, region: str = "") -> AsyncIterator[Gateway]:
    """Wires everything; nothing runs before `serve`. `region`: the InferenceRegion that it runs in; empty for none."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    measures = Measures()
    directory = Directory(
        on_unreadable=lambda text: log(logging.WARNING, "object ignored", why=text), own_region=region
    )
    activation = Activation(cluster, measures)
    desks = Desks(Tools(directory, Load(), measures, clock, loop.call_later, activation.wanted))
    async with make_session() as session:
        proxy = Proxy(directory, desks, session, measures, clock)
        demand = Demand(directory, desks, session, clock)
        made: Gateway

        def why_not_ready() -> str:
            return made.why_not_ready()

        public = PublicApp(proxy, directory, measures, why_not_ready)
        admin = make_admin(demand, Callers(cluster, clock), why_not_ready)
        servers = (make_server(public, grace_s + LAST_WORDS_S), make_server(admin, LAST_WORDS_S))
        patrol = Patrol(proxy.exchanges, session, clock)
        made = Gateway(directory, demand, proxy, servers, (lambda: cluster.watch(directory), patrol.run))
        try:
            yield made
        finally:
            await activation.stop()


def settle_memory() -> None:
    """Start-up's objects stay: the collector need not look at them again, nor often at the short-lived ones of requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
