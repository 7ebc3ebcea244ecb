"""Every GPU of the table x sizes x checkpoints: what the card would do, and what is chosen. A golden file that people can read."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberline_contract import names
from emberline_operator.choice import Choice
from emberline_operator.hardware.choose import Candidate, choose, fit
from emberline_operator.hardware.classes import classes_of
from emberline_operator.hardware.gpu_table import MODELS, GpuModel
from emberline_operator.hardware.inventory import Hardware, hardware_of
from emberline_operator.hardware.model_size import model_facts
from emberline_operator.hardware.precision import Refusal, card_options
from emberline_operator.hardware.sizes import gib_text
from emberline_operator.snapshot import NodeState
from support.gpu_nodes import TABLE, spec_of

GOLDEN = Path(__file__).parents[3] / "golden" / "output" / "gpu_decisions.txt"
SIZES = {"0.1B": "smollm2-135m", "8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b"}
CHECKPOINTS = {"16-bit": "", "FP8": "-fp8", "AWQ": "-awq"}
NUM_GPUS = 8


def inventory(model: GpuModel) -> tuple[Hardware, ...]:
    """A node with eight of them, labelled as its vendor does."""
    if model.vendor == "Amd":
        labels = {
            "amd.com/gpu.product-name": model.products[0],
            "amd.com/gpu.vram": f"{round(model.memory_mib / 1024)}G",
        }
        return hardware_of([NodeState("node", labels, {names.AMD_GPU_RESOURCE: NUM_GPUS})], (), TABLE)
    assert isinstance(model.compute, tuple)
    labels = {
        "nvidia.com/gpu.product": model.products[0],
        "nvidia.com/gpu.memory": str(model.memory_mib),
        "nvidia.com/gpu.compute.major": str(model.compute[0]),
        "nvidia.com/gpu.compute.minor": str(model.compute[1]),
    }
    return hardware_of([NodeState("node", labels, {names.GPU_RESOURCE: NUM_GPUS})], (), TABLE)


def card_says(found: tuple[Hardware, ...], source: str, kind: str) -> str:
    """What the card would do, whatever the engine can."""
    spec = spec_of(source, parts={"accelerator": {"kind": kind}})
    model = model_facts(spec.model)
    [gpu_class] = classes_of(found, ())
    options = card_options(model, spec.precision, gpu_class.generation)
    if isinstance(options, Refusal):
        return "cannot use it"
    match fit(gpu_class, spec, model, options):
        case Candidate(option=option, need=need):
            assert need is not None
            return f"{option.format}, {gib_text(need.total_bytes)} of {gib_text(gpu_class.gpu.memory_bytes or 0)}"
        case _:
            return f"{options[-1].format} does not fit"


def compute_text(model: GpuModel) -> str:
    """As people write it."""
    if isinstance(model.compute, tuple):
        return "compute capability {}.{}".format(*model.compute)
    assert model.compute is not None
    return model.compute


def lines() -> Iterator[str]:
    for gpu in MODELS:
        found = inventory(gpu)
        yield f"== {gpu.products[0]}: {gpu.name}, {compute_text(gpu)}, {gib_text(found[0].gpu.memory_bytes or 0)}"
        for size, name in SIZES.items():
            for checkpoint, suffix in CHECKPOINTS.items():
                source = f"pvc://models/{name}{suffix}"
                answer = choose(spec_of(source, parts={"accelerator": {"kind": gpu.vendor}}), found, TABLE)
                chosen = answer.format if isinstance(answer, Choice) else answer.reason.value
                message = answer.reason if isinstance(answer, Choice) else answer.message
                yield f"{size:>4} {checkpoint:<6}  card: {card_says(found, source, gpu.vendor):<28} chosen: {chosen}"
                yield textwrap.indent(textwrap.fill(message, 118), " " * 8)
        yield ""


def test_every_gpu_decides_as_the_golden_file_says() -> None:
    text = "\n".join(lines())
    golden = GOLDEN.read_text()
    assert text == golden, "\n".join(difflib.unified_diff(golden.splitlines(), text.splitlines(), lineterm=""))


def one(gpu: str, size: str, checkpoint: str = "16-bit") -> tuple[str, str]:
    """Card's word and choice for a row of the table."""
    model = TABLE.models[gpu]
    found = inventory(model)
    source = f"pvc://models/{SIZES[size]}{CHECKPOINTS[checkpoint]}"
    answer = choose(spec_of(source, parts={"accelerator": {"kind": model.vendor}}), found, TABLE)
    word = card_says(found, source, model.vendor).split(",")[0]
    return word, answer.format if isinstance(answer, Choice) else answer.reason.value


@pytest.mark.parametrize(
    ("gpu", "size", "checkpoint", "card", "choice"),
    [
        ("v100-16", "0.1B", "16-bit", "fp16", "fp16"),
        ("v100-16", "8B", "16-bit", "fp16 does not fit", "NeedsSeveralGpus"),
        ("v100-32", "8B", "16-bit", "fp16", "fp16"),
        ("v100-32", "8B", "FP8", "cannot use it", "PrecisionUnsupported"),
        ("v100-32", "8B", "AWQ", "cannot use it", "PrecisionUnsupported"),
        ("t4", "0.1B", "16-bit", "fp16", "fp16"),
        ("t4", "8B", "16-bit", "int8", "int8"),
        ("t4", "8B", "FP8", "fp8", "fp8"),
        ("a10", "8B", "16-bit", "bf16", "bf16"),
        ("a100-40", "8B", "16-bit", "bf16", "bf16"),
        ("a100-80", "70B", "16-bit", "int8", "int8"),
        ("a100-80", "8B", "FP8", "fp8", "fp8"),
        ("a100-80", "8B", "AWQ", "int4", "PrecisionUnsupported"),
        ("l4", "0.1B", "16-bit", "bf16", "bf16"),
        ("l4", "8B", "16-bit", "fp8", "fp8"),
        ("l4", "8B", "AWQ", "int4", "PrecisionUnsupported"),
        ("l40s", "70B", "16-bit", "fp8 does not fit", "NeedsSeveralGpus"),
        ("l40s", "70B", "AWQ", "int4", "PrecisionUnsupported"),
        ("a100-40", "70B", "AWQ", "int4 does not fit", "PrecisionUnsupported"),
        ("h100", "70B", "16-bit", "fp8", "fp8"),
        ("h200", "405B", "16-bit", "fp8 does not fit", "NeedsSeveralGpus"),
        ("b200", "8B", "16-bit", "fp8", "fp8"),
        ("b300", "405B", "AWQ", "int4", "PrecisionUnsupported"),
        ("rtx-5090", "8B", "16-bit", "fp8", "fp8"),
        ("mi300x", "70B", "16-bit", "fp8", "fp8"),
        ("mi300x", "0.1B", "16-bit", "bf16", "bf16"),
    ],
)
def test_rows_that_the_facts_give(gpu: str, size: str, checkpoint: str, card: str, choice: str) -> None:
    assert one(gpu, size, checkpoint) == (card, choice)


def test_the_table_has_no_label_that_no_node_carries() -> None:
    wrong = {
        "NVIDIA-H100-SXM5-80GB", "NVIDIA-H200-SXM", "NVIDIA-H200-SXM5-141GB", "NVIDIA-A100-PCIE-80GB", "NVIDIA-GB200-NVL",
        "TESLA-T4",
    }  # fmt: skip
    assert not wrong & {product for model in MODELS for product in model.products}
