"""Linear layers as they are stored and computed: plain, or from weights in eight bits. How is decided once, at the start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage

from emberline_runtime.executors.torch.eight_bit import FP8, EightBit, EightBitMatrix, quantise_rows

EIGHT_BIT_MULTIPLE = 16
"""FP8 products take matrices whose sides are multiples of this. Of torch's int8 product it holds for the inputs: with others
it reads past the rows' ends."""
FP8_CAPABILITY = (8, 9)
"""The first compute capability that multiplies in FP8."""


class Linear(Protocol):
    """y = x W' + b for rows `x`."""

    @property
    def num_bytes(self) -> int:
        """What weight and bias take of the device's memory."""

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [row, in] in the type that is computed in; the result [row, out] has the same."""


class Product(StrEnum):
    """How weights in eight bits are multiplied."""

    FP8_ROWS = "fp8, scaled by row"
    """In FP8, activations quantised by token; the device scales rows and columns."""
    FP8_TENSOR = "fp8, scaled afterwards"
    """The same where the device knows one scale a matrix only: the product is scaled after it."""
    INT8_KERNEL = "int8 kernel"
    """torch's product of bf16 rows with int8 weights."""
    DEQUANTISED = "dequantised"
    """Weights only: turned back for each product."""


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """The weight in the type that is computed in."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @property
    def num_bytes(self) -> int:
        """See Linear."""
        return self.weight.nbytes + _bias_bytes(self.bias)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DequantisedLinear:
    """Eight bits in memory, plain in the product. For any device; each product reads the weight several times."""

    matrix: EightBitMatrix
    bias: torch.Tensor | None

    @property
    def num_bytes(self) -> int:
        """See Linear."""
        return self.matrix.num_bytes + _bias_bytes(self.bias)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        return F.linear(x, self.matrix.dequantise(x.dtype), self.bias)


class Int8KernelLinear:
    """torch's int8 product on a CPU: bf16 rows, int8 weights that are widened inside. Half the bytes of a bf16 decode."""

    def __init__(self, matrix: EightBitMatrix, bias: torch.Tensor | None) -> None:
        self._values = matrix.values
        self._scales = matrix.scales[:, 0].bfloat16()  # exact: see make_linear
        self._bias = bias

    @property
    def num_bytes(self) -> int:
        """See Linear."""
        return self._values.nbytes + self._scales.nbytes + _bias_bytes(self._bias)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        product = torch._weight_int8pack_mm(x, self._values, self._scales)  # noqa: SLF001 - no other name
        return product if self._bias is None else product.add_(self._bias)


class Fp8Linear:
    """Product in FP8: the weight's scales are by output channel, the activations' by token and taken from each row."""

    def __init__(self, matrix: EightBitMatrix, bias: torch.Tensor | None, *, by_row: bool) -> None:
        self._matrix = matrix
        self._bias = bias
        self._by_row = by_row
        self._columns = matrix.scales.t()  # [1, out]
        self._one = torch.ones((), device=matrix.values.device)

    @property
    def num_bytes(self) -> int:
        """See Linear."""
        return self._matrix.num_bytes + _bias_bytes(self._bias)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """See Linear."""
        values, scales = quantise_rows(x.float(), FP8)
        if self._by_row:
            product = self._scaled(values, scales, self._columns, x.dtype)
        else:
            unscaled = self._scaled(values, self._one, self._one, torch.float32)
            product = unscaled.mul_(scales).mul_(self._columns).to(x.dtype)
        return product if self._bias is None else product.add_(self._bias)

    def _scaled(
        self, values: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        weight = self._matrix.values.t()
        return torch._scaled_mm(values, weight, scale_a=rows, scale_b=columns, out_dtype=dtype)  # noqa: SLF001 - torch has no other name for it


def decide_product(kind: EightBit, device: torch.device, dtype: torch.dtype) -> Product:
    """The fastest product that this device gives for eight-bit weights; tries FP8 out, so call it once."""
    if device.type == "cpu":
        return Product.INT8_KERNEL if kind == "int8" and dtype == torch.bfloat16 else Product.DEQUANTISED
    if kind == "fp8" and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY:
        for product in (Product.FP8_ROWS, Product.FP8_TENSOR):
            if gives_fp8_product(product, device, dtype):
                return product
    return Product.DEQUANTISED


def gives_fp8_product(product: Product, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device computes such a product at all and rightly, for one row and for many."""
    many = torch.linspace(-2.0, 3.0, 17 * 64, device=device).view(17, 64)
    matrix = EightBitMatrix.empty("fp8", 32, 64, device)
    matrix.write(0, torch.linspace(-1.0, 1.5, 32 * 64, device=device).view(32, 64))
    linear = Fp8Linear(matrix, None, by_row=product is Product.FP8_ROWS)
    for rows in (many, many[:1]):
        expected = rows @ matrix.dequantise(torch.float32).t()
        try:
            got = linear.multiply(rows.to(dtype)).float()
        except (RuntimeError, ValueError):  # what torch says of what the device or its own build does not have
            return False
        # Activations lose up to 1/16 of themselves; a wrong scale or layout is far off.
        if not bool(((got - expected).abs() <= 0.1 * expected.abs().amax()).all()):
            return False
    return True


def takes_eight_bits(kind: EightBit, num_out: int, num_in: int) -> bool:
    """Whether a matrix of this shape is quantised; the others keep the type that is computed in."""
    return kind == "int8" or not (num_out % EIGHT_BIT_MULTIPLE or num_in % EIGHT_BIT_MULTIPLE)


def make_linear(matrix: EightBitMatrix, bias: torch.Tensor | None, product: Product) -> Linear:
    """The layer that computes the decided product, or turns weights back where the matrix does not allow it."""
    num_out, num_in = matrix.values.shape
    match product:
        case Product.FP8_ROWS | Product.FP8_TENSOR if takes_eight_bits("fp8", num_out, num_in):
            return Fp8Linear(matrix, bias, by_row=product is Product.FP8_ROWS)
        # The kernel takes scales in bf16 only. Ours are such numbers; those of a checkpoint need not be.
        case Product.INT8_KERNEL if num_in % EIGHT_BIT_MULTIPLE == 0 and torch.equal(
            matrix.scales, matrix.scales.bfloat16().float()
        ):
            return Int8KernelLinear(matrix, bias)
        case _:
            return DequantisedLinear(matrix, bias)


def _bias_bytes(bias: torch.Tensor | None) -> int:
    return 0 if bias is None else bias.nbytes
