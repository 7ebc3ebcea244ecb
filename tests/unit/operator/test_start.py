"""When a start has failed: each phase has its own time, progress is never cut off, and what fails again waits longer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_contract.conditions import Reason
from emberline_operator.decision import Decision, RegionPlacement
from emberline_operator.plan.actions import Ask, Scale, Sleep
from emberline_operator.plan.scaling import ScalePlan
from emberline_operator.plan.start import LAST_RETRY_S, Start, judge_start, retry_delay_s
from emberline_operator.pods import read_pod
from emberline_operator.snapshot import PodState, Room, Snapshot, time_text
from support.examples import examples
from support.scaling_cases import CPU, START, Raw, Region, calls, engine, spec_of

NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
TIMES: Raw = {"unschedulableTimeout": "30s", "activationTimeout": "10m"}
POOL: Raw = {"name": "burst", "nodeSelector": {"pool": "burst"}, "resourceName": "nvidia.com/gpu",
             "computeCapability": "9.0", "memory": "80Gi", "gpusPerNode": 8, "maxNodes": 2}  # fmt: skip
IN_POOL: Raw = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["burst"]}]}]
    }
}
CONTAINERS: list[Raw] = [{"name": "engine", "startupProbe": {"periodSeconds": 1, "failureThreshold": 3600}}]
LIVE: Raw = {
    "spec": {"replicas": 1, "template": {"spec": {"containers": CONTAINERS, "affinity": {"nodeAffinity": IN_POOL}}}}
}


@dataclass
class Case:
    """A region's start at START; `scaling` is what the spec says of it."""

    pods: tuple[PodState, ...]
    scaling: Raw = field(default_factory=lambda: dict(TIMES))
    live: Raw = field(default_factory=lambda: LIVE)
    failed: Raw | None = None
    more: Raw = field(default_factory=dict)
    has_gpus: bool = False

    def judge(self, now: datetime = START) -> Start | Ask:
        spec = spec_of(scaling=self.scaling)
        shown = {"name": "default", **({"failedStart": self.failed} if self.failed else {})}
        endpoint = {
            "metadata": {"name": "tiny", "namespace": "team", "uid": "u", "generation": 1},
            "status": {"observedGeneration": 1, "regions": [shown]},
        }
        choice = replace(CPU, resource_name="nvidia.com/gpu") if self.has_gpus else CPU
        decision = Decision("default", "", {}, (), choice)
        placement = RegionPlacement(
            "default", decision, may_start=True, is_wanted=True, reason=Reason.ANYWHERE, message=""
        )
        claims = {"models": {"status": {"phase": "Bound"}}}
        seen = Snapshot(endpoint, pods=self.pods, **{"claims": claims, **self.more})
        return judge_start(spec, seen, placement, self.live, now)

    def phase(self) -> str:
        """Of a start that has failed just now; empty while it has not."""
        start = self.judge()
        assert isinstance(start, Start)
        return start.failed.phase if start.failed is not None and start.waits else ""


def waiting(since_s: float, name: str = "p", **more: Any) -> PodState:
    since = START - timedelta(seconds=since_s)
    return engine(name, START, ready_s=None, node="", unschedulable=NO_GPU, unschedulable_since=since, **more)


def failing(age_s: float, **more: Any) -> PodState:
    return engine("p", START, age_s=age_s, ready_s=None, failure="container engine: CrashLoopBackOff", **more)


LOADING = engine("loads", START, age_s=10_000, ready_s=None)
LEAVING = engine("leaves", START, terminating=True, ends_by=START + timedelta(seconds=60))
ASKED: Raw = {"taken_up": {"p": False}}
TAKEN: Raw = {"taken_up": {"p": True}}


