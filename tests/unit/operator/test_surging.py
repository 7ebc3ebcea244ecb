"""Whose roll-out may take a spare GPU just now, as the caches tell."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.cluster.index import Index, is_surging
from emberline_operator.desired.child import Child
from emberline_operator.desired.deployment import Strategy, make_deployment
from support.operator_objects import UID, Raw


def deployment(
    strategy: Strategy = "Surge", *, gpus: bool = True, replicas: int = 1, name: str = "tiny", **status: Any
) -> Raw:
    limits = {names.GPU_RESOURCE: "1"} if gpus else {"cpu": "1"}
    template: Raw = {"metadata": {}, "spec": {"containers": [{"name": "engine", "resources": {"limits": limits}}]}}
    child = Child("team", name, UID, names.DEFAULT_REGION)
    made = make_deployment(
        child, template, inputs="", placement="", strategy=strategy, drain_timeout_s=600, replicas=replicas
    )
    made["metadata"]["generation"] = 2
    made["status"] = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, **status}
    return made


@pytest.mark.parametrize(
    ("what", "live", "expected"),
    [
        ("an old engine and a new one", deployment(), True),
        ("only new ones", deployment(updatedReplicas=2), False),
        ("the controller has not looked yet", deployment(observedGeneration=1, updatedReplicas=2), True),
        ("it drains", deployment("Drain"), False),
        ("no GPU is wanted", deployment(gpus=False), False),
        ("nothing shall run", deployment(replicas=0, observedGeneration=1), False),
    ],
)
def test_who_may_take_a_spare_gpu(what: str, live: Raw, expected: bool) -> None:
    assert is_surging(live) is expected, what


def test_the_index_follows() -> None:
    index = Index()
    one, two = deployment(name="one"), deployment(name="two")
    index.change(None, one)
    index.change(None, two)
    before = index.surging
    assert before == {("team", "one"): (one["spec"]["template"],), ("team", "two"): (two["spec"]["template"],)}
    done = copy.deepcopy(one)
    done["status"]["updatedReplicas"] = 2
    index.change(one, done)
    assert index.surging.keys() == {("team", "two")}
    index.change(two, None)
    assert index.surging == {}
    assert before.keys() == {("team", "one"), ("team", "two")}, "what a snapshot has been given stays as it was"
