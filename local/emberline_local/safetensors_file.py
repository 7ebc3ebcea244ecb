"""Writes one safetensors file in bf16, tensor by tensor, so that only one of them is in memory. Needs numpy, never torch."""

from __future__ import annotations

import json
import os
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from emberline_local.errors import ModelSourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy.typing as npt


def bf16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bf16 numbers nearest to finite fp32 ones, ties to even, as their 16 bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)


def write_bf16(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensor: Callable[[str], npt.NDArray[np.float32]],
) -> None:
    """Write the tensors that `shapes` names, each asked from `tensor` when its turn comes; on return they are on disk."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            values = tensor(name)
            if values.shape != shape:
                raise ValueError(f"tensor {name} has shape {values.shape}, announced was {shape}")
            if not np.isfinite(values).all():
                raise ModelSourceError(f"tensor {name} holds values that are not finite")
            file.write(bf16_bits(values).astype("<u2", copy=False).data)
        file.flush()
        os.fsync(file.fileno())
