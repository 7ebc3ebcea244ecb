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
from emberline_runtime.executors.torch.kv import LayerKv

TILE_ROWS = 32
"""Rows of every product with a weight in exact mode: other numbers of rows round differently."""
SHORT_BLOCKS = 16
"""Sequences of up to so many blocks are computed together by the fast form, whatever their lengths."""
QUERY_ROWS = 8
"""Folded query rows of every product in exact attention: few, since a decode has only its query heads to fill them."""
CHUNK_TOKENS = 256
"""The exact form cuts keys at absolute multiples of this."""


class Attention(Protocol):
    """One step's attention."""

    def attend(self, q: torch.Tensor, kv: LayerKv, scale: float) -> torch.Tensor:
        """`q` [row, head, dim] over one layer's blocks; the result is [row, head * dim]."""


class FastAttention:
    """Single rows (decodes) of like lengths in one padded call, and a call for each longer piece."""

    def __init__(self, batch: Batch, block_tokens: int, zero_block: int, device: torch.device) -> None:
        groups: list[list[Piece]] = [[piece] for piece in batch.pieces if piece.num_rows > 1]
        groups += _group_by_length([piece for piece in batch.pieces if piece.num_rows == 1])
        self._calls = [_Call(group, block_tokens, zero_block, device) for group in groups]

    def attend(self, q: torch.Tensor, kv: LayerKv, scale: float) -> torch.Tensor:
        """See Attention."""
        if len(self._calls) == 1:
            return self._calls[0].attend(q, kv, scale).flatten(1)
        out = torch.empty_like(q)
        for call in self._calls:
            out[call.rows] = call.attend(q[call.rows], kv, scale)
        return out.flatten(1)


def _group_by_length(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """So that padding to the longest of a group at most quadruples what is read: one long sequence burdens few short ones."""
    groups: dict[int, list[Piece]] = {}
    for piece in pieces:
        width = SHORT_BLOCKS
        while width < len(piece.blocks):
            width *= 4
        groups.setdefault(width, []).append(piece)
    return list(groups.values())


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

    def attend(self, q: torch.Tensor, kv: LayerKv, scale: float) -> torch.Tensor:
        """`q` holds the rows of these pieces only; so does the result, in the shape of `q`."""
        kv_heads, head_dim = kv.kv_heads, kv.head_dim
        keys, values = kv.read(self._table, q.dtype)
        group = q.shape[1] // kv_heads
        folded = q.view(self._num_pieces, self._num_rows, kv_heads, group, head_dim).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            folded.reshape(self._num_pieces, kv_heads, self._num_rows * group, head_dim),
            self._line_up(keys),
            self._line_up(values),
            attn_mask=self._mask(group),
            scale=scale,
        )
        unfolded = out.view(self._num_pieces, kv_heads, self._num_rows, group, head_dim).transpose(1, 2)
        return unfolded.reshape(q.shape)

    def _line_up(self, blocks: torch.Tensor) -> torch.Tensor:
        """[piece, kv head, token, dim]."""
        return blocks.view(self._num_pieces, -1, *blocks.shape[2:]).transpose(1, 2)

    def _mask(self, group: int) -> torch.Tensor:
        """[piece, 1, folded row, key]; made once a step for each number of query heads a KV head."""
        if group not in self._masks:
            self._masks[group] = self._visible.repeat_interleave(group, dim=1)[:, None]
        return self._masks[group]


