"""What every executor must do with a plan made by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emberline_runtime.core.step import SamplingSpec, SlotResult, SlotRows, SlotStart, StepPlan, Want
from emberline_runtime.executors.base import Executor
from support.torch_rig import GREEDY

PROMPT = tuple(range(40, 77))
HOT = SamplingSpec(temperature=1.3, seed=11)


class Hand:
    """Gives plans one after another, and frees every slot at the end."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.num_steps = 0
        self.bound: set[int] = set()

    def run(
        self, *rows: SlotRows, starts: tuple[SlotStart, ...] = (), ends: tuple[int, ...] = ()
    ) -> dict[int, SlotResult]:
        plan = StepPlan(self.num_steps, ends=ends, starts=starts, rows=rows)
        self.num_steps += 1
        self.bound = (self.bound - set(ends)) | {start.slot for start in starts}
        self.executor.launch(plan)
        self.executor.sample(plan.step)
        result = self.executor.collect()
        assert result.step == plan.step
        return {slot.slot: slot for slot in result.slots}

    def prompt(self, slot: int, blocks: tuple[int, ...], sampling: SamplingSpec = GREEDY) -> int:
        """The token after PROMPT, computed in one chunk."""
        start = SlotStart(slot, PROMPT, len(PROMPT), blocks, 0, sampling)
        result = self.run(SlotRows(slot, 0, len(PROMPT), PROMPT, want=Want.TOKEN), starts=(start,))[slot]
        assert result.num_valid == len(PROMPT)
        (token,) = result.tokens
        return token


@pytest.fixture
def hand(executor: Executor) -> Iterator[Hand]:
    hand = Hand(executor)
    yield hand
    hand.run(ends=tuple(hand.bound))


def test_limits_are_said_after_load(executor: Executor) -> None:
    limits = executor.limits
    assert (limits.max_model_len, limits.max_sequences, limits.max_rows, limits.vocab) == (384, 8, 96, 160)
    assert limits.num_blocks * limits.block_tokens >= limits.max_model_len


def test_blocks_may_lie_anywhere(hand: Hand) -> None:
    assert hand.prompt(0, (0, 1, 2)) == hand.prompt(1, (17, 5, 11)) == hand.prompt(7, (9, 30, 3))


def test_chunks_give_no_token_until_one_is_wanted(hand: Hand) -> None:
    expected = hand.prompt(0, (0, 1, 2), HOT)
    start = SlotStart(1, PROMPT, len(PROMPT), (3, 4, 5), 0, HOT)
    first = hand.run(SlotRows(1, 0, 20, PROMPT[:20]), starts=(start,))[1]
    assert (first.tokens, first.num_valid) == ((), 20)
    assert hand.run(SlotRows(1, 20, 17, PROMPT[20:], want=Want.TOKEN))[1].tokens == (expected,)


def test_the_last_token_may_be_left_to_the_executor(hand: Hand) -> None:
    answers = []
    for slot, blocks in ((0, (0, 1, 2)), (1, (3, 4, 5))):
        token = hand.prompt(slot, blocks, HOT)
        named = (token,) if slot == 0 else ()
        second = hand.run(SlotRows(slot, 37, 1, named, want=Want.TOKEN))[slot].tokens
        answers.append((token, *second))
    assert answers[0] == answers[1]


def test_a_block_may_come_with_the_rows(hand: Hand) -> None:
    token = hand.prompt(0, (0, 1, 2))
    answer = [token]
    for position in range(37, 60):
        new = (9,) if position == 48 else ()
        rows = SlotRows(0, position, 1, (answer[-1],), new_blocks=new, want=Want.TOKEN)
        answer.extend(hand.run(rows)[0].tokens)
    known = (*PROMPT, *answer[:-1])
    again = SlotStart(1, known, len(PROMPT), (20, 21, 22, 23), 0, GREEDY)
    rows = SlotRows(1, 0, len(known), known, want=Want.TOKEN)
    assert hand.run(rows, starts=(again,))[1].tokens == (answer[-1],)


def test_a_restart_goes_on_with_the_noise_where_it_was(hand: Hand) -> None:
    """After preemption the output counts on from `num_prompt`, not from nothing."""
    token = hand.prompt(0, (0, 1, 2), HOT)
    expected = hand.run(SlotRows(0, 37, 1, (token,), want=Want.TOKEN))[0].tokens
    known = (*PROMPT, token)
    again = SlotStart(2, known, len(PROMPT), (6, 7, 8), 0, HOT)
    assert hand.run(SlotRows(2, 0, 38, known, want=Want.TOKEN), starts=(again,))[2].tokens == expected


def test_cached_blocks_are_read_not_computed(hand: Hand) -> None:
    expected = hand.prompt(0, (0, 1, 2))
    start = SlotStart(1, PROMPT, len(PROMPT), (0, 1, 30), 32, GREEDY)
    assert hand.run(SlotRows(1, 32, 5, PROMPT[32:], want=Want.TOKEN), starts=(start,))[1].tokens == (expected,)


def test_slots_end_and_are_bound_anew_in_one_plan(hand: Hand) -> None:
    expected = hand.prompt(0, (0, 1, 2))
    other = SlotStart(0, PROMPT[:5], 5, (0,), 0, GREEDY)
    hand.run(SlotRows(0, 0, 5, PROMPT[:5], want=Want.TOKEN), starts=(other,), ends=(0,))
    again = SlotStart(0, PROMPT, len(PROMPT), (2, 0, 1), 0, GREEDY)
    rows = SlotRows(0, 0, len(PROMPT), PROMPT, want=Want.TOKEN)
    assert hand.run(rows, starts=(again,), ends=(0,))[0].tokens == (expected,)
