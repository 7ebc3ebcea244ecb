"""Runs in a process of its own, because a process has one kernel family: reads inputs, writes what the product gives.

`python native_family.py <inputs.npz> <outputs.npz>`: for each case, weights/<case> and x/<case> -> out/<case>, and alone/<case>
with every row multiplied in a call of its own. Both inputs end at a page that must not be touched.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from emberline_runtime import _native

if TYPE_CHECKING:
    import numpy.typing as npt

LIBC = ctypes.CDLL(None, use_errno=True)
PROT_NONE = 0
KEPT: list[mmap.mmap] = []


def before_a_forbidden_page(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy whose last byte is the last one before memory that kills the process that reads it."""
    size = -(-max(values.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    KEPT.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if LIBC.mprotect(ctypes.c_void_p(address + size), mmap.PAGESIZE, PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = np.frombuffer(memory, values.dtype, values.size, size - values.nbytes).reshape(values.shape)
    copy[...] = values
    return copy


def main() -> None:
    """Work through all cases."""
    inputs, outputs = np.load(sys.argv[1]), {}
    for case in sorted({name.partition("/")[2] for name in inputs}):
        weights, x = before_a_forbidden_page(inputs[f"weights/{case}"]), before_a_forbidden_page(inputs[f"x/{case}"])
        out = np.full(len(weights), np.nan, np.float32)
        _native.matvec(weights, x, out)
        alone = np.full(len(weights), np.nan, np.float32)
        for row in range(len(weights)):
            _native.matvec(weights[row : row + 1], x, alone[row : row + 1])
        outputs |= {f"out/{case}": out, f"alone/{case}": alone}
    np.savez(sys.argv[2], isa=np.array(_native.ISA), **outputs)


if __name__ == "__main__":
    main()
