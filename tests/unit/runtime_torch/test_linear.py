"""Linear layers from eight-bit weights: each product against plain arithmetic, and which one a device gets."""

from __future__ import annotations

import math

import pytest
import torch

from emberline_runtime.executors.torch import linear
from emberline_runtime.executors.torch.eight_bit import FP8, EightBit, EightBitMatrix, quantise_rows
from emberline_runtime.executors.torch.linear import (
    DequantisedLinear,
    Fp8Linear,
    Int8KernelLinear,
    Product,
    decide_product,
    gives_fp8_product,
    make_linear,
    takes_eight_bits,
)

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
FP8_PRODUCTS = (Product.FP8_ROWS, Product.FP8_TENSOR)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_matrix(kind: EightBit, num_out: int, num_in: int) -> EightBitMatrix:
    matrix = EightBitMatrix.empty(kind, num_out, num_in, CPU)
    matrix.write(0, draw(num_out, num_in) * draw(num_out, 1, seed=1).exp())
    return matrix


def expected(matrix: EightBitMatrix, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = x.double() @ (matrix.values.double() * matrix.scales.double()).t()
    return product if bias is None else product + bias.double()


@pytest.mark.parametrize("shape", [(48, 32), (80, 48), (17, 16), (50, 34), (1, 64)])
@pytest.mark.parametrize("num_rows", [1, 3, 33])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("product", [Product.INT8_KERNEL, Product.DEQUANTISED])
def test_int8_products_of_any_shape(shape: tuple[int, int], num_rows: int, with_bias: bool, product: Product) -> None:
    matrix = make_matrix("int8", *shape)
    bias = draw(shape[0], seed=2).bfloat16() if with_bias else None
    x = draw(num_rows, shape[1], seed=3).bfloat16()
    y = make_linear(matrix, bias, product).multiply(x)
    assert y.dtype == torch.bfloat16
    wanted = expected(matrix, x, bias)
    torch.testing.assert_close(y.double(), wanted, rtol=0.02, atol=0.02 * float(wanted.abs().amax()))


@pytest.mark.parametrize("product", FP8_PRODUCTS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 33])
def test_fp8_products_quantise_each_row_of_activations(product: Product, with_bias: bool, num_rows: int) -> None:
    matrix = make_matrix("fp8", 48, 64)
    bias = draw(48, seed=2).bfloat16() if with_bias else None
    x = (draw(num_rows, 64, seed=3) * torch.logspace(-3, 3, num_rows)[:, None]).bfloat16()
    values, scales = quantise_rows(x.float(), FP8)
    wanted = expected(matrix, values.double() * scales.double(), bias)
    y = make_linear(matrix, bias, product).multiply(x)
    assert y.dtype == torch.bfloat16
    allowed = 0.02 * wanted.abs().amax(1, keepdim=True)
    assert ((y.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("product", FP8_PRODUCTS)
def test_a_row_that_is_not_finite_spoils_no_other(product: Product) -> None:
    made = make_linear(make_matrix("fp8", 32, 32), None, product)
    x = draw(3, 32).bfloat16()
    before = made.multiply(x)
    x[1, 7] = math.nan
    after = made.multiply(x)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after[1].isnan().all()


def test_the_shape_decides_where_the_kernel_cannot() -> None:
    assert isinstance(make_linear(make_matrix("int8", 50, 48), None, Product.INT8_KERNEL), Int8KernelLinear)
    assert isinstance(make_linear(make_matrix("int8", 48, 50), None, Product.INT8_KERNEL), DequantisedLinear)
    assert takes_eight_bits("int8", 50, 34)
    assert takes_eight_bits("fp8", 48, 32)
    assert not takes_eight_bits("fp8", 50, 32)
    assert not takes_eight_bits("fp8", 48, 34)


@pytest.mark.parametrize(
    ("kind", "dtype", "product"),
    [
        ("int8", torch.bfloat16, Product.INT8_KERNEL),
        ("int8", torch.float16, Product.DEQUANTISED),
        ("int8", torch.float32, Product.DEQUANTISED),
        ("fp8", torch.bfloat16, Product.DEQUANTISED),
    ],
)
def test_what_a_cpu_computes(kind: EightBit, dtype: torch.dtype, product: Product) -> None:
    assert decide_product(kind, CPU, dtype) is product


@pytest.mark.parametrize(
    ("capability", "given", "product"),
    [
        ((9, 0), set(FP8_PRODUCTS), Product.FP8_ROWS),
        ((8, 9), {Product.FP8_TENSOR}, Product.FP8_TENSOR),
        ((12, 0), set(), Product.DEQUANTISED),
        ((8, 0), set(FP8_PRODUCTS), Product.DEQUANTISED),
        ((7, 5), set(FP8_PRODUCTS), Product.DEQUANTISED),
    ],
)
def test_a_gpu_multiplies_in_fp8_where_it_can(
    capability: tuple[int, int], given: set[Product], product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(linear, "gives_fp8_product", lambda product, device, dtype: product in given)
    assert decide_product("fp8", CUDA, torch.bfloat16) is product
    assert decide_product("int8", CUDA, torch.bfloat16) is Product.DEQUANTISED


@pytest.mark.parametrize("product", FP8_PRODUCTS)
def test_trying_out_finds_what_is_there(product: Product) -> None:
    """torch computes both on a CPU, slowly."""
    assert gives_fp8_product(product, CPU, torch.bfloat16)


@pytest.mark.parametrize("product", FP8_PRODUCTS)
def test_trying_out_survives_a_device_without(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0")

    monkeypatch.setattr(torch, "_scaled_mm", refuse)
    assert not gives_fp8_product(product, CPU, torch.bfloat16)


@pytest.mark.parametrize("product", FP8_PRODUCTS)
def test_trying_out_does_not_believe_a_wrong_product(product: Product, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that ignores the scales, or lays the weight out otherwise, answers without an error."""
    right = torch._scaled_mm

    def wrong(a: torch.Tensor, b: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return right(a, b, **kwargs).flip(1)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "_scaled_mm", wrong)
    assert not gives_fp8_product(product, CPU, torch.bfloat16)


def test_bytes_are_counted_as_they_lie() -> None:
    bias = torch.zeros(48, dtype=torch.bfloat16)
    assert make_linear(make_matrix("fp8", 48, 32), bias, Product.DEQUANTISED).num_bytes == 48 * 32 + 48 * 4 + 96
    assert make_linear(make_matrix("int8", 48, 32), None, Product.INT8_KERNEL).num_bytes == 48 * 32 + 48 * 2
    assert isinstance(make_linear(make_matrix("fp8", 48, 32), None, Product.FP8_ROWS), Fp8Linear)
