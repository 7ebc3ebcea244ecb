"""The paged KV cache as one buffer: a row a block, every layer's keys and values side by side in it.

So a block is zeroed or copied in one operation, whatever the layers' shapes are. One block more than the pool's is always zero:
it pads block tables. Blocks are zeroed when a slot takes them, so that what a masked position holds is finite whatever the
block's former owner computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emberline_runtime.models.spec import LayerSpec


class PagedKv:
    """`keys[i]` and `values[i]` are views of layer i: [block, token, kv head, dim]."""

    def __init__(
        self, layers: Sequence[LayerSpec], num_blocks: int, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        widths = [layer.kv_heads * layer.head_dim * block_tokens for layer in layers]
        # Not zeroed as a whole: pages that no block uses yet cost nothing.
        self._buffer = torch.empty(num_blocks + 1, 2 * sum(widths), dtype=dtype, device=device)
        self._buffer[num_blocks].zero_()
        self.zero_block = num_blocks
        self.block_tokens = block_tokens
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        column = 0
        for layer, width in zip(layers, widths, strict=True):
            shape = (num_blocks + 1, block_tokens, layer.kv_heads, layer.head_dim)
            self.keys.append(self._buffer[:, column : column + width].view(shape))
            self.values.append(self._buffer[:, column + width : column + 2 * width].view(shape))
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
