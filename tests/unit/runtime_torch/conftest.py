"""One loaded model per type for the whole folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from emberline_runtime.executors.machine import bound_spins

bound_spins(os.environ)  # before torch is imported, as the registry does it

from emberline_runtime.executors.torch.executor import TorchExecutor  # noqa: E402
from support.tiny_llama import write_tiny_llama  # noqa: E402
from support.torch_rig import load_torch  # noqa: E402


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied model with three query heads a KV head."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2_folder: Path) -> Iterator[TorchExecutor]:
    """The real model with weights upcast to fp32, room for 16 sequences of 1,000 tokens."""
    executor = load_torch(smollm2_folder, "fp32", max_model_len=1024)
    yield executor
    executor.close()


@pytest.fixture(scope="session")
def smollm2_bf16(smollm2_folder: Path) -> Iterator[TorchExecutor]:
    """The real model as it is stored."""
    executor = load_torch(smollm2_folder, "bf16", max_model_len=1024)
    yield executor
    executor.close()
