"""`up` and `down` from the launcher's side: start the supervisor and follow its start; stop what a cluster left."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping

from emberline_local.children import MARK, marked_pids, sweep
from emberline_local.errors import ClusterError, ClusterStateError
from emberline_local.events import KEEP, Event, EventKind, read_event
from emberline_local.options import ClusterOptions
from emberline_local.record import ClusterFolder, Phase, Record

_STOP_GRACE_S = 60.0


def up(
    folder: ClusterFolder, options: ClusterOptions, environ: Mapping[str, str], show: Callable[[Event], None]
) -> Record:
    """The record of a ready cluster: the running one if it was asked for the same, else a new one.

    Raises ClusterStateError if another one of that name is up, ClusterError if this one does not come up (its logs
    stay), and on Ctrl-C leaves nothing.
    """
    with folder.locked(lambda: show(Event(EventKind.STEP, "waiting for another `up` or `down` of this cluster"))):
        record = folder.read_record()
        if record is not None and record.is_alive and record.phase is Phase.READY:
            _refuse_other(folder, options)
            return record
        # What an earlier start or a killed supervisor left.
        sweep(folder.path)
        folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.clear()
        folder.write_options(options)
        _start(folder, environ, show)
        ready = folder.read_record()
        assert ready is not None
        return ready


def _refuse_other(folder: ClusterFolder, options: ClusterOptions) -> None:
    running = folder.read_options()
    if running != options:
        names = [name for name in ClusterOptions.__slots__ if getattr(running, name) != getattr(options, name)]
        raise ClusterStateError(
            f"cluster {folder.path.name!r} is up already, with other options ({', '.join(names)});"
            f" take it down first (`emberline-local down --name {folder.path.name}`), or choose another --name"
        )


def _start(folder: ClusterFolder, environ: Mapping[str, str], show: Callable[[Event], None]) -> None:
    with folder.log.open("ab") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-P", "-m", "emberline_local.supervisor", str(folder.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**environ, MARK: str(folder.path)},
            cwd="/",
            start_new_session=True,
            text=True,
        )
    assert supervisor.stdout is not None
    assert supervisor.stdin is not None
    try:
        for line in supervisor.stdout:
            event = read_event(line)
            if event.kind is EventKind.FAILED:
                raise ClusterError(
                    f"{event.text}\nthe logs are in {folder.path};"
                    f" `emberline-local down --name {folder.path.name}` removes them"
                )
            show(event)
            if event.kind is EventKind.READY:
                supervisor.stdin.write(KEEP)
                supervisor.stdin.close()
                return
        raise _died(folder, supervisor)
    except KeyboardInterrupt:
        supervisor.terminate()
        _end(supervisor)
        sweep(folder.path)
        folder.remove()
        raise
    except BaseException:
        supervisor.stdin.close()
        _end(supervisor)
        sweep(folder.path)
        raise
    finally:
        supervisor.stdout.close()


def _died(folder: ClusterFolder, supervisor: subprocess.Popen[str]) -> ClusterError:
    code = supervisor.wait()
    if not folder.log.exists():
        return ClusterError("the cluster was taken down while it was being started")
    tail = folder.log.read_text(errors="replace")[-2000:].strip()
    return ClusterError(
        f"the supervisor ended with code {code} in mid-start; everything it had started is stopped."
        f" The end of {folder.log}:\n{tail}"
    )


def down(folder: ClusterFolder) -> bool:
    """Stops a cluster, or what is left of one, and removes its folder; False if there was nothing."""
    record = folder.read_record()
    if record is None and not folder.path.exists() and not marked_pids(folder.path):
        return False
    if record is not None and record.is_alive:
        # Before the lock: an `up` that is still at work holds it until its supervisor is gone.
        _stop_supervisor(record)
    with folder.locked():
        sweep(folder.path)
        folder.remove()
    return True


def _stop_supervisor(record: Record) -> None:
    try:
        handle = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return
    try:
        if record.is_alive:  # still, and with the handle it stays the same process
            signal.pidfd_send_signal(handle, signal.SIGTERM)
            select.select([handle], [], [], _STOP_GRACE_S)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _end(supervisor: subprocess.Popen[str]) -> None:
    """Waits until the supervisor, which knows that it is to end, has done so."""
    try:
        supervisor.wait(_STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()
