"""How large a model is and how its files store it: from the spec's fields, else from its name. Nothing is downloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from emberline_contract.resources import ModelSpec
from emberline_operator.hardware.known_models import KNOWN, Architecture, Stored

DEFAULT_CONTEXT: Final = 8192
"""Tokens that one context is counted with where `engine.maxModelLen` is unset: the model's own longest, but no more than this.
Unset means that the engine serves what its KV cache holds, so the longest context need not fit for the model to be of use."""
SIMILAR: Final = 0.25
"""How far `model.parameters` may be off what a name's architecture has for that architecture to be believed."""

# Estimates for models that the table does not have.
PARAMETERS_PER_SQUARE: Final = 12
"""A transformer has about 12 x layers x width^2 parameters without embeddings (Kaplan et al. 2020, section 2.1)."""
WIDTH_PER_LAYER: Final = 128
"""Width / layers of the Llama 3 family."""
KV_WIDTH: Final = 1024
"""8 KV heads of 128, as Llama 3, Mistral and Qwen 3 have at nearly all sizes."""
ESTIMATED_VOCAB: Final = 150_000

_UNIT: Final = {"m": 10**6, "b": 10**9, "t": 10**12}
_SIZE: Final = re.compile(r"(?:([0-9]{1,4})x)?([0-9]{1,6}(?:\.[0-9]{1,6})?)([mbt])")
_ACTIVE: Final = re.compile(r"a[0-9]+(?:\.[0-9]+)?b")
"""Active parameters of a mixture of experts, as in `30B-A3B`: no size."""
_STORED: Final[tuple[tuple[re.Pattern[str], Stored], ...]] = (
    (re.compile(r"awq"), "AWQ"),
    (re.compile(r"gptq|int4|w4a16|4bit|q4"), "GPTQ"),
    (re.compile(r"nvfp4|mxfp4|fp4"), "FP4"),
    (re.compile(r"fp8|f8|w8a8fp8"), "FP8"),
    (re.compile(r"int8|w8a8|w8a16|8bit"), "INT8"),
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is known of a model before it is opened."""

    parameters: int | None
    """None: nothing says it."""
    stored: Stored
    architecture: Architecture | None
    said_by: str
    """Where the size comes from, for messages."""

    @property
    def embedding_parameters(self) -> int:
        """Parameters that stay in 16 bits whatever the format: embeddings and output layer."""
        if self.architecture is not None:
            return self.architecture.embedding_parameters
        if self.parameters is None:
            return 0
        # No more than a fifth: small models tie the two matrices and have smaller vocabularies.
        return min(2 * ESTIMATED_VOCAB * round(_width(self.parameters)), self.parameters // 5)

    @property
    def kv_numbers_per_token(self) -> int | None:
        """Numbers that one token adds to the KV cache; an estimate by size for unknown architectures; None without a size."""
        if self.architecture is not None:
            return self.architecture.kv_numbers_per_token
        if self.parameters is None:
            return None
        width = _width(self.parameters)
        return round(2 * width / WIDTH_PER_LAYER * min(width, KV_WIDTH))

    def context(self, max_model_len: int | None) -> int:
        """Tokens of the one full context that must fit."""
        if max_model_len is not None:
            return max_model_len
        return min(DEFAULT_CONTEXT, self.architecture.context) if self.architecture else DEFAULT_CONTEXT


def model_facts(spec: ModelSpec) -> ModelFacts:
    """What spec and name say of the model."""
    parts = [part for part in spec.source.partition("://")[2].lower().split("/") if part]
    # The last component that says something wins: pvc://llama-3.1-8b/fp8 is Llama 3.1 8B in fp8.
    names = [re.split(r"[-_\s]+", part) for part in reversed(parts)]
    architecture = next((found for words in names if (found := _architecture(words))), None)
    said = next((size for words in names if (size := _size(words))), None)
    stored: Stored | None = spec.quantization or next((kind for words in names if (kind := _stored(words))), None)
    if spec.parameters is not None:
        parameters = round(float(spec.parameters[:-1]) * _UNIT[spec.parameters[-1].lower()])
        if architecture and abs(architecture.parameters - parameters) > SIMILAR * parameters:
            architecture = None
        return ModelFacts(parameters, stored or "None", architecture, "model.parameters")
    if architecture is not None:
        return ModelFacts(architecture.parameters, stored or architecture.stored, architecture, "the model's name")
    return ModelFacts(said, stored or "None", None, "the model's name" if said else "")


def _width(parameters: int) -> float:
    """Parameters = 12 x layers x width^2 and width = 128 x layers, solved for the width."""
    return float((parameters * WIDTH_PER_LAYER / PARAMETERS_PER_SQUARE) ** (1 / 3))


def _architecture(words: list[str]) -> Architecture | None:
    """The known model whose words stand side by side in the name; of several the longest."""
    text = "-".join(words)
    fitting = [name for name in KNOWN if f"-{name}-" in f"-{text}-"]
    if not fitting:
        return None
    name = max(fitting, key=len)
    rest = f"-{text}-".replace(f"-{name}-", "-", 1).split("-")
    # A size besides speaks of another model of the family: of a distillate, or of one newer than the table.
    return None if _size(rest) else KNOWN[name]


def _size(words: list[str]) -> int | None:
    for word in words:
        match = _SIZE.fullmatch(word)
        if match and not _ACTIVE.fullmatch(word):
            return round(int(match[1] or 1) * float(match[2]) * _UNIT[match[3]])
    return None


def _stored(words: list[str]) -> Stored | None:
    pieces = [piece for word in words for piece in (word, *word.split("."))]
    return next((kind for pattern, kind in _STORED if any(pattern.fullmatch(piece) for piece in pieces)), None)
