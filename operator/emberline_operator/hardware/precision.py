"""In which formats a GPU can run a model, the best first; and which of them this release's engine loads.

Two tables that are never mixed: what the card can do is `gpu_table.Generation`, what the engine can do is below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from emberline_contract.engine_config import Dtype, KvCacheDtype, Quantization
from emberline_contract.resources import PrecisionSpec
from emberline_operator.choice import Format
from emberline_operator.hardware.gpu_table import Generation
from emberline_operator.hardware.known_models import Stored
from emberline_operator.hardware.model_size import ModelFacts
from emberline_operator.hardware.sizes import parameters_text

FP8_FROM_PARAMETERS: Final = 2 * 10**9
"""Smaller models stay in 16 bits where they fit: their products are too small to gain, and they lose more."""

ENGINE_QUANTISES_TO: Final[frozenset[Quantization]] = frozenset({"fp8", "int8"})
"""What the engine turns 16-bit weights into while it loads them."""
ENGINE_LOADS_STORED: Final[frozenset[Stored]] = frozenset({"None", "FP8", "INT8"})
"""Checkpoints that the engine reads."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run the model on a card."""

    format: Format
    dtype: Dtype
    quantization: Quantization | None
    """What the engine would have to do while loading; None for 16 bits and for what is stored so already."""
    why: str
    is_fallback: bool = False
    """Only because what comes before it does not fit."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why it cannot be done, and what can be done instead."""

    why: str


_STORED_FORMAT: Final[dict[Stored, Format]] = {
    "FP8": "fp8",
    "INT8": "int8",
    "AWQ": "int4",
    "GPTQ": "int4",
    "FP4": "int4",
}


def card_options(model: ModelFacts, precision: PrecisionSpec, card: Generation) -> tuple[Option, ...] | Refusal:
    """The formats for a card, in order: the first that fits is taken. Knows nothing of the engine."""
    kv = _kv_refusal(precision, card)
    if kv is not None:
        return kv
    if model.stored != "None":
        return _stored_options(model.stored, precision, card)
    if precision.format != "Auto":
        return _fixed(precision.format, card)
    return _automatic(model, card)


def engine_refusal(model: ModelFacts, option: Option) -> Refusal | None:
    """Why this release's engine does not load it so; None if it does."""
    if model.stored not in ENGINE_LOADS_STORED:
        return Refusal(
            f"this engine does not load {model.stored} checkpoints yet; give it an FP8 or INT8 one, or the 16-bit one of the model,"
            f" which becomes {' or '.join(sorted(ENGINE_QUANTISES_TO))} while it is loaded"
        )
    if option.quantization is not None and option.quantization not in ENGINE_QUANTISES_TO:
        return Refusal(
            f"this engine does not turn weights into {option.quantization} yet; set precision.format to Auto,"
            f" {', '.join(sorted(ENGINE_QUANTISES_TO))} or a 16-bit type"
        )
    return None


def kv_cache_dtype(precision: PrecisionSpec) -> KvCacheDtype:
    """The KV cache's type as the engine is told."""
    return "auto" if precision.kv_cache == "Auto" else precision.kv_cache


def kv_number_bytes(precision: PrecisionSpec, dtype: Dtype) -> int:
    """Bytes of one number in the KV cache."""
    if precision.kv_cache == "fp8":
        return 1
    return 4 if precision.kv_cache == "Auto" and dtype == "fp32" else 2


def _kv_refusal(precision: PrecisionSpec, card: Generation) -> Refusal | None:
    if precision.kv_cache == "fp8" and not card.fp8:
        return Refusal(f"{card.name} has no fp8 for precision.kvCache; set it to Auto")
    if precision.kv_cache == "bf16" and card.half != "bf16":
        return Refusal(f"{card.name} has no bf16 for precision.kvCache; set it to Auto, which is fp16 here")
    return None


def _automatic(model: ModelFacts, card: Generation) -> tuple[Option, ...]:
    plain = Option(card.half, card.half, None, f"{card.half} is the 16-bit type of {card.name}")
    if model.parameters is None:
        # Unknown sizes stay in 16 bits: nothing says that fp8 is worth it.
        return (plain,)
    size = parameters_text(model.parameters)
    if card.fp8:
        if model.parameters >= FP8_FROM_PARAMETERS:
            return (Option("fp8", card.half, "fp8", f"{card.name} computes in fp8"),)
        small = f"{size} parameters are fewer than {parameters_text(FP8_FROM_PARAMETERS)}, where fp8 gains nothing"
        last = Option("fp8", card.half, "fp8", f"{card.half} does not fit", is_fallback=True)
        return (Option(card.half, card.half, None, small), last)
    if card.int8:
        return (plain, Option("int8", card.half, "int8", f"{card.half} does not fit", is_fallback=True))
    return (plain,)


def _fixed(wanted: Format, card: Generation) -> tuple[Option, ...] | Refusal:
    asked = "asked for by precision.format"
    match wanted:
        case "fp16" | "fp32":
            return (Option(wanted, wanted, None, asked),)
        case "bf16":
            if card.half != "bf16":
                return Refusal(f"{card.name} does not compute in bf16; use fp16")
            return (Option("bf16", "bf16", None, asked),)
        case "fp8":
            if not card.fp8:
                return Refusal(f"{card.name} does not compute in fp8; use {'int8 or ' if card.int8 else ''}{card.half}")
            return (Option("fp8", card.half, "fp8", asked),)
        case "int8":
            if not card.int8:
                return Refusal(f"{card.name} has no int8 worth using; use {'fp8' if card.fp8 else card.half}")
            return (Option("int8", card.half, "int8", asked),)
        case "int4":
            if not card.gptq:
                return Refusal(f"{card.name} has no kernels for int4; use {card.half}")
            return (Option("int4", card.half, "int4", asked),)


def _stored_options(stored: Stored, precision: PrecisionSpec, card: Generation) -> tuple[Option, ...] | Refusal:
    format_ = _STORED_FORMAT[stored]
    if precision.format not in ("Auto", format_):
        return Refusal(
            f"the checkpoint is stored as {stored} and cannot become {precision.format}; leave precision.format Auto, or give"
            " the 16-bit checkpoint"
        )
    said = f"the checkpoint is stored as {stored}"
    match stored:
        case "FP8" if card.fp8:
            return (Option(format_, card.half, None, f"{said}, and {card.name} computes in it"),)
        case "FP8" if card.fp8_weights:
            why = f"{said}; {card.name} has no fp8, so weights stay fp8 and products are {card.half}"
            return (Option(format_, card.half, None, why),)
        case "INT8" if card.int8:
            return (Option(format_, card.half, None, f"{said}, and {card.name} computes in it"),)
        case "AWQ" if card.awq:
            return (Option(format_, card.half, None, f"{said}; products are {card.half}"),)
        case "GPTQ" if card.gptq:
            return (Option(format_, card.half, None, f"{said}; products are {card.half}"),)
        case "FP4" if card.fp8_weights:
            return (Option(format_, card.half, None, f"{said}; products are {card.half} at least"),)
        case _:
            return Refusal(f"{said}, which {card.name} cannot use; take the 16-bit checkpoint, or another kind of GPU")
