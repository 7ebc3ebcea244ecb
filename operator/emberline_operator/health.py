"""`/healthz` and `/metrics` of the operator. Healthy means: its lists succeed, so that nothing stays unseen for long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, exposition

from emberline_contract import http, metrics

HEALTHZ: Final = "/healthz"
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

    def on_write(self, kind: str, verb: str) -> None:
        """Count a write."""
        self.writes.labels(kind, verb).inc()


@dataclass(slots=True)
class Liveness:
    """When the operator last heard from the API server. `clock` gives monotonic seconds."""

    clock: Callable[[], float]
    list_period_s: float
    listed_at_s: float | None = None
    last_event_s: dict[str, float] = field(default_factory=dict)
    """Last event of each watch."""

    def on_list(self) -> None:
        """A list of everything has succeeded."""
        self.listed_at_s = self.clock()

    def on_event(self, plural: str) -> None:
        """A watch has told something."""
        self.last_event_s[plural] = self.clock()

    def is_healthy(self) -> bool:
        """Whether the last list is recent. A quiet watch is no illness; a lost one is healed by the lists."""
        return self.listed_at_s is not None and self.clock() - self.listed_at_s < MISSED_LISTS * self.list_period_s

    def report(self) -> dict[str, object]:
        """Ages in seconds, for people."""
        now_s = self.clock()
        return {
            "healthy": self.is_healthy(),
            "last_list_age_s": None if self.listed_at_s is None else round(now_s - self.listed_at_s, 1),
            "last_event_age_s": {name: round(now_s - at_s, 1) for name, at_s in sorted(self.last_event_s.items())},
        }


@asynccontextmanager
async def serve(
    addresses: Sequence[str], port: int, liveness: Liveness, registry: CollectorRegistry
) -> AsyncIterator[int]:
    """Serve both paths while inside; gives the port, which matters when 0 was asked for."""

    async def healthz(_: web.Request) -> web.Response:
        return web.json_response(liveness.report(), status=200 if liveness.is_healthy() else 503)

    async def exposed(_: web.Request) -> web.Response:
        return web.Response(
            body=exposition.generate_latest(registry), headers={"Content-Type": exposition.CONTENT_TYPE_LATEST}
        )

    app = web.Application(client_max_size=1024)
    app.router.add_get(HEALTHZ, healthz)
    app.router.add_get(http.METRICS, exposed)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        for address in addresses:
            await web.TCPSite(runner, address, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
