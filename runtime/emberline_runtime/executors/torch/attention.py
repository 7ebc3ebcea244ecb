"""Causal attention over the paged KV cache, in plain torch: a fast form, and an exact one whose bits do not depend on the batch.

Both are prepared once a step and called once a layer. Grouped query heads are folded into rows: the queries of one KV head are
one matrix, so keys and values are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage

from emberline_runtime.executors.torch.batch import Batch, Piece

TILE_ROWS = 32
"""Rows of every matrix product of the exact form: other numbers of rows round differently."""
CHUNK_TOKENS = 256
"""The exact form cuts keys at absolute multiples of this."""


class Attention(Protocol):
    """One step's attention."""

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """`q` [row, head, dim] over one layer's blocks [block, token, kv head, dim]; the result is [row, head * dim]."""


class FastAttention:
    """All single rows (decodes) in one padded call, and a call for each longer piece."""

    def __init__(self, batch: Batch, block_tokens: int, zero_block: int, device: torch.device) -> None:
        single = [piece for piece in batch.pieces if piece.num_rows == 1]
        self._calls = [_Call([piece], block_tokens, zero_block, device) for piece in batch.pieces if piece.num_rows > 1]
        if single:
            self._calls.append(_Call(single, block_tokens, zero_block, device))

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """See Attention."""
        if len(self._calls) == 1:
            return self._calls[0].attend(q, keys, values, scale).flatten(1)
        out = torch.empty_like(q)
        for call in self._calls:
            out[call.rows] = call.attend(q[call.rows], keys, values, scale)
        return out.flatten(1)


class _Call:
    """Pieces of equally many rows, in one scaled_dot_product_attention over tables padded to the longest."""

    def __init__(self, pieces: Sequence[Piece], block_tokens: int, zero_block: int, device: torch.device) -> None:
        self._num_pieces, self._num_rows = len(pieces), pieces[0].num_rows
        width = max(len(piece.blocks) for piece in pieces)
        table = [[*piece.blocks, *[zero_block] * (width - len(piece.blocks))] for piece in pieces]
        self._table = torch.tensor(table, device=device).flatten()
        rows = [row for piece in pieces for row in range(piece.first_row, piece.first_row + piece.num_rows)]
        is_run = rows == list(range(rows[0], rows[0] + len(rows)))
        self.rows: slice | torch.Tensor = slice(rows[0], rows[-1] + 1) if is_run else torch.tensor(rows, device=device)
        starts = torch.tensor([piece.start for piece in pieces], device=device)
        positions = starts[:, None] + torch.arange(self._num_rows, device=device)
        key_positions = torch.arange(width * block_tokens, device=device)
        self._visible = key_positions <= positions[:, :, None]  # [piece, row, key]
        self._masks: dict[int, torch.Tensor] = {}

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """`q` holds the rows of these pieces only; so does the result, in the shape of `q`."""
        kv_heads, head_dim = keys.shape[2:]
        group = q.shape[1] // kv_heads
        folded = q.view(self._num_pieces, self._num_rows, kv_heads, group, head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            folded.reshape(self._num_pieces, kv_heads, self._num_rows * group, head_dim),
            self._gather(keys),
            self._gather(values),
            attn_mask=self._mask(group),
            scale=scale,
        )
        unfolded = out.view(self._num_pieces, kv_heads, self._num_rows, group, head_dim).transpose(1, 2)
        return unfolded.reshape(q.shape)

    def _gather(self, blocks: torch.Tensor) -> torch.Tensor:
        chosen = blocks.index_select(0, self._table)
        return chosen.view(self._num_pieces, -1, *blocks.shape[2:]).transpose(1, 2)

    def _mask(self, group: int) -> torch.Tensor:
        """[piece, 1, folded row, key]; made once a step for each number of query heads a KV head."""
        if group not in self._masks:
            self._masks[group] = self._visible.repeat_interleave(group, dim=1)[:, None]
        return self._masks[group]


