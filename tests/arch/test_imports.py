"""Who imports whom: the contracts in pyproject.toml, and what really gets loaded when a process starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "numpy", "transformers", "tokenizers", "triton", "safetensors", "llguidance"}
PYDANTIC = {"pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"}
WHAT_IS_LOADED = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    if name.endswith(".*"):
        package = importlib.import_module(name[:-2])
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    else:
        importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)))
"""


def loaded(*modules: str) -> set[str]:
    """Top-level names outside the standard library that a fresh process loads to import the modules (`package.*`: all of it)."""
    done = subprocess.run(
        [sys.executable, "-c", WHAT_IS_LOADED, *modules], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return {name for name in json.loads(done.stdout) if not name.startswith("_")}


def test_the_import_contracts_are_kept(tmp_path: Path) -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--no-logo", "--cache-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_lister_sees() -> None:
    assert "numpy" in loaded("numpy")
    assert loaded("json") == set()


def test_the_contract_needs_pydantic_and_nothing_else() -> None:
    assert loaded("emberline_contract.*") <= PYDANTIC | {"emberline_contract"}


def test_the_core_needs_the_contract_and_nothing_else() -> None:
    assert loaded("emberline_runtime.core.*") <= PYDANTIC | {"emberline_contract", "emberline_runtime"}


@pytest.mark.parametrize(
    ("module", "own", "forbidden"),
    [
        ("emberline_operator.main", "emberline_operator", {"fastapi", "starlette"}),
        ("emberline_gateway.main", "emberline_gateway", {"kopf"}),
        ("emberline_local.commands", "emberline_local", {"kopf", "fastapi", "openai", "kubernetes"}),
    ],
)
def test_a_process_of_the_control_plane_loads_no_other_and_no_torch(module: str, own: str, forbidden: set[str]) -> None:
    names = loaded(module)
    assert {name for name in names if name.startswith("emberline_")} <= {own, "emberline_contract"}
    assert names & (HEAVY | forbidden) == set()


def test_the_engine_listens_before_it_imports_anything() -> None:
    assert loaded("emberline_runtime.cli") <= {"emberline_runtime", "emberline_contract"} | PYDANTIC - {"pydantic"}


def test_the_engine_serves_without_torch_until_its_executor_loads() -> None:
    names = loaded(
        "emberline_runtime.resolve",
        "emberline_runtime.server.process",
        "emberline_runtime.executors.registry",
        "emberline_runtime.executors.oracle",
        "emberline_runtime.models.*",
        "emberline_runtime.weights.*",
        "emberline_runtime.native",
    )
    assert {name for name in names if name.startswith("emberline_")} <= {"emberline_runtime", "emberline_contract"}
    forbidden = (HEAVY - {"tokenizers"}) | {"fastapi", "jinja2", "kubernetes", "kopf", "aiohttp", "openai"}
    assert names & forbidden == set()
