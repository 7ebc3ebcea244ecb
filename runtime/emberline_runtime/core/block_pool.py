"""Which KV blocks are in use, by how many, and which idle one goes next. Owns no memory: blocks are numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class BlockPool:
    """Reference counts, and the idle blocks in order of eviction.

    A block is free (idle and empty), cached (idle, its content kept for reuse) or referenced; every block is exactly one
    of the three. Idle blocks form a doubly linked list threaded through two arrays, so that one in the middle is taken
    out in O(1) when a prefix is hit.
    """

    def __init__(self, num_blocks: int, evict: Callable[[int], None]) -> None:
        """`evict` is told of each cached block whose content is about to be overwritten."""
        self.num_blocks = num_blocks
        self._evict = evict
        self._num_refs = [0] * num_blocks
        self._is_cached = [False] * num_blocks
        """The content is registered for reuse; also while the block is referenced."""
        # A ring through the idle blocks; num_blocks is its anchor: after it comes the block to be taken first.
        self._anchor = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._num_idle = num_blocks

    @property
    def num_idle(self) -> int:
        """Blocks that `take` can give."""
        return self._num_idle

    @property
    def num_referenced(self) -> int:
        """Blocks that somebody holds."""
        return self.num_blocks - self._num_idle

    def is_idle(self, block: int) -> bool:
        """Whether nobody references the block."""
        return self._num_refs[block] == 0

    def is_last_reference(self, block: int) -> bool:
        """Whether the block becomes idle with the next release."""
        return self._num_refs[block] == 1

    def is_cached(self, block: int) -> bool:
        """Whether the block's content is registered for reuse."""
        return self._is_cached[block]

    def take(self, num_blocks: int) -> list[int]:
        """Blocks with one reference each and no content, free ones first, then the least recently used cached ones."""
        if num_blocks > self._num_idle:
            raise ValueError(f"{num_blocks} blocks wanted, {self._num_idle} idle: ask num_idle first")
        taken = []
        for _ in range(num_blocks):
            block = self._next[self._anchor]
            self._unlink(block)
            if self._is_cached[block]:
                self._is_cached[block] = False
                self._evict(block)
            self._num_refs[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """One more reference to a block that is cached or referenced."""
        if self._num_refs[block] == 0:
            if not self._is_cached[block]:
                raise ValueError(f"block {block} is free: there is nothing to share")
            self._unlink(block)
        self._num_refs[block] += 1

    def release(self, blocks: list[int]) -> None:
        """One reference less to each block of a sequence, given in the sequence's order.

        The sequence's tail becomes the older: a prefix outlives what follows it, without which it is still of use.
        """
        for block in reversed(blocks):
            if self._num_refs[block] < 1:
                raise ValueError(f"block {block} is released more often than referenced")
            self._num_refs[block] -= 1
            if self._num_refs[block] == 0:
                self._link(block)

    def mark_cached(self, block: int) -> None:
        """The content of a referenced block is registered for reuse."""
        if self._num_refs[block] == 0:
            raise ValueError(f"block {block} is idle: register a block while its writer holds it")
        self._is_cached[block] = True

    def unmark_cached(self, block: int) -> None:
        """The content is no longer to be reused; an idle block becomes free."""
        self._is_cached[block] = False
        if self._num_refs[block] == 0:
            self._unlink(block)
            self._link(block)

    def _link(self, block: int) -> None:
        # Cached blocks wait at the end of the list, free ones are taken first.
        before = self._previous[self._anchor] if self._is_cached[block] else self._anchor
        after = self._next[before]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self._num_idle += 1

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._num_idle -= 1

    def idle_blocks(self) -> Iterator[int]:
        """The idle blocks in the order in which they would be taken."""
        block = self._next[self._anchor]
        while block != self._anchor:
            yield block
            block = self._next[block]

    def check_integrity(self, expected_refs: dict[int, int]) -> None:
        """Assert that free + cached + referenced = total, and that the references are those of `expected_refs`."""
        idle = list(self.idle_blocks())
        free = [block for block in idle if not self._is_cached[block]]
        cached = [block for block in idle if self._is_cached[block]]
        referenced = {block: refs for block, refs in enumerate(self._num_refs) if refs}
        assert len(set(idle)) == len(idle) == self._num_idle, "the idle list holds a block twice or miscounts"
        assert len(free) + len(cached) + len(referenced) == self.num_blocks, (
            f"{len(free)} free + {len(cached)} cached + {len(referenced)} referenced != {self.num_blocks} blocks"
        )
        assert idle == free + cached, "a free block waits behind a cached one"
        assert referenced == expected_refs, f"references are {referenced}, the sequences hold {expected_refs}"
