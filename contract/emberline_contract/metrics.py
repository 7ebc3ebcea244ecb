"""Metric names. The engine speaks vLLM's names so that dashboards and autoscalers work unchanged; what vLLM lacks is `emberline_*`."""

from __future__ import annotations

from typing import Final

# Engine; labels model_name and engine. Counters are exposed with `_total`.
NUM_REQUESTS_RUNNING: Final = "vllm:num_requests_running"
"""Gauge: requests that the engine computes."""
NUM_REQUESTS_WAITING: Final = "vllm:num_requests_waiting"
"""Gauge: requests in the engine's queue."""
KV_CACHE_USAGE: Final = "vllm:kv_cache_usage_perc"
"""Gauge: part of the KV cache that requests hold, 0 to 1."""
PROMPT_TOKENS: Final = "vllm:prompt_tokens"
"""Counter: prompt tokens of requests that got a first token."""
GENERATION_TOKENS: Final = "vllm:generation_tokens"
"""Counter: tokens generated."""
REQUEST_SUCCESS: Final = "vllm:request_success"
"""Counter: requests that ended; label finished_reason: stop, length, abort, error."""
NUM_PREEMPTIONS: Final = "vllm:num_preemptions"
"""Counter: times that a request had to give up its KV for a while."""
PREFIX_CACHE_QUERIES: Final = "vllm:prefix_cache_queries"
"""Counter: prompt tokens looked up in the prefix cache."""
PREFIX_CACHE_HITS: Final = "vllm:prefix_cache_hits"
"""Counter: prompt tokens found in the prefix cache."""
TIME_TO_FIRST_TOKEN: Final = "vllm:time_to_first_token_seconds"
"""Histogram: arrival to first token."""
INTER_TOKEN_LATENCY: Final = "vllm:inter_token_latency_seconds"
"""Histogram: from one token of a request to its next."""
E2E_REQUEST_LATENCY: Final = "vllm:e2e_request_latency_seconds"
"""Histogram: arrival to end."""
REQUEST_QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
"""Histogram: arrival to the first step."""
ITERATION_TOKENS: Final = "vllm:iteration_tokens_total"
"""Histogram: tokens that one step computed."""
# Engine, what vLLM lacks.
STARTUP_SECONDS: Final = "emberline_startup_seconds"
"""Gauge; label phase: seconds that each phase of this process's start took."""
ENGINE_INFO: Final = "emberline_engine_info"
"""Gauge, always 1; labels executor, device, dtype, quantization (what the weights are or became; `none`), kv_cache_dtype and version."""
DRAINING: Final = "emberline_draining"
"""Gauge: 1 while the engine finishes what runs and takes nothing new."""
# Gateway; labels namespace and name.
GATEWAY_HELD: Final = "emberline_gateway_held_requests"
"""Gauge: requests held now because nothing is ready."""
GATEWAY_DISPATCHED: Final = "emberline_gateway_dispatched_requests"
"""Gauge: requests at an engine now."""
GATEWAY_REQUESTS: Final = "emberline_gateway_requests"
"""Counter: requests ended; label code: the HTTP status, or the code of an SSE error event."""
GATEWAY_WAKES: Final = "emberline_gateway_wakes"
"""Counter: scale-ups from zero."""
GATEWAY_HOLD_SECONDS: Final = "emberline_gateway_hold_seconds"
"""Histogram: how long requests were held before they went to an engine."""
# Operator.
OPERATOR_PASSES: Final = "emberline_operator_passes"
"""Counter; label result: passes over single endpoints."""
OPERATOR_PASS_SECONDS: Final = "emberline_operator_pass_seconds"
"""Histogram: time of one pass."""
OPERATOR_WRITES: Final = "emberline_operator_writes"
"""Counter; labels kind and verb: writes to the API server."""
OPERATOR_LEADER: Final = "emberline_operator_leader"
"""Gauge: 1 if this replica leads."""
OPERATOR_WATCH_AGE: Final = "emberline_operator_watch_age_seconds"
"""Gauge; label resource: time since a watch was last proven to tell everything."""

LATENCY_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
"""vLLM's time-to-first-token edges, with finer ones below 10 ms: small models live there."""
INTER_TOKEN_BUCKETS_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75,
    1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS_S: Final = (
    0.005, 0.025, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_TOKEN_BUCKETS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
