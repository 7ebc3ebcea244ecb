"""The torch sampler against the oracle in core/sampling.py, on the same logits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_runtime.core.sampling import filter_tokens, noise, sample_token, to_fp32
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.executors.torch.sampling import _HEAD_TOKENS, FEATURES, Draw, choose, gumbel

EDGE = 1e-5


def oracle(logits: list[float], draw: Draw) -> int:
    return sample_token(logits, draw.spec, [], [0] * draw.output_index)


def best_gap(logits: list[float], draw: Draw) -> float:
    """Distance of the two best keys: below EDGE either may be chosen."""
    scaled = [to_fp32(logit / to_fp32(draw.spec.temperature)) for logit in logits]
    keys = sorted(
        (scaled[token] + noise(draw.spec, draw.output_index, token) for token in filter_tokens(scaled, draw.spec)),
        reverse=True,
    )
    return keys[0] - keys[1] if len(keys) > 1 else math.inf


def is_at_edge(logits: list[float], draw: Draw) -> bool:
    """Whether a filter's edge is so near that the last bits of a sum decide."""
    spec = draw.spec
    nudged = [
        replace(spec, top_p=min(1.0, max(1e-9, spec.top_p + d)), min_p=max(0.0, spec.min_p + d)) for d in (-EDGE, EDGE)
    ]
    scaled = [to_fp32(logit / to_fp32(spec.temperature)) for logit in logits]
    return filter_tokens(scaled, nudged[0]) != filter_tokens(scaled, nudged[1])


def check(rows: list[list[float]], draws: list[Draw]) -> int:
    """All rows in one batch; returns how many had to agree and did."""
    tokens = choose(torch.tensor(rows), draws).tolist()
    num_compared = 0
    for row, draw, token in zip(torch.tensor(rows).tolist(), draws, tokens, strict=True):
        if draw.spec.temperature >= EDGE and (best_gap(row, draw) < EDGE or is_at_edge(row, draw)):
            continue
        assert token == oracle(row, draw), draw
        num_compared += 1
    return num_compared


specs = st.builds(
    SamplingSpec,
    seed=st.integers(-(2**63), 2**64),
    choice=st.integers(0, 7),
    temperature=st.sampled_from([0.0, 1e-6, 1e-5, 0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 7, 40, 10_000]),
    top_p=st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(specs, st.integers(0, 5000)), min_size=1, max_size=6),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.5, 3.0, 10.0]),
)
def test_batches_agree_with_the_oracle(parts: list[tuple[SamplingSpec, int]], seed: int, spread: float) -> None:
    # Rounded logits: many are equal, and ties must go to the smaller id.
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(len(parts), 120, generator=generator) * spread).round(decimals=1)
    check(logits.tolist(), [Draw(spec, index) for spec, index in parts])


def test_nearly_every_row_must_agree() -> None:
    """The edges let few rows pass uncompared."""
    logits = torch.randn(64, 200, generator=torch.Generator().manual_seed(5)) * 3
    draws = [Draw(SamplingSpec(seed=seed, temperature=0.9, top_k=50, top_p=0.9), seed) for seed in range(64)]
    assert check(logits.tolist(), draws) >= 62


@pytest.mark.parametrize(
    "spec", [SamplingSpec(top_p=0.97), SamplingSpec(min_p=0.25), SamplingSpec(top_p=0.9, top_k=2000)]
)
def test_flat_rows_need_more_than_the_sorted_head(spec: SamplingSpec) -> None:
    vocab = 3 * _HEAD_TOKENS
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, vocab, generator=generator) * 0.3
    draws = [Draw(replace(spec, seed=seed), 0) for seed in range(4)]
    kept = filter_tokens(logits[0].tolist(), spec)
    assert _HEAD_TOKENS < len(kept) < vocab
    assert check(logits.tolist(), draws) >= 3


def test_noise_is_the_oracles() -> None:
    draws = [
        Draw(SamplingSpec(seed=seed, choice=choice), index)
        for seed, choice, index in [(0, 0, 0), (-1, 3, 9), (2**63 + 5, 1, 4096)]
    ]
    tokens = torch.arange(512).repeat(3)
    rows = torch.arange(3).repeat_interleave(512)
    expected = [noise(draw.spec, draw.output_index, token) for draw in draws for token in range(512)]
    torch.testing.assert_close(gumbel(tokens, rows, draws), torch.tensor(expected), rtol=2e-6, atol=2e-6)


def test_draws_follow_the_distribution() -> None:
    """20,000 draws of one row: each token's share lies within five standard deviations of its probability."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    num = 20_000
    draws = [Draw(SamplingSpec(seed=seed), 0) for seed in range(num)]
    shares = torch.bincount(choose(logits.expand(num, -1), draws), minlength=5) / num
    expected = torch.softmax(logits, 0)
    assert ((shares - expected).abs() < 5 * (expected * (1 - expected) / num).sqrt()).all()


def test_a_rows_token_does_not_depend_on_its_batch() -> None:
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(9)) * 2
    kinds = [{"top_p": 0.9}, {"top_k": 5}, {}, {"min_p": 0.1}, {"temperature": 0.0}, {"top_p": 0.5, "top_k": 90}]
    draws = [Draw(SamplingSpec(seed=row, **kinds[row % len(kinds)]), row) for row in range(8)]  # type: ignore[arg-type]
    together = choose(logits, draws).tolist()
    assert together == [int(choose(logits[row : row + 1], [draws[row]])) for row in range(8)]


def test_features_name_fields_of_the_definition() -> None:
    assert set(SamplingSpec.__dataclass_fields__) >= FEATURES
