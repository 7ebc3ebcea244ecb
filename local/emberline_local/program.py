"""The control plane program: given by EMBERLINE_LOCALPLANE, else cached, else built from `local/plane` with Go."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from emberline_local.errors import ProgramBuildError, ProgramMissingError
from emberline_local.folders import cache_dir

ENV_PROGRAM = "EMBERLINE_LOCALPLANE"
"""Path of a ready control plane program; nothing is built then."""

SOURCE = Path(__file__).resolve().parents[1] / "plane"
"""The Go module, in a checkout of the project."""

_SOURCE_FILES = ("go.mod", "go.sum", "main.go")
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_BUILD_FLAGS = ("-trimpath", "-buildvcs=false", "-tags", "providerless")
_UNFINISHED = "unfinished-"

Report = Callable[[str, int, int], None]
"""Told of progress: what is being done, how much is done, how much there is (0: not known)."""


def find_program(environ: Mapping[str, str], source: Path = SOURCE) -> Path | None:
    """The given or cached program, or None where it would have to be built.

    Raises ProgramMissingError if EMBERLINE_LOCALPLANE names something that cannot be run.
    """
    given = environ.get(ENV_PROGRAM)
    if given:
        path = Path(given).absolute()
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise ProgramMissingError(
                f"{ENV_PROGRAM} is {given}, which is no program that can be run; unset or correct it"
            )
        return path
    if not has_source(source):
        return None
    cached = cached_path(environ, source)
    return cached if cached.is_file() else None


def ensure_program(environ: Mapping[str, str], report: Report, source: Path = SOURCE) -> Path:
    """The program, built and cached if there is none yet (5 to 10 minutes on two cores).

    Raises ProgramMissingError where there is nothing to build it with, and ProgramBuildError with the compiler's words.
    """
    found = find_program(environ, source)
    if found is not None:
        return found
    reason = why_not_buildable(environ, source)
    if reason is not None:
        raise ProgramMissingError(reason)
    target = cached_path(environ, source)
    with _locked(target.parent):
        if not target.is_file():  # else another process built it while this one waited
            # Whoever began these was killed: nobody else is at work while we hold the lock.
            for leftover in target.parent.parent.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(leftover)
            _build(environ, source, target, report)
    return target


def why_not_buildable(environ: Mapping[str, str], source: Path = SOURCE) -> str | None:
    """What is missing for a build, and the remedy; None if nothing is."""
    if not has_source(source):
        return (
            f"there is no control plane program, and its source is not at {source}: run from a checkout of the"
            f" project, or set {ENV_PROGRAM} to a built program"
        )
    if shutil.which("go", path=environ.get("PATH")) is None:
        return (
            f"there is no control plane program yet, and no Go to build it with: install Go {_go_version(source)} or"
            f" newer (https://go.dev/dl/) so that `go` is on PATH, or set {ENV_PROGRAM} to a built program"
        )
    return None


def has_source(source: Path = SOURCE) -> bool:
    """Whether the Go module is there (it is in a checkout, not in an installed wheel)."""
    return all((source / name).is_file() for name in _SOURCE_FILES)


def cached_path(environ: Mapping[str, str], source: Path = SOURCE) -> Path:
    """Where the program built from this source is kept: named by the hash of what it is built from."""
    digest = hashlib.sha256()
    for name in _SOURCE_FILES:
        digest.update((source / name).read_bytes())
    return cache_dir(environ) / "localplane" / digest.hexdigest()[:16] / "localplane"


def version_flags(go_mod: str) -> str:
    """The linker flags that put the Kubernetes version of go.mod into what the programs say of themselves."""
    match = re.search(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)", go_mod, re.MULTILINE)
    if match is None:
        raise ProgramBuildError("local/plane/go.mod requires no k8s.io/kubernetes; restore the file")
    version, major, minor = match.groups()
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "localplane",
    }
    settings = [f"-X {package}.{key}={value}" for package in _VERSION_PACKAGES for key, value in values.items()]
    return " ".join(["-s -w", *settings])


def _go_version(source: Path) -> str:
    match = re.search(r"^go (\d+\.\d+)", (source / "go.mod").read_text(), re.MULTILINE)
    return match.group(1) if match else "(see go.mod)"


def _build(environ: Mapping[str, str], source: Path, target: Path, report: Report) -> None:
    # Go's own defaults, whatever the user has set for other projects.
    env = {**environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    num_modules = len(re.findall(r"^\s+\S+ v\S+", (source / "go.mod").read_text().split("replace")[0], re.MULTILINE))
    num_seen = 0
    packages: set[str] = set()
    for line in _lines(["go", "list", "-deps", "-tags", "providerless", "."], source, env):
        if line.startswith("go: downloading "):
            num_seen += 1
            report("downloading Go modules", min(num_seen, num_modules), num_modules)
        else:
            packages.add(line)
    num_built = 0
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix=_UNFINISHED) as folder:
        output = Path(folder) / target.name
        flags = version_flags((source / "go.mod").read_text())
        argv = ["go", "build", "-v", *_BUILD_FLAGS, "-ldflags", flags, "-o", str(output), "."]
        for line in _lines(argv, source, env):
            # `-v` names each package as it is compiled, and none that the Go cache already has.
            num_built += line in packages
            report("compiling the control plane", num_built, len(packages))
        report("compiling the control plane", len(packages), len(packages))
        target.parent.mkdir(exist_ok=True)
        output.replace(target)


def _lines(argv: list[str], cwd: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Both outputs of a Go command, line by line. Raises ProgramBuildError with the last of them if it fails."""
    tail: deque[str] = deque(maxlen=20)
    with subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                yield line.strip()
        except BaseException:  # Ctrl-C: the compiler ends with us
            process.terminate()
            raise
    if process.returncode != 0:
        raise ProgramBuildError(
            f"`{' '.join(argv[:2])}` in {cwd} ended with code {process.returncode}:\n" + "\n".join(tail)
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder above `folder` for one builder at a time; a crash lets go of it."""
    base = folder.parent
    base.mkdir(parents=True, exist_ok=True)
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
