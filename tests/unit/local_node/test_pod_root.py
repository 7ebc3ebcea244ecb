"""The root of a container, made for real, as whoever runs the tests and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from emberline_local import pod_root

NOBODY = 65534


@dataclass(frozen=True)
class Starter:
    """Starts containers as some user; `folder` is that user's."""

    prefix: tuple[str, ...]
    folder: Path

    def command(self, *program: str, mounts: tuple[tuple[str, Path, str], ...] = (), parent: int = 0) -> list[str]:
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        parts = [part for mode, source, target in mounts for part in (mode, str(source), target)]
        script = str(self.folder / "pod_root.py")
        return [*self.prefix, "-I", "-S", script, str(parent or os.getpid()), str(root), "/", *parts, "--", *program]

    def run(self, *program: str, mounts: tuple[tuple[str, Path, str], ...] = ()) -> subprocess.CompletedProcess[str]:
        command = self.command(*program, mounts=mounts)
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture(params=["this user", "an ordinary user"])
def starter(request: pytest.FixtureRequest) -> Iterator[Starter]:
    # A folder that other users can enter, which pytest's own is not.
    folder = Path(tempfile.mkdtemp(prefix="emberline-root-"))
    try:
        shutil.copy(pod_root.__file__, folder)
        prefix: tuple[str, ...] = (sys.executable,)
        if request.param == "an ordinary user":
            if os.geteuid() != 0:
                pytest.skip("this user is an ordinary one already")
            python = next(
                (path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.access(path, os.X_OK)), ""
            )
            if not python:
                pytest.skip("other users have no Python here: there is none in /usr/bin or /usr/local/bin")
            prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--", python)
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0o755)
        found = Starter(prefix, folder)
        tried = found.run("true")
        if tried.returncode == 125:
            pytest.skip(f"this machine does not let {request.param} make a root: {tried.stderr.strip()}")
        yield found
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def volume(starter: Starter) -> Path:
    folder = starter.folder / "volume"
    folder.mkdir()
    (folder / "file").write_text("content\n")
    folder.chmod(0o777)
    return folder


@pytest.mark.parametrize("target", ["/models", "/etc/emberline", "/var/run/secrets/x/y", "/usr/share/new/deep", "/tmp"])
def test_volume_is_seen_where_it_is_wanted_and_nowhere_on_the_host(starter: Starter, volume: Path, target: str) -> None:
    before = sorted(Path("/").iterdir()), sorted(Path("/etc").iterdir())
    done = starter.run("cat", f"{target}/file", "/etc/passwd", mounts=(("rw", volume, target),))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "content\n" + Path("/etc/passwd").read_text()
    assert (sorted(Path("/").iterdir()), sorted(Path("/etc").iterdir())) == before
    assert not any(str(starter.folder) in line for line in Path("/proc/self/mountinfo").read_text().splitlines())


def test_only_what_is_writable_can_be_written(starter: Starter, volume: Path) -> None:
    text = "touch /a/new && ! touch /b/no 2>/dev/null && ! sh -c 'echo x > /b/file' 2>/dev/null"
    done = starter.run("sh", "-c", text, mounts=(("rw", volume, "/a"), ("ro", volume, "/b")))
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in volume.iterdir()) == ["file", "new"]


def test_volume_may_lie_in_another_and_single_files_are_fine(starter: Starter, volume: Path) -> None:
    outer = starter.folder / "outer"
    outer.mkdir()
    outer.chmod(0o777)
    mounts = (("rw", outer, "/data"), ("ro", volume, "/data/inner"), ("ro", volume / "file", "/etc/one-file"))
    done = starter.run("cat", "/data/inner/file", "/etc/one-file", mounts=mounts)
    assert (done.returncode, done.stdout) == (0, "content\ncontent\n"), done.stderr


def test_environment_user_and_exit_code_are_the_programs(starter: Starter) -> None:
    user = NOBODY if starter.prefix[0] == "setpriv" else os.geteuid()
    done = starter.run("sh", "-c", "id -u; exit 7")
    assert (done.returncode, done.stdout) == (7, f"{user}\n")


def test_term_reaches_the_program_itself(starter: Starter) -> None:
    program = ("bash", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.02; done")
    with subprocess.Popen(starter.command(*program), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 9


def test_a_root_that_cannot_be_made_is_told(starter: Starter) -> None:
    done = starter.run("true", mounts=(("rw", starter.folder / "absent", "/x"),))
    assert done.returncode == 125
    assert "absent" in done.stderr


def test_a_program_that_is_not_there_is_told(starter: Starter) -> None:
    done = starter.run("/no/such/program")
    assert done.returncode == 127
    assert "/no/such/program" in done.stderr


def test_program_ends_with_the_process_that_started_it(starter: Starter) -> None:
    # The shell stands for a node that is killed: its child must not survive it.
    ready = starter.folder / "up"
    ready.touch()
    ready.chmod(0o666)
    command = starter.command("sh", "-c", f"echo $$ > {ready}; exec sleep 1000", parent=-1)
    at = command.index("-1")
    quoted = " ".join(f"'{part}'" if index != at else "$$" for index, part in enumerate(command))
    with subprocess.Popen(["sh", "-c", f"{quoted} & wait"]) as node:
        until_s = time.monotonic() + 20
        while not (text := ready.read_text().strip()):
            assert time.monotonic() < until_s, "the program did not start"
            time.sleep(0.02)
        pid = int(text)
        node.kill()
    until_s = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < until_s, "the program outlived its node"
        time.sleep(0.02)
