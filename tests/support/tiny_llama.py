"""Random Llama models of a few kilobytes, written as model folders without network and without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from emberline_runtime.models.parameters import Parameter
from emberline_runtime.models.registry import make_parameters, make_spec

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """bf16 tensors of every parameter that the config calls for, large enough that attention is not flat."""
    generator = torch.Generator().manual_seed(seed)

    def draw(parameter: Parameter) -> torch.Tensor:
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in parameter.name:
            return (1 + 0.1 * values).bfloat16()
        return (values * (1.0 if "embed" in parameter.name else 0.2)).bfloat16()

    return {parameter.name: draw(parameter) for parameter in make_parameters(make_spec(config)).required()}


def write_tiny_llama(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """A model folder with config.json and model.safetensors; `changes` are fields of config.json."""
    config = {**TINY, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(make_tensors(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
