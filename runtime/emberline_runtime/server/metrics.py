"""Prometheus metrics under vLLM's names, labels and edges, so that its dashboards and autoscalers work unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from emberline_contract import metrics as names
from emberline_contract.engine_config import EngineConfig
from emberline_contract.health import Phase
from emberline_runtime.core.request import FinishReason
from emberline_runtime.core.scheduler import SchedulerStats
from emberline_runtime.engine.loop import Output
from emberline_runtime.server.choice import Choice

ENGINE_LABELS = ("model_name", "engine")
_ZERO = SchedulerStats(
    num_running=0,
    num_waiting=0,
    kv_usage=0.0,
    num_preemptions=0,
    num_prefix_query_tokens=0,
    num_prefix_hit_tokens=0,
)


class Metrics:
    """One engine's metrics, in a registry of their own. Everything is called on the asyncio loop."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = (model_name, "0")
        self._stats = _ZERO
        self.num_steps = 0
        """Steps committed."""
        self._running = self._gauge(names.NUM_REQUESTS_RUNNING, "Requests that the engine computes.")
        self._waiting = self._gauge(names.NUM_REQUESTS_WAITING, "Requests in the engine's queue.")
        self._kv_usage = self._gauge(names.KV_CACHE_USAGE, "Part of the KV cache that requests hold, 0 to 1.")
        self._prompt_tokens = self._counter(names.PROMPT_TOKENS, "Prompt tokens of requests that got a first token.")
        self._generation_tokens = self._counter(names.GENERATION_TOKENS, "Tokens generated.")
        self._preemptions = self._counter(names.NUM_PREEMPTIONS, "Requests that had to give up their KV for a while.")
        self._prefix_queries = self._counter(names.PREFIX_CACHE_QUERIES, "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter(names.PREFIX_CACHE_HITS, "Prompt tokens found in the prefix cache.")
        self._first_token = self._histogram(
            names.TIME_TO_FIRST_TOKEN, "Arrival to first token.", names.LATENCY_BUCKETS_S
        )
        self._inter_token = self._histogram(
            names.INTER_TOKEN_LATENCY, "From one token of a request to its next.", names.INTER_TOKEN_BUCKETS_S
        )
        self._e2e = self._histogram(names.E2E_REQUEST_LATENCY, "Arrival to end.", names.REQUEST_BUCKETS_S)
        self._queue_time = self._histogram(
            names.REQUEST_QUEUE_TIME, "Arrival to the first step.", names.REQUEST_BUCKETS_S
        )
        self._step_tokens = self._histogram(
            names.ITERATION_TOKENS, "Tokens that one step computed.", names.ITERATION_TOKEN_BUCKETS
        )
        finished = Counter(
            names.REQUEST_SUCCESS,
            "Requests that ended, by reason.",
            (*ENGINE_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {reason: finished.labels(*self._labels, reason.value) for reason in FinishReason}
        self._draining = Gauge(
            names.DRAINING, "1 while the engine finishes what runs and takes nothing new.", registry=self.registry
        )
        self._startup = Gauge(
            names.STARTUP_SECONDS, "Seconds that each phase of this start took.", ("phase",), registry=self.registry
        )
        self._info = Gauge(
            names.ENGINE_INFO,
            "What this engine is; always 1.",
            ("model_name", "executor", "device", "dtype", "quantization", "kv_cache_dtype", "version"),
            registry=self.registry,
        )

    def on_output(self, output: Output) -> None:
        """A step was committed, or commands were obeyed: gauges are fresh also when the engine goes idle or aborts."""
        stats = output.stats
        if stats is not None:
            self._running.set(stats.num_running)
            self._waiting.set(stats.num_waiting)
            self._kv_usage.set(stats.kv_usage)
            self._preemptions.inc(stats.num_preemptions - self._stats.num_preemptions)
            self._prefix_queries.inc(stats.num_prefix_query_tokens - self._stats.num_prefix_query_tokens)
            self._prefix_hits.inc(stats.num_prefix_hit_tokens - self._stats.num_prefix_hit_tokens)
            self._stats = stats
        if output.num_step_tokens:
            self.num_steps += 1
            self._step_tokens.observe(output.num_step_tokens)

    def on_tokens(self, choice: Choice, num_tokens: int, time_s: float) -> None:
        """New tokens of a request; called before they are counted in `choice`."""
        self._generation_tokens.inc(num_tokens)
        if choice.last_token_s is None:
            self._prompt_tokens.inc(len(choice.request.prompt))
            self._first_token.observe(time_s - choice.request.arrival_s)
            if choice.queue_s is not None:
                self._queue_time.observe(choice.queue_s)
        else:
            self._inter_token.observe((time_s - choice.last_token_s) / num_tokens)

    def on_end(self, choice: Choice, reason: FinishReason, time_s: float) -> None:
        """A request that was taken has ended."""
        self._finished[reason].inc()
        self._e2e.observe(time_s - choice.request.arrival_s)

    def set_startup(self, startup_s: Mapping[Phase, float]) -> None:
        """How long each phase of the start took."""
        for phase, seconds in startup_s.items():
            self._startup.labels(phase.value).set(seconds)

    def set_info(self, executor: str, config: EngineConfig, stored_weights: str | None, version: str) -> None:
        """What this engine is; `stored_weights`: the eight bits that the checkpoint has already."""
        precision = (config.dtype, config.quantization or stored_weights or "none", config.kv_type)
        self._info.labels(self._labels[0], executor, config.device, *precision, version).set(1)

    def set_draining(self, draining: bool) -> None:
        """Whether new requests are refused because the process ends."""
        self._draining.set(draining)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(name, help_text, ENGINE_LABELS, registry=self.registry).labels(*self._labels)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(name, help_text, ENGINE_LABELS, registry=self.registry).labels(*self._labels)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, help_text, ENGINE_LABELS, registry=self.registry, buckets=buckets).labels(*self._labels)
