"""Roll-outs as tables: which strategy, and what is said of what keeps the newest template from the engines."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import ClaimSource
from emberline_operator.choice import Choice, Expression
from emberline_operator.desired.child import Child
from emberline_operator.desired.deployment import Strategy, make_deployment, strategy_of
from emberline_operator.desired.template import make_template, signature
from emberline_operator.plan.rollout import Rollout, judge_rollout
from emberline_operator.snapshot import NodeState, PodState, Snapshot, Taint, Waiter, time_text
from support.decisions import CPU, H100, H100_LABELS, decision, gpu_node
from support.operator_objects import INSTALL, NOW, UID, Raw, make_endpoint, make_pod_state

ME = Child("team", "tiny", UID, names.DEFAULT_REGION)
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def spec_of(kind: str = "Nvidia", **spec: Any) -> InferenceEndpointSpec:
    endpoint = make_endpoint(**{"accelerator": {"kind": kind}, **spec})
    return InferenceEndpointSpec.model_validate(endpoint["spec"])


class Case:
    """One endpoint whose template changes from `a` to `b`, with one GPU node of one GPU unless told otherwise."""

    def __init__(self, choice: Choice = H100, *, replicas: int = 1, strategy: Strategy = "Surge", **spec: Any) -> None:
        self.spec = spec_of("Nvidia" if choice.resource_name else "Cpu", **spec)
        self.decision = decision(choice)
        self.old, self.new = self.template("a"), self.template("b")
        self.live = make_deployment(
            ME, self.old, inputs="a", placement="", strategy=strategy, drain_timeout_s=600, replicas=replicas
        )
        self.live["metadata"]["generation"] = 1
        self.status()
        self.pods: list[PodState] = []
        self.nodes = [gpu_node()]
        self.regions: Raw = {}
        self.told: Raw = {}
        """RolloutBlocked in the live status."""
        self.surging: dict[tuple[str, str], tuple[Raw, ...]] = {}
        self.waiters: dict[tuple[str, str], tuple[Waiter, ...]] = {}

    def template(self, configmap: str) -> Raw:
        source = ClaimSource("models", "tiny")
        return make_template(ME, self.spec, source, self.decision, image="i", configmap=configmap, install=INSTALL)

    def roll(self) -> None:
        """The new template has been applied."""
        self.live["spec"]["template"] = self.new

    def status(self, reason: str = "NewReplicaSetAvailable", **status: Any) -> None:
        conditions = [{"type": "Progressing", "status": "True", "reason": reason}, *status.pop("conditions", ())]
        self.live["status"] = {"observedGeneration": 1, "conditions": conditions, **status}

    def pod(self, name: str, template: Raw, *, node: str = "", ready: bool = False, **state: Any) -> PodState:
        resource = self.decision.choice.resource_name
        made = make_pod_state(
            name,
            ready_s=60 if ready else None,
            template_hash=signature(template),
            node=node,
            gpus={resource: self.spec.accelerator.count} if resource else {},
            **state,
        )
        self.pods.append(made)
        return made

    def stuck(self, seconds: float, name: str = "new-1") -> PodState:
        since = NOW - timedelta(seconds=seconds)
        return self.pod(name, self.new, unschedulable=NO_GPU, unschedulable_since=since)

    def judge(self, template: Raw | None = None, **arguments: Any) -> Rollout:
        in_use: dict[str, dict[str, int]] = {}
        for pod in self.pods:
            for resource, count in pod.gpus.items():
                if pod.node:
                    on_node = in_use.setdefault(pod.node, {})
                    on_node[resource] = on_node.get(resource, 0) + count
        seen = Snapshot(
            endpoint=make_endpoint(status={"conditions": [self.told]} if self.told else None),
            regions=self.regions,
            pods=tuple(self.pods),
            nodes={node.name: node for node in self.nodes},
            gpus_in_use=in_use,
            surging=self.surging,
            waiters=self.waiters,
        )
        live = arguments.pop("live", self.live)
        wanted = self.new if template is None else template
        return judge_rollout(self.spec, seen, names.DEFAULT_REGION, live, wanted, self.decision, NOW, **arguments)


def serving(choice: Choice = H100, **arguments: Any) -> Case:
    """An old engine serves on the only node; the new template has not been written."""
    case = Case(choice, **arguments)
    case.pod("old-1", case.old, node="node-1", ready=True)
    return case


POOL = {"name": "p", "nodeSelector": {"example.com/pool": "h100"}, "resourceName": names.GPU_RESOURCE, "maxNodes": 2}


def region_with(**pool: Any) -> Raw:
    return {names.DEFAULT_REGION: {"spec": {"gpuPools": [{**POOL, **pool}]}}}


def pool_node(name: str) -> NodeState:
    return gpu_node(name, labels={"example.com/pool": "h100"})


@pytest.mark.parametrize(
    ("what", "nodes", "expected"),
    [
        ("one GPU, and it is taken", [gpu_node()], "Drain"),
        ("a second GPU on the node", [gpu_node(gpus=2)], "Surge"),
        ("a second node", [gpu_node(), gpu_node("node-2")], "Surge"),
        ("of another class", [gpu_node(), gpu_node("node-2", labels={"nvidia.com/gpu.compute.major": "8"})], "Drain"),
        ("cordoned", [gpu_node(), gpu_node("node-2", is_cordoned=True)], "Drain"),
        ("not ready", [gpu_node(), gpu_node("node-2", is_ready=False)], "Drain"),
        ("a taint", [gpu_node(), gpu_node("node-2", taints=(Taint("team", "b", "NoSchedule"),))], "Drain"),
        ("GPU taint", [gpu_node(), gpu_node("node-2", taints=(Taint("nvidia.com/gpu", "x", "NoSchedule"),))], "Surge"),
        ("only a wish", [gpu_node(), gpu_node("node-2", taints=(Taint("team", "b", "PreferNoSchedule"),))], "Surge"),
        (
            "arm64 node",
            [gpu_node(), gpu_node("n", taints=(Taint("kubernetes.io/arch", "arm64", "NoSchedule"),))],
            "Surge",
        ),
        ("other resource", [gpu_node(), replace(gpu_node("node-2"), gpus={"nvidia.com/mig-1g.5gb": 7})], "Drain"),
        ("nothing where the old one is", [gpu_node(labels={})], "Surge"),
        ("no node at all", [], "Surge"),
    ],
)
def test_a_rollout_surges_where_a_gpu_of_the_class_seems_free(what: str, nodes: list[NodeState], expected: str) -> None:
    case = serving()
    case.nodes = nodes
    judged = case.judge()
    assert judged.strategy == expected, what
    assert (judged.reason, judged.is_over) == (Reason.NOT_BLOCKED, False)


def test_a_terminating_engine_holds_its_gpu_still_and_leaves_it_to_its_own_endpoint() -> None:
    case = serving()
    case.nodes = [gpu_node(gpus=2)]
    leaving = case.pod("leaving", case.old, node="node-1", terminating=True)
    assert case.judge().strategy == "Surge", "what serves goes on until the new engine has that place"
    case.surging = {("team", "other"): (case.new,)}
    assert case.judge().strategy == "Drain"
    case.surging = {}
    case.pods[-1] = replace(leaving, region="another endpoint's")
    assert case.judge().strategy == "Drain"
    case.pods[-1] = replace(leaving, terminating=False, template_hash="an edit before this one")
    assert case.judge().strategy == "Surge", "one that was not ready is stopped first"


def test_several_gpus_an_engine_must_be_free_on_one_node() -> None:
    case = Case(accelerator={"kind": "Nvidia", "count": 2})
    case.pod("old-1", case.old, node="node-1", ready=True)
    case.nodes = [gpu_node(gpus=3), gpu_node("node-2", gpus=1)]
    assert case.judge().strategy == "Drain"
    case.nodes = [gpu_node(gpus=3), gpu_node("node-2", gpus=2)]
    assert case.judge().strategy == "Surge"


def test_one_spare_gpu_is_for_one_endpoint() -> None:
    case = serving()
    case.nodes = [gpu_node(gpus=2)]
    case.surging = {("team", "other"): (case.new,)}
    assert case.judge().strategy == "Drain"
    case.surging = {("team", "tiny"): (case.new,)}
    assert case.judge().strategy == "Surge", "its own surge is no rival"
    case.nodes, case.surging = [gpu_node(gpus=3)], {("team", "other"): (case.new,)}
    assert case.judge().strategy == "Surge", "there are two"
    case.surging = {("team", "other"): (case.new,), ("team", "third"): (case.new,)}
    assert case.judge().strategy == "Drain", "and now two that want them"


def test_only_who_could_take_the_same_gpu_is_a_rival() -> None:
    case = serving()
    case.nodes = [gpu_node(gpus=2)]

    def with_rival(choice: Choice, **spec: Any) -> str:
        case.surging = {("team", "other"): (Case(choice, **spec).new,)}
        return case.judge().strategy

    assert with_rival(H100) == "Drain"
    assert with_rival(replace(H100, terms=((Expression("nvidia.com/gpu.memory", "Lt", ("30000",)),),))) == "Surge"
    assert with_rival(replace(H100, resource_name="nvidia.com/mig-1g.5gb")) == "Surge"
    # A Deployment of somebody's own that carries our labels: the API server does not ask whether the bound is a number.
    assert with_rival(replace(H100, terms=((Expression("nvidia.com/gpu.memory", "Gt", ("abc",)),),))) == "Surge"
    assert with_rival(H100, placement={"nodeSelector": {"team": "b"}}) == "Surge"
    case.nodes, case.regions = [gpu_node()], region_with(maxNodes=1)
    assert with_rival(H100) == "Drain", "they wait for the same pool"
    elsewhere = ((Expression("example.com/pool", "In", ("other",)),),)
    assert with_rival(replace(H100, terms=elsewhere)) == "Surge"


def waiter(words: str = NO_GPU, **parts: Any) -> Waiter:
    """An engine of another endpoint that finds no node."""
    spec = {"nodeSelector": {}, "tolerations": [], **parts.pop("spec", {})}
    return replace(Waiter("greedy-2", {names.GPU_RESOURCE: 1}, spec, words), **parts)


def test_no_engine_is_stopped_whose_gpu_another_endpoint_waits_for() -> None:
    case = serving()
    case.waiters = {("team", "greedy"): (waiter(),)}
    assert case.judge().strategy == "Surge", "it does not begin to drain"
    case = rolling()
    case.stuck(3600)
    case.waiters = {("team", "greedy"): (waiter(),)}
    judged = case.judge()
    assert (judged.strategy, judged.reason, judged.check_in_s) == ("Surge", Reason.WAITING_FOR_GPU, 5)
    assert "pod greedy-2 of endpoint team/greedy" in judged.message
    assert "rollout.strategy to Drain" in judged.message
    case.waiters = {("team", "tiny"): (waiter(),)}
    assert case.judge().strategy == "Drain", "its own pod waits, of course"


def test_a_drain_that_is_asked_for_is_taken_whoever_waits() -> None:
    case = serving(rollout={"strategy": "Drain"})
    case.waiters = {("team", "greedy"): (waiter(),)}
    assert case.judge().strategy == "Drain"


@pytest.mark.parametrize(
    ("what", "other", "expected"),
    [
        ("of another class", waiter(spec={"nodeSelector": {"class": "b"}}), "Drain"),
        ("more than there would be", waiter(gpus={names.GPU_RESOURCE: 2}), "Drain"),
        ("another resource", waiter("Insufficient amd.com/gpu", gpus={"amd.com/gpu": 1}), "Drain"),
        ("it waits for its claim", waiter('persistentvolumeclaim "x" not found'), "Drain"),
        ("the same", waiter(), "Surge"),
    ],
)
def test_only_who_could_have_the_gpu_keeps_an_engine_from_being_stopped(
    what: str, other: Waiter, expected: str
) -> None:
    case = serving()
    case.waiters = {("team", "greedy"): (other,)}
    assert case.judge().strategy == expected, what


def test_where_none_that_serves_would_be_stopped_others_that_wait_do_not_matter() -> None:
    case = Case(strategy="Surge")
    case.pod("old-1", case.old, node="node-1", failure="it crashes")
    case.roll()
    case.status("ReplicaSetUpdated", replicas=2, updatedReplicas=1)
    case.stuck(3600)
    case.waiters = {("team", "greedy"): (waiter(),)}
    assert case.judge().strategy == "Drain"


def test_two_surges_do_not_wait_for_each_other_for_ever() -> None:
    case = rolling()
    case.stuck(3600)
    for other, expected in (("greedy", "Surge"), ("zebra", "Drain")):
        case.surging = {("team", other): (case.new,)}
        case.waiters = {("team", other): (waiter(),)}
        assert case.judge().strategy == expected, other


@pytest.mark.parametrize(
    ("regions", "nodes", "expected"),
    [
        (region_with(), [gpu_node()], "Surge"),
        (region_with(), [gpu_node(), pool_node("p-1")], "Surge"),
        (region_with(maxNodes=1), [pool_node("node-1")], "Drain"),
        (region_with(maxNodes=2), [pool_node("node-1")], "Surge"),
        (region_with(nodeSelector={"example.com/pool": "other"}), [gpu_node()], "Drain"),
        (region_with(resourceName="amd.com/gpu"), [gpu_node()], "Drain"),
    ],
)
def test_a_declared_pool_below_its_limit_counts_as_free(regions: Raw, nodes: list[NodeState], expected: str) -> None:
    case = serving()
    case.regions, case.nodes = regions, nodes
    assert case.judge().strategy == expected


def test_a_pool_that_contradicts_the_users_node_selector_is_none() -> None:
    case = Case(placement={"nodeSelector": {"example.com/pool": "mine"}})
    case.pod("old-1", case.old, node="node-1", ready=True)
    case.regions = region_with()
    case.nodes = [gpu_node(labels={**H100_LABELS, "example.com/pool": "mine"})]
    assert case.judge().strategy == "Drain"


@pytest.mark.parametrize("asked", ["Surge", "Drain"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_strategy_that_is_asked_for_is_taken(asked: str, gpus: int) -> None:
    case = serving(rollout={"strategy": asked})
    case.nodes = [gpu_node(gpus=gpus)]
    assert case.judge().strategy == asked


def test_cpus_surge() -> None:
    case = serving(CPU, strategy="Drain")
    case.nodes = []
    assert case.judge().strategy == "Surge"
    assert case.judge(live=None).strategy == "Surge"
    assert serving().judge(live=None).strategy == "Drain"
    assert serving(rollout={"strategy": "Surge"}).judge(live=None).strategy == "Surge"


@pytest.mark.parametrize("strategy", ["Surge", "Drain"])
def test_between_rollouts_the_strategy_is_left_alone(strategy: Strategy) -> None:
    """Whatever becomes free, and whatever the spec says: it would be a write for nothing."""
    for asked in ("Auto", "Surge", "Drain"):
        case = serving(strategy=strategy, rollout={"strategy": asked})
        for nodes in ([gpu_node()], [gpu_node(gpus=4)], []):
            case.nodes = nodes
            assert case.judge(case.old) == Rollout(strategy)


def test_a_wake_a_sleep_and_a_scale_up_are_no_rollouts() -> None:
    case = Case(replicas=0, strategy="Drain")
    assert case.judge(case.old).is_over
    case = serving(replicas=2, strategy="Surge")
    case.pod("second", case.old, unschedulable=NO_GPU, unschedulable_since=NOW - timedelta(hours=1))
    assert case.judge(case.old) == Rollout("Surge")


def test_a_new_template_while_nothing_runs_leaves_the_strategy() -> None:
    for strategy in ("Surge", "Drain"):
        case = Case(replicas=0, strategy=strategy)
        assert case.judge().strategy == strategy
        assert not case.judge().is_over
        case.roll()
        assert case.judge() == Rollout(strategy)


def rolling(choice: Choice = H100, *, strategy: Strategy = "Surge", **arguments: Any) -> Case:
    """The new template has been written; the old engine serves on the only node."""
    case = serving(choice, strategy=strategy, **arguments)
    case.roll()
    case.status("ReplicaSetUpdated", replicas=2, updatedReplicas=1)
    return case


def test_a_surge_that_finds_no_node_turns_round_after_its_time_and_stays_so() -> None:
    """T22: one GPU, any argument changed. Other workloads' GPUs are not known, so a surge may be wrong."""
    case = rolling()
    case.stuck(20)
    early = case.judge()
    assert (early.strategy, early.reason) == ("Surge", Reason.WAITING_FOR_GPU)
    assert early.check_in_s == pytest.approx(10)
    assert NO_GPU in early.message
    assert "10 s" in early.message
    assert not early.is_over
    case.pods.pop()
    case.stuck(30)
    late = case.judge()
    assert (late.strategy, late.reason, late.check_in_s) == ("Drain", Reason.WAITING_FOR_GPU, None)
    case.live["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": 0, "maxUnavailable": 1}
    case.pods.pop()
    case.stuck(31)
    assert case.judge().strategy == "Drain", "it stays so"
    case.nodes = [gpu_node(gpus=4)]
    assert case.judge().strategy == "Drain", "also when a GPU gets free"
    assert case.judge(case.template("c")).strategy == "Drain", "also for an edit that cuts in"
    case.nodes = [gpu_node(is_cordoned=True)]
    assert case.judge(case.template("c")).strategy == "Surge", "but for one that would gain nothing by it"


