"""`/healthz`, `/readyz` and `/metrics` of the operator.

Healthy means: every watch is alive, and lists succeed from time to time. Ready means: besides, what is known is recent. A
replica that does not lead is both, since it would take over with what it knows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition

from emberline_contract import http, metrics
from emberline_operator.watching import Watch

HEALTHZ: Final = "/healthz"
READYZ: Final = "/readyz"
MISSED_LISTS: Final = 3
PASS_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = Counter(
            metrics.OPERATOR_PASSES, "Passes over single endpoints.", ["result"], registry=self.registry
        )
        self.pass_seconds = Histogram(
            metrics.OPERATOR_PASS_SECONDS, "Time of one pass.", buckets=PASS_BUCKETS_S, registry=self.registry
        )
        self.writes = Counter(
            metrics.OPERATOR_WRITES, "Writes to the API server.", ["kind", "verb"], registry=self.registry
        )
        self.leader = Gauge(metrics.OPERATOR_LEADER, "1 if this replica leads.", registry=self.registry)
        self.watch_age = Gauge(
            metrics.OPERATOR_WATCH_AGE,
            "Time since a watch was last proven to tell everything.",
            ["resource"],
            registry=self.registry,
        )

    def on_write(self, kind: str, verb: str) -> None:
        """Count a write."""
        self.writes.labels(kind, verb).inc()


class Health:
    """What the probes are told. `clock` gives monotonic seconds; `resources` are the plurals that are watched."""

    def __init__(
        self, clock: Callable[[], float], resources: Iterable[str], *, list_period_s: float, watch_grace_s: float
    ) -> None:
        self._clock = clock
        self._list_period_s = list_period_s
        self._grace_s = watch_grace_s
        self._begun_s = clock()
        self.watches = {resource: Watch(watch_grace_s) for resource in resources}
        self.listed_s: float | None = None
        """When everything was last listed."""

    def on_list(self) -> None:
        """Everything has been listed."""
        self.listed_s = self._clock()

    def troubles(self) -> list[str]:
        """Why a restart would help; empty: healthy."""
        stale = [
            f"the watch of {resource} has told nothing of {watch.num_lost} objects that lists show"
            for resource, watch in self.watches.items()
            if watch.is_stale
        ]
        if self.listed_s is None:
            return [*stale, "nothing has been listed yet"]
        age_s = self._clock() - self.listed_s
        if age_s >= MISSED_LISTS * self._list_period_s:
            return [
                *stale,
                f"the last list is {age_s:.0f} s old, and there should be one every {self._list_period_s:g} s",
            ]
        return stale

    def doubts(self) -> list[str]:
        """Why this replica should not be counted on now; empty: ready."""
        limit_s = (MISSED_LISTS - 1) * self._list_period_s + self._grace_s
        return self.troubles() + [
            f"the watch of {resource} was last proven current {age_s:.0f} s ago, and {limit_s:g} s are allowed"
            for resource, watch in self.watches.items()
            if (age_s := self.age_s(watch)) >= limit_s and not watch.is_stale
        ]

    def age_s(self, watch: Watch) -> float:
        """Time since a watch was last proven to tell everything, at most the age of this process."""
        now_s = self._clock()
        age_s = watch.age_s(now_s)
        return now_s - self._begun_s if age_s is None else age_s

    def report(self, *, leads: bool) -> dict[str, object]:
        """Ages in seconds and troubles in words, for people."""
        now_s = self._clock()
        return {
            "leader": leads,
            "troubles": self.doubts(),
            "last_list_age_s": None if self.listed_s is None else round(now_s - self.listed_s, 1),
            "watches": {
                resource: {
                    "age_s": round(self.age_s(watch), 1),
                    "last_event_age_s": None if (age_s := watch.event_age_s(now_s)) is None else round(age_s, 1),
                    "untold": watch.num_untold,
                    "stale": watch.is_stale,
                }
                for resource, watch in sorted(self.watches.items())
            },
        }


@asynccontextmanager
async def serve(
    addresses: Sequence[str], port: int, health: Health, measured: Metrics, leads: Callable[[], bool]
) -> AsyncIterator[int]:
    """Serve the three paths while inside; gives the port, which matters when 0 was asked for."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response(health.report(leads=leads()), status=503 if health.troubles() else 200)

    async def readyz(_: web.Request) -> web.Response:
        return web.json_response(health.report(leads=leads()), status=503 if health.doubts() else 200)

    async def exposed(_: web.Request) -> web.Response:
        measured.leader.set(leads())
        for resource, watch in health.watches.items():
            measured.watch_age.labels(resource).set(health.age_s(watch))
        return web.Response(
            body=exposition.generate_latest(measured.registry), headers={"Content-Type": exposition.CONTENT_TYPE_LATEST}
        )

    app = web.Application(client_max_size=1024)
    app.router.add_get(HEALTHZ, healthz)
    app.router.add_get(READYZ, readyz)
    app.router.add_get(http.METRICS, exposed)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        for address in addresses:
            await web.TCPSite(runner, address, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
