"""Weights in eight bits and back: how far off they may be, and what must come through untouched."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_runtime.executors.torch.eight_bit import (
    FP8,
    FP8_MAX,
    EightBit,
    EightBitMatrix,
    narrow_to_fp8,
    quantise_rows,
    widen_fp8,
)
from support.examples import examples

CPU = torch.device("cpu")
KINDS: tuple[EightBit, ...] = ("int8", "fp8")


def quantised(kind: EightBit, rows: torch.Tensor) -> EightBitMatrix:
    matrix = EightBitMatrix.empty(kind, *rows.shape, CPU)
    matrix.write(0, rows)
    return matrix


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    """Rows whose magnitudes are far apart, with an outlier in some."""
    num_rows, num_columns = draw(st.integers(1, 6)), 2 * draw(st.integers(1, 24))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    exponents = draw(st.lists(st.integers(-20, 12), min_size=num_rows, max_size=num_rows))
    rows = torch.randn(num_rows, num_columns, generator=generator) * 2.0 ** torch.tensor(exponents)[:, None]
    rows[0, 0] *= draw(st.sampled_from([0.0, 1.0, 50.0]))
    return rows


@settings(**examples(60))
@given(matrices())
def test_int8_is_off_by_half_a_step_at_most(rows: torch.Tensor) -> None:
    matrix = quantised("int8", rows)
    steps = matrix.scales.expand_as(rows)
    assert (steps <= rows.abs().amax(1, keepdim=True) / 127 * (1 + 2**-8) + 1e-12).all()
    assert ((matrix.dequantise(torch.float32) - rows).abs() <= steps * 0.5001).all()


@settings(**examples(60))
@given(matrices())
def test_fp8_is_off_by_a_sixteenth_or_half_of_its_smallest_step(rows: torch.Tensor) -> None:
    matrix = quantised("fp8", rows)
    allowed = torch.maximum(rows.abs() / 16, matrix.scales * 2.0**-10) * 1.0001
    assert ((matrix.dequantise(torch.float32) - rows).abs() <= allowed).all()
    largest = rows.abs().amax(1)
    restored = matrix.dequantise(torch.float32).abs().amax(1)
    torch.testing.assert_close(restored, largest, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_others_nor_on_how_they_came(kind: EightBit) -> None:
    rows = torch.randn(7, 32, generator=torch.Generator().manual_seed(1))
    whole, pieces = quantised(kind, rows), EightBitMatrix.empty(kind, 7, 32, CPU)
    for first in (4, 0):
        pieces.write(first, rows[first : first + 4])
    assert torch.equal(whole.values.view(torch.uint8), pieces.values.view(torch.uint8))
    assert torch.equal(whole.scales, pieces.scales)
    assert whole.num_bytes == 7 * 32 + 7 * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dequantising_rounds_once(kind: EightBit, dtype: torch.dtype) -> None:
    matrix = quantised(kind, torch.randn(5, 16, generator=torch.Generator().manual_seed(2)))
    exact = matrix.values.double() * matrix.scales.double()
    assert torch.equal(matrix.dequantise(dtype), exact.float().to(dtype))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_stays_so_alone(kind: EightBit, bad: float) -> None:
    rows = torch.ones(3, 16)
    rows[1, 5] = bad
    restored = quantised(kind, rows).dequantise(torch.float32)
    assert not restored[1].sum().isfinite()
    torch.testing.assert_close(restored[[0, 2]], rows[[0, 2]], rtol=2**-8, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zeros(kind: EightBit) -> None:
    assert quantised(kind, torch.zeros(2, 16)).dequantise(torch.bfloat16).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_fp8_value_widens_to_itself(dtype: torch.dtype) -> None:
    everything = torch.arange(256, dtype=torch.uint8).view(FP8).view(2, 8, 16)
    torch.testing.assert_close(widen_fp8(everything, dtype), everything.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_what_is_beyond_fp8_is_clamped_and_nan_is_kept() -> None:
    narrow = narrow_to_fp8(torch.tensor([1e6, -1e6, math.inf, 3.0, math.nan])).float()
    assert narrow[:4].tolist() == [FP8_MAX, -FP8_MAX, FP8_MAX, 3.0]
    assert narrow[4].isnan()


def test_int8_scales_are_what_bf16_holds() -> None:
    _, scales = quantise_rows(torch.randn(64, 8, generator=torch.Generator().manual_seed(3)), torch.int8)
    assert torch.equal(scales, scales.bfloat16().float())
