"""Roll-outs in a small world: Deployment controller, ReplicaSets, scheduler and kubelet as Kubernetes has them, tick by tick.

Whatever is edited when: never more than one engine fewer than wanted can answer, none where one GPU is spare; what serves the
newest template is never stopped; and in the end all engines are of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.desired.child import Child
from emberline_operator.desired.deployment import Strategy, make_deployment, strategy_of
from emberline_operator.plan.conditions import Verdict, stamp, truth
from emberline_operator.plan.rollout import Rollout, judge_rollout
from emberline_operator.snapshot import PodState, Snapshot
from support.decisions import H100, decision, gpu_node
from support.examples import examples
from support.operator_objects import NOW, UID, Raw, make_endpoint

ME: Final = Child("team", "tiny", UID, names.DEFAULT_REGION)
ENDPOINT: Final = make_endpoint(accelerator={"kind": "Nvidia"})
SPEC: Final = InferenceEndpointSpec.model_validate(ENDPOINT["spec"])
HERE: Final = decision(H100)
LOAD_S, DRAIN_S, TICK_S = 20, 60, 5
GPU: Final = {names.GPU_RESOURCE: 1}


def template(revision: str) -> Raw:
    return {
        "metadata": {"annotations": {names.ANNOTATION_TEMPLATE_HASH: revision}},
        "spec": {"containers": [{"resources": {"limits": GPU}}]},
    }


@dataclass
class Pod:
    name: str
    revision: str
    node: str = ""
    stuck_since: int | None = None
    ready_at: int | None = None
    ends_at: int | None = None

    def is_ready(self, now_s: int) -> bool:
        return self.ready_at is not None and self.ready_at <= now_s and self.ends_at is None


@dataclass
class World:
    """One endpoint on one node. `hidden` GPUs are held by somebody of whom the operator knows nothing."""

    replicas: int
    gpus: int
    hidden: int = 0
    now_s: int = 0
    pods: list[Pod] = field(default_factory=list)
    wanted: dict[str, int] = field(default_factory=dict)
    """Replicas of each ReplicaSet, the oldest first."""
    revision: str = "A"
    num_made: int = 0
    judged: Rollout = field(default_factory=lambda: Rollout("Surge"))
    reason: str = "NewReplicaSetAvailable"

    def __post_init__(self) -> None:
        verdict = Verdict(ConditionType.ROLLOUT_BLOCKED, "False", Reason.NOT_BLOCKED, "")
        (self.told,) = stamp([verdict], {}, 1, NOW)
        self.live = make_deployment(
            ME,
            template("A"),
            inputs="",
            placement="",
            strategy="Surge",
            drain_timeout_s=DRAIN_S,
            replicas=self.replicas,
        )
        self.wanted["A"] = self.replicas
        for _ in range(self.replicas):
            self._make("A").node = "node-1"
        for pod in self.pods:
            pod.ready_at = 0

    @property
    def strategy(self) -> Strategy:
        return strategy_of(self.live)

    @property
    def num_ready(self) -> int:
        return sum(pod.is_ready(self.now_s) for pod in self.pods)

    def tick(self) -> None:
        self.now_s += TICK_S
        self._kubelet()
        self._operator()
        self._controller()
        self._replica_sets()
        self._scheduler()

    def _operator(self) -> None:
        held = sum(bool(pod.node) for pod in self.pods)
        seen = Snapshot(
            endpoint={**ENDPOINT, "status": {"conditions": [self.told]}},
            pods=tuple(map(self._seen, self.pods)),
            nodes={"node-1": gpu_node(gpus=self.gpus)},
            gpus_in_use={"node-1": {names.GPU_RESOURCE: held}},
        )
        updated = self.wanted.get(self.live_revision, 0)
        self.live["status"] = {
            "replicas": sum(self.wanted.values()),
            "updatedReplicas": updated,
            "conditions": [{"type": "Progressing", "status": "True", "reason": self.reason}],
        }
        now = NOW + timedelta(seconds=self.now_s)
        made = template(self.revision)
        self.judged = judge_rollout(SPEC, seen, names.DEFAULT_REGION, self.live, made, HERE, now)
        verdict = Verdict(
            ConditionType.ROLLOUT_BLOCKED, truth(self.judged.reason is not Reason.NOT_BLOCKED), self.judged.reason, ""
        )
        (self.told,) = stamp([verdict], {"conditions": [self.told]}, 1, now)
        if self.live_revision != self.revision:
            self.reason = "ReplicaSetUpdated"
        self.live = make_deployment(
            ME,
            made,
            inputs="",
            placement="",
            strategy=self.judged.strategy,
            drain_timeout_s=DRAIN_S,
            replicas=self.replicas,
        )

    @property
    def live_revision(self) -> str:
        return str(self.live["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH])

    def _seen(self, pod: Pod) -> PodState:
        return PodState(
            name=pod.name,
            template_hash=pod.revision,
            region=names.DEFAULT_REGION,
            created=NOW,
            ready_since=NOW if pod.ready_at is not None and pod.ready_at <= self.now_s else None,
            terminating=pod.ends_at is not None,
            unschedulable="no GPU" if pod.stuck_since is not None else "",
            unschedulable_since=None if pod.stuck_since is None else NOW + timedelta(seconds=pod.stuck_since),
            node=pod.node,
            gpus=GPU,
        )

    def _controller(self) -> None:
        """As pkg/controller/deployment/rolling.go: first the new ReplicaSet up, else the old ones down."""
        newest = self.live_revision
        self.wanted.setdefault(newest, 0)
        surge, unavailable = (1, 0) if self.strategy == "Surge" else (0, 1)
        room = self.replicas + surge - sum(self.wanted.values())
        grown = min(room, self.replicas - self.wanted[newest])
        if grown > 0:
            self.wanted[newest] += grown
            return
        least = self.replicas - unavailable
        left = sum(self.wanted.values()) - least - (self.wanted[newest] - self._available(newest))
        for revision in [r for r in self.wanted if r != newest]:  # those that cannot answer go first
            dropped = max(0, min(left, self.wanted[revision] - self._available(revision)))
            self.wanted[revision] -= dropped
            left -= dropped
        spare = sum(map(self._available, self.wanted)) - least
        for revision in [r for r in self.wanted if r != newest]:
            dropped = max(0, min(spare, left, self.wanted[revision]))
            self.wanted[revision] -= dropped
            left -= dropped
            spare -= dropped
        if self.wanted[newest] == sum(self.wanted.values()) == self._available(newest) == self.replicas:
            self.reason = "NewReplicaSetAvailable"

    def _available(self, revision: str) -> int:
        return sum(pod.revision == revision and pod.is_ready(self.now_s) for pod in self.pods)

    def _replica_sets(self) -> None:
        for revision, wanted in self.wanted.items():
            alive = [pod for pod in self.pods if pod.revision == revision and pod.ends_at is None]
            alive.sort(key=lambda pod: (bool(pod.node), pod.is_ready(self.now_s)))
            for pod in alive[: max(0, len(alive) - wanted)]:
                pod.ends_at = self.now_s + (DRAIN_S if pod.is_ready(self.now_s) else 0)
                if revision == self.live_revision:
                    assert not pod.is_ready(self.now_s), "what serves the newest template is never stopped"
            for _ in range(wanted - len(alive)):
                self._make(revision)

    def _make(self, revision: str) -> Pod:
        self.num_made += 1
        pod = Pod(f"{revision}-{self.num_made}", revision)
        self.pods.append(pod)
        return pod

    def _scheduler(self) -> None:
        for pod in self.pods:
            if pod.node or pod.ends_at is not None:
                continue
            if sum(bool(other.node) for other in self.pods) + self.hidden < self.gpus:
                pod.node, pod.stuck_since, pod.ready_at = "node-1", None, self.now_s + LOAD_S
            elif pod.stuck_since is None:
                pod.stuck_since = self.now_s

    def _kubelet(self) -> None:
        self.pods = [pod for pod in self.pods if pod.ends_at is None or pod.ends_at > self.now_s]

    def run(self, seconds: int) -> int:
        """Ticks through the time; gives the fewest engines that could answer."""
        fewest = self.num_ready
        for _ in range(seconds // TICK_S):
            self.tick()
            fewest = min(fewest, self.num_ready)
        return fewest


EDITS = st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 40)), min_size=1, max_size=5)


@settings(**examples(40))
@example(replicas=2, spare=1, hidden=0, edits=[("B", 20), ("A", 1)])
@given(replicas=st.integers(1, 4), spare=st.integers(0, 2), hidden=st.integers(0, 2), edits=EDITS)
def test_whatever_is_edited_when(replicas: int, spare: int, hidden: int, edits: list[tuple[str, int]]) -> None:
    hidden = min(hidden, spare)
    world = World(replicas, replicas + spare, hidden)
    fewest = replicas
    for revision, ticks in edits:
        world.revision = revision
        fewest = min(fewest, world.run(ticks * TICK_S))
    fewest = min(fewest, world.run((replicas + len(edits)) * (LOAD_S + DRAIN_S + 60)))
    assert fewest >= replicas - (spare == hidden)
    assert {pod.revision for pod in world.pods if pod.is_ready(world.now_s)} == {edits[-1][0]}
    assert world.num_ready == replicas
    assert world.judged == Rollout(world.strategy)


@pytest.mark.parametrize("replicas", [1, 3])
def test_with_a_free_gpu_nobody_notices(replicas: int) -> None:
    """One is enough: while an engine drains the next one waits for its place, and no other one is stopped."""
    world = World(replicas, replicas + 1)
    world.revision = "B"
    assert world.run(600) == replicas
    assert world.judged == Rollout("Surge")
    assert world.num_made == 2 * replicas
    world.revision = "C"
    assert world.run(600) == replicas, "nor of the next one"


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_without_one_engines_are_replaced_one_by_one(replicas: int) -> None:
    """T22."""
    world = World(replicas, replicas)
    world.revision = "B"
    assert world.run(30) == replicas - 1
    assert world.judged.reason is Reason.WAITING_FOR_DRAIN
    world.run(replicas * 200)
    assert world.num_ready == replicas
    assert world.num_made == 2 * replicas, "each was replaced once"
    assert world.judged == Rollout("Drain")


def test_a_gpu_that_only_seems_free_costs_half_a_minute() -> None:
    world = World(1, 2, hidden=1)
    world.revision = "B"
    assert world.run(30) == 1
    assert world.judged.reason is Reason.WAITING_FOR_GPU
    assert world.run(300) == 0
    assert world.num_ready == 1
    assert world.num_made == 2


def test_a_b_a_restarts_nothing_while_b_has_not_served() -> None:
    world = World(2, 3, hidden=1)
    world.revision = "B"
    assert world.run(20) == 2
    world.revision = "A"
    assert world.run(300) == 2
    assert world.num_made == 3, "one of B was tried"
    assert world.judged.is_over


def test_three_rapid_edits_restart_each_engine_once() -> None:
    world = World(3, 6)
    for revision in "BCD":
        world.revision = revision
        assert world.run(TICK_S) == 3
    assert world.run(600) == 3
    assert world.num_made <= 3 + 2 + 3, "of B and C at most one each was begun"
