"""Which engine goes first when one must: the ReplicaSet controller is told what each one's end would cost.

The cost is the number of requests at the pod in steps of powers of two. It is written only where it would change who goes, and
for each pod at most every `PERIOD_S`: a write a request would be a load on the API server for nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from emberline_operator.plan.actions import SetDeletionCost
from emberline_operator.snapshot import PodState, Snapshot

PERIOD_S: Final = 30.0


def deletion_costs(seen: Snapshot, region: str, now: datetime) -> tuple[SetDeletionCost, ...]:
    """The costs to write; none while demand has not been asked for (`seen.demands`) or a gateway does not answer."""
    demand = seen.demands.get(region)
    pods = [pod for pod in seen.pods if pod.region == region and pod.is_routable]
    if demand is None or demand.silent or not demand.views or len(pods) < 2:
        return ()
    outstanding = {pod.name: sum(view.pods.get(pod.name, 0) for view in demand.views) for pod in pods}
    costs = {name: cost_of(requests) for name, requests in outstanding.items()}
    if is_order_right(pods, costs):
        return ()
    return tuple(
        SetDeletionCost(pod.name, pod.uid, costs[pod.name], now, f"pod {pod.name} has {outstanding[pod.name]} requests")
        for pod in pods
        if (pod.deletion_cost or 0) != costs[pod.name] and _is_due(pod, now)
    )


def cost_of(requests: int) -> int:
    """0 for none, then 1 for one, 2 for two or three, 3 for four to seven, ..."""
    return requests.bit_length()


def is_order_right(pods: Sequence[PodState], costs: Mapping[str, int]) -> bool:
    """Whether by what the pods carry now none goes before one with less to do."""
    carried: dict[int, list[int]] = defaultdict(list)
    for pod in pods:
        carried[costs[pod.name]].append(pod.deletion_cost or 0)
    levels = [carried[cost] for cost in sorted(carried)]
    return all(max(cheap) < min(dear) for cheap, dear in itertools.pairwise(levels))


def _is_due(pod: PodState, now: datetime) -> bool:
    written = pod.deletion_cost_written
    return written is None or (now - written).total_seconds() >= PERIOD_S
