"""Whether the native module is there, and if not, why. The import of this module loads nothing."""

from __future__ import annotations

import importlib
from pathlib import Path

import emberline_runtime

_MODULE = "emberline_runtime._native"
_REASON_FILE = "native_missing.txt"
"""Written by CMake beside the package when it installs without a compiler."""


def refusals() -> list[str]:
    """Reasons why `emberline_runtime._native` cannot be used, each with its remedy; empty if it can."""
    try:
        importlib.import_module(_MODULE)
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            raise
        return [_reason_of_the_installation()]
    except (
        ImportError
    ) as error:  # it is there and does not load, for one because EMBERLINE_NATIVE_ISA asks for too much
        return [str(error)]
    return []


def _reason_of_the_installation() -> str:
    for folder in emberline_runtime.__path__:
        file = Path(folder) / _REASON_FILE
        if file.is_file():
            return file.read_text(encoding="utf-8").strip()
    return "the native module has not been built; install emberline again where a C++ compiler is"
