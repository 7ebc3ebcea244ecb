"""Children that must not outlive their parent, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from emberline_local.children import MARK, marked_pids, start_child, start_ticks, sweep

PARENT = """
import asyncio, os, sys
from pathlib import Path
from emberline_local.children import start_child
async def main():
    child = await start_child("c", ["sleep", "1000"], log=Path(sys.argv[1]) / "log", environ=os.environ)
    print(child.process.pid, flush=True)
    await child.process.wait()
asyncio.run(main())
"""


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_dies_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        # setpriv has set the signal once it has become the program.
        until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
        parent.kill()
    until(lambda: start_ticks(child) is None)


def test_a_sweep_ends_what_carries_the_mark_and_nothing_else(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine-too"
    environ = {**os.environ, MARK: str(mine)}
    # A grandchild in a session of its own, whose parent is gone.
    subprocess.run(["/bin/sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], env=environ, check=True)
    bystander = subprocess.Popen(["sleep", "1000"], env={**os.environ, MARK: str(other)})
    try:
        until(lambda: len(marked_pids(mine)) == 1)
        assert sweep(mine) == 1
        assert marked_pids(mine) == []
        assert sweep(mine) == 0
        assert marked_pids(other) == [bystander.pid]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_start_ticks_are_the_identity_of_a_running_process() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        ticks = start_ticks(process.pid)
        assert ticks is not None
        assert ticks >= (start_ticks(os.getpid()) or 0)
        process.kill()
        until(lambda: start_ticks(process.pid) is None)  # also while it is a zombie


async def test_a_child_that_takes_no_notice_of_sigterm_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    child = await start_child("deaf", ["/bin/sh", "-c", script], log=tmp_path / "log", environ=os.environ)
    until(lambda: child.log_tail() == "ready")
    await child.stop(grace_s=0.1)
    assert child.process.returncode == -signal.SIGKILL
    assert child.has_ended
