"""The KV cache as sequences see it: starting on a known prefix, growing, offering what was written, leaving."""

from __future__ import annotations

from enum import Enum

from emberline_runtime.core.admission import blocks_for
from emberline_runtime.core.block_pool import BlockPool
from emberline_runtime.core.prefix_index import Entry, Hash, PrefixIndex, sha256
from emberline_runtime.core.sequence import Sequence


class Start(Enum):
    """What became of an attempt to start a sequence."""

    STARTED = "started"
    NO_ROOM = "no room"
    PREFIX_COMING = "prefix coming"
    """Another sequence is computing the next block of this one's prefix: wait and share it."""


class KvCache:
    """Block pool and prefix index together, and the prefixes that are being computed.

    Life of a block:  take -> (written, committed) -> registered, shared by later sequences -> released by all -> idle,
    still registered -> taken anew: evicted.
    """

    def __init__(self, num_blocks: int, block_tokens: int, *, prefix_caching: bool, digest: Hash = sha256) -> None:
        self.block_tokens = block_tokens
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self._prefix_caching = prefix_caching
        self._index = PrefixIndex(block_tokens, digest)
        self._pool = BlockPool(num_blocks, self._index.forget)
        self._coming: dict[bytes, Sequence] = {}
        """Keys of blocks that a running sequence will have written, and which."""

    @property
    def num_idle(self) -> int:
        """Blocks that can be had."""
        return self._pool.num_idle

    @property
    def usage(self) -> float:
        """Part of the blocks that sequences reference, 0 to 1."""
        return self._pool.num_referenced / self._pool.num_blocks

    def enter(self, sequence: Sequence) -> None:
        """Decide once whether the sequence shares prefixes, and with whom."""
        request = sequence.request
        extra = [("tenant", request.salt)] if request.salt else []
        if not self._prefix_caching:
            if not request.group:
                return
            extra.append(("group", request.group.encode()))
        sequence.chain = self._index.make_chain(extra)

    def is_coming(self, key: bytes | None) -> bool:
        """Whether a running sequence is computing that block."""
        return key in self._coming

    def start(self, sequence: Sequence, num_spare: int) -> Start:
        """Give the sequence blocks for all its tokens, as many as possible with their KV in them.

        At least the last token stays to be computed: its logits are wanted. `num_spare` blocks must be left for others.
        Nothing changes unless STARTED.
        """
        chain, tokens = sequence.chain, sequence.tokens
        found: list[Entry] = []
        if chain is not None:
            self._index.extend(chain, tokens)
            if not sequence.wants_prompt_logprobs:
                most = (len(tokens) - 1) // self.block_tokens
                found = self._index.find(chain, tokens, most)
                if len(found) < most and chain.keys[len(found)] in self._coming:
                    sequence.waits_for = chain.keys[len(found)]
                    return Start.PREFIX_COMING
        num_new = blocks_for(len(tokens), self.block_tokens) - len(found)
        num_idle_hits = sum(self._pool.is_idle(entry.block) for entry in found)
        if num_new + num_spare > self._pool.num_idle - num_idle_hits:
            return Start.NO_ROOM
        for entry in found:
            self._pool.share(entry.block)
        sequence.blocks = [entry.block for entry in found] + self._pool.take(num_new)
        sequence.num_computed = sequence.num_scheduled = len(found) * self.block_tokens
        sequence.num_registered = len(found)
        sequence.last_entry = found[-1] if found else None
        sequence.waits_for = None
        if chain is not None:
            for key in chain.keys[len(found) :]:
                self._coming.setdefault(key, sequence)
        if not sequence.was_started and self._prefix_caching and chain is not None:
            self.num_query_tokens += len(tokens)
            self.num_hit_tokens += sequence.num_computed
        return Start.STARTED

    def will_grow(self, sequence: Sequence) -> bool:
        """Whether the sequence, if it goes on to its last token, needs more blocks than it has."""
        num_positions = sequence.num_prompt + sequence.request.max_tokens - 1
        return sequence.finish is None and num_positions > len(sequence.blocks) * self.block_tokens

    def lacks_block(self, sequence: Sequence) -> bool:
        """Whether the next position to be scheduled lies beyond the sequence's blocks."""
        return sequence.num_scheduled >= len(sequence.blocks) * self.block_tokens

    def grow(self, sequence: Sequence) -> int:
        """One more block for the sequence; ask `num_idle` first."""
        (block,) = self._pool.take(1)
        sequence.blocks.append(block)
        return block

    def offer_written(self, sequence: Sequence) -> None:
        """Register the sequence's blocks that are full by now; call after the plan that wrote them is committed."""
        chain = sequence.chain
        if chain is None or sequence.num_computed < (sequence.num_registered + 1) * self.block_tokens:
            return
        self._index.extend(chain, sequence.tokens)
        while sequence.num_computed >= (sequence.num_registered + 1) * self.block_tokens:
            index = sequence.num_registered
            block = sequence.blocks[index]
            entry, is_own = self._index.register(chain, sequence.tokens, index, sequence.last_entry, block)
            if entry is None:  # The key belongs to other content: what follows could not be told from it.
                self._stop_offering(sequence)
                sequence.chain = None
                return
            if is_own:
                self._pool.mark_cached(block)
            self._withdraw(chain.keys[index], sequence)
            sequence.last_entry = entry
            sequence.num_registered += 1

    def distrust(self, sequence: Sequence) -> None:
        """Offer none of the sequence's blocks any more: something in them is wrong."""
        for block in sequence.blocks:
            self._index.forget(block)
            self._pool.unmark_cached(block)

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's references back; call once no plan in flight names it."""
        self._stop_offering(sequence)
        if not self._prefix_caching:
            for block in sequence.blocks:
                if self._pool.is_last_reference(block):
                    self._index.forget(block)
                    self._pool.unmark_cached(block)
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_computed = sequence.num_scheduled = sequence.num_registered = 0
        sequence.last_entry = None

    def _stop_offering(self, sequence: Sequence) -> None:
        if sequence.chain is not None:
            for key in sequence.chain.keys[sequence.num_registered :]:
                self._withdraw(key, sequence)

    def _withdraw(self, key: bytes, sequence: Sequence) -> None:
        if self._coming.get(key) is sequence:
            del self._coming[key]

    def check_integrity(self, running: list[Sequence]) -> None:
        """Assert that the books agree with what `running`, all sequences that hold blocks, hold."""
        refs: dict[int, int] = {}
        for sequence in running:
            assert len(set(sequence.blocks)) == len(sequence.blocks), "a sequence holds a block twice"
            for block in sequence.blocks:
                refs[block] = refs.get(block, 0) + 1
        self._pool.check_integrity(refs)
        self._index.check_integrity(self._pool.is_cached)
        assert all(any(owner is s for s in running) for owner in self._coming.values()), "a block comes from nobody"