@pytest.mark.parametrize(
    ("case", "phase"),
    [
        pytest.param(Case((waiting(29.9),), more=ASKED), "", id="unschedulable, a moment too early"),
        pytest.param(Case((waiting(30),), more=ASKED), "Scheduling", id="T10: unschedulable for unschedulableTimeout"),
        pytest.param(Case((waiting(180),), more=TAKEN), "", id="T40: an autoscaler has taken it up"),
        pytest.param(Case((waiting(600),), more=TAKEN), "Scheduling", id="and no node has come"),
        pytest.param(Case((waiting(300), LEAVING), more=ASKED), "", id="an engine that ends holds the place"),
        pytest.param(
            Case((waiting(300), replace(LEAVING, ends_by=START - timedelta(seconds=61))), more=ASKED),
            "Scheduling",
            id="one that never ends holds nothing",
        ),
        pytest.param(
            Case((waiting(300),), more={**ASKED, "rooms": {"default": Room(False, START - timedelta(seconds=29))}}),
            "",
            id="the place is free for a moment only",
        ),
        pytest.param(
            Case((waiting(300),), more={**ASKED, "rooms": {"default": Room(False, START - timedelta(seconds=30))}}),
            "Scheduling",
            id="the place has been free for long, and somebody else has it",
        ),
        pytest.param(Case((waiting(300), LOADING), more=ASKED), "", id="another engine loads"),
        pytest.param(Case((LOADING,)), "", id="loading has no end but the probe's"),
        pytest.param(Case((failing(599),)), "", id="it crashes, a moment too early"),
        pytest.param(Case((failing(600),)), "Container", id="T6: it crashes for activationTimeout"),
        pytest.param(Case((failing(600, is_trying=True),)), "", id="it runs once more"),
        pytest.param(Case((failing(600, lacks_image=True),)), "Image", id="no image"),
        pytest.param(
            Case((failing(90_000, not_ready_since=START - timedelta(seconds=5)),)), "", id="it served for a day, and crashed"
        ),
        pytest.param(Case((failing(3700, loading_s=3599, is_trying=True),)), "Loading", id="the startup probe's end"),
        pytest.param(Case((failing(60, loading_s=30),), scaling={"activationTimeout": "1h"}), "", id="it ended by itself"),
        pytest.param(Case((failing(600), engine("r", START, ready_s=1))), "", id="another engine answers"),
        pytest.param(Case((failing(600),), live={"spec": {"replicas": 0}}), "", id="nothing is to run"),
        pytest.param(Case((replace(failing(600), has_ended=True),)), "", id="thrown out by its node; another one is made"),
        pytest.param(Case((replace(failing(600), terminating=True),)), "", id="it ends"),
        pytest.param(Case(()), "", id="pods are being made"),
    ],
)  # fmt: skip
def test_each_phase_has_its_time(case: Case, phase: str) -> None:
    assert case.phase() == phase


def test_a_declared_pool_may_still_get_a_node() -> None:
    region = {"default": {"metadata": {"name": "default"}, "spec": {"gpuPools": [POOL]}}}
    case = Case((waiting(180),), has_gpus=True, more={"regions": region, "taken_up": {}})
    assert case.phase() == "", "nobody need be asked"
    case.pods = (waiting(600),)
    assert case.phase() == "Scheduling"
    full = {"default": {"metadata": {"name": "default"}, "spec": {"gpuPools": [{**POOL, "maxNodes": 0}]}}}
    case = Case((waiting(180),), has_gpus=True, more={"regions": full, **ASKED})
    assert case.phase() == "Scheduling"


def test_a_claim_that_is_not_bound_yet_is_waited_for() -> None:
    words = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims"
    pod = replace(waiting(180), unschedulable=words)
    case = Case((pod,), more={"claims": {"models": {"status": {"phase": "Pending"}}}})
    assert case.phase() == ""


def test_an_autoscaler_is_asked_about_only_when_that_decides() -> None:
    assert Case((waiting(30, "a"), waiting(30, "b"))).judge() == Ask(autoscaler_of=frozenset({"a", "b"}))
    for early in (Case((waiting(29),)), Case((waiting(300), LOADING)), Case((waiting(300), LEAVING))):
        assert isinstance(early.judge(), Start)