def test_the_time_is_an_argument() -> None:
    case = rolling()
    case.stuck(1)
    assert case.judge(patience_s=0.5).strategy == "Drain"
    assert case.judge(patience_s=1.5).check_in_s == pytest.approx(0.5)


def test_no_engine_is_stopped_for_nothing() -> None:
    """What serves is stopped only where the new engine could take its place."""
    case = rolling()
    case.stuck(3600)
    elsewhere = [
        [gpu_node(is_cordoned=True)],
        [gpu_node(labels={"nvidia.com/gpu.compute.major": "8"})],
        [gpu_node(taints=(Taint("k", "v", "NoExecute"),))],
        [],
    ]
    for nodes in elsewhere:
        case.nodes = nodes
        judged = case.judge()
        assert (judged.strategy, judged.reason) == ("Surge", Reason.WAITING_FOR_GPU)
        assert "one older engine goes on serving" in judged.message
    case = rolling(rollout={"strategy": "Surge"})
    case.stuck(3600)
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Surge", Reason.WAITING_FOR_GPU)
    assert "rollout.strategy" in judged.message


def test_while_a_pool_may_still_get_a_node_the_node_is_given_its_time_to_boot() -> None:
    """T40: unschedulable for three minutes while a node boots is no failure, and no reason to stop what serves."""
    case = rolling()
    case.regions = region_with()
    case.stuck(180)
    judged = case.judge()
    assert (judged.strategy, judged.check_in_s) == ("Surge", pytest.approx(600 - 180))
    case.pods.pop()
    case.stuck(601)
    assert case.judge().strategy == "Drain"


