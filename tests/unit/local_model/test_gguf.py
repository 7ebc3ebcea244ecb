"""The GGUF reader against the reference package, and what it says of damaged files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from emberline_local.errors import ModelSourceError
from emberline_local.gguf import STORAGE, GgufFile
from emberline_local.safetensors_file import bf16_bits
from support.tiny_gguf import write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path

TYPES = [gguf.GGMLQuantizationType(kind) for kind in STORAGE]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_values_equal_the_reference(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    values = np.random.default_rng(3).standard_normal((5, 96), dtype=np.float32)
    writer = gguf.GGUFWriter(tmp_path / "one.gguf", "llama")
    packed = gguf.quants.quantize(values, kind)
    writer.add_tensor("other", np.zeros(7, np.float32))
    writer.add_tensor("it", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    read = GgufFile(tmp_path / "one.gguf").tensor("it")

    assert read.dtype == np.float32
    assert read.shape == values.shape
    assert np.array_equal(read, gguf.quants.dequantize(packed, kind))
    assert np.abs(read - values).max() < 0.3


def test_metadata_of_every_type(tmp_path: Path) -> None:
    path = tmp_path / "meta.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -1)
    writer.add_uint64("u64", 2**60)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("words", ["a", "é", ""])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = {
        "u8": 255,
        "i8": -1,
        "u64": 2**60,
        "f64": 0.1,
        "yes": True,
        "numbers": [1, -2, 3],
        "words": ["a", "é", ""],
    }

    assert expected.items() <= GgufFile(path).metadata.items()


def test_every_truncation_of_the_header_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    first_tensor = min(info.offset for info in GgufFile(tmp_path / "whole.gguf").tensors.values())
    for length in range(1, first_tensor - 64, 97):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelSourceError):
            GgufFile(cut)


def test_a_missing_tail_is_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tail.gguf")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    file = GgufFile(path)
    last = max(file.tensors.values(), key=lambda info: info.offset)
    with pytest.raises(ModelSourceError, match=rf"{last.name} needs bytes up to \d+, the file has {size - 100}"):
        file.tensor(last.name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04" + bytes(100), "no GGUF file"),
        (b"GGUF\x01\x00\x00\x00" + bytes(100), r"version 1; versions \(2, 3\)"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "other").write_bytes(content)
    with pytest.raises(ModelSourceError, match=message):
        GgufFile(tmp_path / "other")


def test_an_unknown_storage_type_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("it", np.zeros((2, 144), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        ModelSourceError, match=r"tensor it has storage type 12; F32, F16, Q4_0, Q4_1, Q8_0, BF16 can be read"
    ):
        GgufFile(tmp_path / "k.gguf")


def test_bf16_rounds_to_nearest_even() -> None:
    exact = np.array([0.0, -0.0, 1.0, -2.5, 3.0e38], np.float32)
    assert np.array_equal(bf16_bits(exact[:4]).astype(np.uint32) << 16, exact[:4].view(np.uint32))
    one = np.float32(1.0).view(np.uint32)
    ties = np.array([one + 0x8000, one + 0x18000, one + 0x8001, one + 0x7FFF], np.uint32).view(np.float32)
    assert list(bf16_bits(ties)) == [0x3F80, 0x3F82, 0x3F81, 0x3F80]
