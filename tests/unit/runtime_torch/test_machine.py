from __future__ import annotations

from pathlib import Path

import pytest

from emberline_runtime.executors.machine import (
    MemoryAllowance,
    bound_spins,
    decide_threads,
    observe_memory,
    observe_quota_cpus,
)

MEMINFO = "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n"


def write_files(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, None),
        ({"cpu.max": "50000 0\n"}, None),
        ({}, None),
    ],
)
def test_quota_of_both_versions(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    assert observe_quota_cpus(write_files(tmp_path, files)) == cpus


@pytest.mark.parametrize(
    ("files", "limit_bytes"),
    [
        ({"memory.max": "2147483648\n"}, 2 << 30),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "1073741824\n"}, 1 << 30),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)
def test_memory_limit_of_both_versions(tmp_path: Path, files: dict[str, str], limit_bytes: int | None) -> None:
    root = write_files(tmp_path, {**files, "meminfo": MEMINFO})
    assert observe_memory(root, root / "meminfo") == MemoryAllowance(limit_bytes, 8_000_000 * 1024)


@pytest.mark.parametrize(
    ("num_affinity", "quota", "threads"), [(8, None, 8), (8, 2.0, 2), (8, 2.1, 3), (2, 7.5, 2), (4, 0.2, 1)]
)
def test_threads_are_the_lesser_of_affinity_and_quota(num_affinity: int, quota: float | None, threads: int) -> None:
    assert decide_threads(num_affinity, quota) == threads


def test_spins_are_bounded_unless_the_user_said_how() -> None:
    plain: dict[str, str] = {}
    bound_spins(plain)
    assert int(plain["GOMP_SPINCOUNT"]) <= 2000
    for own in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}):
        environ = dict(own)
        bound_spins(environ)
        assert environ == own
