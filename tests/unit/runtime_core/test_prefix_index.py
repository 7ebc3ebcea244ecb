"""Whose blocks a prompt may share: keys, salts, collisions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from emberline_runtime.core.prefix_index import Chain, Entry, PrefixIndex, block_key, root_key

Extra = Sequence[tuple[str, bytes]]
TENANT_A: Extra = [("tenant", b"a")]


def collide(data: bytes) -> bytes:
    """The worst hash there is."""
    return b"same"


def collide_pairs(data: bytes) -> bytes:
    """A weak hash: one bit."""
    return hashlib.sha256(data).digest()[:1].translate(bytes(byte & 1 for byte in range(256)))


def chain_of(index: PrefixIndex, tokens: Sequence[int], extra: Extra = ()) -> Chain:
    chain = index.make_chain(extra)
    index.extend(chain, tokens)
    return chain


def register(index: PrefixIndex, tokens: Sequence[int], blocks: list[int], extra: Extra = ()) -> None:
    """Register the full blocks of a sequence as far as the index takes them."""
    chain = chain_of(index, tokens, extra)
    parent: Entry | None = None
    for position, block in enumerate(blocks):
        parent, _ = index.register(chain, tokens, position, parent, block)
        if parent is None:
            return


def found(index: PrefixIndex, tokens: Sequence[int], extra: Extra = (), max_blocks: int = 99) -> list[int]:
    return [entry.block for entry in index.find(chain_of(index, tokens, extra), tokens, max_blocks)]


@pytest.fixture
def index() -> PrefixIndex:
    return PrefixIndex(block_tokens=2)


def test_only_the_common_beginning_is_shared(index: PrefixIndex) -> None:
    register(index, [1, 2, 3, 4, 5, 6], [10, 11, 12])
    assert found(index, [1, 2, 3, 4, 5, 6]) == [10, 11, 12]
    assert found(index, [1, 2, 3, 4, 9, 9]) == [10, 11]
    assert found(index, [1, 2, 9, 9, 5, 6]) == [10], "equal tokens after another beginning are another's"
    assert found(index, [9, 9, 3, 4]) == []
    assert found(index, [3, 4, 5, 6]) == []
    assert found(index, [1]) == [], "only full blocks"
    assert found(index, [1, 2, 3]) == [10]
    assert found(index, [1, 2, 3, 4], max_blocks=1) == [10]


def test_tokens_that_concatenate_alike_differ(index: PrefixIndex) -> None:
    register(index, [1, 23], [10])
    assert found(index, [12, 3]) == []
    register(index, [256, 1], [11])
    assert found(index, [0, 256]) == []


@pytest.mark.parametrize(
    ("stored", "asked", "is_shared"),
    [
        ([], [], True),
        ([("tenant", b"a")], [("tenant", b"a")], True),
        ([("tenant", b"a")], [("tenant", b"b")], False),
        ([("tenant", b"a")], [], False),
        ([], [("tenant", b"a")], False),
        ([("tenant", b"x")], [("adapter", b"x")], False),
        ([("tenant", b"a"), ("adapter", b"b")], [("tenant", b"aadapterb")], False),
        ([("tenant", b"")], [], False),
    ],
)
@pytest.mark.parametrize("digest", [None, collide])
def test_salts_part_what_tokens_join(stored: Extra, asked: Extra, is_shared: bool, digest: object) -> None:
    index = PrefixIndex(2, collide) if digest else PrefixIndex(2)
    register(index, [1, 2], [10], stored)
    assert found(index, [1, 2], asked) == ([10] if is_shared else [])


def test_keys_are_a_documented_function_of_salt_and_tokens() -> None:
    # A router computes them too: a change here is a change of an interface.
    tag = b"\x06\x00\x00\x00\x01\x00\x00\x00tenanta"
    root = hashlib.sha256(b"emberline-prefix-1" + tag).digest()
    assert root_key(TENANT_A) == root
    assert block_key(root, [1, 2]) == hashlib.sha256(root + b"\x01\0\0\0\x02\0\0\0").digest()
    chain = chain_of(PrefixIndex(2), [1, 2, 3, 4, 5], TENANT_A)
    assert chain.keys == [block_key(root, [1, 2]), block_key(block_key(root, [1, 2]), [3, 4])]


def test_a_hash_that_always_collides_costs_hits_and_never_gives_anothers_block() -> None:
    index = PrefixIndex(2, collide)
    register(index, [1, 2, 3, 4], [10, 11])
    assert found(index, [1, 2, 3, 4]) == [10]
    assert found(index, [3, 4]) == []
    assert found(index, [1, 2, 1, 2]) == [10], "the same tokens in the second place are not the first block"


def test_weak_hashes_agree_with_a_plain_comparison() -> None:
    sequences = [[a, b, c, d] for a in (1, 2) for b in (1, 2) for c in (1, 2) for d in (1, 2)]
    index = PrefixIndex(1, collide_pairs)
    content: dict[int, tuple[int, ...]] = {}
    for number, tokens in enumerate(sequences):
        blocks = list(range(4 * number, 4 * number + 4))
        register(index, tokens, blocks)
        content.update({block: tuple(tokens[: place + 1]) for place, block in enumerate(blocks)})
    hits = 0
    for tokens in sequences:
        for place, block in enumerate(found(index, tokens)):
            assert content[block] == tuple(tokens[: place + 1])
            hits += 1
    assert hits


def test_the_first_of_two_equal_blocks_stays(index: PrefixIndex) -> None:
    register(index, [1, 2, 3, 4], [10, 11])
    chain = chain_of(index, [1, 2, 3, 4])
    first, is_own = index.register(chain, [1, 2, 3, 4], 0, None, 20)
    assert first is not None
    assert (first.block, is_own) == (10, False)
    second, is_own = index.register(chain, [1, 2, 3, 4], 1, first, 21)
    assert second is not None
    assert (second.block, is_own) == (11, False)
    index.check_integrity({10, 11}.__contains__)


def test_what_follows_a_forgotten_block_is_not_found(index: PrefixIndex) -> None:
    register(index, [1, 2, 3, 4], [10, 11])
    index.forget(10)
    index.forget(10)
    assert found(index, [1, 2, 3, 4]) == []
    assert len(index) == 1
    register(index, [1, 2], [20])
    assert found(index, [1, 2, 3, 4]) == [20], "block 11 was computed after another block"


def test_a_chain_grows_with_its_sequence(index: PrefixIndex) -> None:
    chain = chain_of(index, [1, 2, 3])
    assert len(chain.keys) == 1
    index.extend(chain, [1, 2, 3, 4, 5])
    assert chain.keys == chain_of(index, [1, 2, 3, 4]).keys
