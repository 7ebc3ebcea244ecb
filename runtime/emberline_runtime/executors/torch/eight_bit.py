"""Weights in eight bits with a scale for each output channel, and back. Symmetric; what is not finite stays so through its scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

EightBit = Literal["fp8", "int8"]

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
"""Largest finite value of FP8."""
INT8_MAX = 127.0
_SMALLEST_SCALE = 1e-12
"""So that a row of zeros is not divided by zero."""


@dataclass(frozen=True, slots=True)
class EightBitMatrix:
    """`values` [out, in] times `scales` [out, 1], in fp32, is the matrix."""

    values: torch.Tensor
    scales: torch.Tensor

    @classmethod
    def empty(cls, kind: EightBit, num_out: int, num_in: int, device: torch.device) -> EightBitMatrix:
        """Room for a matrix whose rows are written as they come."""
        dtype = FP8 if kind == "fp8" else torch.int8
        return cls(
            torch.empty(num_out, num_in, dtype=dtype, device=device),
            torch.empty(num_out, 1, dtype=torch.float32, device=device),
        )

    @property
    def num_bytes(self) -> int:
        """What it takes of the device's memory."""
        return self.values.nbytes + self.scales.nbytes

    def write(self, first_row: int, rows: torch.Tensor) -> None:
        """Quantise fp32 `rows` into their place."""
        rows_end = first_row + len(rows)
        values, scales = quantise_rows(rows, self.values.dtype)
        self.values[first_row:rows_end] = values
        self.scales[first_row:rows_end] = scales

    def write_stored(self, first_row: int, values: torch.Tensor, scales: torch.Tensor) -> None:
        """Put rows that are in eight bits already in their place; `scales` has one number a row, or one for all."""
        rows_end = first_row + len(values)
        self.values[first_row:rows_end] = values
        self.scales[first_row:rows_end] = scales.reshape(-1, 1)

    def dequantise(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix in `dtype`, each element rounded once."""
        if self.values.dtype == FP8:
            return widen_fp8(self.values, dtype).mul_(self.scales)
        out = torch.empty(self.values.shape, dtype=dtype, device=self.values.device)
        return torch.mul(self.values, self.scales, out=out)


def quantise_rows(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales [row, 1] of fp32 `rows`: the largest magnitude of each row becomes the type's largest value.

    int8 scales are rounded to what bf16 holds, because that is what torch's int8 product takes.
    """
    largest = rows.abs().amax(dim=1, keepdim=True)
    if dtype == FP8:
        scales = (largest / FP8_MAX).clamp_(min=_SMALLEST_SCALE)
        return (rows / scales).clamp_(-FP8_MAX, FP8_MAX).to(FP8), scales
    scales = (largest / INT8_MAX).clamp_(min=_SMALLEST_SCALE).bfloat16().float()
    return (rows / scales).round_().clamp_(-INT8_MAX, INT8_MAX).to(torch.int8), scales


def narrow_to_fp8(x: torch.Tensor) -> torch.Tensor:
    """`x` in FP8 without a scale. Clamped: the type has no infinity, and what is beyond its range may become NaN."""
    return x.clamp(-FP8_MAX, FP8_MAX).to(FP8)


def widen_fp8(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """FP8 `values` in a wider type, exactly; the last dimension is even and contiguous."""
    if values.device.type != "cpu":
        return values.to(dtype)
    # A CPU's conversion goes one element at a time; two at once out of a table is seven times as fast.
    pairs = values.view(torch.uint16)
    found = _pairs_of_fp8(dtype).index_select(0, pairs.flatten().int())
    return found.view(dtype).view(values.shape)


@cache
def _pairs_of_fp8(dtype: torch.dtype) -> torch.Tensor:
    """Each pair of FP8 values in `dtype`, as one integer, at the index that its two bytes make."""
    pairs = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(FP8).to(dtype)
    return pairs.view(torch.int32 if dtype.itemsize == 2 else torch.int64)
