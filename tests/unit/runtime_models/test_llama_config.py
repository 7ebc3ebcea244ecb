from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from emberline_runtime.models.errors import ModelConfigError, UnknownArchitectureError
from emberline_runtime.models.registry import make_parameters, make_spec, read_spec
from emberline_runtime.models.rope import inverse_frequencies
from emberline_runtime.models.spec import DenseMlp, RopeSpec

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def test_a_plain_config() -> None:
    spec = make_spec(LLAMA)
    layer = spec.layers[0]
    assert (len(spec.layers), spec.hidden, spec.vocab, spec.max_positions, spec.tied) == (3, 64, 128, 512, False)
    assert (layer.heads, layer.kv_heads, layer.head_dim) == (8, 2, 8)
    assert layer.rope == RopeSpec(theta=10000.0)
    assert layer.mlp == DenseMlp(intermediate=96, activation="silu")
    assert (spec.norm.kind, spec.norm.eps) == ("rms", 1e-5)


def test_kv_heads_default_to_heads_and_head_dim_may_be_its_own() -> None:
    layer = make_spec({**LLAMA, "num_key_value_heads": None, "head_dim": 10}).layers[0]
    assert (layer.kv_heads, layer.head_dim) == (8, 10)


def test_rope_is_read_in_the_old_and_the_new_spelling() -> None:
    old = make_spec({**LLAMA, "rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = make_spec({**LLAMA, "rope_parameters": {**LLAMA3, "rope_theta": 5e5}})
    assert old == new
    assert old.layers[0].rope == RopeSpec(
        theta=5e5,
        kind="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=256,
    )


def test_biases_call_for_their_parameters() -> None:
    plain = {p.name for p in make_parameters(make_spec(LLAMA)).required()}
    biased = {
        p.name for p in make_parameters(make_spec({**LLAMA, "attention_bias": True, "mlp_bias": True})).required()
    }
    assert biased - plain == {
        f"model.layers.{i}.{part}_proj.bias"
        for i in range(3)
        for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    }


def test_a_tied_model_needs_no_head() -> None:
    assert "lm_head.weight" in {p.name for p in make_parameters(make_spec(LLAMA)).required()}
    tied = make_spec({**LLAMA, "tie_word_embeddings": True})
    assert "lm_head.weight" not in {p.name for p in make_parameters(tied).required()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'; it must be an integer"),
        ({"hidden_size": True}, "'hidden_size' is True"),
        ({"num_hidden_layers": 0}, "'num_hidden_layers' is 0"),
        ({"num_key_value_heads": 3}, "8 is no multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 6, "num_key_value_heads": 2}, "add head_dim"),
        ({"rms_norm_eps": math.inf}, "'rms_norm_eps' is inf"),
        ({"hidden_act": "tanh"}, "'hidden_act' is 'tanh'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type is 'longrope'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling: field 'low_freq_factor' is missing"),
        ({"rope_scaling": 3}, "'rope_scaling' is 3; it must be an object"),
        ({"tie_word_embeddings": "yes"}, "'tie_word_embeddings' is 'yes'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"architectures": []}, "'architectures' is"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        make_spec({**LLAMA, **changes})


def test_an_unknown_architecture_is_refused_by_its_name() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"'MambaForCausalLM' is not known; known are LlamaForCausalLM"):
        make_spec({"architectures": ["MambaForCausalLM"]})


@pytest.mark.parametrize(("text", "message"), [(None, "is not there"), ("{", "as JSON"), ("[1]", "holds a list")])
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match=message):
        read_spec(tmp_path)


def test_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_spec(tmp_path) == make_spec(LLAMA)


def test_llama3_keeps_fast_turns_and_slows_long_ones() -> None:
    plain = inverse_frequencies(RopeSpec(theta=5e5), 64)
    scaled = inverse_frequencies(
        RopeSpec(
            theta=5e5, kind="llama3", factor=8.0, low_freq_factor=1, high_freq_factor=4, original_max_positions=8192
        ),
        64,
    )
    assert scaled[0] == plain[0] == 1.0
    assert scaled[-1] == pytest.approx(plain[-1] / 8)
    ratios = [s / p for s, p in zip(scaled, plain, strict=True)]
    assert ratios == sorted(ratios, reverse=True)
    assert any(1 / 8 < ratio < 1 for ratio in ratios)