def test_cpus_drain_too_where_a_surge_finds_no_room() -> None:
    case = rolling(CPU)
    case.nodes = [NodeState("node-1", {})]
    case.stuck(40)
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Drain", Reason.UNSCHEDULABLE)


def test_a_drain_names_the_engine_that_holds_the_gpu_and_until_when() -> None:
    case = Case(strategy="Drain")
    case.roll()
    case.status("NewReplicaSetCreated", replicas=1, updatedReplicas=1)
    ends = NOW + timedelta(minutes=7)
    case.pod("old-1", case.old, node="node-1", terminating=True, ends_by=ends)
    case.stuck(200)
    judged = case.judge()
    assert (judged.strategy, judged.reason, judged.is_over) == ("Drain", Reason.WAITING_FOR_DRAIN, False)
    assert "old-1" in judged.message
    assert "node-1" in judged.message
    assert time_text(ends) in judged.message
    assert "new-1" in judged.message


def test_while_an_engine_drains_no_other_one_is_stopped_for_the_same_new_engine() -> None:
    case = rolling(replicas=2)
    case.pod("old-2", case.old, node="node-1", terminating=True)
    case.stuck(3600)
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Surge", Reason.WAITING_FOR_DRAIN)


def told(reason: Reason, age_s: float) -> Raw:
    since = time_text(NOW - timedelta(seconds=age_s))
    status = "False" if reason is Reason.NOT_BLOCKED else "True"
    return {"type": "RolloutBlocked", "status": status, "reason": reason.value, "lastTransitionTime": since}


