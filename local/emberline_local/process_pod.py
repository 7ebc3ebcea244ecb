"""Containers as local processes: start one in a root of its own, watch it, stop it, and find what an earlier node left.

Start only from the main thread: the kernel kills a container when the *thread* that started it ends (PDEATHSIG).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POD_ROOT = str(Path(__file__).with_name("pod_root.py"))

ENV_POD_MARK = "EMBERLINE_LOCAL_POD"
"""In the environment of every process of a pod: `<pod uid>/<container>`, by which stray children are found and killed."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of the host and where the container sees it."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class ContainerCommand:
    """Everything that starting a container needs."""

    mark: str
    """`<pod uid>/<container>`."""
    arguments: Sequence[str]
    environment: Mapping[str, str]
    mounts: Sequence[Mount]
    root: Path
    """An existing empty folder: the mount point of the container's root inside its own mount namespace."""
    log: Path
    working_dir: str = "/"


class ContainerProcess:
    """A started container. Its process id is the program's, not a wrapper's."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Exit code as a kubelet tells it: 128 + n for signal n. Not to be cancelled: wait with `asyncio.wait`."""
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """The program has ended (its children may not have)."""
        return self.exited.done()

    def terminate(self) -> None:
        """Ask the program, and only it, to end."""
        if not self.has_exited:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the program and its process group."""
        if not self.has_exited:
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # A container ends with its first program. Until that is reaped, its number cannot be another group's.
        self._kill_group()
        code = self._process.wait()
        self.exited.set_result(code if code >= 0 else 128 - code)


def start_container(command: ContainerCommand) -> ContainerProcess:
    """Start it; returns as soon as its first program (`pod_root`) runs. Raises OSError."""
    assert threading.current_thread() is threading.main_thread(), "PDEATHSIG follows the thread"
    mounts = [part for m in command.mounts for part in ("ro" if m.read_only else "rw", m.source, m.target)]
    before = (sys.executable, "-I", "-S", _POD_ROOT, str(os.getpid()), str(command.root), command.working_dir)
    with command.log.open("ab") as log:
        process = subprocess.Popen(
            [*before, *mounts, "--", *command.arguments],
            env={**command.environment, ENV_POD_MARK: command.mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return ContainerProcess(process)


def enter_command(pid: int, arguments: Sequence[str]) -> list[str]:
    """A command line that runs `arguments` inside the root of a running container."""
    user = () if os.geteuid() == 0 else ("--user", "--preserve-credentials")
    return ["nsenter", "--target", str(pid), *user, "--mount", "--root", "--wd", "--", *arguments]


def kill_strays(marks: Collection[str]) -> int:
    """Kill every process of this user that carries one of these marks, a pod's uid or `<uid>/<container>`; how many.

    Children that left their parent's group or session, and what a killed node left behind, are found by the mark in
    their environment. It names a pod's uid, so that a process number that was reused cannot be hit.
    """
    wanted = {f"{ENV_POD_MARK}={mark}".encode() for mark in marks}
    num_killed = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:  # noqa: PTH123 - hundreds of them at a time
                variables = file.read().split(b"\0")
            found = [line for line in variables if line.startswith(ENV_POD_MARK.encode())]
            if any(line in wanted or line.partition(b"/")[0] in wanted for line in found):
                os.kill(int(entry.name), signal.SIGKILL)
                num_killed += 1
        except OSError:
            continue  # gone, or another user's
    return num_killed
