"""Only the first and the last node of a kind are news to every endpoint."""

from __future__ import annotations

import pytest

from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import ENDPOINTS, NODES
from emberline_operator.cluster.node_kinds import NodeKinds
from emberline_operator.handlers.watches import concerned
from emberline_operator.snapshot import NodeState, Taint
from support.operator_objects import make_endpoint

EU = {"region": "eu", "kubernetes.io/hostname": "x"}


def kinds() -> NodeKinds:
    """Two nodes alike, in a cluster in which selectors ask for `region`."""
    found = NodeKinds()
    found.change_selector({}, {"region": "eu"})
    for name in "ab":
        found.change_node(name, NodeState(name, EU | {"kubernetes.io/hostname": name}))
    assert found.take_news()
    assert not found.take_news(), "it is told once"
    return found


def test_one_more_or_one_less_of_a_kind_is_no_news() -> None:
    found = kinds()
    found.change_node("c", NodeState("c", EU | {"kubernetes.io/hostname": "c", "emberline.dev/weights-1": "ready"}))
    found.change_node("a", None)
    found.change_node("b", None)
    assert not found.take_news()
    found.change_node("c", None)
    assert found.take_news()


@pytest.mark.parametrize(
    "change",
    [
        {"is_cordoned": True},
        {"is_ready": False},
        {"labels": {"region": "us"}},
        {"labels": {}},
        {"labels": EU | {"nvidia.com/gpu.product": "L4"}},
        {"gpus": {"nvidia.com/gpu": 1}},
        {"taints": (Taint("a", "", "NoSchedule"),)},
    ],
)
def test_another_kind_is_news(change: dict[str, object]) -> None:
    found = kinds()
    found.change_node("a", NodeState("a", **{"labels": EU, **change}))
    assert found.take_news()
    found.change_node("a", NodeState("a", EU))
    assert found.take_news()


def test_labels_matter_while_a_selector_names_them() -> None:
    found = kinds()
    found.change_node("a", NodeState("a", {**EU, "pool": "x"}))
    assert not found.take_news()
    found.change_selector({}, {"pool": "x"})
    found.change_node("b", NodeState("b", {**EU, "pool": "y"}))
    assert found.take_news()
    found.change_selector({"pool": "x"}, {})
    found.change_node("b", NodeState("b", {**EU, "pool": "z"}))
    assert not found.take_news()


def test_how_many_gpus_a_node_has_is_not_its_kind() -> None:
    found = kinds()
    found.change_node("a", NodeState("a", EU, {"nvidia.com/gpu": 1}))
    found.take_news()
    found.change_node("a", NodeState("a", EU, {"nvidia.com/gpu": 2}))
    assert not found.take_news()


def test_the_first_node_of_a_kind_concerns_every_endpoint_and_the_second_none_that_sleeps() -> None:
    caches = Caches()
    caches[ENDPOINTS].put(make_endpoint("tiny"))
    for number, keys in ((1, [("team", "tiny")]), (2, [])):
        metadata = {"name": f"n-{number}", "resourceVersion": str(number), "labels": {"kubernetes.io/os": "linux"}}
        node = {"kind": "Node", "metadata": metadata}
        assert caches[NODES].put(node)
        assert list(concerned(caches, node)) == keys
