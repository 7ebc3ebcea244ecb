"""States that an engine process goes through, as `/ready` and `/health` name them."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where an engine's start stands; also the label of `emberline_startup_seconds` and the word in heartbeats."""

    IMPORTS = "imports"
    """Python modules are being imported; the socket listens already."""
    WEIGHTS = "weights"
    """Weights are being mapped and converted."""
    KV = "kv"
    """The KV cache is being allocated."""
    WARMUP = "warmup"
    """The first forward pass runs."""
    READY = "ready"
    DRAINING = "draining"
    """SIGTERM was received: new requests are refused, running ones finish."""
    FAILED = "failed"
    """The executor is lost; the process is about to end with a non-zero code."""


class WaitPhase(StrEnum):
    """What a held request waits for, as the gateway's heartbeats say it."""

    SCALING = "scaling"
    """The scale-up is written; no pod is there yet."""
    SCHEDULING = "scheduling"
    """A pod is there and no node has taken it."""
    STARTING = "starting"
    """A node starts the pod's container."""
    LOADING = "loading"
    """The engine runs and loads its weights."""
