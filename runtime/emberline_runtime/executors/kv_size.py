"""How many KV blocks an executor gets, and the longest sequence that follows. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_runtime.errors import StartRefused
from emberline_runtime.executors.machine import MemoryAllowance

LIMITED_FRACTION = 0.8
"""Of a container's limit, after weights and reserve."""
UNLIMITED_FRACTION = 0.25
"""Of the machine's available memory where no limit says that it is ours."""
UNLIMITED_MAX_BYTES = 2 << 30
RESERVE_BYTES = 768 << 20
"""For the interpreter, libraries, activations and the server."""


class KvTooSmallError(StartRefused):
    """The memory does not hold one useful sequence."""


@dataclass(frozen=True, slots=True)
class KvNeed:
    """What the model and the configuration ask for."""

    block_bytes: int
    """All layers, keys and values."""
    block_tokens: int
    max_positions: int
    """The model's own limit."""
    max_model_len: int | None
    """The configured limit."""
    max_sequences: int


@dataclass(frozen=True, slots=True)
class KvSize:
    """The decision, with the sentence that explains it."""

    num_blocks: int
    max_model_len: int
    why: str


def decide_cpu_budget_bytes(memory: MemoryAllowance, weights_bytes: int) -> int:
    """Bytes for the KV cache where none are configured. `weights_bytes` are those that memory still has to hold."""
    if memory.limit_bytes is None:
        return min(UNLIMITED_MAX_BYTES, int(UNLIMITED_FRACTION * max(0, memory.available_bytes - weights_bytes)))
    usable = min(memory.limit_bytes, memory.available_bytes) - weights_bytes - RESERVE_BYTES
    return int(LIMITED_FRACTION * max(0, usable))


def decide_kv_size(need: KvNeed, budget_bytes: int, configured_bytes: int | None) -> KvSize:
    """Blocks within the configured bytes, else within the budget, and never more than all sequences at full length use."""
    wanted_len = min(need.max_positions, need.max_model_len or need.max_positions)
    useful_blocks = need.max_sequences * -(-wanted_len // need.block_tokens)
    given_bytes = budget_bytes if configured_bytes is None else configured_bytes
    num_blocks = min(given_bytes // need.block_bytes, useful_blocks)
    if num_blocks < 1:
        raise KvTooSmallError(
            f"the KV cache may have {given_bytes} bytes and one block of {need.block_tokens} tokens needs "
            f"{need.block_bytes}; raise the memory limit of the pod or set engine.kvCache"
        )
    max_model_len = min(wanted_len, num_blocks * need.block_tokens)
    bound = "kvCache" if configured_bytes is not None else "the memory budget"
    why = (
        f"{num_blocks} blocks of {need.block_tokens} tokens, {num_blocks * need.block_bytes >> 20} MiB of "
        f"{given_bytes >> 20} MiB that {bound} allows; longest sequence {max_model_len} tokens "
        f"(model {need.max_positions}, configured {need.max_model_len or 'none'})"
    )
    return KvSize(num_blocks, max_model_len, why)
