"""The status that a decision gives, in every state that an endpoint can be in."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest

from emberline_contract import names
from emberline_contract.conditions import ALWAYS_PRESENT
from emberline_contract.status import InferenceEndpointStatus
from emberline_operator.plan.actions import Plan
from emberline_operator.plan.readiness import NEVER_READY
from emberline_operator.snapshot import Demand, PodState, Ref, Rival, time_text
from support.operator_objects import (
    NOW,
    Raw,
    Store,
    condition_of,
    current,
    live_of,
    made,
    make_endpoint,
    make_pod_state,
    quiet,
    ready_pod,
)

STAMP = time_text(NOW - timedelta(seconds=5))


def waiting_pod(store: Store, name: str = "tiny-1", *, waits_s: float = 5.0) -> PodState:
    """A pod for which the scheduler has found no node for so long."""
    since = NOW - timedelta(seconds=waits_s)
    return make_pod_state(name, template_hash=current(store), unschedulable="0/3 nodes", unschedulable_since=since)


def flat(plan: Plan) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in plan.status["conditions"]}


def test_first_sight_sets_every_condition() -> None:
    plan = Store(make_endpoint()).decide()
    assert flat(plan) == {
        "Accepted": ("True", "Valid"),
        "AliasReady": ("True", "NoAlias"),
        "Placed": ("True", "Anywhere"),
        "WeightsReady": ("True", "ClaimBound"),
        "Ready": ("Unknown", "Pending"),
        "ScalingActive": ("Unknown", "Pending"),
        "RolloutBlocked": ("False", "NotBlocked"),
        "Degraded": ("False", "AsExpected"),
        "Reconciling": ("True", "RollingOut"),
    }


def states() -> dict[str, tuple[Store, dict[str, tuple[str, str]]]]:
    """Named situations and the conditions that tell them apart from an endpoint that serves."""
    asleep, serving, starting = made(), made(), made()
    unschedulable, crashing, partly = made(), made(), made(scaling={"minReplicas": 2})
    for store in (serving, starting, unschedulable, crashing):
        store.scale(1)
    serving.pods = (ready_pod(serving),)
    starting.pods = (make_pod_state(template_hash=current(starting)),)
    unschedulable.pods = (waiting_pod(unschedulable),)
    crashing.pods = (make_pod_state(template_hash=current(crashing), failure="container engine: CrashLoopBackOff"),)
    partly.pods = (
        ready_pod(partly),
        make_pod_state("tiny-2", template_hash=current(partly), failure="container engine: OOMKilled"),
    )
    fixed = made(scaling={"minReplicas": 1, "maxReplicas": 1})
    fixed.pods = (ready_pod(fixed),)
    refused = made()
    refused.scale(1)
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota", "lastTransitionTime": STAMP}
    refused.deployment["status"] = {"conditions": [failure]}
    mute, lonely = made(), made()
    for store in (mute, lonely):
        store.scale(1)
        store.pods = (ready_pod(store),)
    mute.demand, lonely.demand = Demand((), ("gw: no answer",)), Demand()
    nothing = made()
    nothing.claims = {}
    unbound = made()
    unbound.claims = {"models": {"status": {"phase": "Pending"}}}
    follows = ("True", "FollowsDemand")
    return {
        "asleep": (asleep, {"Ready": ("True", "ScaledToZero"), "ScalingActive": ("True", "ScaledToZero")}),
        "serving": (serving, {}),
        "starting": (starting, {"Ready": ("False", "Starting")}),
        "unschedulable": (unschedulable, {"Ready": ("False", "Unschedulable"), "Degraded": ("True", "Unschedulable")}),
        "crashing": (crashing, {"Ready": ("False", "ContainerFailed"), "Degraded": ("True", "ContainerFailed")}),
        "one of two fails": (partly, {"Degraded": ("True", "ContainerFailed"), "ScalingActive": follows}),
        "fixed": (fixed, {"ScalingActive": ("True", "FixedReplicas")}),
        "quota": (refused, {"Ready": ("False", "PodsNotCreated"), "Degraded": ("True", "PodsNotCreated")}),
        "a gateway is silent": (mute, {"ScalingActive": ("Unknown", "DemandUnknown")}),
        "no gateway": (lonely, {"ScalingActive": ("False", "DemandUnknown")}),
        "no claim": (
            nothing,
            {
                "WeightsReady": ("False", "ClaimNotFound"),
                "Ready": ("False", "WeightsNotReady"),
                "ScalingActive": ("True", "ScaledToZero"),
            },
        ),
        "claim unbound": (
            unbound,
            {
                "WeightsReady": ("False", "ClaimNotBound"),
                "Ready": ("Unknown", "WeightsNotReady"),
                "ScalingActive": ("True", "ScaledToZero"),
            },
        ),
    }


SERVING = {
    "Accepted": ("True", "Valid"),
    "AliasReady": ("True", "NoAlias"),
    "RolloutBlocked": ("False", "NotBlocked"),
    "Placed": ("True", "Anywhere"),
    "WeightsReady": ("True", "ClaimBound"),
    "Ready": ("True", "Serving"),
    "ScalingActive": ("True", "FollowsDemand"),
    "Degraded": ("False", "AsExpected"),
}
STATES = states()


@pytest.mark.parametrize("state", STATES)
def test_conditions(state: str) -> None:
    store, changes = STATES[state]
    plan = store.decide()
    assert flat(plan) == {**SERVING, **changes}


@pytest.mark.parametrize("state", STATES)
def test_every_status_is_as_the_contract_says(state: str) -> None:
    store, _ = STATES[state]
    plan = store.decide()
    status = InferenceEndpointStatus.model_validate(plan.status)
    assert status.observed_generation == 1
    assert {c.type for c in status.conditions} >= {kind.value for kind in ALWAYS_PRESENT}
    assert all(c.message and c.observed_generation == 1 for c in status.conditions)
    for found in status.conditions:
        if found.status != "True" and found.type not in ("Degraded", "RolloutBlocked"):
            assert len(found.message) > 20, "what is wrong is said in words"
    assert status.url == "http://gateway/team/tiny/v1"
    assert status.selector == (
        "app.kubernetes.io/name=emberline-runtime,emberline.dev/endpoint=tiny,emberline.dev/region=default"
    )


def test_messages_carry_the_words_of_who_saw_it() -> None:
    assert "0/3 nodes" in condition_of(STATES["unschedulable"][0].decide(), "Ready")["message"]
    assert "pod tiny-1: container engine: CrashLoop" in condition_of(STATES["crashing"][0].decide(), "Ready")["message"]
    quota = condition_of(STATES["quota"][0].decide(), "Degraded")["message"]
    assert quota == "exceeded quota; raise the namespace's quota, or change what its policies refuse"
    assert "; free what it lacks on a node" in condition_of(STATES["unschedulable"][0].decide(), "Degraded")["message"]
    refused = condition_of(STATES["no claim"][0].decide(), "ScalingActive")["message"]
    assert refused == "nothing runs, and requests are refused: see the condition WeightsReady"
    assert condition_of(STATES["one of two fails"][0].decide(), "Ready")["message"] == "1 of 2 engines are ready"


def test_that_it_never_was_ready_is_said_until_it_was() -> None:
    store = made()
    assert NEVER_READY in condition_of(store.settle(), "Ready")["message"]
    store.scale(1)
    store.pods = (make_pod_state(template_hash=current(store)),)
    assert NEVER_READY in condition_of(store.settle(), "Ready")["message"]
    store.pods = (ready_pod(store),)
    store.settle()
    store.pods = (make_pod_state(template_hash=current(store), failure="container engine: OOMKilled"),)
    assert NEVER_READY not in condition_of(store.settle(), "Ready")["message"]
    store.scale(0)
    store.pods = ()
    assert NEVER_READY not in condition_of(store.settle(), "Ready")["message"]
    store.endpoint = {**store.endpoint, "metadata": {**store.endpoint["metadata"], "generation": 2}}
    assert NEVER_READY in condition_of(store.settle(), "Ready")["message"], "at this generation"


@pytest.mark.parametrize(("floor", "status"), [(0, "True"), (1, "False")])
def test_a_wake_keeps_it_ready_once_this_generation_has_served(floor: int, status: str) -> None:
    scaling = {"minReplicas": floor}
    store = made(scaling=scaling)
    if not floor:
        store.scale(1)
    starting = make_pod_state(template_hash=current(store))
    store.pods = (starting,)
    assert flat(store.settle())["Ready"] == ("False", "Starting"), "nobody knows yet whether it will"
    store.pods = (ready_pod(store),)
    store.settle()
    store.pods = (starting,)
    assert flat(store.settle())["Ready"] == (status, "Starting")
    store.pods = (waiting_pod(store),)
    assert flat(store.settle())["Ready"] == ("False", "Unschedulable")
    store.endpoint = {**make_endpoint(generation=2, scaling=scaling), "status": store.endpoint["status"]}
    store.pods = (starting,)
    assert flat(store.settle())["Ready"] == ("False", "Starting"), "at another generation"


def test_a_start_that_failed_is_still_told_at_zero() -> None:
    store = made()
    store.scale(1)
    failing = make_pod_state(template_hash=current(store), age_s=700, failure="container engine: no such model")
    store.pods = (failing,)
    assert flat(store.settle())["Degraded"] == ("True", "ContainerFailed")
    assert store.history[-1] == 0, "the start has failed"
    store.pods = ()
    plan = store.settle()
    assert (flat(plan)["Ready"], flat(plan)["Degraded"]) == (("False", "StartFailed"), ("True", "StartFailed"))
    retry = time_text(NOW + timedelta(seconds=30))
    assert f"no such model; a request may start one again at {retry}" in condition_of(plan, "Ready")["message"]
    assert plan.requeue_after_s == 30.0
    later = store.settle(now=NOW + timedelta(seconds=30))
    assert (flat(later)["Ready"], flat(later)["Degraded"]) == (("True", "ScaledToZero"), ("True", "StartFailed"))
    store.scale(1)
    store.pods = (ready_pod(store),)
    assert flat(store.settle())["Degraded"] == ("False", "AsExpected"), "another start went well"
    assert "failedStart" not in store.settle().status["regions"][0]
    store.pods = (failing,)
    store.settle()
    store.pods = ()
    store.endpoint = {**make_endpoint(generation=2), "status": store.endpoint["status"]}
    assert flat(store.settle())["Degraded"] == ("False", "AsExpected"), "the spec has changed"


def test_what_a_change_of_the_spec_has_mended_is_no_failed_start() -> None:
    """An engine of the older template crashes on until the roll-out has replaced it."""
    store = made(scaling={"minReplicas": 1})
    old = make_pod_state("old", template_hash=current(store), age_s=700, failure="container engine: no such model")
    store.pods = (old,)
    assert store.settle().status["regions"][0]["failedStart"]["count"] == 1
    status = store.endpoint["status"]
    store.endpoint = {
        **make_endpoint(generation=2, scaling={"minReplicas": 1}, engine={"maxSequences": 7}), "status": status
    }  # fmt: skip
    assert "failedStart" not in store.settle().status["regions"][0]
    store.pods = (old, make_pod_state("new", template_hash=current(store), age_s=1))
    assert flat(store.settle())["Ready"] != ("False", "StartFailed")


@pytest.mark.parametrize("reason", ["Unschedulable", "ContainerFailed"])
def test_nothing_is_told_of_pods_that_the_user_took_away(reason: str) -> None:
    external = {"via": "External"}
    store = made(scaling=external, replicas=2)
    failing = make_pod_state("b", template_hash=current(store), failure="container engine: OOMKilled")
    store.pods = (waiting_pod(store, "b") if reason == "Unschedulable" else failing,)
    assert flat(store.settle())["Degraded"] == ("True", reason)
    store.endpoint = {**make_endpoint(generation=2, scaling=external, replicas=0), "status": store.endpoint["status"]}
    assert flat(store.settle())["Degraded"] == ("True", reason), "it is still there"
    store.pods = ()
    plan = store.settle()
    assert (flat(plan)["Ready"], flat(plan)["Degraded"]) == (("True", "Stopped"), ("False", "AsExpected"))


def test_nothing_is_told_at_zero_of_one_engine_too_many() -> None:
    store = made()
    store.scale(2)
    surplus = make_pod_state("b", template_hash=current(store), unschedulable="0/3 nodes")
    store.pods = (ready_pod(store), surplus)
    assert flat(store.settle())["Degraded"] == ("True", "Unschedulable")
    store.scale(0)
    store.pods = ()
    assert flat(store.settle())["Degraded"] == ("False", "AsExpected"), "the start went well"


def test_a_working_old_pod_keeps_it_ready_and_reconciling_says_who_is_left() -> None:
    store = made(scaling={"minReplicas": 1})
    store.pods = (ready_pod(store, "old"),)
    store.settle()
    store.endpoint = make_endpoint(generation=2, scaling={"minReplicas": 1}, engine={"maxSequences": 7})
    assert condition_of(store.decide(), "Reconciling")["status"] == "True", "before the write"
    plan = store.settle()
    assert flat(plan)["Ready"] == ("True", "Serving")
    assert "old" in condition_of(plan, "Reconciling")["message"]
    store.pods = (make_pod_state("old", ready_s=600, terminating=True), ready_pod(store, "new"))
    plan = store.settle()
    assert condition_of(plan, "Reconciling") == {}
    assert flat(plan)["Ready"] == ("True", "Serving")
    store.pods = (
        make_pod_state("old", ready_s=600, terminating=True),
        make_pod_state("new", template_hash=current(store)),
    )
    assert flat(store.settle())["Ready"] == ("False", "Starting"), "who drains is not routable"


def test_a_wake_and_a_sleep_are_no_rollout() -> None:
    store = made()
    store.deployment["metadata"]["generation"] = 9
    store.deployment["status"] = {"observedGeneration": 8}
    assert condition_of(store.decide(), "Reconciling") == {}
    store.scale(1)
    assert condition_of(store.decide(), "Reconciling") == {}


def test_transition_times_move_only_when_a_status_flips() -> None:
    store = made()
    first = {c["type"]: c["lastTransitionTime"] for c in store.settle().status["conditions"]}
    store.scale(1)
    store.pods = (make_pod_state(template_hash=current(store)),)
    later = NOW + timedelta(seconds=100)
    plan = store.settle(now=later)
    second = {c["type"]: c["lastTransitionTime"] for c in plan.status["conditions"]}
    assert {kind for kind in second if second[kind] != first[kind]} == {"Ready"}
    assert condition_of(plan, "Ready")["lastTransitionTime"] == "2026-12-01T12:02:10Z"


def test_last_active_time_is_to_the_minute_and_never_goes_back() -> None:
    store = made()
    store.scale(1)
    store.pods = (ready_pod(store),)
    store.demand = quiet(70)
    plan = store.decide()
    assert plan.status["scaling"] == {"via": "Operator", "lastActiveTime": "2026-12-01T11:59:00Z"}
    store.report(plan)
    store.demand = quiet(4000)
    assert store.decide().status["scaling"]["lastActiveTime"] == "2026-12-01T11:59:00Z"
    assert "lastActiveTime" not in made().decide().status["scaling"]


def test_counts_follow_the_pods() -> None:
    store = made(scaling={"minReplicas": 2})
    store.pods = (
        ready_pod(store),
        make_pod_state("b", template_hash=current(store)),
        ready_pod(store, "c", terminating=True),
    )
    status = store.decide().status
    assert (status["replicas"], status["readyReplicas"]) == (2, 1)
    assert status["regions"] == [{"name": "default", "desired": 2, "ready": 1}]
    assert (status["readyOfDesired"], status["regionNames"]) == ("1/2", "default")


def test_the_next_look_comes_when_it_may_be_idle() -> None:
    store = made(scaling={"idleAfter": "60s"})
    assert store.decide().requeue_after_s is None, "asleep: events will tell"
    store.scale(1)
    store.pods = (ready_pod(store),)
    store.demand = quiet(50)
    assert store.decide().requeue_after_s == pytest.approx(10)


def test_a_deployment_that_is_being_deleted_is_left_alone() -> None:
    store = made()
    store.scale(1)
    store.deployment["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    assert store.decide().actions == ()


def test_the_same_snapshot_gives_the_same_plan() -> None:
    for store, _ in STATES.values():
        assert store.decide() == store.decide()


def test_others_in_the_namespace_do_not_matter() -> None:
    store = made()
    foreign = live_of({"kind": "ConfigMap", "metadata": {"name": "tiny--default-old", "labels": {}}})
    store.children[Ref("ConfigMap", "tiny--default-old")] = foreign
    assert store.decide().actions == (), "labelled like ours and owned by nobody: not deleted"


def test_stopped_by_hand_is_as_was_asked_for() -> None:
    external = {"via": "External"}
    store = made(scaling=external, replicas=1)
    store.pods = (ready_pod(store),)
    plan = store.settle()
    assert plan.status["scaling"]["via"] == "External"
    assert flat(plan)["Ready"] == ("True", "Serving")
    store.endpoint = {**make_endpoint(generation=2, scaling=external, replicas=0), "status": store.endpoint["status"]}
    store.settle()
    store.pods = ()
    plan = store.settle()
    assert flat(plan)["Ready"] == ("True", "Stopped")
    assert flat(plan)["ScalingActive"] == ("True", "Stopped")
    assert "until it is raised" in condition_of(plan, "Ready")["message"]
    assert kstatus({**store.endpoint, "status": plan.status}) == "Current"
    store.claims = {}
    assert flat(store.decide())["Ready"] == ("True", "Stopped"), "nothing is asked of the weights"
    assert flat(store.decide())["WeightsReady"] == ("False", "ClaimNotFound")


def test_a_served_name_that_is_taken_is_told_and_stays_accepted() -> None:
    store = made(model={"source": "pvc://models/tiny", "servedName": "llama"})
    assert flat(store.decide())["AliasReady"] == ("True", "AliasServed")
    older = Rival(NOW - timedelta(days=1), "other", "first")
    plan = store.decide(rivals=(older,))
    assert flat(plan)["AliasReady"] == ("False", "NameConflict")
    assert flat(plan)["Accepted"] == ("True", "Valid")
    assert "other/first" in condition_of(plan, "AliasReady")["message"]


def test_an_init_container_that_fails_after_the_engine_has_served_is_not_ready() -> None:
    """T37: a pod that restarts into Init:CrashLoopBackOff."""
    store = made(scaling={"minReplicas": 1})
    store.pods = (ready_pod(store),)
    assert flat(store.settle())["Ready"] == ("True", "Serving")
    words = "container fetch: CrashLoopBackOff: last end: Error, exit code 2"
    store.pods = (make_pod_state(template_hash=current(store), failure=words),)
    plan = store.settle()
    assert flat(plan)["Ready"] == ("False", "ContainerFailed")
    assert words in condition_of(plan, "Degraded")["message"]


def test_a_roll_out_is_over_when_as_many_new_engines_are_there_as_should_be() -> None:
    """T25: an old engine that is ready makes no roll-out done."""
    store = made(scaling={"minReplicas": 2}, rollout={"strategy": "Drain"})
    store.pods = (ready_pod(store, "a"), ready_pod(store, "b"))
    store.settle()
    old = current(store)
    changed = make_endpoint(
        generation=2, scaling={"minReplicas": 2}, rollout={"strategy": "Drain"}, engine={"maxSequences": 7}
    )
    store.endpoint = {**changed, "status": store.endpoint["status"]}
    store.settle()
    rolling = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
    status = {"observedGeneration": 99, "conditions": [rolling]}
    still = ready_pod(store, "b", template_hash=old)
    for pods, counts, is_rolling in (
        ((still,), {"replicas": 1}, True),
        ((still, make_pod_state("c", template_hash=current(store))), {"replicas": 2, "updatedReplicas": 1}, True),
        ((ready_pod(store, "c"),), {"replicas": 1, "updatedReplicas": 1}, True),
        ((ready_pod(store, "c"), make_pod_state("d", template_hash=current(store))),
         {"replicas": 2, "updatedReplicas": 2}, True),
        ((ready_pod(store, "c"), ready_pod(store, "d")), {"replicas": 2, "updatedReplicas": 2}, False),
    ):  # fmt: skip
        store.pods = pods
        store.deployment["status"] = {**status, **counts}
        assert bool(condition_of(store.decide(), "Reconciling")) is is_rolling, pods
    store.pods = (ready_pod(store, "c"), make_pod_state("d", template_hash=current(store)))
    store.deployment["metadata"]["annotations"][names.DEPLOYMENT_REVISION] = "1"
    assert not condition_of(store.decide(), "Reconciling"), "the first template replaces none"


def test_what_status_cannot_hold_keeps_nobody_from_the_rest_of_it() -> None:
    store = made(model={"source": "pvc://models/tiny", "parameters": "9999999999999T"})
    assert store.settle().status["precision"].keys() == {"format", "kvCache", "reason"}
    left = [(Ref("Deployment", f"tiny--r{i}"), copy.deepcopy(store.deployment)) for i in range(20)]
    for i, (ref, live) in enumerate(left):
        live["metadata"] |= {"name": ref.name, "labels": {**live["metadata"]["labels"], names.LABEL_REGION: f"r{i}"}}
    store.children |= dict(left)
    store.pods = tuple(make_pod_state(f"p{i}", region=f"r{i}", node="n-eu") for i in range(20))
    shown = store.decide().status["regions"]
    assert (len(shown), shown[0]["name"]) == (16, names.DEFAULT_REGION), "those that are wanted come first"


def kstatus(endpoint: Raw) -> str:
    """What Flux, Argo CD and `kubectl wait` style tools make of it: the rules of cli-utils' kstatus, in their order."""
    status = endpoint.get("status", {})
    conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
    if status.get("observedGeneration") != endpoint["metadata"]["generation"]:
        return "InProgress"
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready") == "True" else "InProgress"


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        ("asleep", "Current"),
        ("serving", "Current"),
        ("fixed", "Current"),
        ("one of two fails", "Current"),
        ("a gateway is silent", "Current"),
        ("starting", "InProgress"),
        ("crashing", "InProgress"),
        ("no claim", "InProgress"),
    ],
)
def test_gitops_tools_see_what_is_so(state: str, wanted: str) -> None:
    store, _ = STATES[state]
    assert kstatus({**store.endpoint, "status": store.decide().status}) == wanted


def test_gitops_tools_see_a_change_from_its_first_moment() -> None:
    store = made()
    store.endpoint = {**make_endpoint(generation=2, engine={"maxSequences": 7}), "status": store.endpoint["status"]}
    assert kstatus(store.endpoint) == "InProgress", "nobody has looked yet"
    assert kstatus({**store.endpoint, "status": store.decide().status}) == "InProgress", "not written yet"
    store.settle()
    assert kstatus(store.endpoint) == "Current"
    wrong = make_endpoint(generation=3, scaling={"idleAfter": "soon"})
    assert kstatus({**wrong, "status": Store(wrong).decide().status}) == "Failed"
