"""Where the tensors of a model folder lie: the header of each safetensors file (8-byte length, then JSON), read by our own
few lines. No tensor is read here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from emberline_runtime.models.errors import WeightsError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_MAX_HEADER_BYTES = 100_000_000
_LENGTH = struct.Struct("<Q")
_DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in a file."""

    name: str
    path: Path
    offset: int
    """First byte, counted from the file's start."""
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    """As the file names it: BF16, F16, F32, ..."""


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder's one file, or of the files that its index names."""
    index = folder / INDEX_FILE
    if index.exists():
        return _find_sharded(folder, index)
    path = folder / SINGLE_FILE
    if not path.exists():
        raise WeightsError(f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}; other weight formats are not read")
    return read_header(path)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, checked to lie inside it with as many bytes as their shapes say."""
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                raise WeightsError(f"{path} has {file_bytes} bytes; a safetensors file has at least {_LENGTH.size}")
            (header_bytes,) = _LENGTH.unpack(head)
            if header_bytes > min(_MAX_HEADER_BYTES, file_bytes - _LENGTH.size):
                raise WeightsError(
                    f"{path} says that its header has {header_bytes} bytes, and has {file_bytes} in all; "
                    "the file is cut short or is no safetensors file: fetch it again"
                )
            header = json.loads(file.read(header_bytes))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error}") from error
    except ValueError as error:
        raise WeightsError(f"the header of {path} is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"the header of {path} is a {type(header).__name__}, not an object")
    data_start = _LENGTH.size + header_bytes
    return {
        name: _entry(name, entry, path, data_start, file_bytes)
        for name, entry in header.items()
        if name != "__metadata__"
    }


def _entry(name: str, entry: object, path: Path, data_start: int, file_bytes: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if all(
            isinstance(size, int) and size >= 0 for size in shape
        ):
            pass
        case _:
            raise WeightsError(f"{path}: the header's entry for {name!r} lacks dtype, shape or data_offsets")
    if dtype not in _DTYPE_BYTES:
        raise WeightsError(f"{path}: tensor {name!r} has dtype {dtype!r}; known are {', '.join(_DTYPE_BYTES)}")
    num_bytes = prod(shape) * _DTYPE_BYTES[dtype]
    if not 0 <= begin <= end <= file_bytes - data_start or end - begin != num_bytes:
        raise WeightsError(
            f"{path}: tensor {name!r} lies at bytes {begin} to {end} of {file_bytes - data_start} and needs {num_bytes}; "
            "the file is damaged: fetch it again"
        )
    return StoredTensor(name, path, data_start + begin, num_bytes, tuple(shape), dtype)


def _find_sharded(folder: Path, index: Path) -> dict[str, StoredTensor]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        wanted = {str(name): str(file) for name, file in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} holds no object weight_map that can be read: {error!r}") from error
    tensors: dict[str, StoredTensor] = {}
    for file in sorted(set(wanted.values())):
        # The index comes with the model: it must not lead out of the folder.
        if Path(file).name != file:
            raise WeightsError(f"{index} names the file {file!r}; only files in the same folder are read")
        for name, tensor in read_header(folder / file).items():
            if wanted.get(name) != file:
                raise WeightsError(f"{folder / file} holds {name!r}, which {index.name} places in {wanted.get(name)}")
            tensors[name] = tensor
    missing = sorted(wanted.keys() - tensors.keys())
    if missing:
        raise WeightsError(f"{index} names {len(missing)} tensors that its files lack, the first is {missing[0]!r}")
    return tensors
