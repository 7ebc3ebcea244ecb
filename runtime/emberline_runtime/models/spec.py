"""ModelSpec: an architecture as data. Complete from the start: an executor refuses by field what it lacks.

Source of the fields: the HF configs of the decoder families (Llama, Qwen, Gemma, Mistral, Mixtral, gpt-oss).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberline_runtime.models.stored_weights import StoredWeights

Activation = Literal["silu", "gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation layer."""

    kind: Literal["rms", "layer"]
    eps: float
    unit_offset: bool = False
    """The weight is stored as w - 1 (Gemma)."""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding; `kind` default or llama3 (the four factors are llama3's)."""

    theta: float
    kind: Literal["default", "llama3", "linear", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    rotary_dim: int | None = None
    """Leading dimensions of a head that rotate; None: all."""


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """down(act(gate(x)) * up(x)), or down(act(up(x))) where it is not gated."""

    intermediate: int
    activation: Activation
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts."""

    intermediate: int
    activation: Activation
    num_experts: int
    num_experts_per_token: int
    normalise_weights: bool
    shared_intermediate: int | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeSpec | None
    mlp: DenseMlp | MoeMlp
    window: int | None = None
    attn_softcap: float | None = None
    attn_scale: float | None = None
    """None: head_dim ** -0.5."""
    qk_norm: NormSpec | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    sinks: bool = False
    pre_norms: bool = True
    """A norm before attention and before the MLP."""
    post_norms: bool = False
    """A norm after attention and after the MLP, before the residual is added."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only model."""

    architecture: str
    """HF class name, for messages."""
    vocab: int
    hidden: int
    tied: bool
    """The output projection is the embedding."""
    norm: NormSpec
    layers: tuple[LayerSpec, ...]
    max_positions: int
    embed_scale: float = 1.0
    logit_scale: float = 1.0
    final_softcap: float | None = None
    stored_weights: StoredWeights | None = None
    """Eight bits that the checkpoint's linear layers have already; None: none."""
