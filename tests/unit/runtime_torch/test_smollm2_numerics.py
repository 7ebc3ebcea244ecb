"""The real model against transformers on the same weights: texts in fp32, distributions in bf16."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from emberline_runtime.core.request import Request
from emberline_runtime.executors.torch.executor import TorchExecutor
from support.torch_rig import forced_logits, generate, make_request, make_scheduler

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "The quick brown fox",
    "In 1969, the first humans",
    "Ingredients: flour, eggs, milk. Method:",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam, I am writing to",
]
NUM_NEW = 16
TIE_GAP = 1e-3
"""Between the two best logits in fp32: below it the order of summation decides."""
CLEAR_GAP = 0.25
NUM_FORCED = 500


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> Any:
    """transformers' own model in fp32."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(2)
    return AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer(smollm2_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer) -> list[Request]:
    return [
        make_request(f"p{index}", tokenizer.encode(prompt, add_special_tokens=False).ids, NUM_NEW)
        for index, prompt in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def alone(smollm2_fp32: TorchExecutor, requests: list[Request]) -> dict[str, list[int]]:
    return {request.id: generate(smollm2_fp32, [request])[request.id] for request in requests}


def first_difference(reference: Any, prompt: tuple[int, ...], answer: list[int]) -> tuple[int, float] | None:
    """Index of the first token that is not transformers' greedy choice after the same tokens, and the gap there.

    Every token before it was the choice, so up to there the texts are equal.
    """
    with torch.inference_mode():
        logits = reference(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    for index, token in enumerate(answer):
        if int(logits[index].argmax()) != token:
            best = logits[index].topk(2).values
            return index, float(best[0] - best[1])
    return None


def test_greedy_texts_are_transformers_own(
    reference: Any, requests: list[Request], alone: dict[str, list[int]], record_property: Any
) -> None:
    num_different = 0
    for request in requests:
        assert len(alone[request.id]) == NUM_NEW
        difference = first_difference(reference, request.prompt, alone[request.id])
        if difference is not None:
            num_different += 1
            index, gap = difference
            assert gap < TIE_GAP, f"{request.id}: token {index} differs where the two best logits are {gap} apart"
    record_property("texts_that_differ_at_a_tie", num_different)


def test_with_eight_in_the_batch_the_texts_are_the_same(
    smollm2_fp32: TorchExecutor, requests: list[Request], alone: dict[str, list[int]]
) -> None:
    scheduler = make_scheduler(smollm2_fp32, max_sequences=8, max_batch_tokens=64)
    assert generate(smollm2_fp32, requests, scheduler=scheduler) == alone


def test_bf16_stays_near_fp32_over_500_positions(
    reference: Any, smollm2_bf16: TorchExecutor, tokenizer: Tokenizer, record_property: Any
) -> None:
    text = (Path(__file__).parent / "rivers.txt").read_text()
    tokens = tokenizer.encode(text, add_special_tokens=False).ids[:NUM_FORCED]
    assert len(tokens) == NUM_FORCED
    ours = forced_logits(smollm2_bf16, tokens)
    with torch.inference_mode():
        theirs = reference(torch.tensor([tokens])).logits[0]
    best = theirs.topk(2, dim=-1)
    is_clear = best.values[:, 0] - best.values[:, 1] > CLEAR_GAP
    is_equal = ours.argmax(-1) == best.indices[:, 0]
    kl = torch.nn.functional.kl_div(ours.log_softmax(-1), theirs.log_softmax(-1), reduction="none", log_target=True)
    mean_kl = float(kl.sum(-1).mean())
    numbers = {"clear": int(is_clear.sum()), "equal": int(is_equal.sum()), "mean_kl": mean_kl}
    for name, value in numbers.items():
        record_property(name, value)
    sys.stdout.write(f"bf16 against fp32 over {NUM_FORCED} positions: {numbers}\n")
    assert numbers["clear"] > NUM_FORCED // 2
    assert is_equal[is_clear].all()
    assert mean_kl <= 0.002
