"""Which engine goes first when one must: the ReplicaSet controller is told what each one's end would cost.

The cost is the number of requests at the pod in steps of powers of two. It is written only where it would change who goes, and
for each pod at most every `PERIOD_S`: a write a request would be a load on the API server for nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from emberline_operator.plan.actions import Ask, SetDeletionCost
from emberline_operator.snapshot import PodState, Snapshot

PERIOD_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What is written now."""

    actions: tuple[SetDeletionCost, ...] = ()
    check_in_s: float | None = None
    """When to look again; None where there is no choice."""


def deletion_costs(seen: Snapshot, region: str, now: datetime) -> Costs | Ask:
    """The costs to write; none while a gateway does not answer."""
    pods = [pod for pod in seen.pods if pod.region == region and pod.is_routable]
    if len(pods) < 2:
        return Costs()
    demand = seen.demands.get(region)
    if demand is None:
        return Ask(demand_of=region)
    if demand.silent or not demand.views:
        return Costs(check_in_s=PERIOD_S)
    outstanding = {pod.name: sum(view.pods.get(pod.name, 0) for view in demand.views) for pod in pods}
    costs = {name: cost_of(requests) for name, requests in outstanding.items()}
    if is_order_right(pods, costs):
        return Costs(check_in_s=PERIOD_S)
    actions = tuple(
        SetDeletionCost(pod.name, pod.uid, costs[pod.name], now, f"pod {pod.name} has {outstanding[pod.name]} requests")
        for pod in pods
        if (pod.deletion_cost or 0) != costs[pod.name] and _is_due(pod, now)
    )
    return Costs(actions, PERIOD_S)


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
    # One of the future is no memory of a write: a clock was ahead, or somebody has edited the annotation.
    return written is None or written > now or (now - written).total_seconds() >= PERIOD_S
