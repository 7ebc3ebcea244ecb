"""Which tensors a model's weight files must hold: their names there and their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """The tensors of one decoder layer, by the part they play; None where the spec has no such part."""

    attn_norm: Parameter
    q: Parameter
    k: Parameter
    v: Parameter
    o: Parameter
    mlp_norm: Parameter
    gate: Parameter
    up: Parameter
    down: Parameter
    q_bias: Parameter | None = None
    k_bias: Parameter | None = None
    v_bias: Parameter | None = None
    o_bias: Parameter | None = None
    gate_bias: Parameter | None = None
    up_bias: Parameter | None = None
    down_bias: Parameter | None = None


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """Every tensor of a model."""

    embedding: Parameter
    layers: tuple[LayerParameters, ...]
    final_norm: Parameter
    head: Parameter
    """The output projection; where the model is tied it names what a checkpoint may hold besides the embedding."""
    tied: bool
    ignored_suffixes: tuple[str, ...] = ()
    """Names that end so are no parameters: buffers of old checkpoints, and what belongs to quantised ones."""

    def required(self) -> Iterator[Parameter]:
        """Every tensor that must be there."""
        yield self.embedding
        for layer in self.layers:
            for part in fields(layer):
                parameter = getattr(layer, part.name)
                if isinstance(parameter, Parameter):
                    yield parameter
        yield self.final_norm
        if not self.tied:
            yield self.head
