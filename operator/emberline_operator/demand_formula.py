"""How many engines a region's demand asks for: what the metrics say and what a HorizontalPodAutoscaler makes of them.

The gateways' metrics API serves `queue_load` and the unfinished requests; where it cannot be had, the operator computes both
from what the gateways tell it, and the same number of engines from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from emberline_contract.resources import InferenceEndpointSpec


@dataclass(frozen=True, slots=True)
class Load:
    """The demand of one endpoint in one region, summed over the gateways."""

    unfinished: int
    """Requests that are held or at an engine."""
    queue: int
    """Those of them that wait."""
    has_waited: bool
    """Whether one has waited for more than a second: what waits for less is no reason for another engine."""
    ready: int
    """Engines that can answer. Those that still start are no reason for more: they are what the queue waits for."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What one engine is meant to carry."""

    queue_depth: int
    requests: int


def targets_of(spec: InferenceEndpointSpec) -> Targets:
    """The endpoint's targets; `requestsPerReplica` defaults to what an engine computes at once."""
    scaling = spec.scaling
    requests = scaling.requests_per_replica
    return Targets(scaling.queue_depth_per_replica, spec.engine.max_sequences if requests is None else requests)


def queue_load(load: Load, queue_depth: int) -> int:
    """`emberline_queue_load`: each `queue_depth` that wait ask for one engine besides those that serve already."""
    return load.queue + queue_depth * load.ready if load.queue and load.has_waited else 0


def wanted_replicas(load: Load, targets: Targets) -> int:
    """The larger of both metrics' totals by their targets, as AverageValue has it; unbounded and not multiplied by anything."""
    by_queue = math.ceil(queue_load(load, targets.queue_depth) / targets.queue_depth)
    return max(by_queue, math.ceil(load.unfinished / targets.requests))
