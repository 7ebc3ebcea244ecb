"""The forward pass of a ModelSpec: rows of tokens in, final hidden rows out, KV written on the way.

The residual stream, norms and rotations are fp32; matrix products, keys and values have the configured type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage

from emberline_runtime.executors.torch.attention import TILE_ROWS, Attention
from emberline_runtime.executors.torch.kv import LayerKv, PagedKv
from emberline_runtime.executors.torch.linear import Linear, PlainLinear
from emberline_runtime.models.rope import inverse_frequencies
from emberline_runtime.models.spec import LayerSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights; query, key and value are one matrix, so are gate and up."""

    attn_norm: torch.Tensor
    qkv: Linear
    o: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear

    @property
    def num_bytes(self) -> int:
        """What they take of the device's memory."""
        linears = (self.qkv, self.o, self.gate_up, self.down)
        return self.attn_norm.nbytes + self.mlp_norm.nbytes + sum(linear.num_bytes for linear in linears)


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors; norms are fp32."""

    embedding: torch.Tensor
    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor
    head: torch.Tensor
    """The embedding itself where the model is tied."""

    @property
    def num_bytes(self) -> int:
        """What they take of the device's memory."""
        head_bytes = 0 if self.head is self.embedding else self.head.nbytes
        layers_bytes = sum(layer.num_bytes for layer in self.layers)
        return self.embedding.nbytes + layers_bytes + self.final_norm.nbytes + head_bytes


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
        self._dtype = weights.embedding.dtype
        self._head = PlainLinear(weights.head, None)
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
            x += self._attention(x, layer, weights, rows, kv.layers[index], turns[layer], attention)
            x += self._mlp(x, weights)
        return self._norm(x, self._weights.final_norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits of chosen rows; in exact mode their number is a multiple of TILE_ROWS."""
        return self._linear(hidden.to(self._dtype), self._head).float()

    def _attention(
        self,
        x: torch.Tensor,
        layer: LayerSpec,
        weights: LayerWeights,
        rows: Rows,
        kv: LayerKv,
        turn: tuple[torch.Tensor, torch.Tensor],
        attention: Attention,
    ) -> torch.Tensor:
        hidden = self._norm(x, weights.attn_norm).to(self._dtype)
        qkv = self._linear(hidden, weights.qkv).view(len(x), -1, layer.head_dim)
        turned = _rotate(qkv[:, : layer.heads + layer.kv_heads], *turn).to(self._dtype)
        num_rows = len(rows.blocks)
        kv.write(
            rows.blocks, rows.offsets, turned[:num_rows, layer.heads :], qkv[:num_rows, layer.heads + layer.kv_heads :]
        )
        scale = layer.head_dim**-0.5 if layer.attn_scale is None else layer.attn_scale
        return self._linear(attention.attend(turned[:, : layer.heads], kv, scale), weights.o)

    def _mlp(self, x: torch.Tensor, weights: LayerWeights) -> torch.Tensor:
        hidden = self._norm(x, weights.mlp_norm).to(self._dtype)
        gate, up = self._linear(hidden, weights.gate_up).chunk(2, dim=-1)
        return self._linear(F.silu(gate) * up, weights.down)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self._spec.hidden,), weight, self._spec.norm.eps)

    def _linear(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        if not self._is_exact or len(x) == TILE_ROWS:
            return linear.multiply(x)
        return torch.cat([linear.multiply(tile) for tile in torch.split(x, TILE_ROWS)])


def _turn(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine, and sine with the sign of the half it is for, each [row, 1, dim]."""
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None]


def _rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + dim / 2) of the last dimension, in fp32."""
    x = x.float()
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)
