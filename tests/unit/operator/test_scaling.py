"""Replica rules 2 to 5, one judgement at a time: who writes what in which mode, and who waits for whom."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import ENDPOINTS, HPAS
from emberline_operator.plan.actions import Apply, Ask, Delete, FillReplicas, Scale, Sleep
from emberline_operator.plan.idle import POLL_S
from emberline_operator.plan.scaling import GONE_POLL_S, ScalePlan
from emberline_operator.reconcile.observe import Remembered, observe
from emberline_operator.snapshot import Demand, Features
from support.scaling_cases import HPA_REF, OURS, START, Raw, Region, calls, engine, hpa_of, spec_of

BY_HPA: Raw = {"via": "HPA"}
BY_OPERATOR: Raw = {"via": "Operator"}
BY_USER: Raw = {"via": "External"}
IDLE = calls(idle_s=10_000)


def region(scaling: Raw | None = None, spec_replicas: int | None = None, **state: Any) -> Region:
    spec: Raw = {"scaling": scaling or {}}
    if spec_replicas is not None:
        spec["replicas"] = spec_replicas
    return Region(spec_of(**spec), **state)


def made_hpa(case: Region) -> Raw:
    """The autoscaler as the operator makes it for that region, alive and owned field by field."""
    (apply,) = [a for a in Region(case.spec, api=OURS).plan().actions if isinstance(a, Apply)]
    live = {**apply.body, "metadata": {**apply.body["metadata"], "uid": "hpa-uid"}, "status": {"conditions": []}}
    fields: Raw = {"f:spec": {f"f:{key}": {} for key in apply.body["spec"]}}
    fields["f:metadata"] = {"f:labels": {}, "f:ownerReferences": {}}
    owned = {"manager": "emberline-operator", "operation": "Apply", "fieldsV1": fields}
    live["metadata"]["managedFields"] = [owned]
    return live


def told(plan: ScalePlan) -> tuple[str, str]:
    return plan.verdict.status, plan.verdict.reason.value


# HPA.


def test_the_autoscaler_is_made_after_a_look_whether_its_name_is_free() -> None:
    case = region(BY_HPA, api=OURS, looked_up={})
    assert case.ask() == Ask(objects=frozenset({HPA_REF}))
    case.looked_up = {HPA_REF: None}
    plan = case.plan()
    (apply,) = plan.actions
    assert isinstance(apply, Apply)
    assert apply.ref == HPA_REF
    assert "tolerance" in apply.body["spec"]["behavior"]["scaleUp"]
    assert told(plan) == ("Unknown", "Pending")
    case.features = Features(hpa_tolerance=False)
    (apply,) = case.plan().actions
    assert "tolerance" not in str(apply)


def test_an_autoscaler_as_it_should_be_is_left_alone_and_another_is_put_right() -> None:
    case = region(BY_HPA, api=OURS)
    case.hpa = made_hpa(case)
    assert case.plan().actions == ()
    assert told(case.plan()) == ("True", "FollowsHPA")
    case.spec = spec_of(scaling={**BY_HPA, "maxReplicas": 7})
    (apply,) = case.plan().actions
    assert isinstance(apply, Apply)
    assert apply.body["spec"]["maxReplicas"] == 7
    assert apply.body["metadata"]["uid"] == "hpa-uid", "no other one in its place"
    case.hpa["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    assert case.plan().actions == (), "one that goes is waited for"


@pytest.mark.parametrize("replicas", [1, 2, 4, 9])
def test_between_one_and_any_number_the_autoscaler_alone_writes(replicas: int) -> None:
    case = region({**BY_HPA, "minReplicas": 2}, api=OURS, replicas=replicas, demand=calls(500))
    case.hpa = made_hpa(case)
    plan = case.plan()
    assert plan.actions == ()
    assert plan.recommendations is None


def test_from_zero_the_operator_writes_the_floor_and_nothing_else() -> None:
    case = region({**BY_HPA, "minReplicas": 2}, api=OURS, replicas=0, demand=None)
    case.hpa = made_hpa(case)
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert (scale.replicas, scale.uid, scale.resource_version) == (2, "u", "7")
    case = region(BY_HPA, api=OURS, replicas=0, demand=None)
    case.hpa = made_hpa(case)
    assert case.plan().actions == (), "only a request wakes it"
    assert told(case.plan()) == ("True", "ScaledToZero")


@pytest.mark.parametrize("scaling", [BY_HPA, BY_OPERATOR], ids=["HPA", "Operator"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_idle_goes_to_zero_by_the_handshake_alone(scaling: Raw, replicas: int) -> None:
    case = region(scaling, api=OURS, replicas=replicas, demand=IDLE)
    if scaling is BY_HPA:
        case.hpa = made_hpa(case)
    (sleep,) = case.plan().actions
    assert isinstance(sleep, Sleep)
    assert (sleep.scale.replicas, sleep.region, sleep.scale.resource_version) == (0, "default", "7")
    case.spec = spec_of(scaling={**scaling, "minReplicas": 1})
    assert not any(isinstance(action, Sleep) for action in case.plan().actions), "not below its floor"


def test_a_start_is_never_put_to_zero() -> None:
    """T5: nothing has been ready yet and nobody has called, however long it takes."""
    for scaling in (BY_HPA, BY_OPERATOR):
        case = region({**scaling, "initialReplicas": 2}, api=OURS, replicas=2, demand=IDLE)
        case.pods = (engine("a", START, age_s=9000, ready_s=None), engine("b", START, age_s=9000, ready_s=None))
        assert not any(isinstance(action, Scale | Sleep) for action in case.plan().actions)
        case.after(9000)
        assert not any(isinstance(action, Scale | Sleep) for action in case.plan().actions)


# Rule 5.


@pytest.mark.parametrize("scaling", [BY_OPERATOR, BY_USER], ids=["Operator", "External"])
def test_the_autoscaler_is_deleted_and_seen_gone_before_anybody_else_writes(scaling: Raw) -> None:
    case = region(scaling, spec_replicas=5 if scaling is BY_USER else None, demand=calls(500), hpa=hpa_of())
    (delete,) = case.plan().actions
    assert isinstance(delete, Delete)
    assert (delete.ref, delete.uid) == (HPA_REF, "hpa-uid")
    assert case.hpa is not None
    case.hpa["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    assert case.plan().actions == ()
    case.hpa, case.looked_up = None, {}
    assert case.ask() == Ask(objects=frozenset({HPA_REF})), "a cache may be behind"
    case.looked_up = {HPA_REF: hpa_of()}
    (delete,) = case.plan().actions
    assert isinstance(delete, Delete), "it was behind"
    case.looked_up = {HPA_REF: None}
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert scale.replicas == (5 if scaling is BY_USER else 4)


def test_what_is_not_to_be_written_needs_no_look() -> None:
    assert isinstance(region(BY_OPERATOR, looked_up={}).ask(), ScalePlan)
    assert isinstance(region(BY_USER, spec_replicas=1, looked_up={}, demand=None).ask(), ScalePlan)


def test_replicas_wait_while_the_deployment_is_being_written() -> None:
    case = region(BY_OPERATOR, demand=calls(500))
    assert case.plan(is_busy=True).actions == ()
    assert len(case.plan().actions) == 1


# External.


def test_external_copies_whatever_the_number_is_and_asks_nobody() -> None:
    for wanted in (0, 2, 9):
        case = region(BY_USER, spec_replicas=wanted, demand=None)
        (scale,) = case.plan().actions
        assert isinstance(scale, Scale)
        assert scale.replicas == wanted, "neither floor nor ceiling, and no handshake: the user has said so"
        case.replicas = wanted
        plan = case.plan()
        assert plan.actions == ()
        assert told(plan) == ("True", "External" if wanted else "Stopped")


def test_zero_by_hand_is_stopped_and_stays_so() -> None:
    case = region({**BY_USER, "minReplicas": 1, "initialReplicas": 1}, spec_replicas=0, replicas=0, demand=None)
    assert case.plan().actions == ()
    assert told(case.plan()) == ("True", "Stopped")
    case.replicas = 1
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert scale.replicas == 0, "who wakes it is undone"


def test_an_absent_number_is_filled_once_with_what_runs() -> None:
    case = region(BY_USER, replicas=3, demand=None)
    (fill,) = case.plan().actions
    assert isinstance(fill, FillReplicas)
    assert (fill.replicas, fill.resource_version) == (3, "5")
    case.hpa = hpa_of()
    (delete,) = case.plan().actions
    assert isinstance(delete, Delete), "the autoscaler may still move what runs"


# Where no engine may be started.


@pytest.mark.parametrize("scaling", [BY_HPA, BY_OPERATOR, BY_USER], ids=["HPA", "Operator", "External"])
@pytest.mark.parametrize("closed", [{"may_start": False}, {"is_wanted": False}], ids=["unknown", "left"])
def test_a_region_that_may_not_grow_keeps_what_runs_and_nothing_more(scaling: Raw, closed: Raw) -> None:
    spec_replicas = 3 if scaling is BY_USER else None
    case = region(scaling, spec_replicas, api=OURS, replicas=3, demand=calls(500), hpa=hpa_of(), **closed)
    (delete,) = case.plan().actions
    assert isinstance(delete, Delete)
    case.hpa = None
    assert case.plan().actions == (), "three run, three stay"
    assert told(case.plan()) == ("False", "NotPlaced")
    bound, loose = engine("a", START), engine("b", START, ready_s=None, node="")
    case.pods = (bound, engine("c", START, terminating=True), loose)
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert scale.replicas == 1
    case.replicas, case.pods, case.demand = 0, (), None
    assert case.plan().actions == ()


def test_an_engine_that_came_after_the_region_was_lost_is_not_kept() -> None:
    case = region(BY_OPERATOR, replicas=2, may_start=False, unknown_since=START - timedelta(minutes=1))
    case.pods = (engine("a", START), engine("b", START, age_s=30, ready_s=None))
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert scale.replicas == 1


def test_a_floor_does_not_start_a_region_that_may_not_grow() -> None:
    for scaling in ({**BY_OPERATOR, "minReplicas": 2}, {**BY_HPA, "minReplicas": 2}):
        case = region(scaling, api=OURS, replicas=0, demand=None, may_start=False)
        assert case.plan().actions == ()


def test_a_closed_region_still_goes_to_sleep_or_to_what_the_user_says() -> None:
    case = region(BY_OPERATOR, demand=IDLE, may_start=False)
    assert isinstance(case.plan().actions[0], Sleep)
    case = region(BY_USER, spec_replicas=1, replicas=2, may_start=False)
    (scale,) = case.plan().actions
    assert isinstance(scale, Scale)
    assert scale.replicas == 1


# Somebody else's autoscaler.


@pytest.mark.parametrize("scaling", [BY_HPA, BY_OPERATOR, BY_USER], ids=["HPA", "Operator", "External"])
def test_with_somebody_elses_autoscaler_ours_goes_and_the_operator_stands_back(scaling: Raw) -> None:
    rival = {**hpa_of(uid="else"), "metadata": {"name": "theirs", "uid": "x"}}
    spec_replicas = 2 if scaling is BY_USER else None
    case = region(scaling, spec_replicas, api=OURS, replicas=3, demand=calls(500), foreign=(rival,), hpa=hpa_of())
    (delete,) = case.plan().actions
    assert isinstance(delete, Delete)
    case.hpa = None
    plan = case.plan()
    assert plan.actions == ()
    assert told(plan) == ("False", "ScaledByOthers")
    assert "HorizontalPodAutoscaler theirs" in plan.verdict.message
    assert ("set scaling.via to External" in plan.verdict.message) is (scaling is not BY_USER), (
        "no advice to do what is done"
    )
    assert plan.check_in_s == GONE_POLL_S, "nobody tells when it goes"
    case.foreign = ({**rival, "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "another"}}},)
    assert told(case.plan())[1] != "ScaledByOthers"


def test_a_namesake_of_somebody_else_is_never_taken_over() -> None:
    case = region(BY_HPA, api=OURS, looked_up={HPA_REF: hpa_of(uid="somebody else")})
    plan = case.plan()
    assert plan.actions == ()
    assert told(plan) == ("False", "ScaledByOthers")


# What is told.


@pytest.mark.parametrize(
    ("condition", "expected", "words"),
    [
        (("ScalingActive", "True", "ValidMetricFound", ""), ("True", "FollowsHPA"), "between 1 and 4"),
        (
            ("ScalingActive", "False", "FailedGetObjectMetric", "no answer"),
            ("False", "MetricsUnavailable"),
            "no answer",
        ),
        (("ScalingActive", "False", "AmbiguousSelector", "[a b]"), ("False", "ScaledByOthers"), "[a b]"),
        (("ScalingActive", "False", "ScalingDisabled", ""), ("True", "FollowsHPA"), ""),
        (("ScalingLimited", "True", "TooManyReplicas", ""), ("True", "FollowsHPA"), "more than scaling.maxReplicas"),
        (("ScalingLimited", "True", "TooFewReplicas", ""), ("True", "FollowsHPA"), ""),
        (("AbleToScale", "False", "FailedGetScale", "denied"), ("False", "MetricsUnavailable"), "denied"),
    ],
)
def test_what_the_autoscaler_says_is_told(
    condition: tuple[str, str, str, str], expected: tuple[str, str], words: str
) -> None:
    plan = region(BY_HPA, api=OURS, hpa=hpa_of(None, condition)).plan()
    assert told(plan) == expected
    assert words in plan.verdict.message


def test_missing_metrics_stop_nothing() -> None:
    """T14: the number stays, and nothing goes to zero while a gateway is silent."""
    failing = ("ScalingActive", "False", "FailedGetObjectMetric", "no answer")
    case = region(BY_HPA, api=OURS, replicas=3, demand=Demand((), ("gw-1: no answer",)))
    case.hpa = {**made_hpa(case), "status": hpa_of(None, failing)["status"]}
    plan = case.plan()
    assert plan.actions == ()
    assert told(plan) == ("False", "MetricsUnavailable")


@pytest.mark.parametrize(
    ("scaling", "demand", "expected", "words"),
    [
        (BY_OPERATOR, calls(1), ("True", "FollowsDemand"), "by the operator"),
        ({**BY_OPERATOR, "minReplicas": 4}, calls(1), ("True", "FixedReplicas"), "always 4"),
        (BY_OPERATOR, Demand(), ("False", "DemandUnknown"), "no gateway runs"),
        (BY_OPERATOR, Demand((), ("gw-1: refused",)), ("Unknown", "DemandUnknown"), "gw-1: refused"),
        (BY_HPA, calls(1), ("False", "MetricsUnavailable"), "there is no APIService"),
    ],
)
def test_what_the_operator_says(scaling: Raw, demand: Demand, expected: tuple[str, str], words: str) -> None:
    plan = region(scaling, replicas=4, demand=demand).plan()
    assert told(plan) == expected
    assert words in plan.verdict.message


def test_it_is_looked_at_again_while_something_runs() -> None:
    plan = region(BY_HPA, api=OURS, demand=calls(1)).plan()
    assert plan.check_in_s is not None
    assert plan.check_in_s <= POLL_S
    assert plan.last_active == START
    assert region(BY_OPERATOR, replicas=0, demand=None).plan().check_in_s is None


def test_somebody_elses_autoscaler_is_found_by_what_it_scales() -> None:
    caches, key = Caches(), ("team", "tiny")
    caches[ENDPOINTS].put({"kind": "InferenceEndpoint", "metadata": _metadata("tiny"), "spec": {}})
    for name, kind, target in (
        ("theirs", "Deployment", "tiny--default"),
        ("third", "Deployment", "tinier--default"),
        ("plain", "Deployment", "tiny"),
        ("proper", "InferenceEndpoint", "tiny"),
    ):
        spec = {"scaleTargetRef": {"apiVersion": "v", "kind": kind, "name": target}, "maxReplicas": 3}
        caches[HPAS].put({"kind": HPA_REF.kind, "metadata": _metadata(name), "spec": spec})
    own = hpa_of()
    own["metadata"] = {**_metadata("tiny--default"), "labels": {"emberline.dev/endpoint": "tiny"}}
    caches[HPAS].put(own)
    seen = observe(caches, key, Features(), Remembered())
    assert seen is not None
    (foreign,) = seen.foreign_hpas
    assert foreign["metadata"]["name"] == "theirs"
    assert "maxReplicas" not in foreign["spec"], "no more is kept than is needed"
    assert seen.children.keys() == {HPA_REF}


def _metadata(name: str) -> Raw:
    return {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "1"}
