from __future__ import annotations

from typing import Any

import pytest

from emberline_local.pod_status import (
    CREATING,
    ContainerView,
    PodView,
    Running,
    State,
    Terminated,
    Waiting,
    make_status,
)
from emberline_local.status_only import Delays, Step, decide_step, make_running_status

OK = Terminated(0, "t1", "t2")
BAD = Terminated(3, "t1", "t2", "last words")
RUNNING = Running("t1")


def view(state: State, *, name: str = "main", **more: Any) -> ContainerView:
    return ContainerView(name=name, image="i", state=state, **more)


def status(
    *containers: ContainerView, inits: tuple[ContainerView, ...] = (), is_over: bool = False, previous: Any = None
) -> dict[str, Any]:
    seen = PodView(
        inits=inits,
        containers=containers,
        address="127.16.1.0",
        host_address="127.0.0.1",
        started_at="t0",
        is_over=is_over,
    )
    return make_status({"status": {}}, seen, previous or {}, "now")


@pytest.mark.parametrize(
    ("containers", "is_over", "phase"),
    [
        ([view(CREATING)], False, "Pending"),
        ([view(RUNNING)], False, "Running"),
        ([view(RUNNING), view(CREATING, name="b")], False, "Running"),
        ([view(Waiting("CrashLoopBackOff"), last=BAD)], False, "Running"),
        ([view(OK), view(RUNNING, name="b")], False, "Running"),
        ([view(OK)], True, "Succeeded"),
        ([view(OK), view(BAD, name="b")], True, "Failed"),
    ],
)
def test_phase(containers: list[ContainerView], is_over: bool, phase: str) -> None:
    assert status(*containers, is_over=is_over)["phase"] == phase


def test_failed_init_container_fails_the_pod_only_when_it_is_over() -> None:
    assert status(view(CREATING), inits=(view(BAD, name="init"),))["phase"] == "Pending"
    assert status(view(CREATING), inits=(view(BAD, name="init"),), is_over=True)["phase"] == "Failed"


def conditions(made: dict[str, Any]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in made["conditions"]}


def test_ready_needs_every_container() -> None:
    ready = view(RUNNING, is_ready=True)
    assert conditions(status(ready))["Ready"] == "True"
    made = status(ready, view(RUNNING, name="slow"))
    assert conditions(made)["Ready"] == "False"
    assert made["conditions"][-1]["message"] == "containers with unready status: [slow]"


def test_initialized_needs_every_init_container_to_succeed() -> None:
    assert conditions(status(view(CREATING), inits=(view(RUNNING, name="init"),)))["Initialized"] == "False"
    assert conditions(status(view(CREATING), inits=(view(OK, name="init"),)))["Initialized"] == "True"


def test_transition_times_move_only_with_the_condition() -> None:
    first = status(view(RUNNING))
    for condition in first["conditions"]:
        condition["lastTransitionTime"] = "then"
    second = status(view(RUNNING, is_ready=True), previous=first)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in second["conditions"]}
    assert times == {"PodScheduled": "then", "Initialized": "then", "ContainersReady": "now", "Ready": "now"}


def test_end_of_a_container_is_told_in_full() -> None:
    made = status(view(Waiting("CrashLoopBackOff", "back-off"), last=BAD, num_restarts=2))
    (shown,) = made["containerStatuses"]
    assert shown["state"] == {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    assert shown["lastState"]["terminated"] == {
        "exitCode": 3,
        "reason": "Error",
        "startedAt": "t1",
        "finishedAt": "t2",
        "message": "last words",
    }
    assert shown["restartCount"] == 2


@pytest.mark.parametrize(
    ("pod", "step"),
    [
        ({"metadata": {}, "status": {}}, (Step.START, 0.5)),
        ({"metadata": {}, "status": {"phase": "Pending"}}, (Step.START, 0.5)),
        ({"metadata": {}, "status": {"phase": "Running"}}, None),
        ({"metadata": {"deletionTimestamp": "x", "deletionGracePeriodSeconds": 30}}, (Step.REMOVE, 2.0)),
        ({"metadata": {"deletionTimestamp": "x", "deletionGracePeriodSeconds": 1}}, (Step.REMOVE, 1.0)),
    ],
)
def test_steps_of_status_only_pods(pod: dict[str, Any], step: tuple[Step, float] | None) -> None:
    assert decide_step(pod, Delays(ready_s=0.5, gone_s=2.0)) == step


def test_status_only_pod_is_ready_with_all_its_containers() -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}}
    made = make_running_status(pod, "127.255.1.0", "now")
    assert made["phase"] == "Running"
    assert conditions(made)["Ready"] == "True"
    assert [shown["ready"] for shown in made["containerStatuses"]] == [True, True]
