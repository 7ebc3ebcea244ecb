"""At which precision an endpoint's model runs."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_contract.engine_config import Dtype
from emberline_contract.resources import PrecisionSpec


@dataclass(frozen=True, slots=True)
class Precision:
    """The choice and why."""

    dtype: Dtype
    reason: str


def choose_precision(spec: PrecisionSpec) -> Precision:
    """The type of weights and KV cache."""
    if spec.format == "Auto":
        return Precision("bf16", "Auto is bf16, the type that models are published in")
    return Precision(spec.format, "asked for by precision.format")
