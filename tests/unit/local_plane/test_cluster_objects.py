from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emberline_local.cluster import (
    for_this_machine,
    in_order,
    is_established,
    is_hopeless,
    make_models_volume,
    pod_troubles,
    unavailable,
)
from emberline_local.errors import ClusterError


def deployment(name: str = "emberline-operator", **status: int) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "generation": 2},
        "spec": {
            "replicas": 2,
            "template": {
                "spec": {"containers": [{"name": "c", "env": [{"name": "EMBERLINE_PUBLIC_URL", "value": "old"}]}]}
            },
        },
        "status": {"observedGeneration": 2, **status},
    }


def test_the_claim_and_the_volume_are_bound_to_each_other_alone() -> None:
    volume, claim = make_models_volume(Path("/cache/models"))
    assert volume["spec"]["claimRef"] == {
        "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"],
    }
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""
    assert volume["spec"]["local"]["path"] == "/cache/models"


def test_the_public_url_replaces_what_the_manifests_say_and_leaves_them_alone() -> None:
    documents = [deployment(), deployment("emberline-gateway")]
    changed = for_this_machine(documents, "http://127.0.0.1:1")
    env = [d["spec"]["template"]["spec"]["containers"][0]["env"] for d in changed]
    assert env == [
        [{"name": "EMBERLINE_PUBLIC_URL", "value": "http://127.0.0.1:1"}],
        [{"name": "EMBERLINE_PUBLIC_URL", "value": "old"}],
    ]
    assert documents == [deployment(), deployment("emberline-gateway")]


def test_system_pods_keep_off_nodes_that_run_nothing_and_keep_their_own_choice() -> None:
    document = deployment()
    document["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    (changed,) = for_this_machine([document], "http://127.0.0.1:1")
    selector = changed["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"disk": "ssd", "emberline.dev/local-node": "process"}


def test_manifests_without_an_operator_are_refused() -> None:
    with pytest.raises(ClusterError, match="no Deployment emberline-operator"):
        for_this_machine([deployment("emberline-gateway")], "http://127.0.0.1:1")


def test_what_others_need_is_applied_first() -> None:
    kinds = ["Service", "Namespace", "Deployment", "CustomResourceDefinition"]
    ordered = [d["kind"] for d in in_order({"kind": kind} for kind in kinds)]
    assert ordered == ["Namespace", "CustomResourceDefinition", "Service", "Deployment"]


@pytest.mark.parametrize(
    ("status", "waiting"),
    [
        ({"availableReplicas": 2, "updatedReplicas": 2}, []),
        ({"availableReplicas": 1, "updatedReplicas": 2}, ["emberline-operator 1/2"]),
        ({"availableReplicas": 2, "updatedReplicas": 1}, ["emberline-operator 2/2"]),
        ({"availableReplicas": 2, "updatedReplicas": 2, "observedGeneration": 1}, ["emberline-operator 0/2"]),
        ({}, ["emberline-operator 0/2"]),
    ],
)
def test_a_deployment_counts_when_its_newest_pods_are_available(status: dict[str, int], waiting: list[str]) -> None:
    assert unavailable([deployment(**status)]) == waiting


def test_troubles_of_pods_are_told_in_their_own_words() -> None:
    waiting = {
        "metadata": {"name": "a"},
        "status": {
            "containerStatuses": [
                {"name": "fine", "ready": True},
                {"name": "c", "ready": False, "state": {"waiting": {"reason": "ErrImagePull", "message": "none such"}}},
            ]
        },
    }
    unscheduled = {
        "metadata": {"name": "b"},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]},
    }
    crashed = {
        "metadata": {"name": "d"},
        "status": {
            "containerStatuses": [
                {
                    "name": "c",
                    "ready": False,
                    "state": {"running": {}},
                    "lastState": {"terminated": {"reason": "Error"}},
                }
            ]
        },
    }
    assert pod_troubles([waiting, unscheduled, crashed]) == [
        "a/c: ErrImagePull none such",
        "b: 0/1 nodes are available",
        "d/c: Error; see `emberline-local logs default/d`",
    ]


@pytest.mark.parametrize(
    ("reason", "num_restarts", "expected"),
    [
        ("ErrImagePull", 0, True),
        ("CreateContainerConfigError", 0, True),
        ("CrashLoopBackOff", 3, True),
        ("CrashLoopBackOff", 1, False),
        ("ContainerCreating", 0, False),
        (None, 5, False),
    ],
)
def test_waiting_ends_where_it_is_in_vain(reason: str | None, num_restarts: int, expected: bool) -> None:
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    assert is_hopeless({"status": {"containerStatuses": [{"state": state, "restartCount": num_restarts}]}}) is expected


def test_a_crd_is_served_once_it_says_so() -> None:
    assert not is_established({})
    assert not is_established({"status": {"conditions": None}})
    assert not is_established({"status": {"conditions": [{"type": "NamesAccepted", "status": "True"}]}})
    assert is_established({"status": {"conditions": [{"type": "Established", "status": "True"}]}})
