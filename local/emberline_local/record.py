"""The state folder of one cluster: who supervises it, what it was asked to be, and the lock of whoever changes that.

options.json      what `up` was asked for
supervisor.json   the supervisor's identity, the phase that it is in, and what it offers
supervisor.log    plane/    nodes/
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from emberline_local.children import start_ticks
from emberline_local.errors import ClusterStateError
from emberline_local.plane_flags import ADMIN

if TYPE_CHECKING:
    from emberline_local.options import ClusterOptions  # pydantic, which most commands have no use for


class Phase(StrEnum):
    """Where a cluster's supervisor stands."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What a supervisor says of itself."""

    pid: int
    start_ticks: int
    phase: Phase
    program: str
    """Path of the control plane program, kubectl included."""
    urls: dict[str, str] = field(default_factory=dict)
    """Service name -> base URL on this machine."""
    message: str = ""
    """With `failed`: why."""

    @property
    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return start_ticks(self.pid) == self.start_ticks


class ClusterFolder:
    """Paths and records of one cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def plane_dir(self) -> Path:
        """State of the control plane."""
        return self.path / "plane"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.plane_dir / f"{ADMIN}.kubeconfig"

    @property
    def log(self) -> Path:
        """Log of the supervisor: nodes, forwards and itself."""
        return self.path / "supervisor.log"

    def read_record(self) -> Record | None:
        """The supervisor's record, or None where there is none (yet)."""
        try:
            raw = json.loads((self.path / "supervisor.json").read_bytes())
        except FileNotFoundError:
            return None
        return Record(**{**raw, "phase": Phase(raw["phase"])})

    def write_record(self, record: Record) -> None:
        """Replaces the record; a reader sees the old or the new one."""
        self._replace("supervisor.json", json.dumps(asdict(record)).encode())

    def read_options(self) -> ClusterOptions:
        """What `up` was asked for."""
        from emberline_local.options import read_options

        return read_options((self.path / "options.json").read_bytes())

    def write_options(self, options: ClusterOptions) -> None:
        """What `up` is asked for."""
        from emberline_local.options import write_options

        self._replace("options.json", write_options(options))

    def running(self) -> Record:
        """The record of a ready cluster. Raises ClusterStateError with what to do if it is in another state."""
        name, record = self.path.name, self.read_record()
        if record is None:
            raise ClusterStateError(f"no cluster {name!r} is up; start it with `emberline-local up --name {name}`")
        if not record.is_alive:
            raise ClusterStateError(
                f"the supervisor of cluster {name!r} is gone{': ' + record.message if record.message else ''};"
                f" `emberline-local down --name {name}` removes what is left, `up` starts it anew"
            )
        if record.phase is not Phase.READY:
            raise ClusterStateError(f"cluster {name!r} is {record.phase}; try again in a few seconds")
        return record

    @contextmanager
    def locked(self, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Holds the (made) folder: one `up` or `down` at a time. A crash lets go of it; removing the folder does not.

        `on_wait` is called if another one holds it.
        """
        while True:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue  # removed in between
            try:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    on_wait()
                    fcntl.flock(handle, fcntl.LOCK_EX)
                if not self._is_still(handle):
                    continue  # whoever held it removed the folder
                yield
                return
            finally:
                os.close(handle)

    def _is_still(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self.path.stat())
        except FileNotFoundError:
            return False

    def clear(self) -> None:
        """Removes what is in the folder, and keeps it (and so its lock)."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove(self) -> None:
        """Removes the folder, and the one above it if it was the last cluster's."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self.path)
        with suppress(OSError):  # other clusters are there
            self.path.parent.rmdir()

    def _replace(self, name: str, data: bytes) -> None:
        new = self.path / f".{name}.new"
        new.write_bytes(data)
        new.replace(self.path / name)
