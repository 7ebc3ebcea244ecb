"""Composes the operator: connections, caches, watches, election, queue, health."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import aiohttp
import kopf

from emberline_operator.cluster.api import Api
from emberline_operator.cluster.caches import Caches, Key, key_of
from emberline_operator.cluster.election import Election
from emberline_operator.cluster.events import EventWriter
from emberline_operator.cluster.features import read_features
from emberline_operator.cluster.kinds import ENDPOINTS, PODS, WATCHED, Kind
from emberline_operator.cluster.lease import Lease
from emberline_operator.cluster.writes import Writer
from emberline_operator.demand import Gateways, running_gateways
from emberline_operator.errors import ClusterError, LostLeadershipError, NotFoundError, SettingsError
from emberline_operator.handlers import login, watches
from emberline_operator.health import Health, Metrics, serve
from emberline_operator.leadership import Gate
from emberline_operator.reconcile.passes import Reconciler
from emberline_operator.reconcile.queue import Outcome, Queue
from emberline_operator.settings import Settings

_log = logging.getLogger(__name__)
FIRST_RESYNC_S: Final = 20.0


def main() -> None:
    """Run until SIGTERM, with what the environment says."""
    try:
        settings = Settings.from_environ(os.environ)
    except SettingsError as error:
        sys.exit(f"emberline-operator: {error}")
    run_process(settings)


def run_process(settings: Settings) -> None:
    """Run until SIGTERM as a process of its own; what can be foreseen ends it with a sentence."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        asyncio.run(run(settings))
    except LostLeadershipError as error:
        sys.exit(f"emberline-operator: lost the leadership, so this process ends: {error}")
    except NotFoundError as error:
        sys.exit(f"emberline-operator: {error}; are the CRDs installed (kubectl apply -f crds/)?")
    except ClusterError as error:
        sys.exit(f"emberline-operator: the API server is needed to start: {error}")


async def run(settings: Settings, *, stop: asyncio.Event | None = None, ready: asyncio.Event | None = None) -> None:
    """Run one replica until `stop`, or without it until a signal; `ready` is set when everything has been listed.

    Raises LostLeadershipError when it led and may do so no longer; the process must end then.
    """
    times = settings.lease
    gate = Gate(time.monotonic, times)
    api = await Api.connect(settings.kubeconfig, may_write=gate.may_write)
    lease_api = await Api.connect(settings.kubeconfig, timeout_s=times.request_timeout_s)
    lease = Lease(lease_api, _now)
    identity = f"{settings.pod_name}_{secrets.token_hex(4)}"
    # Gateways are asked seldom: a connection that is kept would only outlive its gateway.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        replica = _Replica(settings, api, session, Election(lease, gate, identity, times, time.monotonic))
        try:
            await replica.run(stop, ready or asyncio.Event())
        except BaseExceptionGroup as group:
            lost = group.subgroup(LostLeadershipError)
            if lost is None:
                raise
            raise _first(lost) from group
        finally:
            await api.close()
            await lease_api.close()


