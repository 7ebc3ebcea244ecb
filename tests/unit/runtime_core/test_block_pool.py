"""Reference counts and the order of eviction."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import DataObject, data, integers

from emberline_runtime.core.block_pool import BlockPool
from support.examples import examples


class Evictions(list[int]):
    """Blocks in the order of their eviction."""


@pytest.fixture
def evictions() -> Evictions:
    return Evictions()


@pytest.fixture
def pool(evictions: Evictions) -> BlockPool:
    return BlockPool(4, evictions.append)


def test_blocks_are_taken_and_come_back(pool: BlockPool, evictions: Evictions) -> None:
    blocks = pool.take(3)
    assert blocks == [0, 1, 2]
    assert (pool.num_idle, pool.num_referenced) == (1, 3)
    pool.release(blocks)
    assert (pool.num_idle, pool.num_referenced) == (4, 0)
    assert evictions == [], "nothing was kept, so nothing is evicted"


def test_more_than_there_is_changes_nothing(pool: BlockPool) -> None:
    pool.take(3)
    with pytest.raises(ValueError, match="2 blocks wanted, 1 idle"):
        pool.take(2)
    pool.check_integrity({0: 1, 1: 1, 2: 1})


def test_free_blocks_go_before_cached_ones_and_tails_before_heads(pool: BlockPool, evictions: Evictions) -> None:
    blocks = pool.take(3)
    for block in blocks:
        pool.mark_cached(block)
    pool.release(blocks)
    assert list(pool.idle_blocks()) == [3, 2, 1, 0]
    assert pool.take(3) == [3, 2, 1]
    assert evictions == [2, 1]


def test_the_least_recently_used_goes_first(pool: BlockPool, evictions: Evictions) -> None:
    first, second = pool.take(1), pool.take(1)
    for block in first + second:
        pool.mark_cached(block)
    pool.release(first)
    pool.release(second)
    pool.share(first[0])  # used again, out of the middle of the list
    pool.release(first)
    pool.take(3)
    assert evictions == second


def test_a_shared_block_stays_until_the_last_holder_goes(pool: BlockPool) -> None:
    (block,) = pool.take(1)
    pool.mark_cached(block)
    pool.share(block)
    assert not pool.is_last_reference(block)
    pool.release([block])
    assert not pool.is_idle(block)
    assert pool.is_last_reference(block)
    pool.release([block])
    assert pool.is_idle(block)


def test_misuse_is_told(pool: BlockPool) -> None:
    with pytest.raises(ValueError, match="nothing to share"):
        pool.share(0)
    with pytest.raises(ValueError, match="more often than referenced"):
        pool.release([0])
    with pytest.raises(ValueError, match="while its writer holds it"):
        pool.mark_cached(0)


def test_a_distrusted_idle_block_becomes_free(pool: BlockPool, evictions: Evictions) -> None:
    blocks = pool.take(4)
    for block in blocks:
        pool.mark_cached(block)
    pool.release(blocks)
    pool.unmark_cached(1)
    assert next(pool.idle_blocks()) == 1
    assert pool.take(1) == [1]
    assert evictions == []


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share, register, distrust and release at random; a plain model keeps the books."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: set[int] = set()
        self.pool = BlockPool(6, self.evict)
        self.holders: list[list[int]] = []
        self.age: list[int] = []
        """Cached blocks, the least recently released first."""

    def evict(self, block: int) -> None:
        assert block in self.cached
        assert block == self.age[0], "an older cached block was there"
        self.cached.remove(block)
        self.age.remove(block)

    def refs(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for blocks in self.holders:
            for block in blocks:
                counts[block] = counts.get(block, 0) + 1
        return counts

    @rule(num_blocks=integers(0, 4))
    def take(self, num_blocks: int) -> None:
        if num_blocks <= self.pool.num_idle:
            blocks = self.pool.take(num_blocks)
            assert not set(blocks) & set(self.refs())
            self.holders.append(blocks)

    @precondition(lambda self: self.cached)
    @rule(data=data())
    def share(self, data: DataObject) -> None:
        block = sorted(self.cached)[data.draw(integers(0, len(self.cached) - 1))]
        self.pool.share(block)
        if block in self.age:
            self.age.remove(block)
        self.holders.append([block])

    @precondition(lambda self: self.holders)
    @rule(data=data())
    def release(self, data: DataObject) -> None:
        blocks = self.holders.pop(data.draw(integers(0, len(self.holders) - 1)))
        self.pool.release(blocks)
        refs = self.refs()
        self.age += [block for block in reversed(blocks) if block in self.cached and block not in refs]

    @precondition(lambda self: any(self.holders))
    @rule(data=data())
    def register(self, data: DataObject) -> None:
        held = sorted(self.refs())
        block = held[data.draw(integers(0, len(held) - 1))]
        self.pool.mark_cached(block)
        self.cached.add(block)

    @precondition(lambda self: self.cached)
    @rule(data=data())
    def distrust(self, data: DataObject) -> None:
        block = sorted(self.cached)[data.draw(integers(0, len(self.cached) - 1))]
        self.pool.unmark_cached(block)
        self.cached.remove(block)
        if block in self.age:
            self.age.remove(block)

    @invariant()
    def books_agree(self) -> None:
        self.pool.check_integrity(self.refs())
        assert {block for block in range(6) if self.pool.is_cached(block)} == self.cached
        assert [block for block in self.pool.idle_blocks() if block in self.cached] == self.age


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(**examples(100), stateful_step_count=30)