def test_pods_that_the_api_server_refuses() -> None:
    def refused(since_s: float) -> Raw:
        moment = time_text(START - timedelta(seconds=since_s))
        condition = {
            "type": "ReplicaFailure",
            "status": "True",
            "message": "exceeded quota",
            "lastTransitionTime": moment,
        }
        return {**LIVE, "status": {"conditions": [condition]}}

    assert Case((), live=refused(599)).phase() == ""
    assert Case((), live=refused(600)).phase() == "Scheduling"
    assert Case((LEAVING,), live=refused(600)).phase() == "", "what ends may be what the quota is used for"


def test_whoever_ends_is_remembered_until_the_scheduler_has_had_its_time() -> None:
    case = Case((waiting(100), LEAVING), more=ASKED)
    start = case.judge()
    assert isinstance(start, Start)
    assert start.room == Room(True, START)
    later = START + timedelta(seconds=40)
    case = Case((waiting(100),), more={**ASKED, "rooms": {"default": start.room}})
    start = case.judge(later)
    assert isinstance(start, Start)
    assert (start.room, start.failed, start.check_in_s) == (Room(False, later), None, 30.0)


def test_failures_in_a_row() -> None:
    assert [retry_delay_s(n) for n in range(1, 8)] == [30, 60, 120, 240, 480, 600, 600]
    assert retry_delay_s(10_000) == LAST_RETRY_S
    told = {"phase": "Container", "message": "m", "count": 2, "retryTime": time_text(START + timedelta(seconds=50))}
    old, new = failing(700), failing(0, not_ready_since=None)
    start = Case((old,), failed=told).judge()
    assert isinstance(start, Start)
    assert (start.is_given_up, start.check_in_s) == (True, 50.0), "told already: now it is ended"
    assert start.failed is not None
    assert start.failed.count == 2
    start = Case(
        (replace(new, created=START - timedelta(seconds=5)),), {"activationTimeout": "5s"}, failed=told
    ).judge()
    assert isinstance(start, Start)
    assert start.failed is not None
    assert (start.failed.count, start.failed.retry_time) == (3, START + timedelta(seconds=120)), "a newer start"
    start = Case((old,), failed={**told, "retryTime": time_text(START)}).judge()
    assert isinstance(start, Start)
    assert start.failed is not None
    assert start.failed.count == 3, "above the floor it goes on, and so does the failure"
    start = Case((engine("r", START, ready_s=1),), failed=told).judge()
    assert start == Start(), "the first engine that is ready ends it"


def test_it_is_told_before_it_is_ended_and_the_floor_stays() -> None:
    for floor, ends in ((0, True), (1, False)):
        case = Region(spec_of(scaling={"minReplicas": floor}), pods=(failing(700),), demand=calls(3, held=3))
        plan = case.plan()
        assert not plan.actions, "no gateway may wake it anew before it knows"
        assert plan.start.failed is not None
        case.failed = plan.start.failed
        actions = case.plan().actions
        assert [type(action) for action in actions] == ([Scale] if ends else []), "no handshake: nothing is in flight"


# A world of one pod at a time, played for hours.


