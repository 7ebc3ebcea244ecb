"""Both forms of attention against the textbook's, over shuffled blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch

from emberline_runtime.core.step import SlotRows
from emberline_runtime.executors.torch.attention import (
    CHUNK_TOKENS,
    SHORT_BLOCKS,
    TILE_ROWS,
    Attention,
    ExactAttention,
    FastAttention,
)
from emberline_runtime.executors.torch.batch import Batch, Slot, make_batch
from emberline_runtime.executors.torch.kv import PagedKv
from emberline_runtime.models.registry import make_spec
from support.tiny_llama import TINY
from support.torch_rig import GREEDY

BLOCK = 16
CPU = torch.device("cpu")


@dataclass
class Scene:
    """Sequences of given (start, rows) whose keys and values lie in shuffled blocks, and the rows' queries."""

    batch: Batch
    kv: PagedKv
    q: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def exact(self) -> Attention:
        return ExactAttention(self.batch, BLOCK, self.kv.zero_block, len(self.q), CPU)

    def fast(self) -> Attention:
        return FastAttention(self.batch, BLOCK, self.kv.zero_block, CPU)

    def run(self, attention: Attention) -> torch.Tensor:
        return attention.attend(self.q, self.kv.layers[0], 0.25)


def make_scene(
    parts: list[tuple[int, int]], heads: int = 6, kv_heads: int = 2, head_dim: int = 8, seed: int = 0
) -> Scene:
    generator = torch.Generator().manual_seed(seed)
    config = {**TINY, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    layers = make_spec({**config, "num_hidden_layers": 1}).layers
    num_blocks = sum(-(-(start + rows) // BLOCK) for start, rows in parts)
    kv = PagedKv(layers, num_blocks, BLOCK, torch.float32, CPU)
    free = torch.randperm(num_blocks, generator=generator).tolist()
    slots, rows_of, keys, values = {}, [], [], []
    for index, (start, rows) in enumerate(parts):
        end = start + rows
        blocks = [free.pop() for _ in range(-(-end // BLOCK))]
        kv.clear(blocks)
        keys.append(torch.randn(end, kv_heads, head_dim, generator=generator))
        values.append(torch.randn(end, kv_heads, head_dim, generator=generator))
        for position in range(end):
            at = (blocks[position // BLOCK], position % BLOCK)
            kv.layers[0].keys[at], kv.layers[0].values[at] = keys[-1][position], values[-1][position]
        slots[index] = Slot(1, blocks, GREEDY, start, 0)
        rows_of.append(SlotRows(index, start, rows, (0,) * rows))
    batch = make_batch(rows_of, slots, BLOCK)
    num_rows = len(batch.tokens)
    q = torch.randn(num_rows + -num_rows % TILE_ROWS, heads, head_dim, generator=generator)
    return Scene(batch, kv, q, keys, values)


def textbook(scene: Scene) -> torch.Tensor:
    """Row by row, head by head, in float64."""
    heads, head_dim = scene.q.shape[1:]
    out = torch.zeros(len(scene.q), heads, head_dim, dtype=torch.float64)
    for piece in scene.batch.pieces:
        for row in range(piece.num_rows):
            end = piece.start + row + 1
            for head in range(heads):
                kv_head = head * scene.keys[0].shape[1] // heads
                k = scene.keys[piece.slot][:end, kv_head].double()
                v = scene.values[piece.slot][:end, kv_head].double()
                weights = torch.softmax(k @ scene.q[piece.first_row + row, head].double() * 0.25, 0)
                out[piece.first_row + row, head] = weights @ v
    return out.flatten(1)


PARTS = [
    [(0, 1)],
    [(15, 1), (16, 1), (17, 1), (0, 1)],
    [(0, 40), (33, 1), (3, 7), (31, 1)],
    [(CHUNK_TOKENS - 1, 1), (CHUNK_TOKENS, 1), (CHUNK_TOKENS - 3, 6), (0, CHUNK_TOKENS + 5)],
    [(2 * CHUNK_TOKENS + 7, 3)],
    [(700, 1), (3, 1), (SHORT_BLOCKS * BLOCK - 1, 1), (SHORT_BLOCKS * BLOCK, 1), (20, 1)],
]
SHAPES = [(6, 2, 8), (4, 4, 16), (9, 3, 10), (8, 1, 32)]


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("form", ["fast", "exact"])
def test_both_forms_are_the_textbooks(form: str, parts: list[tuple[int, int]]) -> None:
    scene = make_scene(parts)
    num_rows = len(scene.batch.tokens)
    if form == "fast":
        scene.q = scene.q[:num_rows]
    out = scene.run(scene.fast() if form == "fast" else scene.exact())
    torch.testing.assert_close(out[:num_rows].double(), textbook(scene)[:num_rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("form", ["fast", "exact"])
def test_groups_and_odd_head_sizes(form: str, heads: int, kv_heads: int, head_dim: int) -> None:
    scene = make_scene([(20, 1), (0, 5), (40, 1)], heads, kv_heads, head_dim)
    num_rows = len(scene.batch.tokens)
    if form == "fast":
        scene.q = scene.q[:num_rows]
    out = scene.run(scene.fast() if form == "fast" else scene.exact())
    torch.testing.assert_close(out[:num_rows].double(), textbook(scene)[:num_rows], rtol=1e-5, atol=1e-5)


def test_exact_rows_do_not_depend_on_their_neighbours_or_the_cut() -> None:
    """The same sequence alone, as one piece of many, and in two pieces: equal bits."""
    whole = make_scene([(0, 300)])
    alone = whole.run(whole.exact())
    for cuts in ([0, 100, 300], [0, 255, 256, 257, 300], [0, 7, 299, 300]):
        for start, end in pairwise(cuts):
            slots = {0: Slot(1, list(whole.batch.pieces[0].blocks), GREEDY, start, 0)}
            batch = make_batch([SlotRows(0, start, end - start, (0,) * (end - start))], slots, BLOCK)
            q = torch.zeros(end - start + -(end - start) % TILE_ROWS, *whole.q.shape[1:])
            q[: end - start] = whole.q[start:end]
            part = ExactAttention(batch, BLOCK, whole.kv.zero_block, len(q), CPU)
            out = part.attend(q, whole.kv.layers[0], 0.25)
            assert torch.equal(out[: end - start], alone[start:end])


@pytest.mark.parametrize("form", ["fast", "exact"])
def test_blocks_of_others_may_hold_anything(form: str) -> None:
    """What a request with non-finite values left behind reaches nobody."""
    scene = make_scene([(20, 1), (2, 1), (0, 3)])
    if form == "fast":
        scene.q = scene.q[: len(scene.batch.tokens)]
    before = scene.run(scene.fast() if form == "fast" else scene.exact())
    mine = scene.batch.pieces[1].blocks
    for block in {block for piece in scene.batch.pieces for block in piece.blocks} - set(mine):
        scene.kv.layers[0].keys[block] = math.nan
        scene.kv.layers[0].values[block] = math.nan
    after = scene.run(scene.fast() if form == "fast" else scene.exact())
    row = scene.batch.pieces[1].first_row
    assert torch.equal(after[row], before[row])
    assert not after[scene.batch.pieces[0].first_row].isfinite().any()


def test_a_taken_block_is_cleared_in_every_layer() -> None:
    layers = make_spec(TINY).layers
    kv = PagedKv(layers, 3, BLOCK, torch.float32, CPU)
    tensors = [tensor for layer in kv.layers for tensor in (layer.keys, layer.values)]
    for tensor in tensors:
        tensor[:3] = math.nan
    kv.clear([1])
    for tensor in tensors:
        assert tensor[1].eq(0).all()
        assert tensor[kv.zero_block].eq(0).all()
        assert tensor[0].isnan().all()
    kv.copy(1, 2)
    assert all(tensor[2].eq(0).all() for tensor in tensors)
