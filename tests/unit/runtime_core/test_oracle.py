"""The oracle is strict: it computes what the block table holds, and refuses plans that break the rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from emberline_contract.engine_config import EngineConfig
from emberline_contract.health import Phase
from emberline_runtime.core.step import BlockMove, SamplingSpec, SlotRows, SlotStart, StepPlan, StepResult, Want
from emberline_runtime.executors.base import Executor, ModelFolder
from emberline_runtime.executors.oracle import OracleExecutor, PlanError, choose_token, expected_tokens
from support.engine_rig import GREEDY, make_limits

PROMPT = (1, 2, 3, 4, 5, 6)


def start(
    slot: int = 0, tokens: tuple[int, ...] = PROMPT, *, blocks: tuple[int, ...] = (0, 1), num_cached: int = 0
) -> SlotStart:
    return SlotStart(slot, tokens, len(tokens), blocks, num_cached, GREEDY)


def prefill(slot: int = 0, tokens: tuple[int, ...] = PROMPT, first: int = 0) -> SlotRows:
    return SlotRows(slot, first, len(tokens), tokens, want=Want.TOKEN)


def decode(position: int, *, slot: int = 0, tokens: tuple[int, ...] = (), new_blocks: tuple[int, ...] = ()) -> SlotRows:
    return SlotRows(slot, position, 1, tokens, want=Want.TOKEN, new_blocks=new_blocks)


def make(max_in_flight: int = 1) -> OracleExecutor:
    return OracleExecutor(make_limits(num_blocks=8, max_rows=16, max_sequences=2, max_in_flight=max_in_flight))


def run(oracle: OracleExecutor, plan: StepPlan) -> StepResult:
    oracle.launch(plan)
    oracle.sample(plan.step)
    return oracle.collect()


def test_it_is_an_executor() -> None:
    executor: Executor = make()
    executor.close()


def test_known_answers_stay() -> None:
    # The definition is an interface between test runs on different machines and executors.
    assert expected_tokens(PROMPT, 8, GREEDY, range(100)) == KNOWN_GREEDY
    assert expected_tokens(PROMPT, 8, SamplingSpec(seed=3), range(100)) == KNOWN_SEEDED


KNOWN_GREEDY = [85, 34, 2, 43, 34, 36, 56, 46]
KNOWN_SEEDED = [24, 83, 61, 64, 47, 85, 11, 32]


def test_chunks_and_decodes_give_the_definitions_tokens() -> None:
    oracle = make()
    expected = expected_tokens(PROMPT, 4, GREEDY, range(100))
    chunk = SlotRows(0, 0, 4, PROMPT[:4])
    (result,) = run(oracle, StepPlan(0, starts=(start(),), rows=(chunk,))).slots
    assert (result.tokens, result.num_valid) == ((), 4)
    (result,) = run(oracle, StepPlan(1, rows=(prefill(tokens=PROMPT[4:], first=4),))).slots
    assert result.tokens == (expected[0],)
    # The token is filled in by the executor, or said.
    (result,) = run(oracle, StepPlan(2, rows=(decode(6),))).slots
    assert result.tokens == (expected[1],)
    (result,) = run(oracle, StepPlan(3, rows=(decode(7, tokens=(expected[1],)),))).slots
    assert result.tokens == (expected[2],)
    (result,) = run(oracle, StepPlan(4, rows=(decode(8, new_blocks=(5,)),))).slots
    assert result.tokens == (expected[3],)


def test_another_blocks_content_gives_other_tokens() -> None:
    answers = set()
    for shared in ((1, 2, 3, 4), (9, 2, 3, 4), (1, 2, 3, 9)):
        oracle = make()
        run(oracle, StepPlan(0, starts=(start(1, shared, blocks=(0,)),), rows=(prefill(1, shared),)))
        cached = start(blocks=(0, 1), num_cached=4)
        result = run(oracle, StepPlan(1, starts=(cached,), rows=(prefill(tokens=PROMPT[4:], first=4),)))
        answers.add(result.slots[0].tokens)
    assert len(answers) == 3
    assert (expected_tokens(PROMPT, 1, GREEDY, range(100))[0],) in answers


def test_equal_tokens_after_another_beginning_are_another_block() -> None:
    # Two blocks hold the same four tokens, each after another beginning: using the wrong one must show.
    oracle = make()
    for slot, first in enumerate((1, 9)):
        tokens = (first, 1, 1, 1, 7, 7, 7, 7)
        blocks = (2 * slot, 2 * slot + 1)
        run(oracle, StepPlan(slot, starts=(start(slot, tokens, blocks=blocks),), rows=(prefill(slot, tokens),)))
    right, wrong = (0, 1, 4), (0, 3, 4)
    answers = []
    for step, blocks in enumerate((right, wrong), start=2):
        begin = start(0, (1, 1, 1, 1, 7, 7, 7, 7, 5), blocks=blocks, num_cached=8)
        rows = prefill(tokens=(5,), first=8)
        answers.append(run(oracle, StepPlan(step, ends=(0,), starts=(begin,), rows=(rows,))).slots[0].tokens)
    assert answers[0] != answers[1]


def plan_with(**fields: object) -> StepPlan:
    return replace(StepPlan(1), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (plan_with(rows=(decode(6, slot=1),)), "slot 1 is not bound"),
        (plan_with(rows=(decode(7),)), "stands at 6, not at 7"),
        (plan_with(rows=(decode(5),)), "stands at 6, not at 5"),
        (plan_with(rows=(replace(decode(6), num_rows=0),)), "stands at"),
        (plan_with(rows=(replace(decode(6), num_rows=3, tokens=(1, 2, 3)),)), "no block for position 8"),
        (plan_with(rows=(replace(decode(6), num_rows=2),)), "0 tokens for 2 rows"),
        (plan_with(rows=(decode(6), decode(7))), "named twice"),
        (plan_with(rows=(decode(6, new_blocks=(1,)),)), "block 1 is given out while a slot holds it"),
        (plan_with(rows=(decode(6, new_blocks=(8,)),)), "block 8 is given out"),
        (plan_with(starts=(start(),)), "slot 0 is bound already"),
        (plan_with(starts=(start(2, blocks=(4, 5)),)), "there is no such slot"),
        (plan_with(starts=(start(1, blocks=(0, 4)),)), "block 0 is given out while a slot holds it"),
        (plan_with(starts=(start(1, blocks=(0, 4), num_cached=3),)), "cannot be cached"),
        (plan_with(starts=(start(1, PROMPT[:4], blocks=(0,), num_cached=4),)), "cannot be cached"),
        (
            plan_with(starts=(start(1, (1,) * 16, blocks=(2, 3, 4, 5)),), rows=(prefill(1, (1,) * 17),)),
            "more than 16 rows",
        ),
        (plan_with(moves=(BlockMove(0, 3, "copy"),)), "no block moves"),
        (plan_with(num_mask_rows=1), "no grammar masks"),
    ],
)
def test_plans_that_break_the_rules(plan: StepPlan, reason: str) -> None:
    oracle = make()
    run(oracle, StepPlan(0, starts=(start(),), rows=(prefill(),)))
    with pytest.raises(PlanError, match=reason):
        oracle.launch(plan)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (plan_with(ends=(0,)), "slot 0; step 0 in flight names it"),
        (
            plan_with(starts=(start(1, (*PROMPT[:4], 9), blocks=(0, 4), num_cached=4),)),
            "called cached while it is being",
        ),
    ],
)
def test_a_plan_in_flight_pins_what_it_names(plan: StepPlan, reason: str) -> None:
    oracle = make(max_in_flight=2)
    first = StepPlan(0, starts=(start(),), rows=(prefill(),))
    oracle.launch(first)
    oracle.sample(0)
    with pytest.raises(PlanError, match=reason):
        oracle.launch(plan)
    # The same is right once the step is collected.
    later = make(max_in_flight=2)
    run(later, first)
    later.launch(plan)


def test_no_more_in_flight_than_allowed_and_each_stage_in_its_turn() -> None:
    oracle = make()
    with pytest.raises(PlanError, match=r"collect\(\) before sample"):
        oracle.collect()
    oracle.launch(StepPlan(0, starts=(start(),), rows=(prefill(),)))
    with pytest.raises(PlanError, match="1 in flight, 1 allowed"):
        oracle.launch(StepPlan(1, rows=(decode(6),)))
    with pytest.raises(PlanError, match="not due"):
        oracle.sample(1)
    with pytest.raises(PlanError, match="before sample"):
        oracle.collect()
    oracle.sample(0)
    oracle.collect()


def test_going_on_without_a_sampled_token_is_refused() -> None:
    oracle = make()
    run(oracle, StepPlan(0, starts=(start(),), rows=(SlotRows(0, 0, 6, PROMPT),)))
    with pytest.raises(PlanError, match="has sampled none"):
        run(oracle, StepPlan(1, rows=(decode(6),)))


def test_what_is_given_out_anew_is_wiped() -> None:
    # Whoever still relied on a block that was taken from it gets other tokens.
    oracle = make()
    run(oracle, StepPlan(0, starts=(start(),), rows=(prefill(),)))
    run(oracle, StepPlan(1, ends=(0,), starts=(start(1, (7, 7), blocks=(0,)),), rows=(prefill(1, (7, 7)),)))
    stale = start(0, blocks=(0, 1), num_cached=4)
    result = run(oracle, StepPlan(2, ends=(1,), starts=(stale,), rows=(prefill(tokens=PROMPT[4:], first=4),)))
    assert result.slots[0].tokens != tuple(expected_tokens(PROMPT, 1, GREEDY, range(100)))


def test_sampling_depends_on_seed_choice_and_position_and_greedy_on_none() -> None:
    digest = b"0123456789abcdef"

    def distinct(make_spec: Callable[[int], SamplingSpec]) -> int:
        return len({choose_token(digest, make_spec(n), 0, range(10**6)) for n in range(4)})

    assert distinct(lambda n: SamplingSpec(seed=n)) == 4
    assert distinct(lambda n: SamplingSpec(choice=n)) == 4
    assert distinct(lambda n: SamplingSpec(temperature=0, seed=n, choice=n)) == 1
    assert len({choose_token(digest, SamplingSpec(), index, range(10**6)) for index in range(4)}) == 4


def test_min_tokens_bars_stop_ids_where_others_are_left() -> None:
    digest = b"0123456789abcdef"
    spec = SamplingSpec(temperature=0, min_tokens=2, stop_token_ids=(0, 1))
    assert choose_token(digest, spec, 1, range(3)) == 2
    assert choose_token(digest, spec, 1, range(2)) in (0, 1)


class Time:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.sleeps: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds


def load(oracle: OracleExecutor, path: Path, **config: object) -> list[Phase]:
    phases: list[Phase] = []
    oracle.load(ModelFolder(path, None), EngineConfig(served_names=("m",), **config), phases.append)  # type: ignore[arg-type]
    return phases


def test_loading_takes_its_time_and_needs_no_model(tmp_path: Path) -> None:
    time = Time()
    oracle = OracleExecutor(load_s=7.0, clock=time.clock, sleep=time.sleep)
    assert load(oracle, tmp_path, max_model_len=100, max_sequences=3, max_batch_tokens=32) == [
        Phase.WEIGHTS,
        Phase.KV,
        Phase.WARMUP,
    ]
    assert time.sleeps == [7.0]
    limits = oracle.limits
    assert (limits.max_model_len, limits.max_sequences, limits.max_rows) == (100, 3, 32)
    assert limits.num_blocks * limits.block_tokens >= 300
    result = run(oracle, StepPlan(0, starts=(start(),), rows=(prefill(),)))
    assert chr(result.slots[0].tokens[0]).isprintable(), "without a tokenizer ids are bytes"


def test_a_model_folder_says_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 49152}))
    oracle = OracleExecutor(max_in_flight=2)
    load(oracle, tmp_path)
    assert oracle.limits.vocab == 49152
    assert oracle.limits.max_in_flight == 2


def test_a_model_folder_without_a_vocabulary_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="states no vocab_size"):
        load(OracleExecutor(), tmp_path)


def test_steps_take_their_time_also_in_flight() -> None:
    time = Time()
    limits = make_limits(num_blocks=8, max_in_flight=2)
    oracle = OracleExecutor(limits, step_s=0.5, clock=time.clock, sleep=time.sleep)
    oracle.launch(StepPlan(0, starts=(start(),), rows=(prefill(),)))
    oracle.sample(0)
    time.now_s += 0.2
    oracle.launch(StepPlan(1, rows=(decode(6),)))
    oracle.sample(1)
    assert oracle.collect().device_s == 0.5
    assert time.now_s == 100.5, "the time since the launch counts"
    oracle.collect()
    assert time.now_s == 101.0, "the second begins when the first has ended"
    time.now_s += 3
    run(oracle, StepPlan(2, rows=(decode(7),)))
    assert time.now_s == 104.5, "an idle device does not owe time"
