"""What is read from a Pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.pods import read_pod
from emberline_operator.snapshot import time_of, time_text

STAMP = "2026-12-01T12:00:00Z"


def pod(*, conditions: tuple[dict[str, Any], ...] = (), **status: Any) -> dict[str, Any]:
    metadata = {
        "name": "tiny-1",
        "creationTimestamp": STAMP,
        "labels": {names.LABEL_REGION: "eu"},
        "annotations": {names.ANNOTATION_TEMPLATE_HASH: "abc"},
    }
    volumes = [{"name": "config", "configMap": {"name": "tiny--eu-1"}}, {"name": "tmp", "emptyDir": {}}]
    return {"metadata": metadata, "spec": {"volumes": volumes}, "status": {"conditions": list(conditions), **status}}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "engine", "ready": False, "restartCount": 0, "state": {}, **state}]


READY = {"type": "Ready", "status": "True", "lastTransitionTime": STAMP}
CRASHED = {"terminated": {"exitCode": 3, "reason": "Error", "message": "no config.json"}}


def test_a_ready_pod() -> None:
    state = read_pod(pod(conditions=(READY,), phase="Running", containerStatuses=container(lastState=CRASHED)))
    assert state.ready_since == datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert state.is_routable
    assert state.failure == "", "that it once crashed is over"
    assert (state.region, state.template_hash, state.config_maps) == ("eu", "abc", frozenset({"tiny--eu-1"}))


def test_a_pod_that_terminates_is_not_routable() -> None:
    raw = pod(conditions=(READY,))
    raw["metadata"]["deletionTimestamp"] = STAMP
    assert read_pod(raw).terminating
    assert not read_pod(raw).is_routable


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, ""),
        ({"containerStatuses": container(state={"waiting": {"reason": "ContainerCreating"}})}, ""),
        ({"containerStatuses": container(state={"waiting": {"reason": "PodInitializing"}})}, ""),
        ({"containerStatuses": container(state={"running": {"startedAt": STAMP}})}, ""),
        ({"containerStatuses": container(state={"terminated": {"exitCode": 0, "reason": "Completed"}})}, ""),
        (
            {"containerStatuses": container(state={"waiting": {"reason": "ErrImagePull", "message": "not found"}})},
            "container engine: ErrImagePull: not found",
        ),
        (
            {"containerStatuses": container(state={"waiting": {"reason": "CreateContainerConfigError"}})},
            "container engine: CreateContainerConfigError",
        ),
        (
            {"containerStatuses": container(state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=CRASHED)},
            "container engine: CrashLoopBackOff: last end: Error, exit code 3: no config.json",
        ),
        (
            {"containerStatuses": container(state={"running": {}}, lastState=CRASHED)},
            "container engine: last end: Error, exit code 3: no config.json",
        ),
        (
            {"containerStatuses": container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})},
            "container engine: last end: OOMKilled, exit code 137",
        ),
        (
            {"initContainerStatuses": [{"name": "copy", "state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "container copy: ErrImagePull",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on memory"),
        ({"phase": "Failed"}, "Failed"),
    ],
)
def test_failures(status: dict[str, Any], words: str) -> None:
    assert read_pod(pod(**status)).failure == words


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ({"status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}, "0/3 nodes"),
        ({"status": "False", "reason": "Unschedulable", "message": "0/3 nodes: no GPU."}, "0/3 nodes: no GPU"),
        ({"status": "False", "reason": "Unschedulable"}, "no node fits"),
        ({"status": "False", "reason": "SchedulingGated", "message": "gated"}, ""),
        ({"status": "True"}, ""),
    ],
)
def test_unschedulable(condition: dict[str, str], words: str) -> None:
    assert read_pod(pod(conditions=({"type": "PodScheduled", **condition},))).unschedulable == words


def test_a_pod_that_has_a_node_waits_for_none() -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    raw = pod(conditions=(refused,))
    assert read_pod(raw).unschedulable_since == time_of(STAMP), "by the pod's own age, as the condition has no time"
    raw["spec"]["nodeName"] = "a"
    assert (read_pod(raw).unschedulable, read_pod(raw).unschedulable_since, read_pod(raw).node) == ("", None, "a")


@pytest.mark.parametrize(("text", "cost"), [("3", 3), ("-1", -1), ("much", None)])
def test_the_deletion_cost_is_read(text: str, cost: int | None) -> None:
    raw = pod()
    assert read_pod(raw).deletion_cost is None
    raw["metadata"]["annotations"][names.POD_DELETION_COST] = text
    assert read_pod(raw).deletion_cost == cost


def test_gpus_are_those_of_all_containers() -> None:
    raw = pod()
    limits = [{"nvidia.com/gpu": "1", "cpu": "2"}, {"nvidia.com/gpu": "2", "memory": "1Gi"}, {}]
    raw["spec"]["containers"] = [{"name": "c", "resources": {"limits": limit}} for limit in limits]
    assert {name: n for name, n in read_pod(raw).gpus.items() if n} == {"nvidia.com/gpu": 3}


def test_times() -> None:
    moment = time_of("2026-12-01T12:00:00.123456Z")
    assert time_text(moment) == STAMP
    assert time_of("2026-12-01T13:00:00+01:00") == time_of(STAMP)


@pytest.mark.parametrize("text", ["", "soon", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_what_anybody_may_write_on_a_pod_keeps_nobody_from_reading_it(text: str) -> None:
    raw = pod()
    raw["metadata"]["annotations"] |= {names.ANNOTATION_DELETION_COST_TIME: text, names.POD_DELETION_COST: text}
    state = read_pod(raw)
    assert (state.deletion_cost, state.deletion_cost_written) == (None, None)


@pytest.mark.parametrize("given", [{}, {"lastTransitionTime": None}])
def test_a_ready_pod_whose_kubelet_does_not_say_since_when(given: dict[str, None]) -> None:
    assert read_pod(pod(conditions=({"type": "Ready", "status": "True", **given},))).ready_since == time_of(STAMP)
