"""Reads a GGUF file: its metadata, and its tensors as fp32 arrays. Knows the format, no model; needs numpy, never torch.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from emberline_local.errors import ModelSourceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Bytes = npt.NDArray[np.uint8]

Value = bool | int | float | str | list["Value"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and how its values are stored."""

    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as numpy and torch have it (the file has it the other way round)."""
    kind: int
    """The file's number of the storage type, a key of `STORAGE`."""
    offset: int
    """From the start of the file."""


@dataclass(frozen=True, slots=True)
class Storage:
    """How a storage type keeps values: in blocks of a fixed number of values and bytes."""

    name: str
    block_values: int
    block_bytes: int
    unpack: Callable[[Bytes], Floats]
    """Blocks as rows of bytes -> their values as rows."""


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(blocks: Bytes, start: int) -> Floats:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of all bytes, then their high halves."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8)


STORAGE = {
    0: Storage("F32", 1, 4, _f32),
    1: Storage("F16", 1, 2, _f16),
    2: Storage("Q4_0", 32, 18, _q4_0),
    3: Storage("Q4_1", 32, 20, _q4_1),
    8: Storage("Q8_0", 32, 34, _q8_0),
    30: Storage("BF16", 1, 2, _bf16),
}


class GgufFile:
    """An open GGUF file. The data is mapped, so a tensor costs memory only while it is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            self.metadata, self.tensors = self._read_header()
        except (struct.error, UnicodeDecodeError) as error:
            raise ModelSourceError(
                f"{path} ends or is damaged at byte {self._at} of {len(self._map)}: {error}"
            ) from error

    def tensor(self, name: str) -> Floats:
        """The tensor's values as fp32, in its shape."""
        info = self.tensors[name]
        storage = STORAGE[info.kind]
        num_bytes = prod(info.shape) // storage.block_values * storage.block_bytes
        if info.offset + num_bytes > len(self._map):
            raise ModelSourceError(
                f"{self.path}: tensor {name} needs bytes up to {info.offset + num_bytes}, the file has {len(self._map)};"
                " it is incomplete"
            )
        raw = np.frombuffer(self._map, np.uint8, num_bytes, info.offset)
        return storage.unpack(raw.reshape(-1, storage.block_bytes)).reshape(info.shape)

    def _read_header(self) -> tuple[dict[str, Value], dict[str, TensorInfo]]:
        magic = self._map[:4]
        if magic != _MAGIC:
            raise ModelSourceError(f"{self.path} begins with {magic!r}, not with {_MAGIC!r}: it is no GGUF file")
        self._at = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ModelSourceError(f"{self.path} has GGUF version {version}; versions {_VERSIONS} can be read")
        num_tensors, num_entries = int(self._scalar("Q")), int(self._scalar("Q"))
        metadata = {self._string(): self._value(int(self._scalar("I"))) for _ in range(num_entries)}
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        assert isinstance(alignment, int)
        data_start = -(-self._at // alignment) * alignment
        return metadata, {
            info.name: TensorInfo(info.name, info.shape, info.kind, data_start + info.offset) for info in infos
        }

    def _tensor_info(self) -> TensorInfo:
        name = self._string()
        num_dimensions = int(self._scalar("I"))
        shape = tuple(int(self._scalar("Q")) for _ in range(num_dimensions))[::-1]
        kind, offset = int(self._scalar("I")), int(self._scalar("Q"))
        if kind not in STORAGE:
            known = ", ".join(storage.name for storage in STORAGE.values())
            raise ModelSourceError(f"{self.path}: tensor {name} has storage type {kind}; {known} can be read")
        if shape[-1] % STORAGE[kind].block_values:
            raise ModelSourceError(
                f"{self.path}: tensor {name} has rows of {shape[-1]} values in blocks of {STORAGE[kind].block_values}"
            )
        return TensorInfo(name, shape, kind, offset)

    def _scalar(self, code: str) -> bool | int | float:
        layout = struct.Struct("<" + code)
        value: bool | int | float = layout.unpack_from(self._map, self._at)[0]
        self._at += layout.size
        return value

    def _string(self) -> str:
        length = int(self._scalar("Q"))
        raw = self._map[self._at : self._at + length]
        if len(raw) != length:
            raise ModelSourceError(f"{self.path} ends inside a string of {length} bytes at byte {self._at}")
        self._at += length
        return raw.decode()

    def _value(self, kind: int) -> Value:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            element, length = int(self._scalar("I")), int(self._scalar("Q"))
            return [self._value(element) for _ in range(length)]
        raise ModelSourceError(f"{self.path}: metadata value of unknown type {kind} at byte {self._at}")
