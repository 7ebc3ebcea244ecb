"""The definition of sampling (docs/sampling.md) on rows of logits: greedy, temperature, min-p, top-k, top-p, Gumbel choice.

Tested against the oracle in core/sampling.py on the same logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from emberline_runtime.core.sampling import GREEDY_BELOW
from emberline_runtime.core.step import SamplingSpec

FEATURES = frozenset({"min_p"})
"""Fields of SamplingSpec that are honoured besides the plain ones."""

_MAX_NOISE = 16.65
"""Just above the largest noise, -log(-log(1 - 2^-24)): what lies further below the best key cannot be chosen."""
_NUM_PROBES = 8
"""Best tokens whose keys give the bound below which the others are skipped."""
_HEAD_TOKENS = 1024
"""Tokens sorted for top-p at first; where they do not hold the mass, all are."""
_MASK32 = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row's token depends on besides its logits."""

    spec: SamplingSpec
    output_index: int
    """How many tokens of the answer come before it."""


def choose(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The token of each row of fp32 `logits`; rows that are not finite give a meaningless one."""
    tokens = logits.argmax(-1)
    random = [row for row, draw in enumerate(draws) if draw.spec.temperature >= GREEDY_BELOW]
    if random:
        at = torch.tensor(random, device=logits.device)
        tokens[at] = _draw(logits[at], [draws[row] for row in random])
    return tokens


def gumbel(tokens: torch.Tensor, rows: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """The noise of each (row, token) pair, fp32: a function of seed, output index, choice and token alone."""
    seeds = [draw.spec.seed % (1 << 64) for draw in draws]
    low, high, index, choice = torch.tensor(
        [
            [seed & _MASK32 for seed in seeds],
            [seed >> 32 for seed in seeds],
            [draw.output_index for draw in draws],
            [draw.spec.choice for draw in draws],
        ],
        device=tokens.device,
    )[:, rows]
    lanes = _philox((low, high), (index, choice, tokens >> 2, torch.zeros_like(tokens)))
    bits = torch.stack(lanes).gather(0, (tokens & 3)[None])[0]
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def _draw(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    temperatures = torch.tensor([draw.spec.temperature for draw in draws], dtype=torch.float32, device=logits.device)
    scaled = _filter(logits / temperatures[:, None], draws)
    rows = torch.arange(len(draws), device=logits.device)
    probes = scaled.topk(min(_NUM_PROBES, scaled.shape[1]), dim=-1)
    probe_rows = rows[:, None].expand_as(probes.indices).flatten()
    probe_noise = gumbel(probes.indices.flatten(), probe_rows, draws).view_as(probes.values)
    bound = (probes.values + probe_noise).amax(-1, keepdim=True)
    at = torch.nonzero(scaled + _MAX_NOISE >= bound, as_tuple=True)
    keys = torch.full_like(scaled, -math.inf)
    keys[at] = scaled[at] + gumbel(at[1], at[0], draws)
    return keys.argmax(-1)


def _filter(scaled: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """Tokens that min-p, top-k or top-p take out become -inf."""
    vocab = scaled.shape[1]
    specs = [draw.spec for draw in draws]
    if all(spec.top_k <= 0 and spec.top_p >= 1 and spec.min_p <= 0 for spec in specs):
        return scaled
    largest_k = max(spec.top_k for spec in specs)
    by_mass = any(spec.top_p < 1 or spec.min_p > 0 for spec in specs)
    head_size = min(vocab, max(largest_k, _HEAD_TOKENS) if by_mass else largest_k)
    head = scaled.topk(head_size, dim=-1).values
    num_kept, is_enough = _count_kept(scaled, head, specs)
    if not is_enough:
        head = scaled.sort(dim=-1, descending=True).values
        num_kept, _ = _count_kept(scaled, head, specs)
    return _keep_best(scaled, head, num_kept)


def _count_kept(scaled: torch.Tensor, head: torch.Tensor, specs: Sequence[SamplingSpec]) -> tuple[torch.Tensor, bool]:
    """How many of its best tokens each row keeps, and whether `head`, the best ones in order, was long enough to tell."""
    vocab, head_size = scaled.shape[1], head.shape[1]
    device = scaled.device
    num_kept = torch.tensor([min(spec.top_k, vocab) if spec.top_k > 0 else vocab for spec in specs], device=device)
    rank = torch.arange(head_size, device=device)
    best = head[:, :1]
    unsure = torch.zeros(len(specs), dtype=torch.bool, device=device)
    if any(spec.min_p > 0 for spec in specs):
        floor = torch.tensor([math.log(spec.min_p) if spec.min_p > 0 else -math.inf for spec in specs], device=device)
        by_min_p = (head - best >= floor[:, None]).sum(-1)
        # A row whose whole head passes keeps more than the head, unless top-k says less.
        passes_head = by_min_p == head_size
        unsure |= passes_head & (floor > -math.inf) & (num_kept > head_size)
        num_kept = torch.where(passes_head, num_kept, torch.minimum(num_kept, by_min_p))
    if any(spec.top_p < 1 for spec in specs):
        top_p = torch.tensor([spec.top_p for spec in specs], dtype=torch.float32, device=device)
        mass = torch.exp(head - best) * (rank < num_kept[:, None])
        total = torch.where(num_kept > head_size, torch.exp(scaled - best).sum(-1), mass.sum(-1))
        before = mass.cumsum(-1) - mass
        by_top_p = ((before < (top_p * total)[:, None]) & (rank < num_kept[:, None])).sum(-1)
        unsure |= (by_top_p == head_size) & (top_p < 1) & (num_kept > head_size)
        num_kept = torch.where(top_p < 1, torch.minimum(num_kept, by_top_p.clamp(min=1)), num_kept)
    return num_kept, head_size == vocab or not bool(unsure.any())


def _keep_best(scaled: torch.Tensor, head: torch.Tensor, num_kept: torch.Tensor) -> torch.Tensor:
    """All but the row's `num_kept` best become -inf; of equal ones the smaller ids stay."""
    last = head.gather(1, (num_kept.clamp(max=head.shape[1]) - 1)[:, None])
    is_more = scaled > last
    is_equal = scaled == last
    num_ties = num_kept - is_more.sum(-1)
    kept = is_more | (is_equal & (is_equal.cumsum(-1) <= num_ties[:, None])) | (num_kept > head.shape[1])[:, None]
    return scaled.masked_fill(~kept, -math.inf)


def _philox(
    key: tuple[torch.Tensor, torch.Tensor], counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10 in int64: products wrap, and the mask takes the sign's copies off the upper half."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = c0 * 0xD251_1F53, c2 * 0xCD9E_8D57
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK32) ^ c1 ^ k0,
            p1 & _MASK32,
            ((p0 >> 32) & _MASK32) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0, k1 = (k0 + 0x9E37_79B9) & _MASK32, (k1 + 0xBB67_AE85) & _MASK32
    return c0, c1, c2, c3
