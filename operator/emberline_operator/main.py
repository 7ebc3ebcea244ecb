"""Composes the operator: connection, caches, watches, queue, health."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import aiohttp
import kopf

from emberline_operator.cluster.api import Api
from emberline_operator.cluster.caches import Caches, Key, key_of
from emberline_operator.cluster.kinds import ENDPOINTS, PODS
from emberline_operator.cluster.writes import Writer
from emberline_operator.demand import Gateways, running_gateways
from emberline_operator.errors import ClusterError, NotFoundError, SettingsError
from emberline_operator.handlers import login, watches
from emberline_operator.health import Liveness, Metrics, serve
from emberline_operator.reconcile.passes import Reconciler
from emberline_operator.reconcile.queue import Outcome, Queue
from emberline_operator.settings import Settings

_log = logging.getLogger(__name__)
FIRST_RESYNC_S: Final = 20.0


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        settings = Settings.from_environ(os.environ)
        asyncio.run(run(settings))
    except SettingsError as error:
        sys.exit(f"emberline-operator: {error}")
    except NotFoundError as error:
        sys.exit(f"emberline-operator: {error}; are the CRDs installed (kubectl apply -f crds/)?")
    except ClusterError as error:
        sys.exit(f"emberline-operator: the API server is needed to start: {error}")


async def run(settings: Settings, *, stop: asyncio.Event | None = None, ready: asyncio.Event | None = None) -> None:
    """Run one operator until `stop` or a signal; `ready` is set when everything has been listed."""
    api = await Api.connect(settings.kubeconfig)
    # Gateways are asked seldom: a connection that is kept would only outlive its gateway.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        try:
            await _run(settings, api, session, stop, ready or asyncio.Event())
        finally:
            await api.close()


async def _run(
    settings: Settings, api: Api, session: aiohttp.ClientSession, stop: asyncio.Event | None, ready: asyncio.Event
) -> None:
    caches, metrics = Caches(), Metrics()
    liveness = Liveness(time.monotonic, settings.resync_s)
    gateways = Gateways(
        session,
        list_gateways=lambda: running_gateways(caches[PODS]),
        token_path=settings.admin_token_path,
        port=settings.gateway_admin_port,
        clock=time.monotonic,
    )
    writer = Writer(api, caches, metrics.on_write)
    reconciler = Reconciler(caches, writer, gateways, settings.install, lambda: datetime.now(UTC))
    queue = Queue(_measured(reconciler.reconcile, metrics), time.monotonic)
    registry = kopf.OperatorRegistry()
    login.register(registry, settings.kubeconfig)
    watches.register(registry, caches, queue.enqueue, liveness.on_event)

    async with serve([settings.host], settings.health_port, liveness, metrics.registry):
        # kopf gives no sign when its first lists are through; so all is listed here before the first pass.
        await _list(api, caches, queue, liveness)
        ready.set()
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(queue.run(settings.num_workers), name="queue"),
                group.create_task(_resync(settings.resync_s, api, caches, queue, liveness), name="resync"),
            ]
            _log.info("watching; %d endpoints", len(caches[ENDPOINTS]))
            # Without a flag of ours kopf waits for signals alone; with one, it would wait for the flag after a signal too.
            await kopf.operator(
                registry=registry, settings=watches.kopf_settings(), clusterwide=True, standalone=True, stop_flag=stop
            )
            for task in background:
                task.cancel()


async def _list(api: Api, caches: Caches, queue: Queue, liveness: Liveness, spread_s: float = 0.0) -> None:
    """List everything; what has changed is looked at at once, the rest within `spread_s`, so that nobody waits for it."""
    changed = await caches.list_all(api)
    liveness.on_list()
    for obj in changed:
        for key in watches.concerned(caches, obj):
            queue.enqueue(key)
    num_endpoints = len(caches[ENDPOINTS])
    for rank, endpoint in enumerate(caches[ENDPOINTS]):
        queue.enqueue(key_of(endpoint), spread_s * rank / num_endpoints)


async def _resync(period_s: float, api: Api, caches: Caches, queue: Queue, liveness: Liveness) -> None:
    """List everything from time to time: heals what a watch has lost, and looks at every endpoint again."""
    # Soon after the start once more: what was deleted between our list and kopf's first one is seen by neither.
    delay_s = min(FIRST_RESYNC_S, period_s)
    while True:
        await asyncio.sleep(delay_s)
        delay_s = period_s
        try:
            await _list(api, caches, queue, liveness, spread_s=delay_s / 10)
        except ClusterError as error:
            _log.warning("resync failed: %s", error)


def _measured(work: Callable[[Key], Awaitable[Outcome]], metrics: Metrics) -> Callable[[Key], Awaitable[Outcome]]:
    async def measured(key: Key) -> Outcome:
        begun_s = time.perf_counter()
        result = "failed"
        try:
            outcome = await work(key)
            result = "written" if outcome.has_written else "quiet"
            return outcome
        finally:
            metrics.passes.labels(result).inc()
            metrics.pass_seconds.observe(time.perf_counter() - begun_s)

    return measured
