from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from emberline_contract.engine_config import EngineConfig
from emberline_runtime.executors.torch.refusals import refusals
from emberline_runtime.models.registry import make_spec
from emberline_runtime.models.spec import DenseMlp, MoeMlp, NormSpec, RopeSpec
from support.tiny_llama import TINY

SPEC = make_spec(TINY)
CONFIG = EngineConfig(served_names=("m",))
NORM = NormSpec(kind="layer", eps=1e-5)


def test_llama_is_served() -> None:
    assert refusals(SPEC, CONFIG) == []
    llama3 = replace(SPEC.layers[0], rope=RopeSpec(theta=1e4, kind="llama3"))
    assert refusals(replace(SPEC, layers=(llama3,)), CONFIG) == []


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("quantization", [None, "fp8", "int8"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "bf16", "fp8"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_precision_but_int4_is_served(
    dtype: str, quantization: str | None, kv_cache_dtype: str, device: str
) -> None:
    precision = {"dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv_cache_dtype, "device": device}
    assert refusals(SPEC, CONFIG.model_copy(update=precision)) == []


def test_int4_is_refused_with_the_remedy() -> None:
    (reason,) = refusals(SPEC, CONFIG.model_copy(update={"quantization": "int4"}))
    assert reason.startswith("quantization 'int4'")
    assert "fp8 or int8" in reason


@pytest.mark.parametrize("quantization", ["fp8", "int8"])
def test_quantising_on_top_of_a_quantised_checkpoint_is_refused(quantization: str) -> None:
    stored = replace(SPEC, stored_weights="fp8")
    assert refusals(stored, CONFIG) == []
    (reason,) = refusals(stored, CONFIG.model_copy(update={"quantization": quantization}))
    assert reason == f"quantization {quantization!r}: the checkpoint's weights are fp8 already; leave it unset"


def test_a_folder_without_a_spec_is_refused() -> None:
    assert refusals(None, CONFIG)


@pytest.mark.parametrize(
    ("field", "value"),
    [("embed_scale", 24.0), ("logit_scale", 0.5), ("final_softcap", 30.0), ("norm", NORM)],
)
def test_the_model_field_that_is_lacking_is_named(field: str, value: Any) -> None:
    (reason,) = refusals(replace(SPEC, **{field: value}), CONFIG)
    assert field in reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window", 1024),
        ("attn_softcap", 50.0),
        ("qk_norm", NORM),
        ("sinks", True),
        ("pre_norms", False),
        ("post_norms", True),
        ("rope", None),
        ("rope", RopeSpec(theta=1e4, kind="yarn")),
        ("rope", RopeSpec(theta=1e4, rotary_dim=4)),
        ("mlp", MoeMlp(8, "silu", 4, 2, normalise_weights=True)),
        ("mlp", DenseMlp(8, "gelu_tanh")),
        ("mlp", DenseMlp(8, "silu", gated=False)),
    ],
)
def test_the_layer_field_that_is_lacking_is_named_once(field: str, value: Any) -> None:
    layer = replace(SPEC.layers[0], **{field: value})
    (reason,) = refusals(replace(SPEC, layers=(SPEC.layers[0], layer, layer)), CONFIG)
    assert f"layers.{field}" in reason


def test_asking_imports_no_torch() -> None:
    program = "import sys, emberline_runtime.executors.torch.refusals; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "False"