class ExactAttention:
    """Each piece by itself, every matrix product of one shape, chunks of keys merged in the order of positions.

    So a row's result depends on its own sequence alone: not on its neighbours, nor on how the prompt was cut into steps.
    """

    def __init__(self, batch: Batch, block_tokens: int, zero_block: int, num_rows: int, device: torch.device) -> None:
        if CHUNK_TOKENS % block_tokens:
            raise ValueError(f"chunks of {CHUNK_TOKENS} tokens are not whole blocks of {block_tokens}")
        self._num_rows = num_rows
        self._pieces = [_ExactPiece(piece, block_tokens, zero_block, device) for piece in batch.pieces]

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
        """See Attention. Rows beyond the batch, which only fill its last tile, give zeros."""
        out = q.new_zeros(self._num_rows, q.shape[1] * q.shape[2])
        for piece in self._pieces:
            out[piece.rows] = piece.attend(q[piece.rows] * scale, keys, values)
        return out


class _ExactPiece:
    """One piece's chunks of keys and the masks between its rows and them."""

    def __init__(self, piece: Piece, block_tokens: int, zero_block: int, device: torch.device) -> None:
        self.rows = slice(piece.first_row, piece.first_row + piece.num_rows)
        self._end = piece.end
        self._positions = torch.arange(piece.start, piece.end, device=device)
        chunk_blocks = CHUNK_TOKENS // block_tokens
        padding = [zero_block] * (-len(piece.blocks) % chunk_blocks)
        self._tables = torch.split(torch.tensor([*piece.blocks, *padding], device=device), chunk_blocks)
        self._hidden: dict[int, list[list[torch.Tensor]]] = {}

    def attend(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        num_rows, heads, head_dim = q.shape
        kv_heads = keys.shape[2]
        group = heads // kv_heads
        folded = q.view(num_rows, kv_heads, group, head_dim).transpose(0, 1).reshape(kv_heads, -1, head_dim)
        num_folded = num_rows * group
        folded = F.pad(folded, (0, 0, 0, -num_folded % TILE_ROWS))
        chunk_keys = [keys[table].flatten(0, 1).permute(1, 2, 0).contiguous() for table in self._tables]
        chunk_values = [values[table].flatten(0, 1).transpose(0, 1).contiguous() for table in self._tables]
        tiles = [
            _attend_tile(tile.contiguous(), chunk_keys, chunk_values, hidden)
            for tile, hidden in zip(torch.split(folded, TILE_ROWS, dim=1), self._masks(group), strict=True)
        ]
        out = torch.cat(tiles, dim=1)[:, :num_folded].view(kv_heads, num_rows, group, head_dim)
        return out.transpose(0, 1).reshape(num_rows, heads * head_dim)

    def _masks(self, group: int) -> list[list[torch.Tensor]]:
        """For each tile of folded rows and each chunk that it can see: which keys are hidden, [row, key]."""
        if group not in self._hidden:
            positions = self._positions.repeat_interleave(group)
            filled = F.pad(positions, (0, -len(positions) % TILE_ROWS), value=self._end - 1)
            key_positions = torch.arange(CHUNK_TOKENS, device=positions.device)
            self._hidden[group] = [
                [
                    key_positions + chunk * CHUNK_TOKENS > tile[:, None]
                    for chunk in range(int(tile.max()) // CHUNK_TOKENS + 1)
                ]
                for tile in torch.split(filled, TILE_ROWS)
            ]
        return self._hidden[group]


def _attend_tile(
    q: torch.Tensor, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor], hidden: Sequence[torch.Tensor]
) -> torch.Tensor:
    """[kv head, TILE_ROWS, dim]: a running softmax over the chunks. A chunk that a row cannot see leaves its bits alone."""
    best = q.new_full((*q.shape[:2], 1), float("-inf"))
    total = torch.zeros_like(best)
    out = torch.zeros_like(q)
    for chunk, mask in enumerate(hidden):
        scores = torch.bmm(q, keys[chunk]).masked_fill_(mask, float("-inf"))
        new_best = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - new_best)
        keep = torch.exp(best - new_best)
        total = total * keep + weights.sum(-1, keepdim=True)
        out = out * keep + torch.bmm(weights, values[chunk])
        best = new_best
    return out / total
