"""Shared prefixes: who reuses whose blocks, who waits, who must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.core.request import FinishReason
from emberline_runtime.core.step import (
    SamplingSpec,
)
from support.engine_rig import GREEDY, Rig, ask, make_limits

SHARED = tuple(range(1, 33))


def test_a_second_prompt_reuses_the_first_ones_blocks() -> None:
    rig = Rig(make_limits())
    rig.submit(ask("a", SHARED))
    rig.run(50)
    rig.submit(ask("b", (*SHARED, 50)))
    rig.launch()
    (start,) = rig.plans[-1].starts
    assert start.num_cached == 32
    assert start.blocks[:8] == rig.plans[0].starts[0].blocks
    rig.run(50)
    last = rig.heard["b"].last
    assert last is not None
    assert last.num_cached == 32
    stats = rig.scheduler.stats()
    assert (stats.num_prefix_query_tokens, stats.num_prefix_hit_tokens) == (65, 32)


def test_at_least_the_last_token_is_computed() -> None:
    rig = Rig(make_limits())
    for name in ("a", "b"):
        rig.submit(ask(name, SHARED))
        rig.run(50)
    assert rig.plans[-1].rows[0].num_rows == 1
    assert [s.num_cached for plan in rig.plans for s in plan.starts] == [0, 28]


def test_answers_are_shared_too() -> None:
    rig = Rig(make_limits())
    rig.submit(ask("a", SHARED, 9))
    rig.run(50)
    rig.submit(ask("b", (*SHARED, *rig.heard["a"].tokens, 1)))
    rig.run(50)
    assert rig.heard["b"].last is not None
    assert rig.heard["b"].last.num_cached == 40


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_who_needs_what_another_computes_waits_for_it(max_in_flight: int) -> None:
    rig = Rig(make_limits(max_in_flight=max_in_flight, max_rows=8), max_batch_tokens=8)
    rig.submit(ask("a", SHARED))
    rig.submit(ask("b", (*SHARED, 60)))
    rig.submit(ask("c", 6))
    rig.step()
    assert rig.scheduler.num_waiting >= 1
    rig.run(100)
    num_computed = sum(rows.num_rows for plan in rig.plans for rows in plan.rows)
    # Each of the 32 shared positions once; the rest is each one's own.
    assert num_computed == 32 + 1 + 6 + 3 * 7
    assert rig.heard["b"].last is not None
    assert rig.heard["b"].last.num_cached == 32


def test_others_pass_one_that_waits_for_a_prefix() -> None:
    # The first prompt takes 12 + 12 + 8 of 12 rows: the third step has room for others.
    rig = Rig(make_limits(max_rows=12), max_batch_tokens=12)
    rig.submit(ask("a", SHARED))
    rig.submit(ask("b", (*SHARED, 60)))
    rig.submit(ask("c", 2))
    for _ in range(3):
        rig.step()
    assert rig.started == ["a", "c"]
    rig.step()
    assert rig.started == ["a", "c", "b"]
    rig.run(100)


def test_the_wait_ends_with_the_one_waited_for() -> None:
    rig = Rig(make_limits(max_rows=8), max_batch_tokens=8)
    rig.submit(ask("a", SHARED))
    rig.submit(ask("b", (*SHARED, 60)))
    rig.step()
    rig.abort("a")
    rig.run(100)
    last = rig.heard["b"].last
    assert last is not None
    assert last.num_cached == 8, "what the first had computed is kept"


@pytest.mark.parametrize(
    ("first", "second", "num_cached"), [(b"x", b"x", 32), (b"x", b"y", 0), (b"", b"y", 0), (b"x", b"", 0)]
)
def test_tenants_share_with_themselves_alone(first: bytes, second: bytes, num_cached: int) -> None:
    rig = Rig(make_limits())
    rig.submit(ask("a", SHARED, salt=first))
    rig.run(50)
    rig.submit(ask("b", (*SHARED, 60), salt=second))
    rig.run(50)
    assert rig.heard["b"].last is not None
    assert rig.heard["b"].last.num_cached == num_cached


def test_choices_share_their_prompt_without_prefix_caching_and_nothing_is_kept() -> None:
    rig = Rig(make_limits(num_blocks=14), prefix_caching=False)
    for choice in range(3):
        spec = SamplingSpec(temperature=1.0, seed=4, choice=choice)
        rig.submit(ask(f"c{choice}", SHARED, 5, sampling=spec, group="g"))
    rig.run(100)
    answers = {tuple(heard.tokens) for heard in rig.heard.values()}
    assert len(answers) == 3, "each choice draws its own"
    # 14 blocks hold the 8 of the prompt once and 2 for each choice, not three prompts.
    assert rig.scheduler.stats().num_preemptions == 0
    starts = {start.slot: start for plan in rig.plans for start in plan.starts}
    assert [len(set(s.blocks[:7])) for s in starts.values()] == [7, 7, 7]
    assert len({s.blocks[:7] for s in starts.values()}) == 1
    rig.submit(ask("later", SHARED, 5, group="g"))
    rig.run(50)
    assert rig.heard["later"].last is not None
    assert rig.heard["later"].last.num_cached == 0


def test_without_prefix_caching_two_calls_share_nothing() -> None:
    rig = Rig(make_limits(), prefix_caching=False)
    rig.submit(ask("a", SHARED, 9, group="g"))
    rig.step()
    rig.submit(ask("b", SHARED, 3, group="h"))
    rig.submit(ask("c", SHARED, 3))
    rig.run(50)
    assert [s.num_cached for plan in rig.plans for s in plan.starts] == [0, 0, 0]


def test_prompt_logprobs_skip_the_look_up_and_still_register() -> None:
    rig = Rig(make_limits())
    spec = replace(GREEDY, prompt_logprobs=0)
    for name in ("a", "b"):
        rig.submit(ask(name, SHARED, sampling=spec))
        rig.run(50)
        last = rig.heard[name].last
        assert last is not None
        assert last.num_cached == 0
    rig.submit(ask("c", SHARED))
    rig.run(50)
    assert rig.heard["c"].last is not None
    assert rig.heard["c"].last.num_cached == 28


def test_a_fault_ends_its_request_alone_and_its_blocks_are_not_reused() -> None:
    rig = Rig(make_limits(max_rows=8), max_batch_tokens=8, poison_token=99, alphabet=range(90))
    rig.submit(ask("good", 6))
    rig.submit(ask("bad", (*SHARED, 99, 1, 2)))
    rig.run(100)
    assert rig.heard["bad"].finish is FinishReason.ERROR
    assert rig.heard["bad"].last is not None
    assert "not finite" in (rig.heard["bad"].last.error or "")
    assert rig.heard["good"].finish is FinishReason.LENGTH
    rig.submit(ask("next", (*SHARED, 60)))
    rig.run(100)
    assert rig.heard["next"].last is not None
    assert rig.heard["next"].last.num_cached == 0
