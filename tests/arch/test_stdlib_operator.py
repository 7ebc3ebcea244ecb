"""The folder `operator/` must never be taken for the standard library's module `operator`, however Python is started."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
SOURCE_ROOTS = ["contract", "operator", "gateway", "node", "runtime", "local"]
PACKAGES = {f"emberline_{root}" for root in SOURCE_ROOTS}
# `collections` is what breaks first: it imports `operator` when nothing else has.
LOOK = "import operator, collections; print(operator.__file__)"


def python(*arguments: str, **environment: str) -> str:
    """What a Python started in the repository's root prints."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_under_pytest() -> None:
    assert Path(operator.__file__).resolve().parent == STDLIB


@pytest.mark.parametrize(
    "options", [[], ["-P"], ["-I"], ["-S"], ["-P", "-I", "-S"]], ids=lambda options: " ".join(options) or "plain"
)
def test_started_in_the_root(options: list[str]) -> None:
    assert Path(python(*options, "-c", LOOK).strip()).resolve().parent == STDLIB


def test_with_the_root_first_on_the_path() -> None:
    assert Path(python("-S", "-c", LOOK, PYTHONPATH=str(ROOT)).strip()).resolve().parent == STDLIB


def test_after_the_operator_was_imported() -> None:
    look = "import emberline_operator; " + LOOK
    assert Path(python("-c", look).strip()).resolve().parent == STDLIB


@pytest.mark.parametrize("how", ["python -m pytest", "pytest"])
def test_tests_in_a_folder_of_that_name(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "tests" / "unit" / "operator"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(
        f"def test_it():\n    import operator\n    assert operator.__file__.startswith({str(STDLIB)!r})\n"
    )
    command = ["-m", "pytest"] if how.startswith("python") else [str(Path(sys.executable).with_name("pytest"))]
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    assert "1 passed" in python(*command, *config, "-q", str(tmp_path))


def test_source_roots_are_no_packages() -> None:
    for root in SOURCE_ROOTS:
        assert list((ROOT / root).glob("*.py")) == [], (
            f"{root}/ is a source root: its modules belong into emberline_{root}/"
        )
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_wheel_holds_the_six_packages_and_nothing_else(tmp_path: Path) -> None:
    # Without CMake: the native module's place is below emberline_runtime, which the build of the environment proves.
    build = "import sys; from scikit_build_core.build import build_wheel; build_wheel(sys.argv[1], {'wheel.cmake': 'false'})"
    python("-c", build, str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    assert {name.parts[0] for name in names if not name.parts[0].endswith(".dist-info")} == PACKAGES
    assert {name.parts[0] for name in names if name.name == "py.typed"} == PACKAGES
    assert {name.suffix for name in names if name.parts[0] in PACKAGES} <= {
        ".py",
        ".pyi",
        ".typed",
        ".html",
        ".json",
        ".yaml",
    }


def test_the_list_of_packages_is_explicit() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["scikit-build"]["wheel"]["packages"] == [f"{root}/emberline_{root}" for root in SOURCE_ROOTS]
    assert sorted(project["tool"]["importlinter"]["root_packages"]) == sorted(PACKAGES)
    assert sorted(project["tool"]["mypy"]["packages"]) == sorted(PACKAGES)