class ExactAttention:
    """Every matrix product of one shape and of one sequence, chunks of keys merged in the order of positions.

    So a row's result depends on its own sequence alone: not on its neighbours, nor on how the prompt was cut into steps.
    What works row by row (masks, exponentials, sums over one chunk) runs over all sequences at once.
    """

    def __init__(self, batch: Batch, block_tokens: int, zero_block: int, num_rows: int, device: torch.device) -> None:
        if CHUNK_TOKENS % block_tokens:
            raise ValueError(f"chunks of {CHUNK_TOKENS} tokens are not whole blocks of {block_tokens}")
        self._pieces = batch.pieces
        self._num_rows = num_rows
        self._device = device
        chunk_blocks = CHUNK_TOKENS // block_tokens
        table: list[int] = []
        self._first_chunks: list[int] = []
        for piece in batch.pieces:
            self._first_chunks.append(len(table) // chunk_blocks)
            table += [*piece.blocks, *[zero_block] * (-len(piece.blocks) % chunk_blocks)]
        self._table = torch.tensor(table, device=device)
        self._tiles: dict[int, _Tiles] = {}

    def attend(self, q: torch.Tensor, kv: LayerKv, scale: float) -> torch.Tensor:
        """See Attention. Rows beyond the batch, which only fill its last tile, give zeros."""
        kv_heads, head_dim = kv.kv_heads, kv.head_dim
        keys, values = kv.read(self._table, q.dtype)
        group = q.shape[1] // kv_heads
        if group not in self._tiles:
            self._tiles[group] = _Tiles(self._pieces, self._first_chunks, group, self._device)
        tiles = self._tiles[group]
        folded = q.view(-1, kv_heads, group, head_dim).transpose(1, 2).reshape(-1, kv_heads, head_dim)
        queries = folded[tiles.sources].view(-1, QUERY_ROWS, kv_heads, head_dim).transpose(1, 2) * scale
        attended = tiles.attend(queries.contiguous(), self._chunks(keys), self._chunks(values))
        out = q.new_zeros(self._num_rows * group, kv_heads, head_dim)
        out[tiles.sources[tiles.is_real]] = attended.transpose(1, 2).reshape(-1, kv_heads, head_dim)[tiles.is_real]
        return out.view(self._num_rows, group, kv_heads, head_dim).transpose(1, 2).reshape(self._num_rows, -1)

    @staticmethod
    def _chunks(blocks: torch.Tensor) -> torch.Tensor:
        """[chunk, kv head, token, dim]: the chunks of every piece, one after another."""
        return blocks.view(-1, CHUNK_TOKENS, *blocks.shape[2:]).transpose(1, 2)


class _Tiles:
    """The folded rows of all pieces in tiles, none with rows of two pieces. Row r, query head g is folded row r * group + g."""

    def __init__(self, pieces: Sequence[Piece], first_chunks: Sequence[int], group: int, device: torch.device) -> None:
        sources: list[int] = []
        positions: list[int] = []
        is_real: list[bool] = []
        self._first_chunks: list[int] = []
        last_positions: list[int] = []
        for piece, first_chunk in zip(pieces, first_chunks, strict=True):
            first, num_folded = piece.first_row * group, piece.num_rows * group
            for start in range(0, num_folded, QUERY_ROWS):
                rows = range(start, start + QUERY_ROWS)
                # Filling repeats the piece's last row; what comes of it is dropped.
                inside = [min(row, num_folded - 1) for row in rows]
                sources += [first + row for row in inside]
                positions += [piece.start + row // group for row in inside]
                is_real += [row < num_folded for row in rows]
                self._first_chunks.append(first_chunk)
                last_positions.append(positions[-1])
        self.sources = torch.tensor(sources, device=device)
        self.is_real = torch.tensor(is_real, device=device)
        self._visits = self._plan_visits(torch.tensor(positions, device=device).view(-1, QUERY_ROWS), last_positions)

    @staticmethod
    def _plan_visits(positions: torch.Tensor, last_positions: list[int]) -> list[tuple[list[int], torch.Tensor]]:
        """For each chunk of positions: the tiles that see any of it, and which of its keys are hidden from their rows."""
        visits = []
        offsets = torch.arange(CHUNK_TOKENS, device=positions.device)
        for start in range(0, max(last_positions) + 1, CHUNK_TOKENS):
            seeing = [tile for tile, last in enumerate(last_positions) if last >= start]
            visits.append((seeing, (offsets + start > positions[seeing][:, :, None])[:, None]))
        return visits

    def attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[tile, kv head, row, dim]: a running softmax over the chunks. One that a row cannot see leaves its bits alone."""
        best = queries.new_full((*queries.shape[:3], 1), float("-inf"))
        total = torch.zeros_like(best)
        out = torch.zeros_like(queries)
        for index, (seeing, hidden) in enumerate(self._visits):
            chunks = [self._first_chunks[tile] + index for tile in seeing]
            scores = queries.new_empty(len(seeing), *queries.shape[1:3], CHUNK_TOKENS)
            for tile, chunk, into in zip(seeing, chunks, scores, strict=True):
                torch.bmm(queries[tile], keys[chunk].transpose(1, 2), out=into)
            scores.masked_fill_(hidden, float("-inf"))
            new_best = torch.maximum(best[seeing], scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - new_best)
            keep = torch.exp(best[seeing] - new_best)
            part = queries.new_empty(len(seeing), *queries.shape[1:])
            for row, chunk, into in zip(weights, chunks, part, strict=True):
                torch.bmm(row, values[chunk], out=into)
            total[seeing] = total[seeing] * keep + weights.sum(-1, keepdim=True)
            out[seeing] = out[seeing] * keep + part
            best[seeing] = new_best
        return out / total
