"""The autoscaler's object: what each field of the spec does to it, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_operator.desired.child import Child
from emberline_operator.desired.hpa import make_hpa
from support.scaling_cases import UID, Raw, spec_of

CHILD = Child("team", "tiny", UID, "eu")


def made(*, has_tolerance: bool = True, **spec: Any) -> Raw:
    return make_hpa(CHILD, spec_of(**spec), floor=spec_of(**spec).scaling.min_replicas, has_tolerance=has_tolerance)


def metrics(hpa: Raw) -> dict[str, Raw]:
    return {metric["object"]["metric"]["name"]: metric["object"] for metric in hpa["spec"]["metrics"]}


def test_it_scales_the_child_by_metrics_of_the_endpoint_in_the_childs_region() -> None:
    hpa = made()
    assert hpa["metadata"]["name"] == "tiny--eu"
    assert hpa["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "tiny--eu"}
    found = metrics(hpa)
    assert found.keys() == {"emberline_queue_load", "emberline_requests"}
    for metric in found.values():
        assert metric["describedObject"] == {
            "apiVersion": "emberline.dev/v1alpha1", "kind": "InferenceEndpoint", "name": "tiny"
        }  # fmt: skip
        assert metric["metric"]["selector"] == {"matchLabels": {"emberline.dev/region": "eu"}}
        assert metric["target"]["type"] == "AverageValue"


@pytest.mark.parametrize(
    ("spec", "queue", "requests"),
    [
        ({}, "4", "32"),
        ({"engine": {"maxSequences": 7}}, "4", "7"),
        ({"engine": {"maxSequences": 7}, "scaling": {"requestsPerReplica": 9}}, "4", "9"),
        ({"scaling": {"queueDepthPerReplica": 2000, "requestsPerReplica": 1500}}, "2k", "1500"),
        ({"scaling": {"queueDepthPerReplica": 10000}}, "10k", "32"),
    ],
)
def test_targets(spec: Raw, queue: str, requests: str) -> None:
    found = metrics(made(**spec))
    assert found["emberline_queue_load"]["target"]["averageValue"] == queue
    assert found["emberline_requests"]["target"]["averageValue"] == requests


@pytest.mark.parametrize(("floor", "least"), [(0, 1), (1, 1), (3, 3)])
def test_it_never_goes_to_zero(floor: int, least: int) -> None:
    spec = made(scaling={"minReplicas": floor, "maxReplicas": 3})["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (least, 3)


def test_up_at_once_and_down_late_one_by_one() -> None:
    behavior = made(scaling={"maxReplicas": 30, "scaleDownStabilization": "90500ms"})["spec"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 30, "periodSeconds": 15}]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 91, "not earlier than it was asked for"
    assert behavior["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]


def test_tolerance_only_where_the_api_server_has_it() -> None:
    assert made()["spec"]["behavior"]["scaleUp"]["tolerance"] == "0"
    assert "tolerance" not in made(has_tolerance=False)["spec"]["behavior"]["scaleUp"]
    assert "tolerance" not in made()["spec"]["behavior"]["scaleDown"]


def test_nothing_but_scaling_and_batch_size_changes_it() -> None:
    before = made()
    assert made(serving={"maxQueue": 7}, rollout={"drainTimeout": "1s"}, engine={"image": "x"}) == before
    assert made(scaling={"initialReplicas": 2, "idleAfter": "7s", "activationTimeout": "7s"}) == before
