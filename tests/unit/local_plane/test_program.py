"""Finding and building the control plane program, with a stand-in for Go that is as quick as a shell script."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from emberline_local import program
from emberline_local.errors import ProgramBuildError, ProgramMissingError

GO_MOD = """module emberline.dev/localplane

go 1.26.0

require (
\tk8s.io/kubernetes v1.37.2
\texample.org/a v1.0.0
)

replace k8s.io/api => k8s.io/api v0.37.2
"""

GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
case "$1" in
list) echo "go: downloading example.org/a v1.0.0" >&2; printf 'a\\nb\\n' ;;
build)
  echo a >&2
  while [ "$1" != -o ]; do shift; done
  printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
  [ -z "$GO_FAILS" ] || { echo "main.go:1:1: no" >&2; exit 1; }
  echo b >&2 ;;
esac
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "plane"
    folder.mkdir()
    (folder / "go.mod").write_text(GO_MOD)
    (folder / "go.sum").write_text("sum")
    (folder / "main.go").write_text("package main")
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    return {
        "PATH": f"{go.parent}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GO_CALLS": str(tmp_path / "calls"),
        "HOME": str(tmp_path),
    }


def silent(what: str, done: int, total: int) -> None:
    pass


def test_the_given_program_comes_first(source: Path, environ: dict[str, str], tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.touch(mode=0o755)
    assert program.ensure_program({**environ, "EMBERLINE_LOCALPLANE": str(given)}, silent, source) == given


def test_a_given_program_that_cannot_run_is_an_error_and_no_reason_to_build(
    source: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(ProgramMissingError, match=r"EMBERLINE_LOCALPLANE is .*missing, which is no program"):
        program.ensure_program({**environ, "EMBERLINE_LOCALPLANE": str(tmp_path / "missing")}, silent, source)


def test_it_is_built_once_with_progress_and_its_version(source: Path, environ: dict[str, str]) -> None:
    told: list[tuple[str, int, int]] = []
    built = program.ensure_program(environ, lambda *words: told.append(words), source)
    assert built.read_text().startswith("#!/bin/sh")
    assert program.ensure_program(environ, silent, source) == built == program.find_program(environ, source)
    calls = Path(environ["GO_CALLS"]).read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["list", "build"]
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in calls[1]
    assert "-X k8s.io/client-go/pkg/version.gitMinor=37" in calls[1]
    assert told[0] == ("downloading Go modules", 1, 2)
    assert told[-1] == ("compiling the control plane", 2, 2)


@pytest.mark.parametrize("changed", ["go.sum", "main.go"])
def test_a_changed_source_is_another_program(source: Path, environ: dict[str, str], changed: str) -> None:
    first = program.ensure_program(environ, silent, source)
    (source / changed).write_text("changed")
    assert program.find_program(environ, source) is None
    assert program.ensure_program(environ, silent, source) != first


def test_a_failed_build_says_why_and_leaves_no_program(source: Path, environ: dict[str, str]) -> None:
    with pytest.raises(ProgramBuildError, match=r"ended with code 1:\n(.*\n)*main.go:1:1: no"):
        program.ensure_program({**environ, "GO_FAILS": "1"}, silent, source)
    assert program.find_program(environ, source) is None
    left = [path for path in Path(environ["XDG_CACHE_HOME"]).rglob("*") if path.is_file()]
    assert left == []


def test_what_a_killed_build_left_goes_with_the_next(source: Path, environ: dict[str, str]) -> None:
    leftover = Path(environ["XDG_CACHE_HOME"]) / "emberline" / "localplane" / "unfinished-x" / "localplane"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    program.ensure_program(environ, silent, source)
    assert not leftover.parent.exists()


def test_two_at_once_build_once(source: Path, environ: dict[str, str]) -> None:
    threads = [threading.Thread(target=program.ensure_program, args=(environ, silent, source)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path(environ["GO_CALLS"]).read_text().count("build ") == 1


def test_without_go_it_says_what_to_install(source: Path, environ: dict[str, str], tmp_path: Path) -> None:
    without = {**environ, "PATH": str(tmp_path)}
    with pytest.raises(ProgramMissingError, match=r"install Go 1\.26 or newer .* or set EMBERLINE_LOCALPLANE"):
        program.ensure_program(without, silent, source)


def test_without_the_source_it_says_so(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ProgramMissingError, match="run from a checkout"):
        program.ensure_program(environ, silent, tmp_path)


def test_the_real_source_is_there() -> None:
    assert program.has_source()
    assert "gitVersion=v" in program.version_flags((program.SOURCE / "go.mod").read_text())
