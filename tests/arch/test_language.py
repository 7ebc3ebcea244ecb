"""How the source is written, as far as a test can say it: sizes, names, and nothing of the machine it was written on."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ["contract", "operator", "gateway", "node", "runtime", "local"]
WRITTEN = [*PRODUCT, "tests", "bench", "scripts"]
LEFT_OUT = {"build", "dist", "node_modules", "results", "__pycache__"}
SOURCES = {".py", ".pyi", ".go", ".cpp", ".h"}
MAX_LINES, MAX_FUNCTION_LINES = 400, 60
# Tests are tables and traces, which read no better in pieces.
MAX_TEST_LINES, MAX_TEST_FUNCTION_LINES = 600, 80
# File -> why it is longer.
LONG_FILES: dict[str, str] = {}
# File::function -> why it is longer.
LONG_FUNCTIONS: dict[str, str] = {}
SHAPELESS = re.compile(r"utils?|helpers?|common|misc|stuff|manager")


def files() -> Iterator[Path]:
    """Every file that belongs to the project."""
    folders = [ROOT]
    while folders:
        for entry in folders.pop().iterdir():
            if entry.name in LEFT_OUT or (entry.name.startswith(".") and entry.name not in {".ci", ".gitignore"}):
                continue
            if entry.is_dir():
                folders.append(entry)
            elif not entry.is_symlink():
                yield entry


FILES = sorted(files())
PYTHON = [file for file in FILES if file.suffix == ".py"]


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def in_product(file: Path) -> bool:
    return file.relative_to(ROOT).parts[0] in PRODUCT


def test_there_is_something_to_look_at() -> None:
    assert len(PYTHON) > 100
    assert {file.relative_to(ROOT).parts[0] for file in PYTHON} >= set(PRODUCT)


def is_test(file: Path) -> bool:
    return file.relative_to(ROOT).parts[0] == "tests"


def test_files_are_short() -> None:
    lines = {file: len(file.read_text().splitlines()) for file in FILES if file.suffix in SOURCES}
    long = {
        name(file): number
        for file, number in lines.items()
        if number > (MAX_TEST_LINES if is_test(file) else MAX_LINES)
    }
    assert long.keys() == LONG_FILES.keys(), f"too long without a reason, or a reason without need: {long}"


def test_functions_are_short() -> None:
    long = {}
    for file in PYTHON:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > (MAX_TEST_FUNCTION_LINES if is_test(file) else MAX_FUNCTION_LINES):
                    long[f"{name(file)}::{node.name}"] = lines
    assert long.keys() == LONG_FUNCTIONS.keys(), f"too long without a reason, or a reason without need: {long}"


def test_modules_are_named_after_what_they_own() -> None:
    shapeless = [
        name(file)
        for file in FILES
        if any(SHAPELESS.fullmatch(Path(part).stem) for part in file.relative_to(ROOT).parts)
    ]
    assert shapeless == []


# Put together here so that this file does not hold what it looks for.
MACHINE_PATHS = re.compile(
    r"(?<![\w.$}])/(?:work|root|Users|mnt)/\w|(?<![\w.$}])/home/(?!x\b)\w|/tmp/\w*(?:plan|agent|bash)"
)


@pytest.mark.parametrize("text", ["/work/" + "main", " /root/" + "x", '"/home/' + 'anna/a"'])
def test_what_a_path_of_a_machine_looks_like(text: str) -> None:
    assert MACHINE_PATHS.search(text)


def test_nothing_names_a_path_of_a_machine() -> None:
    found = [
        f"{name(file)}:{number}: {line.strip()[:100]}"
        for file in FILES
        for number, line in enumerate(text_of(file).splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


def test_the_lock_names_no_registry() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert not re.search(r"^\s*--(?!hash=)", lock, re.MULTILINE)
    assert "index" not in (ROOT / "pyproject.toml").read_text().partition("[tool.uv]")[2].partition("\n\n")[0]


def test_nothing_is_left_to_do() -> None:
    marks = re.compile("|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")))
    assert [
        name(file) for file in FILES if file.suffix in SOURCES | {".md", ".yaml"} and marks.search(text_of(file))
    ] == []


def test_names_that_the_cluster_sees_come_from_the_contract() -> None:
    found = []
    for file in PYTHON:
        if not in_product(file) or file.relative_to(ROOT).parts[0] == "contract":
            continue
        tree = tree_of(file)
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{name(file)}:{node.lineno}: {node.value[:80]!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and re.search(r"emberline\.dev|vllm:|app\.kubernetes\.io/", node.value)
        ]
    assert found == []


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