@dataclass
class World:
    """Requests wake the region as a gateway does; what its pods do is drawn."""

    draw: st.DataObject
    floor: int
    case: Region = field(init=False)
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        scaling = {"minReplicas": self.floor, "idleAfter": "1m", **TIMES}
        self.case = Region(spec_of(scaling=scaling), replicas=self.floor, pods=(), demand=calls(idle_s=1e6))
        self.fate = ""
        self.made: datetime | None = None
        self.last_request = START - timedelta(hours=1)

    def pods(self) -> tuple[PodState, ...]:
        if self.made is None:
            return ()
        age_s = (self.case.now - self.made).total_seconds()
        pod = engine("p", self.case.now, age_s=age_s, ready_s=None)
        match self.fate:
            case "no node":
                return (replace(pod, node="", unschedulable=NO_GPU, unschedulable_since=self.made),)
            case "crashes":
                return (replace(pod, failure="it crashes", is_trying=int(age_s) % 7 == 0),)
            case "loads" if age_s < 900:
                return (pod,)
            case _:
                return (
                    replace(pod, ready_since=max(self.made, self.case.now - timedelta(seconds=max(0.0, age_s - 900)))),
                )

    @property
    def answers(self) -> bool:
        return any(pod.is_routable for pod in self.case.pods or ())

    def step(self) -> None:
        case = self.case
        case.after(self.draw.draw(st.sampled_from((1, 5, 20, 60, 300))))
        calls_now = self.draw.draw(st.booleans())
        if calls_now:
            self.last_request = case.now
            may_wake = case.failed is None or case.now >= case.failed.retry_time
            if case.replicas == 0 and may_wake:
                case.replicas = 1
        if case.replicas and self.made is None:
            self.made, self.fate = case.now, self.draw.draw(st.sampled_from(("no node", "crashes", "loads", "works")))
        case.pods = self.pods()
        held = int(calls_now and case.replicas > 0)
        case.demand = calls(held, 0 if self.answers else held, idle_s=(case.now - self.last_request).total_seconds())
        self.look(is_busy=bool(held))

    def look(self, *, is_busy: bool) -> None:
        case = self.case
        plan = case.ask()
        if isinstance(plan, Ask):
            assert self.fate == "no node"
            case.taken_up = {"p": False}
            plan = case.ask()
        assert isinstance(plan, ScalePlan)
        case.memory, case.failed = plan.recommendations, plan.start.failed
        self.judge(plan, is_busy=is_busy)
        for action in plan.actions:
            scale = action.scale if isinstance(action, Sleep) else action
            assert isinstance(scale, Scale)
            case.replicas = scale.replicas
            if not scale.replicas:
                self.made = None

    def judge(self, plan: ScalePlan, *, is_busy: bool) -> None:
        case, failed = self.case, plan.start.failed
        if self.answers:
            assert failed is None, "an engine is ready"
            self.counts = []
        if failed is not None and (not self.counts or failed.count != self.counts[-1]):
            self.counts.append(failed.count)
            assert self.counts == list(range(1, len(self.counts) + 1)), "one by one"
            assert failed.retry_time > case.now
        for action in plan.actions:
            scale = action.scale if isinstance(action, Sleep) else action
            assert isinstance(scale, Scale)
            if scale.replicas >= case.replicas:
                continue
            assert scale.replicas == 0
            assert self.floor == 0
            assert not (is_busy and self.answers), "to zero with work"
            assert self.fate in ("no node", "crashes") or self.answers, "a start that makes progress was cut off"
            assert isinstance(action, Sleep) == self.answers, (
                "a handshake where something can be in flight, and only there"
            )


@settings(**examples(60))
@given(st.data(), st.sampled_from((0, 0, 1)))
def test_hours_of_starts(draw: st.DataObject, floor: int) -> None:
    world = World(draw, floor)
    for _ in range(60):
        world.step()


# What a pod's status says.

BEGAN, ENDED = "2026-12-01T10:00:00Z", "2026-12-01T11:00:00Z"


def crashed(unready: str, **state: Any) -> PodState:
    last = {"terminated": {"exitCode": 143, "reason": "Error", "startedAt": BEGAN, "finishedAt": ENDED}}
    return read_pod(
        {
            "metadata": {"name": "p", "creationTimestamp": BEGAN},
            "spec": {"nodeName": "n"},
            "status": {
                "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": unready}],
                "containerStatuses": [{"name": "engine", "state": state, "lastState": last}],
            },
        }
    )


def test_an_attempt_to_load_is_told_from_one_that_served() -> None:
    assert crashed(BEGAN).loading_s == 3600
    assert crashed("2026-12-01T10:59:59Z").loading_s is None, "it was ready in between"
    assert crashed(BEGAN, running={}).is_trying
    assert not crashed(BEGAN, waiting={"reason": "CrashLoopBackOff"}).is_trying
    assert crashed(BEGAN, waiting={"reason": "ImagePullBackOff"}).lacks_image
    assert not crashed(BEGAN, waiting={"reason": "CrashLoopBackOff"}).lacks_image
