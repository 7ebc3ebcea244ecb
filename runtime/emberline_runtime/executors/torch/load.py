"""Weights from the mapped files into the device's memory, converted to the configured type or to eight bits, and fused.

What becomes eight bits does so a few rows at a time, as they are read: the whole matrix is never there in a wider type.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from emberline_runtime.executors.torch.eight_bit import EightBit, EightBitMatrix
from emberline_runtime.executors.torch.linear import Linear, PlainLinear, Product, make_linear, takes_eight_bits
from emberline_runtime.executors.torch.model import LayerWeights, ModelWeights
from emberline_runtime.models.errors import WeightsError
from emberline_runtime.models.parameters import LayerParameters, ModelParameters, Parameter
from emberline_runtime.models.stored_weights import WEIGHT, WEIGHT_SCALE
from emberline_runtime.weights.check import check_parameters
from emberline_runtime.weights.safetensors_file import StoredTensor, find_tensors

QUANTISED_ELEMENTS = 1 << 22
"""About so many are in fp32 at once while a matrix is quantised: little beside a layer, and enough to keep a GPU busy."""

_STORED: Mapping[str, torch.dtype] = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


_STORED_EIGHT_BITS: Mapping[EightBit, str] = {"fp8": "F8_E4M3", "int8": "I8"}


@dataclass(frozen=True, slots=True)
class Quantiser:
    """What the linear layers' weights become, and how they are then multiplied."""

    kind: EightBit
    product: Product
    is_stored: bool = False
    """They are so in the files already; those that are plain there stay plain."""


def load_weights(
    folder: Path,
    parameters: ModelParameters,
    dtype: torch.dtype,
    device: torch.device,
    quantiser: Quantiser | None = None,
) -> ModelWeights:
    """Every parameter of the folder, or a WeightsError that names the one at fault. Embedding, head and norms stay plain."""
    found = find_tensors(folder)
    check_parameters(parameters, found)
    with ExitStack() as files:
        reader = _Reader(found, dtype, device, quantiser, files)
        embedding = reader.matrix(parameters.embedding)
        return ModelWeights(
            embedding=embedding,
            layers=[_layer(reader, layer) for layer in parameters.layers],
            final_norm=reader.norm(parameters.final_norm),
            head=embedding if parameters.tied else reader.matrix(parameters.head),
        )


def _layer(reader: _Reader, layer: LayerParameters) -> LayerWeights:
    return LayerWeights(
        attn_norm=reader.norm(layer.attn_norm),
        qkv=reader.linear((layer.q, layer.k, layer.v), (layer.q_bias, layer.k_bias, layer.v_bias)),
        o=reader.linear((layer.o,), (layer.o_bias,)),
        mlp_norm=reader.norm(layer.mlp_norm),
        gate_up=reader.linear((layer.gate, layer.up), (layer.gate_bias, layer.up_bias)),
        down=reader.linear((layer.down,), (layer.down_bias,)),
    )


