"""Where the output of containers lies: `<state>/logs/<namespace>_<pod>_<uid>/<container>/<restart>.log`, as a kubelet names it.

Output of a pod that is gone stays for a while, so that one can still read why it went.
"""

from __future__ import annotations

import os
from pathlib import Path


def log_path(state_dir: Path, *, namespace: str, pod: str, uid: str, container: str, restart: int) -> Path:
    """File of one run of a container. `state_dir` is the cluster's."""
    return state_dir / "logs" / f"{namespace}_{pod}_{uid}" / container / f"{restart}.log"


def find_logs(state_dir: Path, *, namespace: str, pod: str, container: str | None = None) -> list[Path]:
    """Files of a pod's runs, oldest first; of all namesakes that are still kept, and of all containers if none is named."""
    pattern = f"{namespace}_{pod}_*/{container or '*'}/*.log"
    return sorted((state_dir / "logs").glob(pattern), key=lambda path: path.stat().st_mtime)


def tail(path: Path, *, num_bytes: int) -> str:
    """The end of a file, from a line's beginning; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - num_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return text if size <= num_bytes else text.partition("\n")[2]
