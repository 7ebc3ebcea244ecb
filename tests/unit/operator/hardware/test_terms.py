"""The node affinity of a choice: it picks its class and nothing else, and does not depend on which nodes are there."""

from __future__ import annotations

import pytest

from emberline_operator.choice import Choice, Expression
from emberline_operator.hardware.inventory import matches
from emberline_operator.snapshot import NodeState
from support.gpu_nodes import chosen, gpu_node, labelled_node

SMALL = "pvc://models/smollm2-135m"
GKE = "cloud.google.com/gke-accelerator"


def by_number(major: int, minor: int, memory: int, **more: str) -> dict[str, str]:
    labels = {"compute.major": str(major), "compute.minor": str(minor), "memory": str(memory), **more}
    return {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}


NODES: dict[str, NodeState] = {
    node.name: node
    for node in (
        *(gpu_node(kind, kind) for kind in ("a10", "a100", "a100-40", "a100-mig", "b200", "gh200", "h100", "h200", "l4",
                                            "l4-shared", "l40s", "rtx4090", "t4", "v100")),
        gpu_node("t4", "t4-other-driver", labels={"nvidia.com/gpu.memory": "15109"}),
        gpu_node("l4", "l4-slices-of-another", labels={"nvidia.com/gpu.slices.gi": "3", "nvidia.com/gpu.memory": "23000",
                                                      "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-2g.20gb"}),
        labelled_node(by_number(9, 0, 81_500), "h100-without-product"),
        labelled_node(by_number(12, 0, 97_887, product="NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"), "rtx-pro"),
        labelled_node({GKE: "nvidia-l4"}, "gke-l4"),
        labelled_node({GKE: "nvidia-l4", "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
                       "cloud.google.com/gke-max-shared-clients-per-gpu": "4"}, "gke-l4-shared"),
        labelled_node({GKE: "nvidia-a100-80gb", "cloud.google.com/gke-gpu-partition-size": "1g.10gb"}, "gke-a100-slices"),
        labelled_node({GKE: "nvidia-tesla-a100"}, "gke-a100-40"),
        labelled_node({"nvidia.com/gpu.product": "Tesla-T4"}, "t4-by-product"),
        labelled_node({"nvidia.com/gpu.product": "NVIDIA-X1"}, "unknown"),
        labelled_node({}, "unlabelled"),
    )
}  # fmt: skip

EXPECTED: dict[str, set[str]] = {
    "a10": {"a10"},
    "a100": {"a100"},
    "a100-40": {"a100-40"},
    "a100-mig": {"a100-mig"},
    "b200": {"b200"},
    "gh200": {"gh200"},
    "h100": {"h100", "h100-without-product"},
    "h200": {"h200"},
    "l4": {"l4", "rtx4090"},
    "l40s": {"l40s"},
    "rtx4090": {"l4", "rtx4090"},
    "t4": {"t4", "t4-other-driver"},
    "v100": {"v100"},
    "rtx-pro": {"rtx-pro"},
    "gke-l4": {"gke-l4"},
    "gke-a100-40": {"gke-a100-40"},
    "gke-a100-slices": {"gke-a100-slices"},
    "t4-by-product": {"t4-by-product"},
    "unknown": {"unknown"},
    "unlabelled": {"unlabelled"},
}


def picked(choice: Choice) -> set[str]:
    return {
        name
        for name, node in NODES.items()
        if choice.resource_name in node.gpus and any(matches(node.labels, term) for term in choice.terms)
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_terms_pick_the_class_and_nothing_else(name: str) -> None:
    assert picked(chosen([NODES[name]], SMALL)) == EXPECTED[name]


@pytest.mark.parametrize(
    ("types", "names"),
    [
        (["l4"], {"l4", "gke-l4"}),
        (["rtx-4090"], {"rtx4090"}),
        (["a100"], {"a100-40", "gke-a100-40"}),
        (["a100-80"], {"a100"}),
        (["a100-80-mig-1g.10gb"], {"a100-mig", "gke-a100-slices"}),
        (["l4-shared"], {"l4-shared", "gke-l4-shared"}),
        (["nvidia-x1"], {"unknown"}),
        (["h100"], {"h100"}),
        (["nvidia-h100-80gb-hbm3"], {"h100"}),
        (["t4"], {"t4", "t4-other-driver", "t4-by-product"}),
    ],
)
def test_terms_of_a_type_pick_that_type(types: list[str], names: set[str]) -> None:
    assert picked(chosen(NODES.values(), SMALL, accelerator={"types": types})) == names


def test_gpus_shared_by_more_pods_are_another_class() -> None:
    eighths = gpu_node("l4-shared", labels={"nvidia.com/gpu.replicas": "8"})
    nodes = [NODES["l4-shared"], eighths]
    asked = {"types": ["l4-shared"], "minMemory": "4Gi"}
    terms = chosen(nodes, SMALL, accelerator=asked).terms
    assert [any(matches(node.labels, term) for term in terms) for node in nodes] == [True, False]
    by_resource = [labelled_node(dict(node.labels), resource="nvidia.com/gpu.shared") for node in nodes]
    terms = chosen(by_resource, SMALL, accelerator={"resourceName": "nvidia.com/gpu.shared", "minMemory": "4Gi"}).terms
    assert [any(matches(node.labels, term) for term in terms) for node in by_resource] == [True, False]


@pytest.mark.parametrize("kind", ["a100-mig", "l4-shared"])
def test_labels_that_older_tools_do_not_write_are_not_asked_for(kind: str) -> None:
    labels = {key: value for key, value in NODES[kind].labels.items() if not key.endswith(("slices.gi", "replicas"))}
    node = labelled_node(labels)
    word = {"a100-mig": "a100-80-mig-1g.10gb", "l4-shared": "l4-shared"}[kind]
    terms = chosen([node], SMALL, accelerator={"types": [word]}).terms
    assert any(matches(labels, term) for term in terms)


def test_numbers_and_bounds_that_never_change() -> None:
    [eight, nine] = chosen([NODES["h100"]]).terms
    whole = (
        Expression("nvidia.com/gpu.memory", "Gt", ("77823",)),
        Expression("nvidia.com/gpu.memory", "Lt", ("90112",)),
        Expression("nvidia.com/gpu.slices.gi", "DoesNotExist"),
        Expression("nvidia.com/gpu.sharing-strategy", "NotIn", ("mps", "time-slicing")),
    )
    assert eight == (
        Expression("nvidia.com/gpu.compute.major", "In", ("8",)),
        Expression("nvidia.com/gpu.compute.minor", "Gt", ("8",)),
        *whole,
    )
    assert nine == (Expression("nvidia.com/gpu.compute.major", "In", ("9",)), *whole)


def test_a_type_means_the_table_s_products_and_not_those_that_are_there() -> None:
    [term] = chosen([NODES["h100"]], accelerator={"types": ["h100"]}).terms
    assert term[0] == Expression("nvidia.com/gpu.product", "In", ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"))


def test_what_is_needed_is_a_bound_too() -> None:
    """A driver that reports less than the model needs keeps the node out although it is of the class."""
    nodes = [NODES["t4"], NODES["t4-other-driver"]]
    choice = chosen(nodes, "pvc://models/mystery-6.1b", engine={"kvCache": "1500Mi"})
    assert choice.format == "fp16"
    bound = next(e for e in choice.terms[0] if e.operator == "Gt" and e.key.endswith("memory"))
    assert 15_109 <= int(bound.values[0]) < 15_360
    assert picked(choice) == {"t4"}