def test_when_a_drain_is_over_the_scheduler_is_given_its_time() -> None:
    case = rolling()
    case.stuck(3600)
    case.told = told(Reason.WAITING_FOR_DRAIN, 3600)
    judged = case.judge()
    assert (judged.strategy, judged.reason, judged.check_in_s) == ("Surge", Reason.NOT_BLOCKED, 30)
    case.told = told(Reason.NOT_BLOCKED, 10)
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Surge", Reason.WAITING_FOR_GPU)
    assert judged.check_in_s == pytest.approx(20, abs=1)
    case.told = told(Reason.WAITING_FOR_GPU, 31)
    assert case.judge().strategy == "Drain"


def test_an_engine_that_does_not_end_is_no_drain_that_others_wait_for() -> None:
    case = rolling(replicas=2)
    case.stuck(3600)
    late = case.pod("late", case.old, node="node-1", terminating=True, ends_by=NOW - timedelta(seconds=50))
    assert case.judge().reason is Reason.WAITING_FOR_DRAIN
    case.pods[-1] = replace(late, ends_by=NOW - timedelta(seconds=70))
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Drain", Reason.WAITING_FOR_GPU)


def test_an_engine_on_a_lost_node_frees_nothing_by_ending() -> None:
    case = Case(strategy="Drain")
    case.roll()
    case.status("NewReplicaSetCreated", replicas=1, updatedReplicas=1)
    case.pod("old-1", case.old, node="node-1", terminating=True)
    case.nodes = [gpu_node(is_ready=False)]
    case.stuck(200)
    judged = case.judge()
    assert judged.reason is Reason.WAITING_FOR_GPU
    assert judged.message.startswith(f"pod new-1: {NO_GPU}")


