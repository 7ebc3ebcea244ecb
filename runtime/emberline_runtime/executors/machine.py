"""What this process may use of the machine: threads and memory, from the affinity mask and the control groups (v1 and v2).

`observe_*` read files and nothing else; `decide_*` are pure.
"""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")

_V1_NO_LIMIT_BYTES = 1 << 60
"""Version 1 has no word for no limit: it shows a number near 2^63."""

_SPIN_COUNT = "1000"
"""Some 50 us. libgomp's default spins for milliseconds: on a shared CPU its threads then burn the time that the one they
wait for needs (measured beside busy neighbours: a 4 ms stretch of products took 400 ms, and 50 ms with this)."""


@dataclass(frozen=True, slots=True)
class MemoryAllowance:
    """How much memory there is for this process."""

    limit_bytes: int | None
    """The container's limit; None where there is none."""
    available_bytes: int
    """What the machine could give now without swapping."""


def observe_quota_cpus(root: Path = CGROUP_ROOT) -> float | None:
    """CPUs' worth of time that the control group may use; None where it is not limited."""
    quota, period = "", ""
    if text := _read(root / "cpu.max"):
        quota, _, period = text.partition(" ")
    elif text := _read(root / "cpu" / "cpu.cfs_quota_us"):
        quota, period = text, _read(root / "cpu" / "cpu.cfs_period_us")
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None  # "max" in version 2, -1 in version 1, or no control group
    return int(quota) / int(period)


def observe_memory(root: Path = CGROUP_ROOT, meminfo: Path = MEMINFO) -> MemoryAllowance:
    """The container's memory limit and the machine's available memory."""
    text = _read(root / "memory.max") or _read(root / "memory" / "memory.limit_in_bytes")
    limit_bytes = int(text) if text.isdecimal() and int(text) < _V1_NO_LIMIT_BYTES else None
    return MemoryAllowance(limit_bytes, _available_bytes(_read(meminfo)))


def decide_threads(num_affinity: int, quota_cpus: float | None) -> int:
    """Compute threads: no more than the CPUs we may run on, nor than the quota rounded up."""
    return max(1, num_affinity if quota_cpus is None else min(num_affinity, math.ceil(quota_cpus)))


def bound_spins(environ: MutableMapping[str, str]) -> None:
    """Bound how long OpenMP's threads spin for one another, unless the user has said how; before torch is imported."""
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def observe_threads() -> int:
    """Compute threads for this process on this machine."""
    return decide_threads(len(os.sched_getaffinity(0)), observe_quota_cpus())


def _available_bytes(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
