"""Which block holds the KV of which prefix: a chain of sha256 over full blocks.

A block's key covers everything before it (its parent's key), its own tokens, and, through the root, whose prompt it is.
The same keys can be computed elsewhere, by a router for instance.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Hash = Callable[[bytes], bytes]


def sha256(data: bytes) -> bytes:
    """The index's hash; tests put a colliding one in its place."""
    return hashlib.sha256(data).digest()


def root_key(extra: Sequence[tuple[str, bytes]], digest: Hash = sha256) -> bytes:
    """The key before the first block: the tagged things besides tokens on which KV depends (tenant salt, adapter).

    Tags and values carry their lengths, so that no value can pass for another tag's.
    """
    parts = [b"emberline-prefix-1"]
    for tag, value in extra:
        name = tag.encode()
        parts.append(struct.pack("<II", len(name), len(value)) + name + value)
    return digest(b"".join(parts))


def block_key(parent: bytes, tokens: Sequence[int], digest: Hash = sha256) -> bytes:
    """The key of a full block after `parent`."""
    return digest(parent + struct.pack(f"<{len(tokens)}I", *tokens))


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A registered block. Its identity stands for the whole prefix up to its end."""

    key: bytes
    block: int
    parent: Entry | tuple[tuple[str, bytes], ...]
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Chain:
    """The keys of one sequence's full blocks; grows with the sequence."""

    extra: tuple[tuple[str, bytes], ...]
    keys: list[bytes]
    root: bytes


class PrefixIndex:
    """Registered blocks by key.

    A hit is compared in full, parent by parent and token by token: a collision costs a miss, never another prompt's KV.
    """

    def __init__(self, block_tokens: int, digest: Hash = sha256) -> None:
        self.block_tokens = block_tokens
        self._digest = digest
        self._by_key: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def make_chain(self, extra: Sequence[tuple[str, bytes]]) -> Chain:
        """An empty chain under the given tagged keys."""
        return Chain(extra=tuple(extra), keys=[], root=root_key(extra, self._digest))

    def extend(self, chain: Chain, tokens: Sequence[int]) -> None:
        """Add the keys of the blocks that `tokens`, the sequence from its start, fills and the chain lacks."""
        size = self.block_tokens
        for index in range(len(chain.keys), len(tokens) // size):
            parent = chain.keys[-1] if chain.keys else chain.root
            chain.keys.append(block_key(parent, tokens[index * size : (index + 1) * size], self._digest))

    def find(self, chain: Chain, tokens: Sequence[int], max_blocks: int) -> list[Entry]:
        """The registered blocks that hold the sequence's beginning, at most `max_blocks`."""
        found: list[Entry] = []
        for index in range(min(max_blocks, len(chain.keys))):
            entry = self._match(chain, tokens, index, found[-1] if found else None)
            if entry is None:
                break
            found.append(entry)
        return found

    def _match(self, chain: Chain, tokens: Sequence[int], index: int, parent: Entry | None) -> Entry | None:
        entry = self._by_key.get(chain.keys[index])
        if entry is None:
            return None
        size = self.block_tokens
        same_parent = entry.parent is parent if parent is not None else entry.parent == chain.extra
        return entry if same_parent and entry.tokens == tuple(tokens[index * size : (index + 1) * size]) else None

    def register(
        self, chain: Chain, tokens: Sequence[int], index: int, parent: Entry | None, block: int
    ) -> tuple[Entry | None, bool]:
        """Register the sequence's `index`-th block, written by now, after `parent` (None: the first block).

        Returns the entry that stands for this prefix from here on and whether it is `block`'s own: where another block
        of the same content is registered already, that one stays. None if the key is taken by other content.
        """
        key = chain.keys[index]
        if key in self._by_key:
            return self._match(chain, tokens, index, parent), False
        size = self.block_tokens
        above = parent if parent is not None else chain.extra
        entry = Entry(key, block, above, tuple(tokens[index * size : (index + 1) * size]))
        self._by_key[key] = entry
        self._by_block[block] = entry
        return entry, True

    def forget(self, block: int) -> None:
        """The block's content is gone or not to be trusted. No-op for a block that is not registered."""
        entry = self._by_block.pop(block, None)
        if entry is not None:
            del self._by_key[entry.key]

    def check_integrity(self, is_cached: Callable[[int], bool]) -> None:
        """Assert that keys and blocks agree, and that exactly the registered blocks are kept for reuse."""
        assert {entry.block: entry for entry in self._by_key.values()} == self._by_block, (
            "index by key and by block differ"
        )
        assert all(is_cached(block) for block in self._by_block), "a registered block is not kept"
