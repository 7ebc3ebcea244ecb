"""Checkpoints whose linear weights are in eight bits already, against plain ones that hold the numbers they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from emberline_runtime.executors.torch.eight_bit import FP8, quantise_rows
from emberline_runtime.executors.torch.linear import DequantisedLinear, Int8KernelLinear, PlainLinear
from emberline_runtime.models.errors import WeightsError
from support.tiny_llama import TINY, make_tensors, write_tiny_llama
from support.torch_rig import forced_logits, load_torch

TOKENS = torch.randint(3, 150, (60,), generator=torch.Generator().manual_seed(1)).tolist()
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], None]


def scheme(kind: str) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float" if kind == "fp8" else "int", "symmetric": True, "strategy": "channel"}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


def quantise(kind: str, scales_dtype: torch.dtype, *, by_tensor: bool = False) -> tuple[Tensors, Tensors]:
    """The tensors of a quantised checkpoint, and the plain ones that they stand for."""
    stored, plain = make_tensors(TINY), make_tensors(TINY)
    for name, tensor in list(stored.items()):
        plain[name] = tensor.float()
        if name.endswith("_proj.weight"):
            rows = tensor.float()
            _, scales = quantise_rows(rows.flatten()[None] if by_tensor else rows, FP8 if kind == "fp8" else torch.int8)
            scales = scales.to(scales_dtype)
            whole = rows / scales.float()
            stored[name] = whole.clamp(-448, 448).to(FP8) if kind == "fp8" else whole.round().clamp(-128, 127).char()
            stored[name + "_scale"] = scales.flatten() if by_tensor else scales
            stored[name.removesuffix("weight") + "input_scale"] = torch.ones(1)
            plain[name] = stored[name].float() * scales.float()
    return stored, plain


def write(folder: Path, tensors: Tensors, quantization_config: object = None) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TINY, "quantization_config": quantization_config}))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["fp8", "int8"])
@pytest.mark.parametrize("scales_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("by_tensor", [False, True])
def test_the_numbers_are_those_of_the_file(
    tmp_path: Path, kind: str, scales_dtype: torch.dtype, by_tensor: bool
) -> None:
    stored, plain = quantise(kind, scales_dtype, by_tensor=by_tensor)
    ours = forced_logits(load_torch(write(tmp_path / "stored", stored, scheme(kind))), TOKENS)
    torch.testing.assert_close(
        ours, forced_logits(load_torch(write(tmp_path / "plain", plain)), TOKENS), rtol=1e-4, atol=1e-4
    )


def test_an_older_fp8_checkpoint_has_one_scale_without_dimensions(tmp_path: Path) -> None:
    stored, plain = quantise("fp8", torch.float32, by_tensor=True)
    stored = {name: tensor.reshape(()) if "scale" in name else tensor for name, tensor in stored.items()}
    config = {"quant_method": "fp8", "activation_scheme": "static"}
    ours = forced_logits(load_torch(write(tmp_path / "stored", stored, config)), TOKENS)
    torch.testing.assert_close(
        ours, forced_logits(load_torch(write(tmp_path / "plain", plain)), TOKENS), rtol=1e-4, atol=1e-4
    )


def test_layers_that_the_maker_left_alone_stay_plain(tmp_path: Path) -> None:
    stored, plain = quantise("int8", torch.bfloat16)
    for name in [name for name in stored if ".0." in name and name.endswith(".weight") and "_proj" in name]:
        stored[name] = plain[name].bfloat16()
        del stored[name + "_scale"], stored[name.removesuffix("weight") + "input_scale"]
    layers = load_torch(write(tmp_path / "m", stored, scheme("int8")), "bf16")._model._weights.layers
    assert isinstance(layers[0].gate_up, PlainLinear)
    assert isinstance(layers[1].gate_up, Int8KernelLinear)


def test_scales_that_the_kernel_would_round_are_not_given_to_it(tmp_path: Path) -> None:
    stored, _ = quantise("int8", torch.float32)
    name = "model.layers.0.self_attn.o_proj.weight_scale"
    stored[name] = stored[name] * 1.001
    layers = load_torch(write(tmp_path / "m", stored, scheme("int8")), "bf16")._model._weights.layers
    assert isinstance(layers[0].o, DequantisedLinear)
    assert isinstance(layers[1].o, Int8KernelLinear)


def drop(name: str) -> Change:
    return lambda tensors: tensors.__delitem__(name)


def put(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.__setitem__(name, tensor)


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(LAYER + "mlp.up_proj.weight_scale"), r"up_proj\.weight_scale' is missing from the weight files"),
        (
            put(LAYER + "mlp.up_proj.weight_scale", torch.ones(6, 3)),
            r"has shape \[6, 3\]; one scale, or one for each of 96",
        ),
        (put(LAYER + "mlp.up_proj.weight_scale", torch.ones(96, dtype=torch.int32)), "is stored as I32"),
        (
            put(LAYER + "self_attn.k_proj.weight", torch.ones(16, 48)),
            r"q_proj\.weight' and '.*k_proj\.weight' only the first is stored as F8_E4M3",
        ),
        (put("model.embed_tokens.weight", torch.ones(160, 48).to(FP8)), r"embed_tokens\.weight' is stored as F8_E4M3"),
        (
            put(LAYER + "self_attn.o_proj.weight", torch.ones(48, 48, dtype=torch.int8)),
            r"o_proj\.weight' is stored as I8",
        ),
    ],
)
def test_what_does_not_belong_together_is_named(tmp_path: Path, change: Change, message: str) -> None:
    stored, _ = quantise("fp8", torch.float32)
    change(stored)
    folder = write(tmp_path / "m", stored, scheme("fp8"))
    with pytest.raises(WeightsError, match=message):
        load_torch(folder, "bf16")


def test_eight_bits_that_config_json_does_not_tell_of_are_refused(tmp_path: Path) -> None:
    stored, _ = quantise("fp8", torch.float32)
    for name in [name for name in stored if "scale" in name]:
        del stored[name]
    with pytest.raises(WeightsError, match="is stored as F8_E4M3; this executor reads"):
        load_torch(write(tmp_path / "m", stored), "bf16")


def test_a_plain_checkpoint_with_scales_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    tensors = {**make_tensors(TINY), LAYER + "self_attn.o_proj.weight_scale": torch.ones(48, 1)}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"o_proj\.weight_scale' is left over"):
        load_torch(folder, "bf16")
