"""What config.json says of a quantised checkpoint: read, or refused by its field with what to do."""

from __future__ import annotations

from typing import Any

import pytest

from emberline_runtime.models.config_fields import ConfigFields
from emberline_runtime.models.errors import ModelConfigError
from emberline_runtime.models.registry import make_parameters, make_spec
from emberline_runtime.models.stored_weights import read_stored_weights
from support.tiny_llama import TINY


def compressed(**weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    scheme = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False, **weights}
    activations = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
    }


def read(quantization_config: object) -> str | None:
    return read_stored_weights(ConfigFields({"quantization_config": quantization_config}))


@pytest.mark.parametrize(
    ("quantization_config", "stored"),
    [
        (None, None),
        (compressed(), "fp8"),
        (compressed(strategy="tensor"), "fp8"),
        (compressed(type="int"), "int8"),
        ({"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}, "fp8"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": None}, "fp8"),
    ],
)
def test_what_is_read(quantization_config: object, stored: str | None) -> None:
    assert read(quantization_config) == stored


TWO_KINDS = compressed()
TWO_KINDS["config_groups"]["group_1"] = compressed(type="int")["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("quantization_config", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method is 'gptq'"),
        ({"quant_method": "awq", "bits": 4}, "quant_method is 'awq'"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "weight_block_size is set: scales by block"),
        (compressed(num_bits=4, type="int"), "config_groups.group_0 has weights of type 'int' with 4 bits"),
        (compressed(strategy="group", group_size=128), "config_groups.group_0 has weights with scales by 'group'"),
        (compressed(symmetric=False), "or a zero point"),
        (TWO_KINDS, "has 2 kinds of weights"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "has 0 kinds of weights"),
    ],
)
def test_what_is_not_is_named_with_the_remedy(quantization_config: object, message: str) -> None:
    with pytest.raises(ModelConfigError, match=message) as refusal:
        read(quantization_config)
    assert "16-bit one of the model and set quantization" in str(refusal.value)


@pytest.mark.parametrize(
    ("quantization_config", "message"),
    [
        ({}, "quantization_config: field 'quant_method' is missing"),
        (7, "'quantization_config' is 7; it must be an object"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {}}}}, "'type' is missing"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 1}}, "'a' is 1; it must be an object"),
    ],
)
def test_what_is_damaged_is_named(quantization_config: object, message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        read(quantization_config)


def test_scales_are_expected_only_beside_quantised_weights() -> None:
    plain, quantised = make_spec(TINY), make_spec({**TINY, "quantization_config": compressed()})
    assert (plain.stored_weights, quantised.stored_weights) == (None, "fp8")
    assert not any("scale" in suffix for suffix in make_parameters(plain).ignored_suffixes)
    assert ".weight_scale" in make_parameters(quantised).ignored_suffixes
