"""What EngineConfig says of precision, honoured: sizes in memory, how near the logits stay, and that company still changes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from emberline_runtime.executors.base import ModelFolder
from emberline_runtime.executors.machine import MemoryAllowance
from emberline_runtime.executors.torch import load
from emberline_runtime.executors.torch.eight_bit import EightBit, EightBitMatrix
from emberline_runtime.executors.torch.executor import TorchExecutor
from emberline_runtime.executors.torch.linear import DequantisedLinear, Int8KernelLinear, PlainLinear, Product
from emberline_runtime.executors.torch.load import Quantiser, load_weights
from emberline_runtime.models.registry import make_parameters, make_spec, read_spec
from support.tiny_llama import TINY, write_tiny_llama
from support.torch_rig import forced_logits, generate, load_torch, make_config, make_request

CPU = torch.device("cpu")
TOKENS = torch.randint(3, 150, (90,), generator=torch.Generator().manual_seed(1)).tolist()
EIGHT_BITS: tuple[dict[str, str], ...] = (
    {"quantization": "int8"},
    {"quantization": "fp8"},
    {"kv_cache_dtype": "fp8"},
    {"quantization": "fp8", "kv_cache_dtype": "fp8"},
)


def mean_kl(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    p, q = theirs.log_softmax(-1), ours.log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())


@pytest.fixture(scope="module")
def fp32_logits(tiny_folder: Path) -> torch.Tensor:
    return forced_logits(load_torch(tiny_folder), TOKENS)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("changes", "bound"), list(zip(EIGHT_BITS, (0.01, 0.12, 0.06, 0.16), strict=True)))
def test_logits_stay_near_fp32(
    tiny_folder: Path, fp32_logits: torch.Tensor, dtype: str, changes: dict[str, str], bound: float
) -> None:
    """The bounds are wide because random weights make peaked distributions out of small differences."""
    executor = load_torch(tiny_folder, dtype, **changes)  # type: ignore[arg-type]
    kl = mean_kl(forced_logits(executor, TOKENS, chunk_tokens=37), fp32_logits)
    assert 1e-4 < kl < bound, "near zero would mean that nothing was quantised"


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_weights_are_those_that_quantising_gives(tmp_path: Path, kind: EightBit) -> None:
    """A plain model whose files hold the restored weights gives the same logits, to rounding."""
    shape = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
    folder = write_tiny_llama(tmp_path / "model", **shape)
    quantised = forced_logits(load_torch(folder, quantization=kind), TOKENS)
    tensors = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            matrix = EightBitMatrix.empty(kind, *tensor.shape, CPU)
            matrix.write(0, tensor)
            tensors[name] = matrix.dequantise(torch.float32)
    save_file(tensors, folder / "model.safetensors")
    torch.testing.assert_close(quantised, forced_logits(load_torch(folder), TOKENS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", EIGHT_BITS)
def test_in_fp32_company_changes_nothing(tiny_folder: Path, changes: dict[str, str]) -> None:
    executor = load_torch(tiny_folder, "fp32", max_batch_tokens=64, max_sequences=4, **changes)
    requests = [make_request(str(index), range(3, 20 + 23 * index), 12) for index in range(4)]
    together = generate(executor, requests, max_batch_tokens=40, prefix_caching=True)
    for request in requests:
        assert generate(executor, [request])[request.id] == together[request.id]


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "times"),
    [
        ("bf16", "auto", 1),
        ("bf16", "bf16", 1),
        ("bf16", "fp8", 2),
        ("fp16", "fp8", 2),
        ("fp32", "bf16", 1),
        ("fp32", "auto", 0.5),
    ],
)
def test_the_kv_type_decides_how_many_blocks_there_are(
    tiny_folder: Path, dtype: str, kv_cache_dtype: str, times: float
) -> None:
    executor = load_torch(tiny_folder, dtype, kv_cache="60Ki", kv_cache_dtype=kv_cache_dtype)  # type: ignore[arg-type]
    assert executor.limits.num_blocks == 30 * times
    stored = sum(layer.keys[0].nbytes + layer.values[0].nbytes for layer in executor._kv.layers)
    assert stored * executor.limits.num_blocks == 60 << 10


def test_a_block_of_eight_bits_is_cleared_and_copied(tiny_folder: Path) -> None:
    executor = load_torch(tiny_folder, "bf16", kv_cache_dtype="fp8", max_model_len=64, max_sequences=1)
    [layer, _] = executor._kv.layers
    at = torch.tensor([1]), torch.tensor([3])
    row = torch.full((1, layer.kv_heads, layer.head_dim), -2.25)
    with torch.inference_mode():
        layer.write(*at, row, row * 1000)
        executor._kv.copy(1, 2)
        keys, values = layer.read(torch.tensor([2]), torch.float32)
        executor._kv.clear([2])
        cleared, _ = layer.read(torch.tensor([2]), torch.float32)
    assert keys[0, 3].eq(-2.25).all()
    assert values[0, 3].eq(-448).all()
    assert cleared.eq(0).all()


def test_the_linear_layers_are_quantised_and_nothing_else(tiny_folder: Path) -> None:
    weights = load_torch(tiny_folder, "bf16", quantization="int8")._model._weights
    for layer in weights.layers:
        assert all(isinstance(linear, Int8KernelLinear) for linear in (layer.qkv, layer.o, layer.gate_up, layer.down))
        assert layer.attn_norm.dtype == torch.float32
    assert weights.embedding.dtype == weights.head.dtype == torch.bfloat16


def test_shapes_that_fp8_does_not_take_stay_as_they_are(tmp_path: Path) -> None:
    """The hidden size, 56, is a side of every matrix here."""
    folder = write_tiny_llama(tmp_path / "model", hidden_size=56, num_attention_heads=6, head_dim=8)
    layer = load_torch(folder, "bf16", quantization="fp8")._model._weights.layers[0]
    assert all(isinstance(linear, PlainLinear) for linear in (layer.qkv, layer.o, layer.gate_up, layer.down))
    layer = load_torch(folder, "bf16", quantization="int8")._model._weights.layers[0]
    assert isinstance(layer.gate_up, DequantisedLinear)
    assert isinstance(layer.o, Int8KernelLinear)


WIDE = {
    "hidden_size": 256,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
}


class Allocations(TorchFunctionMode):
    """Bytes of the tensors that torch's functions make, as long as somebody holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0
        self.peak_bytes = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        theirs = {argument.untyped_storage().data_ptr() for argument in args if isinstance(argument, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in theirs:
            storage = result.untyped_storage()
            self.num_bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.num_bytes)
            weakref.finalize(storage, self._free, storage.nbytes())
        return result

    def _free(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("wide") / "model", **WIDE)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_loading_needs_less_than_one_layer_in_16_bits_besides(
    wide_folder: Path, kind: EightBit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elements in fp32 are made as few beside this small model's layers as they are beside a large one's."""
    monkeypatch.setattr(load, "QUANTISED_ELEMENTS", 1 << 16)
    parameters = make_parameters(make_spec({**TINY, **WIDE}))
    with Allocations() as plain:
        whole = load_weights(wide_folder, parameters, torch.bfloat16, CPU)
    assert plain.peak_bytes == plain.num_bytes == whole.num_bytes, "what is counted is not what lies in memory"
    with Allocations() as counted:
        weights = load_weights(wide_folder, parameters, torch.bfloat16, CPU, Quantiser(kind, Product.DEQUANTISED))
    assert counted.num_bytes == weights.num_bytes < 0.6 * whole.num_bytes
    assert counted.peak_bytes - weights.num_bytes < 4 * 4 * load.QUANTISED_ELEMENTS < whole.layers[0].num_bytes / 3


def test_smaller_weights_leave_more_for_the_cache(wide_folder: Path) -> None:
    blocks = {}
    for quantization in (None, "int8"):
        executor = TorchExecutor(memory=lambda: MemoryAllowance((768 << 20) + (20 << 20), 4 << 30), num_threads=2)
        config = make_config(wide_folder, "bf16", quantization=quantization)
        executor.load(ModelFolder(wide_folder, read_spec(wide_folder)), config, lambda phase: None)
        weights = executor._model._weights.num_bytes
        block = sum(layer.keys[0].nbytes * 2 for layer in executor._kv.layers)
        assert executor.limits.num_blocks == int(0.8 * ((20 << 20) - weights)) // block
        blocks[quantization] = executor.limits.num_blocks
    assert blocks["int8"] > blocks[None]


@pytest.mark.parametrize(
    ("device", "product", "num_warnings"),
    [("cuda", Product.DEQUANTISED, 1), ("cuda", Product.FP8_ROWS, 0), ("cpu", Product.DEQUANTISED, 0)],
)
def test_a_gpu_that_gains_no_speed_from_eight_bits_is_told_of(
    device: str, product: Product, num_warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config(Path("m"), "bf16", device=device, quantization="fp8")
    with caplog.at_level("INFO"):
        TorchExecutor._tell(1234, config, Quantiser("fp8", product))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * num_warnings + ["INFO"]
    assert caplog.records[-1].details == {"bytes": 1234, "dtype": "bf16", "quantization": "fp8", "product": product}  # type: ignore[attr-defined]
