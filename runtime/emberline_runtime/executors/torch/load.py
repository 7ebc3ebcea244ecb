"""Weights from the mapped files into the device's memory, converted to the configured type and fused."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from emberline_runtime.executors.torch.model import LayerWeights, ModelWeights
from emberline_runtime.models.errors import WeightsError
from emberline_runtime.models.parameters import LayerParameters, ModelParameters, Parameter
from emberline_runtime.weights.check import check_parameters
from emberline_runtime.weights.safetensors_file import StoredTensor, find_tensors

_STORED: Mapping[str, torch.dtype] = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def load_weights(folder: Path, parameters: ModelParameters, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Every parameter of the folder, or a WeightsError that names the one at fault."""
    found = find_tensors(folder)
    check_parameters(parameters, found)
    with ExitStack() as files:
        reader = _Reader(found, dtype, device, files)
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
        qkv=reader.matrix(layer.q, layer.k, layer.v),
        qkv_bias=reader.bias(layer.q_bias, layer.k_bias, layer.v_bias),
        o=reader.matrix(layer.o),
        o_bias=reader.bias(layer.o_bias),
        mlp_norm=reader.norm(layer.mlp_norm),
        gate_up=reader.matrix(layer.gate, layer.up),
        gate_up_bias=reader.bias(layer.gate_bias, layer.up_bias),
        down=reader.matrix(layer.down),
        down_bias=reader.bias(layer.down_bias),
    )


class _Reader:
    """Copies out of the mapped files. The maps are private and writable only because torch warns of read-only memory."""

    def __init__(
        self, found: Mapping[str, StoredTensor], dtype: torch.dtype, device: torch.device, files: ExitStack
    ) -> None:
        self._found = found
        self._dtype = dtype
        self._device = device
        self._maps: dict[Path, mmap.mmap] = {}
        for path in {tensor.path for tensor in found.values()}:
            with path.open("rb") as file:
                self._maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        # Runs when every tensor over the maps is gone: what `_copy` returns owns its memory.
        files.callback(self._close)

    def matrix(self, *parts: Parameter) -> torch.Tensor:
        """The parts below one another, in the configured type."""
        return self._copy(parts, self._dtype)

    def bias(self, *parts: Parameter | None) -> torch.Tensor | None:
        """The parts one after another; None where the spec has none."""
        there = [part for part in parts if part is not None]
        return self._copy(there, self._dtype) if there else None

    def norm(self, part: Parameter) -> torch.Tensor:
        """In fp32, as norms are computed."""
        return self._copy([part], torch.float32)

    def _copy(self, parts: tuple[Parameter, ...] | list[Parameter], dtype: torch.dtype) -> torch.Tensor:
        num_rows = sum(part.shape[0] for part in parts)
        out = torch.empty((num_rows, *parts[0].shape[1:]), dtype=dtype, device=self._device)
        row = 0
        for part in parts:
            out[row : row + part.shape[0]].copy_(self._view(part))
            row += part.shape[0]
        return out

    def _view(self, part: Parameter) -> torch.Tensor:
        stored = self._found[part.name]
        if stored.dtype not in _STORED:
            raise WeightsError(
                f"parameter {part.name!r} is stored as {stored.dtype}; this executor reads {', '.join(_STORED)}"
            )
        dtype = _STORED[stored.dtype]
        # frombuffer asks for aligned elements; a header of odd length would misalign them.
        if stored.offset % dtype.itemsize:
            raw = self._maps[stored.path][stored.offset : stored.offset + stored.num_bytes]
            return torch.frombuffer(bytearray(raw), dtype=dtype).view(part.shape)
        count = stored.num_bytes // dtype.itemsize
        flat = torch.frombuffer(self._maps[stored.path], dtype=dtype, count=count, offset=stored.offset)
        return flat.view(part.shape)

    def _close(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
