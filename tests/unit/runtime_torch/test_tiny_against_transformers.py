"""Random models of every shape that the family has, against transformers on the same files, in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_llama import write_tiny_llama
from support.torch_rig import forced_logits, load_torch

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, dict[str, Any]] = {
    "tied, grouped queries": {},
    "untied": {"tie_word_embeddings": False},
    "as many KV heads as heads": {"num_key_value_heads": 6},
    "one KV head": {"num_key_value_heads": 1},
    "heads wider than the model": {"head_dim": 12},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 positions": {"rope_scaling": LLAMA3},
    "new spelling of positions": {"rope_theta": None, "rope_parameters": {**LLAMA3, "rope_theta": 5e4}},
    "untied, odd vocabulary": {"tie_word_embeddings": False, "vocab_size": 131},
}


def reference_logits(folder: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_transformers_own(tmp_path: Path, shape: str) -> None:
    folder = write_tiny_llama(tmp_path / "model", seed=7, **SHAPES[shape])
    executor = load_torch(folder, "fp32", max_batch_tokens=128)
    tokens = torch.randint(3, 130, (90,), generator=torch.Generator().manual_seed(1)).tolist()
    ours = forced_logits(executor, tokens, chunk_tokens=37)
    theirs = reference_logits(folder, tokens)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert theirs.std() > 0.1, "flat logits would agree whatever was computed"
