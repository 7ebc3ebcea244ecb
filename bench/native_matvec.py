"""The bf16 matrix-vector product against a raw read of the same bytes, one thread, both in turn in one run.

The last line is JSON; the exit code is 1 if the best kernel family reaches less than 0.6 of the raw read.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

GOAL = 0.6
ROWS, COLUMNS = 1 << 17, 1 << 10  # 256 MiB: no cache holds them
ROUNDS = 15


def measure() -> dict[str, Any]:
    """The family of this process: bytes per second of both, and the ratio of each round."""
    import numpy as np

    from emberline_runtime import _native

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    weights = np.full((ROWS, COLUMNS), 0x3F80, np.uint16)
    flat = weights.reshape(-1)
    out = np.zeros(ROWS, np.float32)
    inputs = {"bf16": np.full(COLUMNS, 0x3F80, np.uint16), "fp32": np.ones(COLUMNS, np.float32)}

    def seconds(call: Any) -> float:
        begin = time.thread_time()
        call()
        return time.thread_time() - begin

    times: dict[str, list[float]] = {"raw": [], **{kind: [] for kind in inputs}}
    for _ in range(ROUNDS):
        times["raw"].append(seconds(lambda: _native.read_stream(flat)))
        for kind, x in inputs.items():
            times[kind].append(seconds(lambda x=x: _native.matvec(weights, x, out)))
    assert (out == COLUMNS).all()
    result: dict[str, Any] = {"isa": _native.ISA}
    for kind, taken in times.items():
        result[f"{kind}_gb_s"] = round(weights.nbytes / statistics.median(taken) / 1e9, 2)
    for kind in inputs:
        ratios = [raw / own for raw, own in zip(times["raw"], times[kind], strict=True)]
        result[f"{kind}_of_raw"] = round(statistics.median(ratios), 3)
    return result


def main() -> int:
    """Measure each family in a process of its own; judge the best one."""
    if "--one" in sys.argv:
        print(json.dumps(measure()))
        return 0
    from emberline_runtime.native import refusals

    if reasons := refusals():
        print("; ".join(reasons), file=sys.stderr)
        return 1
    from emberline_runtime import _native

    families = []
    for isa in _native.SUPPORTED_ISAS:
        done = subprocess.run(
            [sys.executable, __file__, "--one"],
            env=os.environ | {"EMBERLINE_NATIVE_ISA": isa},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        families.append(json.loads(done.stdout))
        print(
            "{isa:12} raw {raw_gb_s:6.2f} GB/s   x in bf16 {bf16_gb_s:6.2f} GB/s = {bf16_of_raw:.2f}"
            "   x in fp32 {fp32_gb_s:6.2f} GB/s = {fp32_of_raw:.2f}".format(**families[-1])
        )
    best = families[0]["bf16_of_raw"]
    print(
        json.dumps({"bench": "native_matvec", "of_raw": best, "goal": GOAL, "ok": best >= GOAL, "families": families})
    )
    return 0 if best >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
