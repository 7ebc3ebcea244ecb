"""Sizes and formats that a spec or a name tells, and the memory that follows."""

from __future__ import annotations

import re

import pytest

from emberline_contract.engine_config import EngineOptions
from emberline_contract.resources import ModelSpec
from emberline_operator.hardware.known_models import KNOWN
from emberline_operator.hardware.memory_fit import KV_SHARE, OVERHEAD_BYTES, need_of, weight_bytes
from emberline_operator.hardware.model_size import ModelFacts, model_facts


def facts(path: str, **fields: object) -> ModelFacts:
    return model_facts(ModelSpec.model_validate({"source": f"pvc://models/{path}", **fields}))


@pytest.mark.parametrize(
    ("path", "billions", "stored"),
    [
        ("Llama-3.1-8B-Instruct", 8.03, "None"),
        ("Meta-Llama-3.1-8B-Instruct-FP8", 8.03, "FP8"),
        ("Meta-Llama-3.1-8B-Instruct-FP8-dynamic", 8.03, "FP8"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", 70.554, "AWQ"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", 7.616, "GPTQ"),
        ("Meta-Llama-3.1-8B-Instruct-quantized.w8a8", 8.03, "INT8"),
        ("Meta-Llama-3.1-8B-Instruct-quantized.w4a16", 8.03, "GPTQ"),
        ("Llama-3.3-70B-Instruct-NVFP4", 70.554, "FP4"),
        ("smollm2-135m", 0.135, "None"),
        ("SmolLM2-1.7B-Instruct", 1.711, "None"),
        ("Mixtral-8x7B-Instruct-v0.1", 46.703, "None"),
        ("unheard-of-8x3b", 24.0, "None"),
        ("Qwen3-30B-A3B", 30.532, "None"),
        ("unheard-of-30b-a3b-fp8", 30.0, "FP8"),
        ("DeepSeek-R1", 671.026, "FP8"),
        ("DeepSeek-R1-Distill-Qwen-32B", 32.764, "None"),
        ("DeepSeek-R1-Distill-Other-9B", 9.0, "None"),
        ("llama-3.1-8b/fp8", 8.03, "FP8"),
        ("Phi-4", 14.66, "None"),
        ("mystery-13B", 13.0, "None"),
        ("mystery-500m", 0.5, "None"),
        ("mystery-1.5T", 1500.0, "None"),
    ],
)
def test_a_name_tells_size_and_format(path: str, billions: float, stored: str) -> None:
    found = facts(path)
    assert found.parameters == pytest.approx(billions * 1e9)
    assert (found.stored, found.said_by) == (stored, "the model's name")


@pytest.mark.parametrize(
    "path",
    ["tiny", "gpt2", "v2-final", "model-4bitty", "phi-3-medium", "128k-context", "9" * 400 + "b", "9" * 400 + "x7b"],
)
def test_other_names_tell_nothing(path: str) -> None:
    found = facts(path)
    assert (found.parameters, found.stored, found.architecture, found.said_by) == (None, "None", None, "")
    assert need_of(found, "bf16", EngineOptions(), kv_number_bytes=2) is None


def test_the_claim_s_name_tells_too() -> None:
    assert model_facts(ModelSpec(source="pvc://llama-3.1-8b")).parameters == 8_030_000_000


def test_fields_of_the_spec_come_before_the_name() -> None:
    found = facts("llama-3.1-8b-fp8", parameters="70B", quantization="None")
    assert (found.parameters, found.stored, found.said_by) == (70 * 10**9, "None", "model.parameters")
    assert found.architecture is None, "the name's architecture is not that of 70 B parameters"
    near = facts("llama-3.1-8b", parameters="8B")
    assert near.parameters == 8 * 10**9
    assert near.architecture is KNOWN["llama-3.1-8b"]
    assert facts("tiny", parameters="135M").parameters == 135 * 10**6
    assert facts("tiny", parameters="1.5T").parameters == 1_500 * 10**9
    assert facts("mystery-8b", quantization="AWQ").stored == "AWQ"


def test_weights_of_known_checkpoints() -> None:
    """Sizes of the published files: 16-bit and FP8 of Llama 3.1 8B, AWQ of 70B."""
    llama = facts("llama-3.1-8b")
    assert weight_bytes(llama, "bf16") == pytest.approx(16.06e9, rel=0.01)
    assert weight_bytes(llama, "fp32") == pytest.approx(32.12e9, rel=0.01)
    assert weight_bytes(llama, "fp8") == pytest.approx(9.1e9, rel=0.01)
    assert weight_bytes(facts("llama-3.1-70b"), "int4") == pytest.approx(39.8e9, rel=0.01)


def test_need_is_the_sum_of_weights_one_context_and_overhead() -> None:
    need = need_of(facts("llama-3.1-8b"), "bf16", EngineOptions(max_model_len=32_768), kv_number_bytes=2)
    assert need is not None
    # 32 layers x 2 x 8 heads x 128 numbers of 2 bytes = 128 KiB a token.
    assert need.kv_bytes == round(32_768 * 131_072 / KV_SHARE)
    assert need.total_bytes == need.weight_bytes + need.kv_bytes + OVERHEAD_BYTES
    eight_bit = need_of(facts("llama-3.1-8b"), "bf16", EngineOptions(max_model_len=32_768), kv_number_bytes=1)
    assert eight_bit is not None
    assert eight_bit.kv_bytes == pytest.approx(need.kv_bytes / 2, abs=1)
    said = need_of(
        facts("llama-3.1-8b"), "bf16", EngineOptions(kv_cache="3Gi", max_model_len=32_768), kv_number_bytes=2
    )
    assert said is not None
    assert (said.kv_bytes, said.context) == (3 * 2**30, None)
    assert "3.0 GiB engine.kvCache" in said.text


@pytest.mark.parametrize(("path", "context"), [("llama-3.1-8b", 8192), ("llama-2-7b", 4096), ("mystery-7b", 8192)])
def test_without_a_length_one_context_is_the_model_s_own_but_bounded(path: str, context: int) -> None:
    assert facts(path).context(None) == context
    assert facts(path).context(100_000) == 100_000


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-32b", "mistral-7b", "llama-3-8b"])
def test_the_estimate_is_near_what_such_models_have(name: str) -> None:
    """The formula against architectures with 8 KV heads of 128, of which it speaks."""
    known = KNOWN[name]
    guess = ModelFacts(known.parameters, "None", None, "")
    assert guess.kv_numbers_per_token == pytest.approx(known.kv_numbers_per_token, rel=0.25)


def test_the_known_models_are_what_their_names_say() -> None:
    """A slip of a digit in the table would show: the parts cannot be larger than the whole, and a size in a name is about it."""
    for name, arch in KNOWN.items():
        assert 0 < arch.embedding_parameters < arch.parameters / 2, name
        size = re.fullmatch(r"(?:.*-)?([0-9.]+)([mb])", name)
        if size:
            assert arch.parameters == pytest.approx(float(size[1]) * {"m": 1e6, "b": 1e9}[size[2]], rel=0.31), name
