"""From a StepPlan to the flat rows of one forward pass. Plain Python: no tensor is named here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emberline_runtime.core.step import SamplingSpec, SlotRows, SlotStart, Want


@dataclass(slots=True)
class Slot:
    """What the executor knows of a bound slot."""

    num_prompt: int
    blocks: list[int]
    sampling: SamplingSpec
    num_valid: int
    """Positions whose KV is in the blocks: the executor's own counter."""
    last_token: int
    """Known last token: the next row's input where the plan leaves it out."""

    @classmethod
    def bound(cls, start: SlotStart) -> Slot:
        """The slot as a SlotStart binds it."""
        return cls(start.num_prompt, list(start.blocks), start.sampling, start.num_cached, start.tokens[-1])


@dataclass(frozen=True, slots=True)
class Piece:
    """The consecutive rows of one slot."""

    slot: int
    first_row: int
    num_rows: int
    start: int
    """Position of the first row."""
    blocks: tuple[int, ...]
    """Those that hold positions 0 to start + num_rows."""
    wants_token: bool

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self.num_rows


@dataclass(slots=True)
class Batch:
    """All rows of a step: row i is token `tokens[i]` at `positions[i]`, whose KV goes to `blocks[i]` at `offsets[i]`."""

    pieces: list[Piece] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)


def make_batch(rows: Iterable[SlotRows], slots: Mapping[int, Slot], block_tokens: int) -> Batch:
    """Lay the plan's rows out, one slot after another. Changes nothing; a plan that cannot be honoured raises ValueError."""
    batch = Batch()
    for part in rows:
        slot = slots[part.slot]
        start = slot.num_valid if part.start < 0 else part.start
        end = start + part.num_rows
        if part.want & ~Want.TOKEN or part.num_draft or part.mask_row >= 0:
            raise ValueError(
                f"slot {part.slot} wants {part.want!r}, drafts or a mask; this executor samples tokens only"
            )
        if end > len(slot.blocks) * block_tokens:
            raise ValueError(f"slot {part.slot} has {len(slot.blocks)} blocks of {block_tokens}, its rows end at {end}")
        tokens = part.tokens
        if len(tokens) == part.num_rows - 1:
            tokens = (*tokens, slot.last_token)
        if len(tokens) != part.num_rows:
            raise ValueError(
                f"slot {part.slot} has {part.num_rows} rows and {len(part.tokens)} tokens; one may be left out"
            )
        used = tuple(slot.blocks[: -(-end // block_tokens)])
        batch.pieces.append(
            Piece(part.slot, len(batch.tokens), part.num_rows, start, used, bool(part.want & Want.TOKEN))
        )
        batch.tokens.extend(tokens)
        batch.positions.extend(range(start, end))
        batch.blocks.extend(used[position // block_tokens] for position in range(start, end))
        batch.offsets.extend(position % block_tokens for position in range(start, end))
    return batch
