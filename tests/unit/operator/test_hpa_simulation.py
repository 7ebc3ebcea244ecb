"""The HorizontalPodAutoscaler's formula in a closed loop with engines that load, by our two metrics and our `behavior`.

Modelled as the controller computes it: AverageValue of each metric, the tolerance against the present number, the larger of both,
policies and the window of scaling down. Demand is constant: so many clients, each of which asks again when it is answered.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_operator.demand_formula import Load, Targets, queue_load, targets_of
from emberline_operator.desired.child import Child
from emberline_operator.desired.hpa import make_hpa
from support.examples import examples
from support.scaling_cases import Raw, spec_of

SYNC_S = 15
DEFAULT_TOLERANCE = 0.1
MAX_REPLICAS = 1000


@dataclass
class Hpa:
    """The controller, told what our object tells it."""

    spec: Raw
    recommendations: deque[tuple[float, int]] = field(default_factory=deque)
    last_down_s: float = -math.inf

    def wanted(self, totals: dict[str, float], replicas: int) -> int:
        """What the metrics ask for, each within its tolerance; the larger wins."""
        return max(
            self._by_metric(totals[m["object"]["metric"]["name"]], m["object"]["target"]["averageValue"], replicas)
            for m in self.spec["metrics"]
        )

    def _by_metric(self, total: float, target: str, replicas: int) -> int:
        average = 1000 * int(target[:-1]) if target.endswith("k") else int(target)
        ratio = total / (average * replicas)
        tolerance = self.spec["behavior"]["scaleUp"].get("tolerance")
        up = DEFAULT_TOLERANCE if tolerance is None else float(tolerance)
        if 1 - DEFAULT_TOLERANCE <= ratio <= 1 + up:
            return replicas
        return math.ceil(total / average)

    def look(self, totals: dict[str, float], replicas: int, now_s: float) -> int:
        """The number of replicas after one look."""
        spec, down = self.spec, self.spec["behavior"]["scaleDown"]
        wanted = min(max(self.wanted(totals, replicas), int(spec["minReplicas"])), int(spec["maxReplicas"]))
        self.recommendations.append((now_s, wanted))
        while self.recommendations[0][0] < now_s - down["stabilizationWindowSeconds"]:
            self.recommendations.popleft()
        if wanted >= replicas:
            (up,) = spec["behavior"]["scaleUp"]["policies"]
            return min(wanted, replicas + int(up["value"]))
        wanted = min(replicas, max(number for _, number in self.recommendations))
        (policy,) = down["policies"]
        if wanted < replicas and now_s - self.last_down_s >= policy["periodSeconds"]:
            self.last_down_s = now_s
            return max(wanted, replicas - int(policy["value"]))
        return replicas


@dataclass
class Loop:
    """Clients, engines and the autoscaler. One replica has been woken and loads."""

    demand: int
    capacity: int
    load_s: float
    hpa: Hpa
    targets: Targets
    replicas: int = 1
    now_s: float = 0.0
    ready_at_s: list[float] = field(default_factory=list)
    queued_since_s: float | None = 0.0
    events: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ready_at_s = [self.load_s]

    @property
    def ready(self) -> int:
        return sum(at_s <= self.now_s for at_s in self.ready_at_s)

    @property
    def queue(self) -> int:
        return max(0, self.demand - self.ready * self.capacity)

    def step(self) -> None:
        """One look of the autoscaler, and the time until the next."""
        if not self.queue:
            self.queued_since_s = None
        elif self.queued_since_s is None:
            self.queued_since_s = self.now_s
        has_waited = self.queued_since_s is not None and self.now_s - self.queued_since_s > 1
        load = Load(self.demand, self.queue, has_waited, self.ready)
        totals = {
            "emberline_queue_load": float(queue_load(load, self.targets.queue_depth)),
            "emberline_requests": float(self.demand),
        }
        before, backlog = self.replicas, has_waited and self.queue
        self.replicas = self.hpa.look(totals, before, self.now_s)
        if self.replicas != before:
            self.events.append((self.now_s, self.replicas))
        assert not backlog or self.replicas >= min(before, self.ready), "a backlog never argues for fewer than serve"
        if self.replicas > before:
            self.ready_at_s += [self.now_s + self.load_s] * (self.replicas - before)
        # The newest are the cheapest to stop: those that still load go first.
        self.ready_at_s = sorted(self.ready_at_s)[: self.replicas]
        self.now_s += SYNC_S


def make_loop(demand: int, capacity: int, load_s: float, queue_depth: int, *, has_tolerance: bool) -> Loop:
    spec = spec_of(
        engine={"maxSequences": capacity},
        scaling={"maxReplicas": MAX_REPLICAS, "queueDepthPerReplica": queue_depth, "scaleDownStabilization": "5m"},
    )
    body = make_hpa(Child("team", "tiny", "u", "default"), spec, floor=0, has_tolerance=has_tolerance)
    return Loop(demand, capacity, load_s, Hpa(body["spec"]), targets_of(spec))


POINT = (st.integers(1, 500), st.integers(1, 64), st.integers(0, 600), st.sampled_from((1, 4, 16)))


def settled(loop: Loop) -> int:
    """Replicas at which it stands: after every engine that was asked for in vain has been stopped, one a minute."""
    while loop.now_s < loop.load_s * 4 + 600 or loop.now_s - max((t for t, _ in loop.events), default=0.0) < 1200:
        loop.step()
        assert loop.now_s < 300_000, f"still moving: {loop.events[-10:]}"
    return loop.replicas


@given(*POINT, st.booleans())
@settings(**examples(60))
def test_after_it_has_converged_nothing_is_scaled(
    demand: int, capacity: int, load_s: int, queue_depth: int, has_tolerance: bool
) -> None:
    loop = make_loop(demand, capacity, load_s, queue_depth, has_tolerance=has_tolerance)
    replicas, num_events = settled(loop), len(loop.events)
    for _ in range(400):
        loop.step()
    assert len(loop.events) == num_events
    assert loop.replicas == replicas
    assert loop.queue == 0 or (not has_tolerance and loop.queue < 0.1 * replicas * capacity + capacity)


@given(*POINT)
@settings(**examples(60))
def test_no_more_is_asked_for_than_was_queued_at_the_start(
    demand: int, capacity: int, load_s: int, queue_depth: int
) -> None:
    """T11: engines that load are not asked for again, however long they take."""
    loop = make_loop(demand, capacity, load_s, queue_depth, has_tolerance=True)
    settled(loop)
    by_requests, by_queue = math.ceil(demand / capacity), math.ceil(demand / queue_depth)
    assert max((n for _, n in loop.events), default=1) <= max(by_requests, by_queue) + 1
    assert loop.replicas >= by_requests


@given(*POINT, st.booleans())
@settings(**examples(60))
def test_a_backlog_scales_nothing_down(
    demand: int, capacity: int, load_s: int, queue_depth: int, has_tolerance: bool
) -> None:
    """However many engines serve: while something has waited for more than a second none of them is stopped."""
    loop = make_loop(demand, capacity, load_s, queue_depth, has_tolerance=has_tolerance)
    loop.replicas = max(1, (demand - 1) // capacity)
    loop.ready_at_s = [0.0] * loop.replicas
    for _ in range(100):
        before, has_queue = loop.replicas, loop.queue > 0 and loop.now_s > 1
        loop.step()
        assert not has_queue or loop.replicas >= before
