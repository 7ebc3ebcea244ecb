# Types of the module that CMake builds from runtime/native.

from typing import Any, Protocol

from typing_extensions import Buffer

class _DLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

ISA: str
"""The kernel family that this process uses."""
SUPPORTED_ISAS: tuple[str, ...]
"""The families that this processor can run, best first."""

# weights [n, k]: bf16 by DLPack, or uint16 with its bits; x [k]: the same or float32; out [n]: float32.
def matvec(weights: Buffer | _DLPack, x: Buffer | _DLPack, out: Buffer | _DLPack) -> None: ...

# The sum of the 8-byte words modulo 2**64: reads every byte once, to measure memory by.
def read_stream(array: Buffer | _DLPack) -> int: ...
