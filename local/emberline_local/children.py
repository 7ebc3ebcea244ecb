"""Programs that this process starts and that must not outlive it, and the sweep of those that did.

A child gets SIGKILL from the kernel when the *thread* that started it ends, so children are started from the event
loop's thread, which in this package is the main thread. What was started by a child is not covered by that; so each
carries a mark in its environment, which its own children inherit, and `sweep` ends whatever carries it. A process id alone
is never trusted: it may be another process's by now.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emberline_local.errors import ClusterError

MARK = "EMBERLINE_LOCAL_STATE"
"""Environment variable of everything that belongs to a cluster; its value is the cluster's state folder."""

_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
_LOG_TAIL_BYTES = 2000


@dataclass(slots=True)
class Child:
    """A running program and the file that its output goes to."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended."""
        return self.process.returncode is not None

    def log_tail(self) -> str:
        """The last lines that it wrote, for an error message."""
        data = self.log.read_bytes() if self.log.exists() else b""
        return data[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL if it has not ended after `grace_s`."""
        if self.has_ended:
            return
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), grace_s)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def start_child(name: str, argv: Sequence[str], *, log: Path, environ: Mapping[str, str]) -> Child:
    """Starts a program in a session of its own: a terminal's Ctrl-C is not for it."""
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *_DIE_WITH_PARENT,
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
    return Child(name, process, log)


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot: with its id, its identity. None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in brackets and may hold anything; the 22nd is the start.
    after_name = stat.rpartition(")")[2].split()
    return None if after_name[0] in "ZX" else int(after_name[19])


def marked_pids(state_dir: Path) -> list[int]:
    """Processes that carry the mark of `state_dir`, except this one."""
    entry = f"{MARK}={state_dir}".encode()
    pids = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _carries(pid, entry)]


def _carries(pid: int, entry: bytes) -> bool:
    try:
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return False


def kill_marked(state_dir: Path) -> set[int]:
    """Sends SIGKILL to every process that carries the mark; returns their ids.

    The mark is read again through a handle on the process, so a reused process id is never hit.
    """
    entry = f"{MARK}={state_dir}".encode()
    killed = set()
    for pid in marked_pids(state_dir):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _carries(pid, entry):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                killed.add(pid)
        except ProcessLookupError:
            continue
        finally:
            os.close(handle)
    return killed


def sweep(state_dir: Path, *, deadline_s: float = 10.0, pause_s: float = 0.02) -> int:
    """Ends what still runs of a cluster and waits until it is gone; returns how many processes there were.

    Only a second look that finds nothing proves it: a process may fork while it is being looked for, and one in the
    middle of an exec shows no environment for a moment. Raises ClusterError with the ids that stay.
    """
    killed = kill_marked(state_dir)
    until = time.monotonic() + deadline_s
    quiet_looks = 0
    while quiet_looks < 2:
        time.sleep(pause_s)
        remaining = kill_marked(state_dir)
        killed |= remaining
        quiet_looks = 0 if remaining else quiet_looks + 1
        if remaining and time.monotonic() > until:
            raise ClusterError(
                f"processes {sorted(remaining)} of {state_dir} have not ended {deadline_s:.0f} s after SIGKILL;"
                " look at what they wait for (`ps -o pid,stat,wchan,args`), then run `down` again"
            )
    return len(killed)
