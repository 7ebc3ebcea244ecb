"""The native module is there, or the reason is told."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

import emberline_runtime
from emberline_runtime.native import refusals

if TYPE_CHECKING:
    from pathlib import Path

MODULE = "emberline_runtime._native"


def test_the_module_is_there() -> None:
    reasons = refusals()
    if reasons and os.environ.get("EMBERLINE_NATIVE") != "require":
        pytest.skip("; ".join(reasons))
    assert reasons == []


def test_the_reason_of_the_installation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "native_missing.txt").write_text("no C++ compiler was found; install one\n")
    monkeypatch.setitem(sys.modules, MODULE, None)  # type: ignore[arg-type]
    monkeypatch.setattr(emberline_runtime, "__path__", [str(tmp_path)])
    assert refusals() == ["no C++ compiler was found; install one"]


def test_without_a_reason_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)  # type: ignore[arg-type]
    monkeypatch.setattr(emberline_runtime, "__path__", [str(tmp_path)])
    assert refusals() == ["the native module has not been built; install emberline again where a C++ compiler is"]


def test_a_module_that_does_not_load_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_native.py").write_text("raise ImportError('EMBERLINE_NATIVE_ISA is wrong')\n")
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    monkeypatch.delattr(emberline_runtime, "_native", raising=False)
    monkeypatch.setattr(emberline_runtime, "__path__", [str(tmp_path)])
    monkeypatch.setattr(
        sys, "meta_path", [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
    )
    assert refusals() == ["EMBERLINE_NATIVE_ISA is wrong"]
