"""What eight bits cost the real model, against its fp32 distributions by teacher forcing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from emberline_runtime.executors.torch import executor as executor_module
from emberline_runtime.executors.torch.executor import TorchExecutor
from emberline_runtime.executors.torch.linear import Product
from support.torch_rig import forced_logits, load_torch

pytestmark = pytest.mark.model

NUM_FORCED = 128
CLEAR_GAP = 0.25
"""Between the two best fp32 logits; below it the best one is no promise."""
FP8_WEIGHTS = {"quantization": "fp8"}


@pytest.fixture(scope="module")
def tokens(smollm2_folder: Path) -> list[int]:
    tokenizer = Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))
    text = (Path(__file__).parent / "rivers.txt").read_text()
    return tokenizer.encode(text, add_special_tokens=False).ids[:NUM_FORCED]


@pytest.fixture(scope="module")
def fp32_logits(smollm2_fp32: TorchExecutor, tokens: list[int]) -> torch.Tensor:
    return forced_logits(smollm2_fp32, tokens)


@pytest.mark.parametrize(
    ("changes", "product", "max_kl", "min_agreement"),
    [
        ({"quantization": "int8"}, Product.INT8_KERNEL, 0.01, 0.98),
        (FP8_WEIGHTS, Product.DEQUANTISED, 0.025, 0.94),
        # What a GPU computes, in torch's slow form of it for CPUs: activations have eight bits too.
        (FP8_WEIGHTS, Product.FP8_ROWS, 0.04, 0.93),
        ({"kv_cache_dtype": "fp8"}, None, 0.01, 0.98),
    ],
)
def test_eight_bits_stay_near_fp32(
    smollm2_folder: Path,
    tokens: list[int],
    fp32_logits: torch.Tensor,
    changes: dict[str, str],
    product: Product | None,
    max_kl: float,
    min_agreement: float,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Any,
) -> None:
    monkeypatch.setattr(executor_module, "decide_product", lambda kind, device, dtype: product)
    executor = load_torch(smollm2_folder, "bf16", max_model_len=512, max_sequences=1, **changes)
    ours = forced_logits(executor, tokens).log_softmax(-1)
    executor.close()
    theirs = fp32_logits.log_softmax(-1)
    mean_kl = float((theirs.exp() * (theirs - ours)).sum(-1).mean())
    best = theirs.topk(2, dim=-1)
    is_clear = best.values[:, 0] - best.values[:, 1] > CLEAR_GAP
    agreement = float((ours.argmax(-1) == best.indices[:, 0])[is_clear].float().mean())
    record_property("mean_kl", mean_kl)
    record_property("agreement", agreement)
    sys.stdout.write(f"{changes} {product}: mean KL {mean_kl:.4f}, {agreement:.1%} of the clear choices agree\n")
    assert is_clear.sum() > NUM_FORCED // 2
    assert mean_kl <= max_kl
    assert agreement >= min_agreement