def test_a_new_engine_that_fails_says_so_in_its_own_words_and_turns_nothing_round() -> None:
    case = rolling()
    case.stuck(3600)
    case.pod(
        "new-2", case.new, failure="container engine: CrashLoopBackOff: last end: Error, exit code 2: no config.json"
    )
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Surge", Reason.NEW_ENGINE_FAILS)
    assert "exit code 2: no config.json" in judged.message
    assert "one older engine goes on serving" in judged.message
    case.pods = [pod for pod in case.pods if pod.name != "old-1"]
    assert "no older engine is left" in case.judge().message


def refused(message: str, age_s: float) -> Raw:
    since = time_text(NOW - timedelta(seconds=age_s))
    return {"type": "ReplicaFailure", "status": "True", "lastTransitionTime": since, "message": message}


def test_a_quota_that_leaves_no_room_for_a_surge_is_as_a_missing_gpu() -> None:
    case = rolling()
    words = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
    case.status("ReplicaSetUpdated", replicas=1, updatedReplicas=0, conditions=[refused(words, 40)])
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Drain", Reason.PODS_NOT_CREATED)
    case.status("ReplicaSetUpdated", replicas=1, updatedReplicas=0, conditions=[refused("violates PodSecurity", 40)])
    judged = case.judge()
    assert (judged.strategy, judged.reason) == ("Surge", Reason.PODS_NOT_CREATED)
    assert judged.message == "violates PodSecurity. Correct what it names, in the namespace or in the spec"
    case.status("ReplicaSetUpdated", replicas=0, updatedReplicas=0, conditions=[refused(words, 40)])
    case.pods = [replace(case.pods[0], terminating=True)]
    assert case.judge().reason is Reason.WAITING_FOR_DRAIN


