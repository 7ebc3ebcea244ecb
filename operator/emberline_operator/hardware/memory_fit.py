"""What a model takes of a GPU's memory: weights, KV cache of one full context, and what the engine needs besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emberline_contract.engine_config import EngineOptions
from emberline_contract.quantities import quantity_bytes
from emberline_operator.choice import Format
from emberline_operator.hardware.model_size import ModelFacts
from emberline_operator.hardware.sizes import gib_text

OVERHEAD_BYTES: Final = 2 * 2**30
"""Besides weights and KV cache: the CUDA context and its libraries (about 0.5 GiB), workspaces of matrix products, activations and
logits of one step, and what an allocator cannot use of its blocks."""
KV_SHARE: Final = 0.85
"""Of the memory that weights and overhead leave the engine gives its KV cache this part."""
SCALES_SHARE: Final = 1.01
"""Scales of quantised weights: one number a row in eight bits."""
GROUP_SCALES_SHARE: Final = 1.04
"""In four bits a scale and a zero point for each 128 weights."""

_BYTES: Final[dict[Format, float]] = {
    "bf16": 2.0, "fp16": 2.0, "fp32": 4.0,
    "fp8": 1.0 * SCALES_SHARE, "int8": 1.0 * SCALES_SHARE, "int4": 0.5 * GROUP_SCALES_SHARE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that one engine needs of one GPU."""

    weight_bytes: int
    kv_bytes: int
    context: int | None
    """Tokens that the KV part is for; None: `engine.kvCache` says its size."""

    @property
    def total_bytes(self) -> int:
        """Altogether."""
        return self.weight_bytes + self.kv_bytes + OVERHEAD_BYTES

    @property
    def text(self) -> str:
        """The sum in words."""
        of_what = "engine.kvCache" if self.context is None else f"KV cache of one context of {self.context:,} tokens"
        return (
            f"{gib_text(self.total_bytes)} ({gib_text(self.weight_bytes)} weights, {gib_text(self.kv_bytes)} {of_what},"
            f" {gib_text(OVERHEAD_BYTES)} overhead)"
        )


def weight_bytes(model: ModelFacts, format_: Format) -> int | None:
    """Memory of the weights; None if the model's size is not known."""
    if model.parameters is None:
        return None
    if format_ in ("bf16", "fp16", "fp32"):
        return round(model.parameters * _BYTES[format_])
    plain = min(model.embedding_parameters, model.parameters)
    return round(plain * _BYTES["bf16"] + (model.parameters - plain) * _BYTES[format_])


def need_of(model: ModelFacts, format_: Format, engine: EngineOptions, *, kv_number_bytes: int) -> Need | None:
    """What must fit; None if the model's size is not known."""
    weights, numbers = weight_bytes(model, format_), model.kv_numbers_per_token
    if weights is None or numbers is None:
        return None
    if engine.kv_cache is not None:
        return Need(weights, quantity_bytes(engine.kv_cache), None)
    context = model.context(engine.max_model_len)
    return Need(weights, round(context * numbers * kv_number_bytes / KV_SHARE), context)
