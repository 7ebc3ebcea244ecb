"""The paged KV cache as one buffer: a row a block, every layer's keys and values side by side in it.

So a block is zeroed or copied in one operation, whatever the layers' shapes are. One block more than the pool's is always zero:
it pads block tables. Blocks are zeroed when a slot takes them, so that what a masked position holds is finite whatever the
block's former owner computed. The cache may have another type than attention: what it reads is cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from emberline_runtime.executors.torch.eight_bit import FP8, narrow_to_fp8, widen_fp8
from emberline_runtime.models.spec import LayerSpec


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's part of the cache: views [block, token, kv head, dim]. FP8 (scale 1) lies there as its bytes."""

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def kv_heads(self) -> int:
        """Heads that keys and values have."""
        return self.keys.shape[2]

    @property
    def head_dim(self) -> int:
        """Numbers in a head."""
        return self.keys.shape[3]

    def write(self, blocks: torch.Tensor, offsets: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Put `keys` and `values` [row, kv head, dim] at each row's block and offset."""
        at = (blocks, offsets)
        self.keys[at] = self._stored(keys)
        self.values[at] = self._stored(values)

    def read(self, table: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the blocks that `table` lists, in `dtype`."""
        return self._read(self.keys, table, dtype), self._read(self.values, table, dtype)

    def _stored(self, rows: torch.Tensor) -> torch.Tensor:
        if self.keys.dtype == torch.uint8:
            return narrow_to_fp8(rows).view(torch.uint8)
        return rows.to(self.keys.dtype)

    @staticmethod
    def _read(blocks: torch.Tensor, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        chosen = blocks.index_select(0, table)
        if chosen.dtype == torch.uint8:
            return widen_fp8(chosen.view(FP8), dtype)
        return chosen.to(dtype)


class PagedKv:
    """`layers[i]` are views of layer i."""

    def __init__(
        self, layers: Sequence[LayerSpec], num_blocks: int, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        widths = [layer.kv_heads * layer.head_dim * block_tokens for layer in layers]
        # torch moves and fills bytes on every device, FP8 on some.
        stored = torch.uint8 if dtype == FP8 else dtype
        # Not zeroed as a whole: pages that no block uses yet cost nothing.
        self._buffer = torch.empty(num_blocks + 1, 2 * sum(widths), dtype=stored, device=device)
        self._buffer[num_blocks].zero_()
        self.zero_block = num_blocks
        self.block_tokens = block_tokens
        self.layers: list[LayerKv] = []
        column = 0
        for layer, width in zip(layers, widths, strict=True):
            shape = (num_blocks + 1, block_tokens, layer.kv_heads, layer.head_dim)
            keys = self._buffer[:, column : column + width].view(shape)
            values = self._buffer[:, column + width : column + 2 * width].view(shape)
            self.layers.append(LayerKv(keys, values))
            column += 2 * width

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that a slot takes."""
        if blocks:
            self._buffer.index_fill_(0, torch.tensor(blocks, device=self._buffer.device), 0)

    def copy(self, src: int, dst: int) -> None:
        """Copy one block over another."""
        self._buffer[dst].copy_(self._buffer[src])


def block_bytes(layers: Sequence[LayerSpec], block_tokens: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers, keys and values."""
    return sum(2 * layer.kv_heads * layer.head_dim * block_tokens for layer in layers) * dtype.itemsize
