"""Reading what a cluster's containers and its own programs write."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from emberline_contract import names
from emberline_local.errors import ClusterStateError
from emberline_local.pod_logs import find_logs
from emberline_local.record import ClusterFolder

PLANE_PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
SYSTEM_PODS = {"operator": names.OPERATOR_NAME, "gateway": names.GATEWAY_NAME}
_POLL_S = 0.2


def find(folder: ClusterFolder, what: str, namespace: str | None, container: str | None) -> list[Path]:
    """Log files, oldest first, of `operator`, `gateway`, a pod (`NAMESPACE/POD` or `POD`), `supervisor` or a program of
    the control plane. Raises ClusterStateError with what there is if there is no such log.
    """
    if what == "supervisor":
        return [folder.log]
    if what in PLANE_PROGRAMS:
        return [folder.plane_dir / f"{what}.log"]
    if what in SYSTEM_PODS:
        files = find_logs(
            folder.path, namespace=names.SYSTEM_NAMESPACE, pod=f"{SYSTEM_PODS[what]}-*", container=container
        )
    else:
        given, _, pod = what.rpartition("/")
        files = find_logs(folder.path, namespace=given or namespace or "default", pod=pod, container=container)
    if not files:
        known = [*SYSTEM_PODS, "supervisor", *PLANE_PROGRAMS, *_pods(folder)]
        raise ClusterStateError(f"there is no log of {what}; there are: {', '.join(known)}")
    return files


def _pods(folder: ClusterFolder) -> list[str]:
    """NAMESPACE/POD of every pod that has written something."""
    split = (path.name.rsplit("_", 1)[0].partition("_") for path in (folder.path / "logs").glob("*_*_*"))
    return sorted({f"{namespace}/{pod}" for namespace, _, pod in split})


def show(files: Callable[[], list[Path]], output: BinaryIO = sys.stdout.buffer, *, follow: bool) -> None:
    """Writes the files one after the other, with a heading where there are several; with `follow` whatever is added to
    them and to new ones, until Ctrl-C.
    """
    offsets: dict[Path, int] = {}
    shown: Path | None = None
    while True:
        for path in files():
            for block in _news(path, offsets):
                if path != shown and (shown is not None or len(offsets) > 1):
                    output.write(f"==> {path.parent.name}/{path.name} <==\n".encode())
                shown = path
                output.write(block)
        output.flush()
        if not follow:
            return
        time.sleep(_POLL_S)


def _news(path: Path, offsets: dict[Path, int]) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offsets.setdefault(path, 0))
            while block := file.read(1 << 16):
                offsets[path] += len(block)
                yield block
    except FileNotFoundError:  # a pod's logs go some time after it
        return
