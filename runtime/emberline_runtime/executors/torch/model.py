"""The forward pass of a ModelSpec: rows of tokens in, final hidden rows out, KV written on the way.

The residual stream, norms and rotations are fp32; matrix products, keys and values have the configured type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage

from emberline_runtime.executors.torch.attention import TILE_ROWS, Attention
from emberline_runtime.executors.torch.kv import PagedKv
from emberline_runtime.models.rope import inverse_frequencies
from emberline_runtime.models.spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's tensors; query, key and value are one matrix, so are gate and up."""

    attn_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors; norms are fp32."""

    embedding: torch.Tensor
    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor
    head: torch.Tensor
    """The embedding itself where the model is tied."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one forward pass, on the device. In exact mode there may be more rows than `blocks` says: filling."""

    tokens: torch.Tensor
    positions: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor


class Model:
    """A decoder. `is_exact`: matrix products run in tiles of one shape, so a row's bits do not depend on the others."""

    def __init__(self, spec: ModelSpec, weights: ModelWeights, *, is_exact: bool) -> None:
        self._spec = spec
        self._weights = weights
        self._is_exact = is_exact
        self._frequencies = {
            layer: torch.tensor(
                inverse_frequencies(layer.rope, layer.head_dim), dtype=torch.float32, device=weights.embedding.device
            )
            for layer in set(spec.layers)
            if layer.rope is not None
        }

    def forward(self, rows: Rows, kv: PagedKv, attention: Attention) -> torch.Tensor:
        """Final hidden rows, normalised, fp32."""
        turns = {layer: _turn(rows.positions, frequencies) for layer, frequencies in self._frequencies.items()}
        x = F.embedding(rows.tokens, self._weights.embedding).float()
        for index, (layer, weights) in enumerate(zip(self._spec.layers, self._weights.layers, strict=True)):
            x += self._attention(x, layer, weights, rows, (kv.keys[index], kv.values[index]), turns[layer], attention)
            x += self._mlp(x, weights)
        return self._norm(x, self._weights.final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits of chosen rows; in exact mode their number is a multiple of TILE_ROWS."""
        return self._linear(hidden.to(self._weights.head.dtype), self._weights.head, None).float()

    def _attention(
        self,
        x: torch.Tensor,
        layer: LayerSpec,
        weights: LayerWeights,
        rows: Rows,
        kv: tuple[torch.Tensor, torch.Tensor],
        turn: tuple[torch.Tensor, torch.Tensor],
        attention: Attention,
    ) -> torch.Tensor:
        keys, values = kv
        dtype = weights.qkv.dtype
        hidden = self._norm(x, weights.attn_norm).to(dtype)
        qkv = self._linear(hidden, weights.qkv, weights.qkv_bias).view(len(x), -1, layer.head_dim)
        turned = _rotate(qkv[:, : layer.heads + layer.kv_heads], *turn).to(dtype)
        at = (rows.blocks, rows.offsets)
        keys[at] = turned[: len(rows.blocks), layer.heads :]
        values[at] = qkv[: len(rows.blocks), layer.heads + layer.kv_heads :]
        scale = layer.head_dim**-0.5 if layer.attn_scale is None else layer.attn_scale
        attended = attention.attend(turned[:, : layer.heads], keys, values, scale)
        return self._linear(attended, weights.o, weights.o_bias)

    def _mlp(self, x: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
        hidden = self._norm(x, weights.mlp_norm).to(weights.gate_up.dtype)
        gate, up = self._linear(hidden, weights.gate_up, weights.gate_up_bias).chunk(2, dim=-1)
        return self._linear(F.silu(gate) * up, weights.down, weights.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self._spec.hidden,), weight, self._spec.norm.eps)

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if not self._is_exact or len(x) == TILE_ROWS:
            return F.linear(x, weight, bias)
        return torch.cat([F.linear(tile, weight, bias) for tile in torch.split(x, TILE_ROWS)])


def _turn(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine, and sine with the sign of the half it is for, each [row, 1, dim]."""
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def _rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + dim / 2) of the last dimension, in fp32."""
    x = x.float()
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)
