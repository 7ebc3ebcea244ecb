from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from emberline_runtime.executors.torch.linear import Linear, PlainLinear
from emberline_runtime.executors.torch.load import load_weights
from emberline_runtime.executors.torch.model import ModelWeights
from emberline_runtime.models.errors import WeightsError
from emberline_runtime.models.registry import make_parameters, make_spec
from emberline_runtime.weights.safetensors_file import read_header
from support.tiny_llama import TINY, make_tensors, write_tiny_llama

UNTIED = {"tie_word_embeddings": False}


def load(
    folder: Path, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32, **changes: Any
) -> ModelWeights:
    save_file(tensors, folder / "model.safetensors")
    parameters = make_parameters(make_spec({**TINY, **changes}))
    return load_weights(folder, parameters, dtype, torch.device("cpu"))


def plain(linear: Linear) -> torch.Tensor:
    assert isinstance(linear, PlainLinear)
    return linear.weight


def test_weights_are_fused_and_upcast_exactly(tmp_path: Path) -> None:
    tensors = make_tensors(TINY)
    weights = load(tmp_path, tensors)
    parts = [tensors[f"model.layers.1.self_attn.{part}_proj.weight"].float() for part in "qkv"]
    assert torch.equal(plain(weights.layers[1].qkv), torch.cat(parts))
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"].float())
    assert weights.head is weights.embedding


def test_norms_stay_fp32_in_a_bf16_model(tmp_path: Path) -> None:
    weights = load(tmp_path, make_tensors(TINY), torch.bfloat16)
    assert (weights.final_norm.dtype, plain(weights.layers[0].down).dtype) == (torch.float32, torch.bfloat16)


def test_a_header_of_odd_length_loads(tmp_path: Path) -> None:
    tensors = make_tensors(TINY)
    save_file(tensors, tmp_path / "model.safetensors")
    raw = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    odd = (size + 1).to_bytes(8, "little") + raw[8 : 8 + size] + b" " + raw[8 + size :]
    (tmp_path / "model.safetensors").write_bytes(odd)
    assert any(t.offset % 2 for t in read_header(tmp_path / "model.safetensors").values())
    weights = load_weights(tmp_path, make_parameters(make_spec(TINY)), torch.float32, torch.device("cpu"))
    assert torch.equal(plain(weights.layers[0].down), tensors["model.layers.0.mlp.down_proj.weight"].float())


def test_a_missing_parameter_stops_the_start_with_its_name(tmp_path: Path) -> None:
    tensors = make_tensors(TINY)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(WeightsError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is missing"):
        load(tmp_path, tensors)


def test_a_missing_head_of_an_untied_model_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"'lm_head\.weight' is missing"):
        load(tmp_path, make_tensors(TINY), **UNTIED)


def test_a_left_over_parameter_stops_the_start_with_its_name(tmp_path: Path) -> None:
    tensors = {**make_tensors(TINY), "model.layers.2.input_layernorm.weight": torch.ones(48)}
    with pytest.raises(WeightsError, match=r"'model\.layers\.2\.input_layernorm\.weight' is left over"):
        load(tmp_path, tensors)


def test_many_names_are_counted_not_listed(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"and \d+ more are missing"):
        load(tmp_path, {"x": torch.ones(1)})


def test_a_wrong_shape_names_both(tmp_path: Path) -> None:
    tensors = {**make_tensors(TINY), "model.norm.weight": torch.ones(47)}
    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' has shape \[47\] in the file and \[48\]"):
        load(tmp_path, tensors)


def test_buffers_of_old_checkpoints_are_let_pass(tmp_path: Path) -> None:
    load(tmp_path, {**make_tensors(TINY), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})


def test_a_tied_checkpoint_may_hold_an_equal_head(tmp_path: Path) -> None:
    tensors = make_tensors(TINY)
    load(tmp_path, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()})


@pytest.mark.parametrize("change", ["one value", "dtype"])
def test_a_tied_checkpoint_with_another_head_is_refused(tmp_path: Path, change: str) -> None:
    tensors = make_tensors(TINY)
    head = tensors["model.embed_tokens.weight"].clone()
    if change == "one value":
        head[3, 5] += 1
    else:
        head = head.float()
    with pytest.raises(WeightsError, match=r"tie_word_embeddings, but parameter 'lm_head\.weight' differs"):
        load(tmp_path, {**tensors, "lm_head.weight": head})


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' is stored as F64"):
        load(tmp_path, {**make_tensors(TINY), "model.norm.weight": torch.ones(48, dtype=torch.float64)})


def test_shards_load_like_one_file(tmp_path: Path) -> None:
    tensors = make_tensors(TINY)
    whole = write_tiny_llama(tmp_path / "whole")
    names = sorted(tensors)
    files = {"1.safetensors": names[::2], "2.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in files.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    parameters = make_parameters(make_spec(TINY))
    sharded = load_weights(tmp_path, parameters, torch.bfloat16, torch.device("cpu"))
    single = load_weights(whole, parameters, torch.bfloat16, torch.device("cpu"))
    assert torch.equal(plain(sharded.layers[1].gate_up), plain(single.layers[1].gate_up))
    assert torch.equal(sharded.embedding, single.embedding)
