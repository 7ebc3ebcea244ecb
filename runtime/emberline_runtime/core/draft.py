"""A plan while it is being made, and the record of it while it is in flight."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_runtime.core.sequence import Sequence
from emberline_runtime.core.step import SlotRows, SlotStart, StepPlan, Want


@dataclass(frozen=True, slots=True)
class Launched:
    """A plan in flight."""

    plan: StepPlan
    named: list[tuple[Sequence, bool]]
    """Whose the plan's rows are, in their order, and whether they sample a token."""


class Draft:
    """Gathers the starts and rows of one step, and moves the sequences' scheduled ends along."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Rows that can still be added."""
        self._starts: list[SlotStart] = []
        self._rows: list[SlotRows] = []
        self._named: list[tuple[Sequence, bool]] = []
        self._num_mask_rows = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._rows

    def add_start(self, sequence: Sequence) -> None:
        """Bind the sequence's slot; its rows follow."""
        self._starts.append(
            SlotStart(
                sequence.slot,
                tuple(sequence.tokens),
                sequence.num_prompt,
                tuple(sequence.blocks),
                sequence.num_computed,
                sequence.sampling,
            )
        )

    def add_decode(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> None:
        """One row for the last sampled token; one that is still pending the executor fills in itself."""
        position = sequence.num_scheduled
        tokens = (sequence.tokens[position],) if position < len(sequence.tokens) else ()
        self._add_rows(sequence, 1, tokens, Want.TOKEN, new_blocks, samples=True)

    def add_chunk(self, sequence: Sequence) -> None:
        """As much of the missing history as the budget allows; with its end comes a token."""
        start = sequence.num_scheduled
        end = min(sequence.num_history, start + self.budget)
        samples = end == sequence.num_history
        want = Want.TOKEN if samples else Want.NOTHING
        if sequence.wants_prompt_logprobs and start < sequence.num_prompt:
            want |= Want.PROMPT_LOGPROBS
        self._add_rows(sequence, end - start, tuple(sequence.tokens[start:end]), want, (), samples=samples)

    def _add_rows(
        self,
        sequence: Sequence,
        num_rows: int,
        tokens: tuple[int, ...],
        want: Want,
        new_blocks: tuple[int, ...],
        *,
        samples: bool,
    ) -> None:
        mask_row = -1
        if samples:
            sequence.num_pending += 1
            if sequence.sampling.grammar:
                mask_row = self._num_mask_rows
                self._num_mask_rows += 1
        self._rows.append(
            SlotRows(sequence.slot, sequence.num_scheduled, num_rows, tokens, 0, new_blocks, want, mask_row)
        )
        self._named.append((sequence, samples))
        self.budget -= num_rows
        sequence.num_scheduled += num_rows
        sequence.num_in_flight += 1

    def launch(self, step: int, ends: list[int]) -> Launched:
        """The plan as it is now, after the slots in `ends` are given back."""
        plan = StepPlan(
            step,
            ends=tuple(ends),
            starts=tuple(self._starts),
            rows=tuple(self._rows),
            num_mask_rows=self._num_mask_rows,
        )
        return Launched(plan, self._named)