def test_a_roll_out_that_somebody_has_paused_says_so() -> None:
    case = rolling()
    case.live["spec"]["paused"] = True
    case.status("DeploymentPaused", replicas=1, updatedReplicas=0)
    case.pods = [pod for pod in case.pods if pod.name == "old-1"]
    judged = case.judge()
    assert (judged.reason, judged.is_over) == (Reason.PAUSED, False)
    assert f"kubectl rollout resume deployment/{ME.name}" in judged.message
    case.pods.clear()
    case.pod("new-1", case.new, node="node-1", ready=True)
    case.status("DeploymentPaused", replicas=1, updatedReplicas=1)
    assert case.judge().reason is Reason.PAUSED, "until it is resumed"
    case.live["spec"]["paused"] = False
    case.status("NewReplicaSetAvailable", replicas=1, updatedReplicas=1)
    assert case.judge().is_over


def test_when_it_is_over() -> None:
    case = rolling()
    assert not case.judge().is_over
    case.pods.clear()
    case.pod("new-1", case.new, node="node-1", ready=True)
    case.status("ReplicaSetUpdated", replicas=1, updatedReplicas=1)
    assert not case.judge().is_over, "the controller has not said so"
    case.status("NewReplicaSetAvailable", replicas=1, updatedReplicas=1)
    assert case.judge().is_over
    case.pod("old-1", case.old, node="node-1", terminating=True)
    assert case.judge().is_over, "what drains has been replaced"
    case.pods[0] = replace(case.pods[0], ready_since=None)
    assert not case.judge().is_over
    case.live["spec"]["replicas"] = 0
    assert case.judge().is_over, "it has been put to sleep"


def test_a_deadline_that_has_passed_is_no_failure() -> None:
    case = rolling()
    case.status("ProgressDeadlineExceeded", replicas=2, updatedReplicas=1)
    case.pod("new-1", case.new, node="node-2")
    judged = case.judge()
    assert (judged.reason, judged.is_over) == (Reason.NOT_BLOCKED, False)


def test_back_to_the_old_template_is_over_as_soon_as_nothing_else_is_left() -> None:
    """T24, A -> B -> A: the old engine was never stopped, so there is nothing to do."""
    case = rolling()
    case.stuck(5)
    assert case.judge(case.old).strategy == "Drain", "the only GPU is taken"
    case.live["spec"]["template"] = case.old
    case.pods.pop()
    case.status("NewReplicaSetAvailable", replicas=1, updatedReplicas=1)
    assert case.judge(case.old) == Rollout("Surge")


def test_strategies_are_read_back_as_they_were_written() -> None:
    for strategy in ("Surge", "Drain"):
        assert strategy_of(Case(strategy=strategy).live) == strategy
    assert strategy_of({"spec": {}}) == "Surge"
