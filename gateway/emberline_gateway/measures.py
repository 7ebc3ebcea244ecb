"""The gateway's metrics. One registry an instance, so that two gateways in one process keep apart."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from emberline_contract import metrics

_ENDPOINT = ("namespace", "name")


class Measures:
    """Counters, gauges and histograms, by endpoint; a request to no known endpoint counts under empty names."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.held = Gauge(metrics.GATEWAY_HELD, "Requests held now.", _ENDPOINT, registry=self.registry)
        self.dispatched = Gauge(
            metrics.GATEWAY_DISPATCHED, "Requests at an engine now.", _ENDPOINT, registry=self.registry
        )
        self.requests = Counter(
            metrics.GATEWAY_REQUESTS,
            "Requests ended, by HTTP status or code of the SSE error event.",
            (*_ENDPOINT, "code"),
            registry=self.registry,
        )
        self.wakes = Counter(metrics.GATEWAY_WAKES, "Scale-ups from zero.", _ENDPOINT, registry=self.registry)
        self.hold_seconds = Histogram(
            metrics.GATEWAY_HOLD_SECONDS,
            "How long requests were held before they went to an engine.",
            _ENDPOINT,
            buckets=metrics.LATENCY_BUCKETS_S,
            registry=self.registry,
        )

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)
