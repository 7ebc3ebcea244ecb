"""The module under test; missing, it fails where it is required and is skipped with the reason elsewhere."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from emberline_runtime.native import refusals


@pytest.fixture(scope="session")
def native() -> Any:
    """`emberline_runtime._native`."""
    if reasons := refusals():
        assert os.environ.get("EMBERLINE_NATIVE") != "require", reasons
        pytest.skip("; ".join(reasons))
    return importlib.import_module("emberline_runtime._native")