class _Replica:
    """One process: it watches in any case, and works if it leads."""

    def __init__(self, settings: Settings, api: Api, session: aiohttp.ClientSession, election: Election) -> None:
        self._settings = settings
        self._api = api
        self._election = election
        self._caches = Caches(settings.watch_namespaces)
        self._metrics = Metrics()
        self._health = Health(
            time.monotonic,
            [kind.plural for kind in WATCHED],
            list_period_s=settings.resync_s,
            watch_grace_s=settings.watch_grace_s,
        )
        gateways = Gateways(
            session,
            list_gateways=lambda: running_gateways(self._caches[PODS]),
            token_path=settings.admin_token_path,
            port=settings.gateway_admin_port,
            clock=time.monotonic,
        )
        writer = Writer(api, self._caches, self._metrics.on_write)
        events = EventWriter(api, settings.pod_name, _now)
        self._reconciler = Reconciler(self._caches, writer, gateways, events, settings.install, _now)
        self._queue = Queue(_measured(self._reconciler.reconcile, self._metrics), time.monotonic)

    async def run(self, stop: asyncio.Event | None, ready: asyncio.Event) -> None:
        """Run until stopped; leadership and whatever else breaks comes out as a group of errors."""
        settings, halt = self._settings, asyncio.Event()
        registry = kopf.OperatorRegistry()
        login.register(registry, settings.kubeconfig)
        watches.register(registry, self._caches, self._enqueue, self._enqueue_first, self._on_event)
        is_process, stop = stop is None, stop or asyncio.Event()
        async with serve([settings.host], settings.health_port, self._health, self._metrics, self._leads):
            self._reconciler.features = await read_features(self._api)
            # kopf gives no sign when its first lists are through; so all is listed here before the first pass.
            await self._list()
            if is_process:
                _settle_collector()
            ready.set()
            async with asyncio.TaskGroup() as group:
                leading = group.create_task(self._lead(), name="lead")
                background = [
                    leading,
                    group.create_task(self._resync(), name="resync"),
                    group.create_task(self._look_twice(), name="second looks"),
                    group.create_task(self._end(stop, leading, halt), name="end"),
                ]
                _log.info("watching; %d endpoints", len(self._caches[ENDPOINTS]))
                await self._watch(registry, halt, stop if is_process else None)
                for task in background:
                    task.cancel()

    async def _watch(
        self, registry: kopf.OperatorRegistry, halt: asyncio.Event, on_signal: asyncio.Event | None
    ) -> None:
        """Run kopf until `halt`. kopf cancels every task that is not ignored: those there are now."""
        ours = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=watches.kopf_settings(),
            standalone=True,
            stop_flag=halt,
            **watches.scope(self._settings.watch_namespaces),
        )
        if on_signal is not None:
            # Instead of kopf's own, which stop it before the passes in flight have ended.
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, on_signal.set)
        await kopf.run_tasks(tasks, ignored=ours)

    def _leads(self) -> bool:
        return self._election.has_won

    def _enqueue(self, key: Key, delay_s: float = 0.0) -> None:
        # Who does not lead remembers nothing to do: a new leader looks at every endpoint anyway.
        if self._leads():
            self._queue.enqueue(key, delay_s)

    def _enqueue_first(self, key: Key) -> None:
        if self._leads():
            self._queue.enqueue_first(key)

    def _on_event(self, kind: Kind, key: Key, version: int) -> None:
        self._health.watches[kind.plural].told(key, version, time.monotonic())

    async def _lead(self) -> None:
        """Work as soon as this process leads."""
        await self._election.win()
        _log.info("leading; %d endpoints", len(self._caches[ENDPOINTS]))
        for endpoint in self._caches[ENDPOINTS]:
            self._enqueue(key_of(endpoint))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._election.hold(), name="lease")
            group.create_task(self._queue.run(self._settings.num_workers), name="queue")

    async def _end(self, stop: asyncio.Event, leading: asyncio.Task[None], halt: asyncio.Event) -> None:
        """On a stop: first let passes end, then give the Lease away, and only then stop the watches.

        kopf would cancel whatever runs in this loop.
        """
        await stop.wait()
        drain_s = self._settings.lease.drain_s
        if not await self._queue.close(drain_s):
            _log.warning("passes were still running %g s after the stop; they are cut off", drain_s)
        leading.cancel()
        await asyncio.wait([leading])
        await self._election.release()
        halt.set()

    async def _list(self, kinds: Iterable[Kind] = WATCHED) -> None:
        """List kinds; what has changed is looked at at once."""
        for kind in kinds:
            told = await self._caches.refresh(self._api, kind)
            self._health.watches[kind.plural].listed(told.present, told.news, told.lost, time.monotonic())
            for obj in told.changed:
                for key in watches.concerned(self._caches, obj):
                    self._enqueue(key)

    async def _resync(self) -> None:
        """List everything from time to time: heals what a watch has lost, and looks at every endpoint again."""
        # Soon after the start once more: what was deleted between our list and kopf's first one is seen by neither.
        self._health.on_list()
        delay_s = min(FIRST_RESYNC_S, self._settings.resync_s)
        while True:
            await asyncio.sleep(delay_s)
            delay_s = self._settings.resync_s
            try:
                await self._list()
            except ClusterError as error:
                _log.warning("resync failed: %s", error)
                continue
            self._health.on_list()
            # Spread, so that nobody waits for it.
            num_endpoints = len(self._caches[ENDPOINTS])
            for rank, endpoint in enumerate(self._caches[ENDPOINTS]):
                self._enqueue(key_of(endpoint), delay_s / 10 * rank / num_endpoints)

    async def _look_twice(self) -> None:
        """List again what a watch should have told long ago: what is still there proves that the watch has lost it."""
        while True:
            await asyncio.sleep(self._settings.watch_grace_s / 2)
            now_s = time.monotonic()
            doubtful = [kind for kind in WATCHED if self._health.watches[kind.plural].needs_second_look(now_s)]
            try:
                await self._list(doubtful)
            except ClusterError as error:
                _log.warning("second look failed: %s", error)


def _settle_collector() -> None:
    """What the caches hold is no garbage: the collector need not go through all of it again and again while a changed spec waits."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)


def _now() -> datetime:
    return datetime.now(UTC)


def _first(group: BaseExceptionGroup[LostLeadershipError]) -> LostLeadershipError:
    """One error of a group, however deep it lies."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LostLeadershipError)
    return error


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