class _Reader:
    """Copies out of the mapped files. The maps are private and writable only because torch warns of read-only memory."""

    def __init__(
        self,
        found: Mapping[str, StoredTensor],
        dtype: torch.dtype,
        device: torch.device,
        quantiser: Quantiser | None,
        files: ExitStack,
    ) -> None:
        self._found = found
        self._dtype = dtype
        self._device = device
        self._quantiser = quantiser
        self._maps: dict[Path, mmap.mmap] = {}
        for path in {tensor.path for tensor in found.values()}:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        # Runs when every tensor over the maps is gone: what `_copy` returns owns its memory.
        files.callback(self._close)

    def matrix(self, part: Parameter) -> torch.Tensor:
        """In the configured type."""
        return self._copy([part], self._dtype)

    def linear(self, parts: Sequence[Parameter], bias_parts: Sequence[Parameter | None]) -> Linear:
        """The parts below one another; no bias where the spec has none."""
        there = [part for part in bias_parts if part is not None]
        bias = self._copy(there, self._dtype) if there else None
        quantiser = self._quantiser
        num_out, num_in = sum(part.shape[0] for part in parts), parts[0].shape[1]
        if quantiser is None or not self._is_eight_bits(parts, quantiser, num_out, num_in):
            return PlainLinear(self._copy(parts, self._dtype), bias)
        matrix = EightBitMatrix.empty(quantiser.kind, num_out, num_in, self._device)
        row = 0
        for part in parts:
            (self._copy_eight_bits if quantiser.is_stored else self._quantise)(part, matrix, row)
            row += part.shape[0]
        return make_linear(matrix, bias, quantiser.product)

    def _is_eight_bits(self, parts: Sequence[Parameter], quantiser: Quantiser, num_out: int, num_in: int) -> bool:
        if not quantiser.is_stored:
            return takes_eight_bits(quantiser.kind, num_out, num_in)
        wanted = _STORED_EIGHT_BITS[quantiser.kind]
        are_so = [self._found[part.name].dtype == wanted for part in parts]
        if len(set(are_so)) > 1:
            names = " and ".join(repr(parts[are_so.index(is_so)].name) for is_so in (True, False))
            raise WeightsError(
                f"of parameters {names} only the first is stored as {wanted}; this executor makes one matrix of them: use the "
                "16-bit checkpoint"
            )
        return are_so[0]

    def _quantise(self, part: Parameter, matrix: EightBitMatrix, first_row: int) -> None:
        num_rows = max(1, QUANTISED_ELEMENTS // part.shape[1])
        for rows in torch.split(self._view(part), num_rows):
            matrix.write(first_row, rows.to(self._device).float())
            first_row += len(rows)

    def _copy_eight_bits(self, part: Parameter, matrix: EightBitMatrix, first_row: int) -> None:
        name = part.name.removesuffix(WEIGHT) + WEIGHT_SCALE
        scales = self._found.get(name)
        if scales is None:
            raise WeightsError(f"parameter {name!r} is missing from the weight files; {part.name!r} is quantised")
        if prod(scales.shape) not in (1, part.shape[0]):
            raise WeightsError(
                f"parameter {name!r} has shape {list(scales.shape)}; one scale, or one for each of {part.shape[0]} rows of "
                f"{part.name!r}, is computed"
            )
        values = self._map(self._found[part.name], matrix.values.dtype).view(part.shape)
        matrix.write_stored(first_row, values, self._map_plain(scales).float())

    def norm(self, part: Parameter) -> torch.Tensor:
        """In fp32, as norms are computed."""
        return self._copy([part], torch.float32)

    def _copy(self, parts: Sequence[Parameter], dtype: torch.dtype) -> torch.Tensor:
        num_rows = sum(part.shape[0] for part in parts)
        out = torch.empty((num_rows, *parts[0].shape[1:]), dtype=dtype, device=self._device)
        row = 0
        for part in parts:
            out[row : row + part.shape[0]].copy_(self._view(part))
            row += part.shape[0]
        return out

    def _view(self, part: Parameter) -> torch.Tensor:
        return self._map_plain(self._found[part.name]).view(part.shape)

    def _map_plain(self, stored: StoredTensor) -> torch.Tensor:
        if stored.dtype not in _STORED:
            raise WeightsError(
                f"parameter {stored.name!r} is stored as {stored.dtype}; this executor reads {', '.join(_STORED)}"
            )
        return self._map(stored, _STORED[stored.dtype])

    def _map(self, stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
        """All elements of a stored tensor, one after another."""
        # frombuffer asks for aligned elements; a header of odd length would misalign them.
        if stored.offset % dtype.itemsize:
            raw = self._maps[stored.path][stored.offset : stored.offset + stored.num_bytes]
            return torch.frombuffer(bytearray(raw), dtype=dtype)
        count = stored.num_bytes // dtype.itemsize
        return torch.frombuffer(self._maps[stored.path], dtype=dtype, count=count, offset=stored.offset)

    def _close(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
