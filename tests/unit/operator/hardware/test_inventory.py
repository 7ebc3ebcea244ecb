"""What labels and allocatable resources tell of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_contract.region import GpuPool
from emberline_local.node_options import GPUS
from emberline_operator.hardware.gpu_table import (
    ADA_AND_HOPPER,
    AMPERE,
    BLACKWELL,
    CDNA3,
    MODELS,
    OLD,
    TURING,
    UNKNOWN,
    VOLTA,
    generation_of,
    parse_compute,
    size_of,
)
from emberline_operator.hardware.inventory import Gpu
from emberline_operator.snapshot import NodeState
from support.gpu_nodes import TABLE, gpu_node, hardware, labelled_node


def only(node: NodeState) -> Gpu:
    [found] = hardware(node)
    return found.gpu


@pytest.mark.parametrize(
    ("compute", "generation"),
    [
        ((6, 1), OLD), ((7, 0), VOLTA), ((7, 2), VOLTA), ((7, 5), TURING), ((8, 0), AMPERE), ((8, 6), AMPERE),
        ((8, 7), AMPERE), ((8, 9), ADA_AND_HOPPER), ((9, 0), ADA_AND_HOPPER), ((10, 0), BLACKWELL), ((10, 3), BLACKWELL),
        ((11, 0), BLACKWELL), ((12, 0), BLACKWELL), ((12, 1), BLACKWELL), ((13, 0), BLACKWELL), ("gfx942", CDNA3),
        ("gfx1100", UNKNOWN), (None, UNKNOWN),
    ],
)  # fmt: skip
def test_abilities_follow_from_the_numbers(compute: tuple[int, int] | str | None, generation: object) -> None:
    assert generation_of(compute) is generation


def test_int8_ends_where_fp8_goes_on() -> None:
    table = {name: (g.half, g.int8, g.fp8) for name, g in (("7.0", VOLTA), ("7.5", TURING), ("8.0", AMPERE),
             ("8.9", ADA_AND_HOPPER), ("10.0", BLACKWELL))}  # fmt: skip
    assert table == {
        "7.0": ("fp16", False, False),
        "7.5": ("fp16", True, False),
        "8.0": ("bf16", True, False),
        "8.9": ("bf16", True, True),
        "10.0": ("bf16", False, True),
    }


@pytest.mark.parametrize("kind", GPUS)
def test_local_nodes_pretend_what_the_table_knows(kind: str) -> None:
    gpu = only(gpu_node(kind))
    assert gpu.model is not None
    assert gpu.compute == gpu.model.compute
    whole = (gpu.memory_bytes or 0) * gpu.sharers
    assert gpu.slice_profile or size_of(whole) == size_of(gpu.model.memory_bytes)
    assert whole >= gpu.model.memory_bytes or gpu.slice_profile


@pytest.mark.parametrize(
    ("product", "name", "profile", "sharers"),
    [
        ("NVIDIA-A100-SXM4-80GB", "a100-80", "", 1),
        ("NVIDIA-A100-80GB-PCIe", "a100-80", "", 1),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "a100-80-mig-1g.10gb", "1g.10gb", 1),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED", "a100-80-mig-1g.10gb-shared", "1g.10gb", 3),
        ("NVIDIA-RTX-6000-Ada-Generation-SHARED", "rtx-6000-ada-shared", "", 3),
        ("NVIDIA-H100-SXM5-80GB", "nvidia-h100-sxm5-80gb", "", 1),
    ],
)
def test_suffixes_of_products(product: str, name: str, profile: str, sharers: int) -> None:
    gpu = only(labelled_node({"nvidia.com/gpu.product": product, "nvidia.com/gpu.replicas": str(sharers)}))
    assert (gpu.name, gpu.slice_profile, gpu.sharers) == (name, profile, sharers)


def test_memory_is_the_label_s_and_else_the_table_s() -> None:
    product = {"nvidia.com/gpu.product": "Tesla-T4"}
    assert only(labelled_node({**product, "nvidia.com/gpu.memory": "15360"})).memory_bytes == 15_360 * 2**20
    assert only(labelled_node(product)).memory_bytes == 15_109 * 2**20
    assert only(labelled_node({**product, "nvidia.com/gpu.memory": "soon"})).memory_bytes == 15_109 * 2**20
    assert only(labelled_node({"nvidia.com/gpu.product": "X"})).memory_bytes is None


def test_slices_of_the_mixed_strategy_are_resources_of_their_own() -> None:
    labels = {
        **gpu_node("a100").labels,
        "nvidia.com/mig-1g.10gb.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-3g.40gb.product": "NVIDIA-A100-SXM4-80GB-MIG-3g.40gb",
    }
    resources = {"nvidia.com/gpu": 0, "nvidia.com/mig-1g.10gb": 2, "nvidia.com/mig-3g.40gb": 1}
    first, second = hardware(NodeState("n", labels, resources))
    assert (first.gpu.name, first.num_gpus, first.gpu.memory_bytes) == ("a100-80-mig-1g.10gb", 2, 9_728 * 2**20)
    assert second.gpu.name == "a100-80-mig-3g.40gb"
    assert second.gpu.memory_bytes == 36 * 2**30, "without a label nine tenths of what the profile says"
    assert first.gpu.compute == (8, 0)


def test_shared_gpus_fall_in_parts() -> None:
    gpu = only(gpu_node("l4-shared"))
    assert (gpu.sharers, gpu.memory_bytes) == (4, 23_034 * 2**20 // 4)
    renamed = only(
        labelled_node({**gpu_node("l4").labels, "nvidia.com/gpu.replicas": "2"}, resource="nvidia.com/gpu.shared")
    )
    assert (renamed.sharers, renamed.memory_bytes) == (2, 23_034 * 2**20 // 2)


@pytest.mark.parametrize("prefix", ["", "beta."])
def test_labels_of_amd(prefix: str) -> None:
    labels = {f"{prefix}amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", f"{prefix}amd.com/gpu.vram": "192G"}
    gpu = only(labelled_node(labels, resource="amd.com/gpu"))
    assert (gpu.vendor, gpu.name, gpu.compute, gpu.memory_bytes) == ("Amd", "mi300x", "gfx942", 192 * 2**30)


def test_google_s_label_counts_where_gpu_feature_discovery_is_absent() -> None:
    labels = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
    gpu = only(labelled_node(labels))
    assert (gpu.name, gpu.compute) == ("h100", (9, 0))
    both = only(labelled_node({**labels, "nvidia.com/gpu.compute.major": "8", "nvidia.com/gpu.compute.minor": "9"}))
    assert both.compute == (8, 9), "what is measured counts more than what is said"


def test_a_node_of_a_declared_pool_is_not_counted_twice() -> None:
    body: dict[str, Any] = {"name": "p", "nodeSelector": {"pool": "p"}, "computeCapability": "8.9", "memory": "24Gi",
                            "type": "l4", "gpusPerNode": 2, "maxNodes": 3, "pricePerHour": "4"}  # fmt: skip
    pool = GpuPool.model_validate(body)
    found = hardware(gpu_node("l4", "inside", labels={"pool": "p"}), gpu_node("l4", "outside"), pools=[pool])
    assert [(h.where, h.num_gpus, h.is_pool, h.price_per_gpu) for h in found] == [
        ("p", 6, True, 2.0),
        ("outside", 1, False, None),
    ]


def test_nodes_without_gpus_are_no_hardware() -> None:
    assert hardware(NodeState("cpu", {"a": "b"}), NodeState("none", {}, {"nvidia.com/gpu": 0})) == ()


@pytest.mark.parametrize("text", ["9", "sm_90", "gfx", "9.x", ""])
def test_wrong_compute_capabilities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like 9\.0, or gfx942 for AMD"):
        parse_compute(text)


def test_short_names_are_unique_and_words_that_the_schema_allows() -> None:
    names = [model.name for model in MODELS]
    assert len(set(names)) == len(names)
    for model in MODELS:
        assert model in TABLE.named(model.name)
        assert all(word == word.lower() and "_" not in word for word in model.names)
    assert {m.name for m in TABLE.named("a100")} == {"a100-40", "a100-80"}
