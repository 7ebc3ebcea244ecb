"""Which GPU class and format an endpoint gets, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_contract.conditions import Reason
from emberline_contract.region import GpuPool
from emberline_operator.choice import Choice, Expression
from emberline_operator.hardware.choose import is_possible
from emberline_operator.snapshot import Taint
from support.gpu_nodes import LLAMA_8B, chosen, decide, gpu_node, hardware, labelled_node, refused

SEVENTY = "pvc://models/llama-3.1-70b"


def skipped(choice: Choice) -> dict[str, str]:
    return {one.name: one.reason for one in choice.skipped}


def pool(name: str = "spot", **fields: Any) -> GpuPool:
    given = {"nodeSelector": {"pool": name}, "computeCapability": "9.0", "memory": "80Gi", "type": "h100", **fields}
    return GpuPool.model_validate({"name": name, **given})


@pytest.mark.parametrize("memory", ["0", "1m"])
def test_a_pool_without_memory_holds_nothing(memory: str) -> None:
    no = refused([], pools=[pool(memory=memory)])
    assert no.reason is Reason.DOES_NOT_FIT
    assert "one has 0.0 GiB" in no.message


def test_a_lone_class_is_chosen_with_its_reason() -> None:
    choice = chosen([gpu_node("h100", count=8)])
    assert (choice.gpu_class, choice.format, choice.dtype, choice.quantization) == ("h100", "fp8", "bf16", "fp8")
    assert choice.resource_name == "nvidia.com/gpu"
    assert choice.weight_bytes == pytest.approx(9.1e9, rel=0.01)
    assert choice.reason == (
        "fp8 on h100: compute capability 8.9 to 9.x computes in fp8; 8.0 B parameters (the model's name) take 8.5 GiB instead"
        " of 15.0 GiB; needs 11.7 GiB (8.5 GiB weights, 1.2 GiB KV cache of one context of 8,192 tokens, 2.0 GiB overhead)"
        " of 79.6 GiB"
    )


# Order of the classes.


@pytest.mark.parametrize(
    ("kinds", "source", "parts", "expected", "why"),
    [
        (["h100", "l4"], LLAMA_8B, {}, "l4", "l4 goes first: it has more memory than is needed"),
        (["h100", "l4"], SEVENTY, {}, "h100", "fp8 needs 73.2 GiB"),
        (["a100", "l4"], LLAMA_8B, {}, "l4", "l4 goes first: it does not compute in fp8"),
        (["a100", "l4"], LLAMA_8B, {"accelerator": {"types": ["a100", "l4"]}}, "a100-80",
         "a100-80 goes first: accelerator.types names it later"),
        (["a100", "l4"], LLAMA_8B, {"accelerator": {"types": ["a100"]}}, "a100-80", "accelerator.types does not name it"),
        (["a100", "a100-40"], "pvc://models/yi-34b", {}, "a100-80",
         "a100-80 goes first: it would have to be int8: bf16 does not fit"),
        (["a100-mig", "t4"], "pvc://models/smollm2-135m", {}, "t4", "t4 goes first: it is a part of a GPU"),
        (["a100", "l4-shared"], LLAMA_8B, {}, "a100-80", "4 pods share it; name it in accelerator.types to use it"),
    ],
)  # fmt: skip
def test_two_classes(kinds: list[str], source: str, parts: dict[str, Any], expected: str, why: str) -> None:
    choice = chosen([gpu_node(kind) for kind in kinds], source, **parts)
    assert choice.gpu_class == expected
    [(other, reason)] = skipped(choice).items()
    assert other != expected
    assert why in reason


def test_the_class_that_can_hold_all_engines_goes_first() -> None:
    nodes = [gpu_node("h100", count=2), gpu_node("a100", "a", count=2), gpu_node("a100", "b", count=2)]
    choice = chosen(nodes, max_replicas=4, accelerator={"types": ["h100", "a100"]})
    assert choice.gpu_class == "a100-80"
    assert skipped(choice) == {
        "h100": "a100-80 goes first: its 2 GPUs hold fewer than the 4 engines of scaling.maxReplicas"
    }
    assert chosen(nodes, max_replicas=5, accelerator={"types": ["h100", "a100"]}).gpu_class == "h100", (
        "neither can hold 5"
    )
    assert chosen(nodes, max_replicas=2).gpu_class == "h100"


def test_nodes_that_cannot_take_pods_now_come_last() -> None:
    nodes = [gpu_node("l4", is_ready=False), gpu_node("t4", is_cordoned=True), gpu_node("a100")]
    assert chosen(nodes).gpu_class == "a100-80"
    assert chosen(nodes[:1]).gpu_class == "l4", "decided all the same; the pods wait"
    assert chosen(nodes, max_replicas=4).gpu_class == "a100-80", "one engine is better than none"


def test_hardware_that_nobody_knows_comes_last() -> None:
    assert chosen([labelled_node({}), gpu_node("t4")]).gpu_class == "t4", "although it must be int8 there"


def test_the_faster_memory_decides_where_nothing_else_does() -> None:
    ada = {"computeCapability": "8.9", "memory": "24Gi"}
    pools = [pool("a", type="l4", **ada), pool("b", type="rtx-4090", **ada)]
    choice = chosen([], pools=pools)
    assert choice.gpu_class == "rtx-4090 (pool b)"
    assert skipped(choice) == {"l4 (pool a)": "rtx-4090 (pool b) goes first: its memory is slower"}


def test_the_cheapest_pool_of_those_that_do_equally_well() -> None:
    pools = [
        pool("reserved", pricePerHour="9.5"),
        pool("spot", pricePerHour="3"),
        pool("eights", pricePerHour="16", gpusPerNode=8),
    ]
    choice = chosen([], pools=pools)
    assert choice.gpu_class == "h100 (pool eights)", "2 for each of its 8 GPUs"
    assert choice.terms == ((Expression("pool", "In", ("eights",)),),)
    assert skipped(choice) == {
        "h100 (pool spot)": "h100 (pool eights) goes first: it costs more",
        "h100 (pool reserved)": "h100 (pool eights) goes first: it costs more",
    }


def test_pools_that_are_the_same_and_cost_the_same_are_one_class() -> None:
    zones = [pool("zone-a", maxNodes=2), pool("zone-b", maxNodes=2)]
    choice = chosen([], pools=zones, max_replicas=4)
    assert choice.terms == ((Expression("pool", "In", ("zone-a",)),), (Expression("pool", "In", ("zone-b",)),))
    with_small = chosen([gpu_node("h100", count=1)], pools=zones, max_replicas=4)
    assert with_small.terms == choice.terms
    assert "its 1 GPU holds fewer" in skipped(with_small)["h100"]


def test_a_pool_without_a_node_is_hardware() -> None:
    choice = chosen([], SEVENTY, pools=[pool()])
    assert (choice.gpu_class, choice.format) == ("h100 (pool spot)", "fp8")
    untyped = chosen([], SEVENTY, pools=[pool(type=None)])
    assert untyped.gpu_class == "h100 (pool spot)", "compute capability and memory tell"
    ambiguous = pool(type=None, computeCapability="8.9", memory="24Gi")
    assert chosen([], pools=[ambiguous]).gpu_class == "cc8.9 24 GB (pool spot)"
    amd = pool(type="mi300x", computeCapability="gfx942", memory="192Gi", resourceName="amd.com/gpu")
    assert chosen([], SEVENTY, pools=[amd], accelerator={"kind": "Amd"}).resource_name == "amd.com/gpu"
    assert refused([], SEVENTY, pools=[amd]).reason is Reason.NO_SUCH_GPU


# What the spec asks for.


def test_a_wrong_type_is_answered_with_those_that_are_there() -> None:
    no = refused([gpu_node("l4", count=2), gpu_node("t4")], accelerator={"types": ["l40z"]})
    assert no.reason is Reason.NO_SUCH_GPU
    assert "There are: l4 (2), t4 (1)" in no.message
    assert "l40z: no GPU of that name is known; did you mean" in no.message
    assert "? Add such nodes" in no.message
    assert "accelerator.types does not name it" not in no.message, "that is all of them"
    absent = refused([gpu_node("l4")], accelerator={"types": ["h100"]})
    assert "h100: no node and no declared pool has it" in absent.message
    half = chosen([gpu_node("l4")], accelerator={"types": ["h1oo", "l4"]})
    assert half.gpu_class == "l4"
    assert skipped(half) == {"h1oo": "no GPU of that name is known; did you mean h100?"}


def test_products_that_the_table_lacks_are_named_by_their_label() -> None:
    labels = {
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
        "nvidia.com/gpu.memory": "81559",
    }
    node = labelled_node({**labels, "nvidia.com/gpu.product": "NVIDIA-H800"})
    choice = chosen([node], accelerator={"types": ["nvidia-h800"]})
    assert (choice.gpu_class, choice.format) == ("nvidia-h800", "fp8")
    assert choice.terms[0][0] == Expression("nvidia.com/gpu.product", "In", ("NVIDIA-H800",))
    assert chosen([node]).format == "fp8", "a known compute capability is enough"


def test_unknown_hardware_gets_fp16_and_says_so() -> None:
    choice = chosen([labelled_node({"nvidia.com/gpu.product": "NVIDIA-X1"})])
    assert (choice.gpu_class, choice.format) == ("nvidia-x1", "fp16")
    assert "compute capability is not known, so nothing but fp16 is taken for granted" in choice.reason
    assert "the GPU's memory is not known" in choice.reason
    bare = chosen([labelled_node({})])
    assert (bare.gpu_class, bare.format) == ("unlabelled", "fp16")


def test_min_memory_is_held_against_each_gpu() -> None:
    nodes = [gpu_node("l4"), gpu_node("h100")]
    choice = chosen(nodes, accelerator={"minMemory": "40Gi"})
    assert choice.gpu_class == "h100"
    assert skipped(choice)["l4"] == "it has 22.5 GiB, and accelerator.minMemory is 40Gi (40.0 GiB)"
    assert Expression("nvidia.com/gpu.memory", "Gt", ("77823",)) in choice.terms[0]
    tight = chosen(nodes, accelerator={"minMemory": "79Gi"})
    assert Expression("nvidia.com/gpu.memory", "Gt", (str(79 * 1024 - 1),)) in tight.terms[0]
    assert refused(nodes, accelerator={"minMemory": "80Gi"}).reason is Reason.NO_SUCH_GPU, "its label says 79.6 GiB"
    assert chosen(nodes, accelerator={"minMemory": "80G"}).gpu_class == "h100"


def test_another_resource_is_taken_where_it_is_asked_for() -> None:
    labels = {**gpu_node("a100").labels, "nvidia.com/mig-1g.10gb.memory": "9728"}
    node = gpu_node("a100", labels=labels)
    mixed = type(node)("n", labels, {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.10gb": 4})
    small = "pvc://models/smollm2-135m"
    assert chosen([mixed], small).resource_name == "nvidia.com/gpu", "whole GPUs go first"
    choice = chosen([mixed], small, accelerator={"resourceName": "nvidia.com/mig-1g.10gb"})
    assert (choice.gpu_class, choice.resource_name) == ("a100-80-mig-1g.10gb", "nvidia.com/mig-1g.10gb")
    assert "accelerator.resourceName is nvidia.com/mig-1g.10gb" in skipped(choice)["a100-80"]
    assert chosen([mixed], small, max_replicas=4).resource_name == "nvidia.com/mig-1g.10gb", "one whole GPU is too few"


def test_a_resource_of_somebody_s_own_is_taken_only_where_it_is_asked_for() -> None:
    labels = dict(gpu_node("l4").labels)
    own = labelled_node(labels, resource="example.com/gpu")
    assert refused([own]).reason is Reason.NO_SUCH_GPU
    choice = chosen([own], accelerator={"resourceName": "example.com/gpu"})
    assert (choice.gpu_class, choice.resource_name, choice.format) == ("l4", "example.com/gpu", "fp8")
    assert chosen([], pools=[pool(resourceName="example.com/gpu")]).resource_name == "example.com/gpu"


def test_shared_gpus_are_taken_only_where_asked_for_and_count_a_part_each() -> None:
    node = gpu_node("l4-shared")
    no = refused([node])
    assert no.reason is Reason.NO_SUCH_GPU
    assert "l4-shared: 4 pods share it; name it in accelerator.types to use it" in no.message
    small = chosen([node], "pvc://models/smollm2-135m", accelerator={"types": ["l4-shared"]})
    assert small.gpu_class == "l4-shared"
    assert "of 5.6 GiB" in small.reason, "a quarter of 22.5 GiB"
    large = refused([node], accelerator={"types": ["l4-shared"]})
    assert large.reason is Reason.DOES_NOT_FIT, "parts of GPUs cannot work together"
    assert "one has 5.6 GiB" in large.message


def test_taints_and_selectors_keep_out() -> None:
    team = Taint("team", "b", "NoSchedule")
    node = gpu_node("l4", taints=(Taint("nvidia.com/gpu", "present", "NoSchedule"), team))
    no = refused([node])
    assert "its nodes are tainted team=b:NoSchedule; tolerate that in placement.tolerations" in no.message
    allowed = {"tolerations": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}
    assert chosen([node], placement=allowed).gpu_class == "l4"
    assert chosen([node], placement={"tolerations": [{"operator": "Exists"}]}).gpu_class == "l4"
    disk = {"nodeSelector": {"disk": "ssd"}}
    assert "lack disk=ssd of placement.nodeSelector" in refused([gpu_node("l4")], placement=disk).message
    assert chosen([gpu_node("l4", labels={"disk": "ssd"})], placement=disk).gpu_class == "l4"
    assert chosen([], pools=[pool()], placement=disk).gpu_class == "h100 (pool spot)"
    assert refused([], pools=[pool(nodeSelector={"disk": "hdd"})], placement=disk).reason is Reason.NO_SUCH_GPU


def test_pools_of_arm_superchips_are_open() -> None:
    taints = (Taint("nvidia.com/gpu", "present", "NoSchedule"), Taint("kubernetes.io/arch", "arm64", "NoSchedule"))
    assert chosen([gpu_node("gh200", taints=taints)]).gpu_class == "gh200"


def test_the_state_of_a_node_is_no_taint() -> None:
    node = gpu_node("l4", taints=(Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"),), is_cordoned=True)
    assert chosen([node]).gpu_class == "l4"


def test_several_gpus_are_refused_with_the_numbers() -> None:
    no = refused([gpu_node("h100", count=8)], accelerator={"count": 2})
    assert (no.reason, "accelerator.count is 2" in no.message) == (Reason.NEEDS_SEVERAL_GPUS, True)
    large = refused([gpu_node("h100", count=8)], "pvc://models/llama-3.1-405b")
    assert large.reason is Reason.NEEDS_SEVERAL_GPUS
    assert "fp8 needs 392.3 GiB" in large.message
    assert "one has 79.6 GiB; 5 GPUs of one node would do, but this engine does not split a model" in large.message
    slices = refused([gpu_node("a100-mig", count=7)])
    assert (slices.reason, "7 GPUs" in slices.message) == (Reason.DOES_NOT_FIT, False)
    few = refused([gpu_node("h100", count=4)], "pvc://models/llama-3.1-405b")
    assert few.reason is Reason.DOES_NOT_FIT


# Formats.


@pytest.mark.parametrize(
    ("kind", "precision", "source", "format_", "dtype", "quantization"),
    [
        ("a100", {}, LLAMA_8B, "bf16", "bf16", None),
        ("t4", {}, LLAMA_8B, "int8", "fp16", "int8"),
        ("t4", {}, "pvc://models/tiny", "fp16", "fp16", None),
        ("h100", {}, "pvc://models/tiny", "bf16", "bf16", None),
        ("h100", {"format": "bf16"}, LLAMA_8B, "bf16", "bf16", None),
        ("h100", {"format": "fp16"}, LLAMA_8B, "fp16", "fp16", None),
        ("h100", {"format": "fp32"}, LLAMA_8B, "fp32", "fp32", None),
        ("h100", {"format": "fp8"}, "pvc://models/smollm2-135m", "fp8", "bf16", "fp8"),
        ("h100", {"format": "int8"}, LLAMA_8B, "int8", "bf16", "int8"),
        ("a100-mig", {}, "pvc://models/smollm2-1.7b", "bf16", "bf16", None),
        ("l4", {}, "pvc://models/llama-3.1-8b-fp8", "fp8", "bf16", None),
        ("a100", {}, "pvc://models/llama-3.1-8b-fp8", "fp8", "bf16", None),
        ("a100", {"format": "fp8"}, "pvc://models/llama-3.1-8b-fp8", "fp8", "bf16", None),
        ("a100", {}, "pvc://models/llama-3.1-8b-w8a8", "int8", "bf16", None),
    ],
)
def test_formats(
    kind: str, precision: dict[str, str], source: str, format_: str, dtype: str, quantization: str | None
) -> None:
    choice = chosen([gpu_node(kind)], source, precision=precision)
    assert (choice.format, choice.dtype, choice.quantization) == (format_, dtype, quantization)


@pytest.mark.parametrize(
    ("kind", "precision", "source", "words"),
    [
        ("a100", {"format": "fp8"}, LLAMA_8B, "does not compute in fp8; use int8 or bf16"),
        ("t4", {"format": "bf16"}, LLAMA_8B, "does not compute in bf16; use fp16"),
        ("b200", {"format": "int8"}, LLAMA_8B, "has no int8 worth using; use fp8"),
        ("v100", {"format": "int8"}, LLAMA_8B, "has no int8 worth using; use fp16"),
        ("h100", {"format": "int4"}, LLAMA_8B, "this engine does not turn weights into int4 yet"),
        ("h100", {}, "pvc://models/llama-3.1-8b-awq", "this engine does not load AWQ checkpoints yet"),
        ("h100", {}, "pvc://models/llama-3.1-8b-gptq", "this engine does not load GPTQ checkpoints yet"),
        ("v100", {}, "pvc://models/llama-3.1-8b-awq", "stored as AWQ, which compute capability 7.0 cannot use"),
        (
            "b200",
            {},
            "pvc://models/llama-3.1-8b-w8a8",
            "stored as INT8, which compute capability 10.0 and newer cannot use",
        ),
        ("h100", {"format": "bf16"}, "pvc://models/llama-3.1-8b-fp8", "stored as FP8 and cannot become bf16"),
        ("a100", {"kvCache": "fp8"}, LLAMA_8B, "has no fp8 for precision.kvCache"),
        ("t4", {"kvCache": "bf16"}, LLAMA_8B, "has no bf16 for precision.kvCache; set it to Auto, which is fp16 here"),
    ],
)
def test_what_no_gpu_can_do_is_refused_with_the_reason(
    kind: str, precision: dict[str, str], source: str, words: str
) -> None:
    no = refused([gpu_node(kind)], source, precision=precision)
    assert no.reason is Reason.PRECISION_UNSUPPORTED
    assert words in no.message


def test_the_gpu_that_can_do_it_is_taken() -> None:
    choice = chosen([gpu_node("a100"), gpu_node("l4")], precision={"format": "fp8"})
    assert choice.gpu_class == "l4"
    assert skipped(choice)["a100-80"] == "compute capability 8.0 to 8.8 does not compute in fp8; use int8 or bf16"


def test_a_fp8_checkpoint_goes_where_fp8_is_computed() -> None:
    """T39: A100 and L4 in one cluster."""
    source = "pvc://models/llama-3.1-8b-instruct-fp8"
    choice = chosen([gpu_node("a100"), gpu_node("l4")], source)
    assert (choice.gpu_class, choice.format, choice.quantization) == ("l4", "fp8", None)
    assert "stored as FP8, and compute capability 8.9 to 9.x computes in it" in choice.reason
    assert choice.weight_bytes == pytest.approx(9.1e9, rel=0.01), "the fit counts the chosen bytes"
    assert skipped(choice) == {"a100-80": "l4 goes first: it does not compute in fp8"}
    alone = chosen([gpu_node("a100")], source)
    assert "has no fp8, so weights stay fp8 and products are bf16" in alone.reason
    too_large = chosen([gpu_node("a100"), gpu_node("l4")], "pvc://models/llama-3.1-70b-instruct-fp8")
    assert too_large.gpu_class == "a100-80"


def test_the_kv_cache_counts_in_its_own_type() -> None:
    long = {"engine": {"maxModelLen": 131_072}}
    plain, half = chosen([gpu_node("h100")], **long), chosen([gpu_node("h100")], **long, precision={"kvCache": "fp8"})
    assert "18.8 GiB KV cache of one context of 131,072 tokens" in plain.reason
    assert "9.4 GiB KV cache of one context of 131,072 tokens" in half.reason
    assert (plain.kv_cache, half.kv_cache) == ("auto", "fp8")
    double = chosen([gpu_node("h100")], precision={"format": "fp32"})
    assert "2.4 GiB KV cache of one context of 8,192 tokens" in double.reason, "fp32 is computed and kept in fp32"


def test_an_unknown_size_is_not_checked_and_says_how_to_state_it() -> None:
    choice = chosen([gpu_node("l4")], "pvc://models/tiny")
    assert choice.weight_bytes is None
    assert "it was not checked whether it fits: set model.parameters, such as 8B" in choice.reason
    known = refused([gpu_node("l4")], "pvc://models/tiny", model={"source": "pvc://models/tiny", "parameters": "70B"})
    assert known.reason is Reason.DOES_NOT_FIT


def test_amd_says_what_its_fp8_is() -> None:
    choice = chosen([gpu_node("mi300x")], accelerator={"kind": "Amd"})
    assert (choice.gpu_class, choice.format, choice.resource_name) == ("mi300x", "fp8", "amd.com/gpu")
    assert "e4m3 fnuz, whose largest value is 240" in choice.reason
    assert refused([gpu_node("mi300x")]).reason is Reason.NO_SUCH_GPU
    assert refused([gpu_node("h100")], accelerator={"kind": "Amd"}).reason is Reason.NO_SUCH_GPU


def test_cpus_need_no_hardware() -> None:
    cpu = {"accelerator": {"kind": "Cpu"}}
    plain = chosen([], **cpu)
    assert (plain.gpu_class, plain.format, plain.resource_name, plain.terms) == ("", "bf16", "", ())
    assert chosen([], **cpu, precision={"format": "fp32"}).dtype == "fp32"
    small = chosen([], **cpu, precision={"format": "int8"})
    assert (small.format, small.dtype, small.quantization) == ("int8", "bf16", "int8")
    no = decide([], **cpu, precision={"format": "int4"})
    assert "does not turn weights into int4" in getattr(no, "message", "")
    assert is_possible(plain, ())


def test_nothing_there_is_said_with_the_remedy() -> None:
    no = refused([])
    assert no.reason is Reason.NO_SUCH_GPU
    assert "There are: none" in no.message
    assert "declare them as spec.gpuPools" in no.message


def test_a_choice_is_possible_while_a_node_or_pool_could_hold_it() -> None:
    choice = chosen([gpu_node("l4")])
    assert is_possible(choice, hardware(gpu_node("t4"), gpu_node("l4", "other")))
    assert not is_possible(choice, hardware(gpu_node("t4"), gpu_node("h100")))
    assert not is_possible(choice, hardware(gpu_node("l4", is_ready=False)))
    assert not is_possible(choice, hardware(gpu_node("l4", is_cordoned=True)))
    assert not is_possible(choice, hardware(gpu_node("l4-shared")))
    assert not is_possible(choice, ())
    pooled = chosen([], pools=[pool()])
    assert is_possible(pooled, hardware(pools=[pool()]))
    assert not is_possible(pooled, hardware(pools=[pool("other")]))
