"""Every executor that this machine can run, over one tiny model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emberline_runtime.executors.machine import bound_spins

bound_spins(os.environ)  # before torch is imported, as the registry does it

from emberline_runtime.executors.base import Executor, ModelFolder  # noqa: E402
from emberline_runtime.executors.oracle import OracleExecutor  # noqa: E402
from emberline_runtime.executors.torch.executor import TorchExecutor  # noqa: E402
from emberline_runtime.models.registry import read_spec  # noqa: E402
from support.tiny_llama import write_tiny_llama  # noqa: E402
from support.torch_rig import TEST_MEMORY, make_config  # noqa: E402

EXECUTORS: dict[str, Callable[[], Executor]] = {
    "oracle": OracleExecutor,
    "torch": lambda: TorchExecutor(memory=lambda: TEST_MEMORY, num_threads=2),
    "torch, eight bits": lambda: TorchExecutor(memory=lambda: TEST_MEMORY, num_threads=2),
}
PRECISIONS: dict[str, dict[str, str]] = {"torch, eight bits": {"quantization": "int8", "kv_cache_dtype": "fp8"}}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("contract") / "llama")


@pytest.fixture(scope="session", params=EXECUTORS)
def executor(request: pytest.FixtureRequest, model_folder: Path) -> Iterator[Executor]:
    """Loaded, with room for 8 sequences of 384 tokens; in fp32, where tokens are a promise."""
    made = EXECUTORS[request.param]()
    precision = PRECISIONS.get(request.param, {})
    config = make_config(model_folder, "fp32", max_model_len=384, max_sequences=8, max_batch_tokens=96, **precision)
    made.load(ModelFolder(model_folder, read_spec(model_folder)), config, lambda phase: None)
    yield made
    made.close()
