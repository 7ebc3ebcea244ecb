from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.executors.kv_size import (
    RESERVE_BYTES,
    UNLIMITED_MAX_BYTES,
    KvNeed,
    KvTooSmallError,
    decide_cpu_budget_bytes,
    decide_kv_size,
)
from emberline_runtime.executors.machine import MemoryAllowance

GIB = 1 << 30
NEED = KvNeed(block_bytes=1000, block_tokens=16, max_positions=8192, max_model_len=None, max_sequences=4)


def test_a_limit_leaves_weights_and_reserve_their_room() -> None:
    budget = decide_cpu_budget_bytes(MemoryAllowance(4 * GIB, 100 * GIB), weights_bytes=GIB)
    assert 0 < budget < 3 * GIB - RESERVE_BYTES


def test_a_limit_above_what_the_machine_has_is_not_believed() -> None:
    small = decide_cpu_budget_bytes(MemoryAllowance(100 * GIB, 4 * GIB), weights_bytes=GIB)
    assert small == decide_cpu_budget_bytes(MemoryAllowance(4 * GIB, 100 * GIB), weights_bytes=GIB)


def test_weights_above_the_limit_leave_nothing() -> None:
    assert decide_cpu_budget_bytes(MemoryAllowance(GIB, 8 * GIB), weights_bytes=2 * GIB) == 0


def test_without_a_limit_the_engine_is_a_guest() -> None:
    assert decide_cpu_budget_bytes(MemoryAllowance(None, 400 * GIB), weights_bytes=GIB) == UNLIMITED_MAX_BYTES
    assert decide_cpu_budget_bytes(MemoryAllowance(None, 5 * GIB), weights_bytes=GIB) == GIB


def test_no_more_blocks_than_all_sequences_at_full_length_use() -> None:
    size = decide_kv_size(NEED, budget_bytes=10**12, configured_bytes=None)
    assert size.num_blocks == 4 * 8192 // 16
    assert size.max_model_len == 8192


@pytest.mark.parametrize(
    ("max_model_len", "given_bytes", "expected_len"),
    [(None, 10**9, 8192), (100, 10**9, 100), (None, 5500, 80), (9999, 10**9, 8192)],
)
def test_the_longest_sequence_is_the_least_of_model_configuration_and_cache(
    max_model_len: int | None, given_bytes: int, expected_len: int
) -> None:
    need = replace(NEED, max_model_len=max_model_len)
    assert decide_kv_size(need, budget_bytes=0, configured_bytes=given_bytes).max_model_len == expected_len


def test_configured_bytes_go_before_the_budget() -> None:
    assert decide_kv_size(NEED, budget_bytes=10**9, configured_bytes=3000).num_blocks == 3


def test_too_little_memory_names_both_numbers_and_the_remedy() -> None:
    with pytest.raises(KvTooSmallError, match=r"999 bytes.*1000; raise the memory limit.*engine\.kvCache"):
        decide_kv_size(NEED, budget_bytes=999, configured_bytes=None)
