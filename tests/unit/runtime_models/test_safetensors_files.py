from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from emberline_runtime.models.errors import WeightsError
from emberline_runtime.weights.safetensors_file import find_tensors, read_header


def write_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_tensors_are_found_where_they_lie(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "a": entry("F32", [2], 0, 8), "b": entry("BF16", [3, 2], 8, 20)}
    data = bytes(range(20))
    path = write_file(tmp_path / "model.safetensors", header, data)
    tensors = find_tensors(tmp_path)
    assert set(tensors) == {"a", "b"}
    b = tensors["b"]
    assert (b.shape, b.dtype, b.num_bytes) == ((3, 2), "BF16", 12)
    assert path.read_bytes()[b.offset : b.offset + b.num_bytes] == data[8:20]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1234", "has 4 bytes"),
        (struct.pack("<Q", 100) + b"{}", "header has 100 bytes, and has 10 in all"),
        (struct.pack("<Q", 2**63) + b"{}", "no safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "is a list, not an object"),
        (struct.pack("<Q", 2) + b"{a", "is not JSON"),
        (struct.pack("<Q", 2) + b"\xff\xff", "is not JSON"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        read_header(path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (entry("F32", [2], 0, 4), "needs 8"),
        (entry("F32", [2], 4, 12), "at bytes 4 to 12 of 8"),
        (entry("F32", [2], -8, 0), "at bytes -8 to 0"),
        (entry("F32", [-2], 0, 8), "lacks dtype, shape or data_offsets"),
        (entry("Q4", [2], 0, 8), "dtype 'Q4'"),
        ({"dtype": "F32"}, "lacks dtype, shape or data_offsets"),
        (7, "lacks dtype, shape or data_offsets"),
    ],
)
def test_an_entry_that_does_not_fit_its_file_is_refused(tmp_path: Path, wrong: Any, message: str) -> None:
    path = write_file(tmp_path / "model.safetensors", {"a": wrong}, bytes(8))
    with pytest.raises(WeightsError, match=message):
        read_header(path)


def write_shards(folder: Path, weight_map: dict[str, str], files: dict[str, list[str]]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, names in files.items():
        header = {name: entry("F32", [1], 4 * i, 4 * i + 4) for i, name in enumerate(names)}
        write_file(folder / file, header, bytes(4 * len(names)))


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    write_shards(
        tmp_path, {"a": "1.safetensors", "b": "2.safetensors"}, {"1.safetensors": ["a"], "2.safetensors": ["b"]}
    )
    tensors = find_tensors(tmp_path)
    assert {name: tensor.path.name for name, tensor in tensors.items()} == {"a": "1.safetensors", "b": "2.safetensors"}


@pytest.mark.parametrize(
    ("weight_map", "files", "message"),
    [
        ({"a": "../1.safetensors"}, {}, "only files in the same folder"),
        ({"a": "/etc/passwd"}, {}, "only files in the same folder"),
        ({"a": "1.safetensors"}, {}, "cannot be read"),
        ({"a": "1.safetensors", "b": "1.safetensors"}, {"1.safetensors": ["a"]}, "lack, the first is 'b'"),
        ({"a": "1.safetensors"}, {"1.safetensors": ["a", "b"]}, "holds 'b', which"),
    ],
)
def test_a_wrong_index_is_refused(
    tmp_path: Path, weight_map: dict[str, str], files: dict[str, list[str]], message: str
) -> None:
    write_shards(tmp_path, weight_map, files)
    with pytest.raises(WeightsError, match=message):
        find_tensors(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', "{}"])
def test_an_index_without_a_map_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match="weight_map"):
        find_tensors(tmp_path)


def test_an_empty_folder_says_what_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        find_tensors(tmp_path)
