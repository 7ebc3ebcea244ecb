"""Which GPU class and format an endpoint gets."""

from __future__ import annotations

from emberline_contract.conditions import Reason
from support.gpu_nodes import chosen, gpu_node, refused


def test_a_lone_class_is_chosen_with_its_reason() -> None:
    choice = chosen([gpu_node("h100", count=8)])
    assert (choice.gpu_class, choice.format, choice.dtype, choice.quantization) == ("h100", "fp8", "bf16", "fp8")
    assert choice.reason == (
        "fp8 on h100: compute capability 8.9 to 9.x computes in fp8; 8.0 B parameters (the model's name) take 8.5 GiB instead"
        " of 15.0 GiB; needs 11.7 GiB (8.5 GiB weights, 1.2 GiB KV cache of one context of 8,192 tokens, 2.0 GiB overhead)"
        " of 79.6 GiB"
    )


def test_what_does_not_fit_is_said_with_both_numbers() -> None:
    no = refused([gpu_node("l4")], source="pvc://models/llama-3.1-70b")
    assert no.reason is Reason.DOES_NOT_FIT
    assert "l4: fp8 needs 73.2 GiB" in no.message
    assert "one has 22.5 GiB" in no.message
