"""Named situations: budget, chunks, order, preemption, shared prefixes, lookahead, and the ends of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.core.admission import RefusalKind
from emberline_runtime.core.request import FinishReason, Request
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import (
    Fault,
    FaultKind,
    SamplingSpec,
    SlotResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
    Want,
)
from support.engine_rig import GREEDY, Rig, make_limits, num_wanted_tokens


def ask(name: str, prompt: int | tuple[int, ...], max_tokens: int = 8, **fields: object) -> Request:
    """A greedy request; a number of tokens stands for a prompt of that length that begins like no other."""
    if isinstance(prompt, int):
        prompt = tuple((sum(map(ord, name)) * 31 + place * place + place) % 97 for place in range(prompt))
    return replace(Request(name, prompt, GREEDY, max_tokens), **fields)  # type: ignore[arg-type]


def decoding_rig(num_requests: int, *, max_in_flight: int = 1, **limits: int) -> Rig:
    """A rig in which so many requests are decoding."""
    rig = Rig(
        make_limits(num_blocks=512, max_in_flight=max_in_flight, **limits), max_batch_tokens=64, prefix_caching=False
    )
    for number in range(num_requests):
        assert rig.submit(ask(f"d{number}", 3, 100)) is None
    while any(heard.first_step is None for heard in rig.heard.values()):
        rig.step()
    return rig


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_long_prompt_stops_nobodys_tokens(max_in_flight: int) -> None:
    rig = decoding_rig(3, max_in_flight=max_in_flight)
    assert rig.submit(ask("long", 700)) is None
    num_steps = 0
    while rig.heard["long"].first_step is None:
        before = {name: len(heard.tokens) for name, heard in rig.heard.items()}
        rig.step()
        num_steps += 1
        for name in ("d0", "d1", "d2"):
            assert len(rig.heard[name].tokens) == before[name] + 1, f"{name} got no token in step {num_steps}"
    # 61 rows a step are left for it; what was in flight when it came goes first.
    assert num_steps == -(-700 // 61) + max_in_flight - 1
    assert max(sum(rows.num_rows for rows in plan.rows) for plan in rig.plans) == 64


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_newcomer_gets_its_first_token_while_others_decode(max_in_flight: int) -> None:
    rig = decoding_rig(3, max_in_flight=max_in_flight)
    rig.submit(ask("new", 10, 2))
    num_commits = rig.num_commits
    rig.run(500)
    new = rig.heard["new"]
    assert new.first_step is not None
    assert new.first_step - num_commits <= max_in_flight
    assert all(heard.end_step > new.end_step for name, heard in rig.heard.items() if name != "new")  # type: ignore[operator]


def test_prompts_take_the_rest_of_the_budget_in_order_of_arrival() -> None:
    rig = decoding_rig(2)
    for name in ("a", "b", "c"):
        rig.submit(ask(name, 40))
    rig.launch()
    plan = rig.plans[-1]
    assert [rig.num_rows(plan, name) for name in ("d0", "d1", "a", "b", "c")] == [1, 1, 40, 22, 0]
    rig.commit()
    rig.launch()
    # a decodes now, so 61 rows are left: the rest of b's prompt, all of c's, and no more.
    assert [rig.num_rows(rig.plans[-1], name) for name in ("d0", "d1", "a", "b", "c")] == [1, 1, 1, 18, 40]


def test_no_more_run_than_a_step_has_rows() -> None:
    rig = Rig(make_limits(max_rows=3, max_sequences=8, num_blocks=64), max_sequences=8)
    for number in range(6):
        rig.submit(ask(f"r{number}", 2, 20))
    for _ in range(12):
        rig.step()
        assert rig.scheduler.num_running <= 3
    rig.run(300)


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_the_least_computed_yields_and_returns_before_later_ones(max_in_flight: int) -> None:
    # 8 blocks of 4: two requests of 4 + 24 tokens cannot both end without one yielding.
    rig = Rig(make_limits(num_blocks=9, max_in_flight=max_in_flight), prefix_caching=False, max_sequences=2)
    rig.submit(ask("first", 8, 20))
    rig.submit(ask("second", 4, 20))
    rig.submit(ask("third", 4, 20))
    rig.run(300)
    assert rig.scheduler.stats().num_preemptions >= 1
    assert rig.started[:2] == ["first", "second"]
    assert rig.started[2] == "second", "the preempted one goes to the head of the queue"
    assert "first" not in rig.started[1:], "the one that has most computed never yields"


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_the_least_computed_yields_also_where_it_came_first(max_in_flight: int) -> None:
    rig = Rig(make_limits(num_blocks=9, max_in_flight=max_in_flight), prefix_caching=False, max_sequences=2)
    rig.submit(ask("short", 4, 20))
    rig.submit(ask("long", 20, 12))
    rig.run(300)
    assert rig.started == ["short", "long", "short"]


def test_the_less_urgent_yields_whatever_it_has_computed() -> None:
    rig = Rig(make_limits(num_blocks=9), prefix_caching=False, max_sequences=2)
    rig.submit(ask("urgent", 4, 20, priority=-1))
    rig.submit(ask("long", 20, 12))
    rig.run(300)
    assert rig.started == ["urgent", "long", "long"]


def test_nobody_yields_where_an_ended_one_is_about_to_give_its_blocks_back() -> None:
    rig = Rig(make_limits(num_blocks=3, max_in_flight=2), prefix_caching=False)
    ends = ask("ends", 5, 3)
    stop = rig.expected(ends)[1]
    assert stop != rig.expected(ends)[0]
    rig.submit(replace(ends, eos=frozenset({stop})))
    rig.submit(ask("grows", 2, 6))
    rig.run(50)
    # When "grows" needs its second block, "ends" has ended and is in flight still.
    assert rig.scheduler.stats().num_preemptions == 0
    assert rig.heard["ends"].finish is FinishReason.STOP


def test_preempted_ones_keep_their_order() -> None:
    rig = Rig(make_limits(num_blocks=12, max_sequences=4), prefix_caching=False, max_sequences=4)
    for name in ("a", "b", "c", "d"):
        rig.submit(ask(name, 8, 30))
    rig.run(500)
    assert rig.scheduler.stats().num_preemptions >= 2
    ends = [name for name, _ in sorted(rig.heard.items(), key=lambda item: item[1].end_step or 0)]
    assert ends == ["a", "b", "c", "d"]


def test_a_newcomer_leaves_a_block_for_each_that_still_grows() -> None:
    rig = Rig(make_limits(num_blocks=5), prefix_caching=False)
    rig.submit(ask("grows", 8, 9))
    rig.submit(ask("new", 12, 3))
    rig.step()
    assert rig.started == ["grows"], "3 blocks are idle and would do now, but the first will need 2 more"
    rig.run(50)
    assert rig.scheduler.stats().num_preemptions == 0
    rig = Rig(make_limits(num_blocks=6), prefix_caching=False)
    rig.submit(ask("full", 8, 1))
    rig.submit(ask("new", 16, 1))
    rig.step()
    assert rig.started == ["full", "new"], "one that will not grow needs no block left"
    rig.run(50)


def test_nothing_is_sampled_before_history_is_back() -> None:
    rig = Rig(make_limits(num_blocks=9, max_rows=5), prefix_caching=False, max_sequences=2, max_batch_tokens=5)
    rig.submit(ask("first", 8, 20))
    rig.submit(ask("second", 8, 20))
    while not rig.scheduler.stats().num_preemptions:
        rig.step()
    told = len(rig.heard["second"].tokens)
    assert told > 0, "it had begun to answer"
    rig.run(300)
    restart = max(
        place for place, plan in enumerate(rig.plans) if any(s.num_prompt < len(s.tokens) for s in plan.starts)
    )
    (start,) = rig.plans[restart].starts
    assert len(start.tokens) == 8 + told
    assert list(start.tokens[8:]) == rig.heard["second"].tokens[:told]
    computed = 0
    for plan in rig.plans[restart:]:
        for rows in plan.rows:
            if rows.slot == start.slot:
                computed += rows.num_rows
                assert bool(rows.want & Want.TOKEN) == (computed >= len(start.tokens))


def test_a_request_that_never_fits_is_refused_and_one_that_just_fits_runs() -> None:
    rig = Rig(make_limits(num_blocks=4))
    refused = rig.submit(ask("r", 10, 8))
    assert refused is not None
    assert refused.kind is RefusalKind.NEVER_FITS
    assert rig.submit(ask("r", 10, 7)) is None
    rig.run(20)


def test_an_id_can_be_used_again_only_after_its_end() -> None:
    rig = Rig(make_limits())
    rig.submit(ask("r", 4, 2))
    refused = rig.submit(ask("r", 4, 2))
    assert refused is not None
    assert refused.kind is RefusalKind.DUPLICATE
    rig.run(20)
    assert rig.submit(ask("r", 4, 2)) is None


def test_a_full_queue_refuses_until_one_starts() -> None:
    rig = Rig(make_limits(), max_sequences=1, max_queued_requests=1)
    assert rig.submit(ask("a", 4)) is None
    assert rig.submit(ask("b", 4)) is None
    refused = rig.submit(ask("c", 4))
    assert refused is not None
    assert refused.kind is RefusalKind.QUEUE_FULL
    rig.run(50)
    assert rig.submit(ask("c", 4)) is None


def test_priority_goes_before_arrival() -> None:
    rig = Rig(make_limits(), max_sequences=1)
    rig.submit(ask("a", 4))
    rig.submit(ask("b", 4))
    rig.submit(ask("urgent", 4, priority=-1))
    rig.run(100)
    assert rig.started == ["urgent", "a", "b"]


class TestPrefixes:
    SHARED = tuple(range(1, 33))

    def test_a_second_prompt_reuses_the_first_ones_blocks(self) -> None:
        rig = Rig(make_limits())
        rig.submit(ask("a", self.SHARED))
        rig.run(50)
        rig.submit(ask("b", (*self.SHARED, 50)))
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

    def test_at_least_the_last_token_is_computed(self) -> None:
        rig = Rig(make_limits())
        for name in ("a", "b"):
            rig.submit(ask(name, self.SHARED))
            rig.run(50)
        assert rig.plans[-1].rows[0].num_rows == 1
        assert [s.num_cached for plan in rig.plans for s in plan.starts] == [0, 28]

    def test_answers_are_shared_too(self) -> None:
        rig = Rig(make_limits())
        rig.submit(ask("a", self.SHARED, 9))
        rig.run(50)
        rig.submit(ask("b", (*self.SHARED, *rig.heard["a"].tokens, 1)))
        rig.run(50)
        assert rig.heard["b"].last is not None
        assert rig.heard["b"].last.num_cached == 40

    @pytest.mark.parametrize("max_in_flight", [1, 2])
    def test_who_needs_what_another_computes_waits_for_it(self, max_in_flight: int) -> None:
        rig = Rig(make_limits(max_in_flight=max_in_flight, max_rows=8), max_batch_tokens=8)
        rig.submit(ask("a", self.SHARED))
        rig.submit(ask("b", (*self.SHARED, 60)))
        rig.submit(ask("c", 6))
        rig.step()
        assert rig.scheduler.num_waiting >= 1
        rig.run(100)
        num_computed = sum(rows.num_rows for plan in rig.plans for rows in plan.rows)
        # Each of the 32 shared positions once; the rest is each one's own.
        assert num_computed == 32 + 1 + 6 + 3 * 7
        assert rig.heard["b"].last is not None
        assert rig.heard["b"].last.num_cached == 32

    def test_others_pass_one_that_waits_for_a_prefix(self) -> None:
        # The first prompt takes 12 + 12 + 8 of 12 rows: the third step has room for others.
        rig = Rig(make_limits(max_rows=12), max_batch_tokens=12)
        rig.submit(ask("a", self.SHARED))
        rig.submit(ask("b", (*self.SHARED, 60)))
        rig.submit(ask("c", 2))
        for _ in range(3):
            rig.step()
        assert rig.started == ["a", "c"]
        rig.step()
        assert rig.started == ["a", "c", "b"]
        rig.run(100)

    def test_the_wait_ends_with_the_one_waited_for(self) -> None:
        rig = Rig(make_limits(max_rows=8), max_batch_tokens=8)
        rig.submit(ask("a", self.SHARED))
        rig.submit(ask("b", (*self.SHARED, 60)))
        rig.step()
        rig.abort("a")
        rig.run(100)
        last = rig.heard["b"].last
        assert last is not None
        assert last.num_cached == 8, "what the first had computed is kept"

    @pytest.mark.parametrize(
        ("first", "second", "num_cached"), [(b"x", b"x", 32), (b"x", b"y", 0), (b"", b"y", 0), (b"x", b"", 0)]
    )
    def test_tenants_share_with_themselves_alone(self, first: bytes, second: bytes, num_cached: int) -> None:
        rig = Rig(make_limits())
        rig.submit(ask("a", self.SHARED, salt=first))
        rig.run(50)
        rig.submit(ask("b", (*self.SHARED, 60), salt=second))
        rig.run(50)
        assert rig.heard["b"].last is not None
        assert rig.heard["b"].last.num_cached == num_cached

    def test_choices_share_their_prompt_without_prefix_caching_and_nothing_is_kept(self) -> None:
        rig = Rig(make_limits(num_blocks=14), prefix_caching=False)
        for choice in range(3):
            spec = SamplingSpec(temperature=1.0, seed=4, choice=choice)
            rig.submit(ask(f"c{choice}", self.SHARED, 5, sampling=spec, group="g"))
        rig.run(100)
        answers = {tuple(heard.tokens) for heard in rig.heard.values()}
        assert len(answers) == 3, "each choice draws its own"
        # 14 blocks hold the 8 of the prompt once and 2 for each choice, not three prompts.
        assert rig.scheduler.stats().num_preemptions == 0
        starts = {start.slot: start for plan in rig.plans for start in plan.starts}
        assert [len(set(s.blocks[:7])) for s in starts.values()] == [7, 7, 7]
        assert len({s.blocks[:7] for s in starts.values()}) == 1
        rig.submit(ask("later", self.SHARED, 5, group="g"))
        rig.run(50)
        assert rig.heard["later"].last is not None
        assert rig.heard["later"].last.num_cached == 0

    def test_without_prefix_caching_two_calls_share_nothing(self) -> None:
        rig = Rig(make_limits(), prefix_caching=False)
        rig.submit(ask("a", self.SHARED, 9, group="g"))
        rig.step()
        rig.submit(ask("b", self.SHARED, 3, group="h"))
        rig.submit(ask("c", self.SHARED, 3))
        rig.run(50)
        assert [s.num_cached for plan in rig.plans for s in plan.starts] == [0, 0, 0]

    def test_prompt_logprobs_skip_the_look_up_and_still_register(self) -> None:
        rig = Rig(make_limits())
        spec = replace(GREEDY, prompt_logprobs=0)
        for name in ("a", "b"):
            rig.submit(ask(name, self.SHARED, sampling=spec))
            rig.run(50)
            last = rig.heard[name].last
            assert last is not None
            assert last.num_cached == 0
        rig.submit(ask("c", self.SHARED))
        rig.run(50)
        assert rig.heard["c"].last is not None
        assert rig.heard["c"].last.num_cached == 28

    def test_a_fault_ends_its_request_alone_and_its_blocks_are_not_reused(self) -> None:
        rig = Rig(make_limits(max_rows=8), max_batch_tokens=8, poison_token=99, alphabet=range(90))
        rig.submit(ask("good", 6))
        rig.submit(ask("bad", (*self.SHARED, 99, 1, 2)))
        rig.run(100)
        assert rig.heard["bad"].finish is FinishReason.ERROR
        assert rig.heard["bad"].last is not None
        assert "not finite" in (rig.heard["bad"].last.error or "")
        assert rig.heard["good"].finish is FinishReason.LENGTH
        rig.submit(ask("next", (*self.SHARED, 60)))
        rig.run(100)
        assert rig.heard["next"].last is not None
        assert rig.heard["next"].last.num_cached == 0


class TestEnds:
    @pytest.mark.parametrize("max_in_flight", [1, 2])
    def test_the_tokens_after_a_stop_are_dropped(self, max_in_flight: int) -> None:
        rig = Rig(make_limits(max_in_flight=max_in_flight))
        request = ask("r", 5, 30)
        answer = rig.expected(request)
        rig.submit(replace(request, eos=frozenset({answer[6]})))
        rig.run(50)
        heard = rig.heard["r"]
        assert heard.tokens == answer[: answer.index(answer[6]) + 1]
        assert heard.finish is FinishReason.STOP
        # With a step of lookahead one more row was computed, for nothing.
        assert sum(map(num_wanted_tokens, rig.plans)) == len(heard.tokens) + max_in_flight - 1

    @pytest.mark.parametrize("max_in_flight", [1, 2])
    def test_nothing_is_scheduled_past_max_tokens(self, max_in_flight: int) -> None:
        rig = Rig(make_limits(max_in_flight=max_in_flight))
        rig.submit(ask("r", 5, 6))
        rig.run(50)
        assert sum(map(num_wanted_tokens, rig.plans)) == 6

    def test_the_model_learns_all_stop_ids_for_min_tokens(self) -> None:
        rig = Rig(make_limits())
        rig.submit(ask("r", 5, 6, eos=frozenset({9, 4}), sampling=replace(GREEDY, stop_token_ids=(7, 4), min_tokens=3)))
        rig.launch()
        assert rig.plans[0].starts[0].sampling.stop_token_ids == (4, 7, 9)
        rig.commit()
        rig.run(50)

    @pytest.mark.parametrize("max_in_flight", [1, 2])
    def test_given_up_in_the_queue(self, max_in_flight: int) -> None:
        rig = Rig(make_limits(max_in_flight=max_in_flight), max_sequences=1)
        rig.submit(ask("a", 5, 6))
        rig.submit(ask("b", 5, 6))
        rig.step()
        rig.abort("b")
        assert rig.heard["b"].finish is FinishReason.ABORT
        assert rig.scheduler.num_waiting == 0
        rig.run(50)
        assert rig.started == ["a"]

    @pytest.mark.parametrize("max_in_flight", [1, 2])
    @pytest.mark.parametrize("num_steps", [1, 2, 3, 6])
    def test_given_up_in_prompt_or_answer_frees_slot_and_blocks_within_the_steps_in_flight(
        self, max_in_flight: int, num_steps: int
    ) -> None:
        rig = Rig(make_limits(max_in_flight=max_in_flight, max_rows=8), max_batch_tokens=8)
        rig.submit(ask("a", 20, 20))
        for _ in range(num_steps):
            rig.step()
        if max_in_flight == 2:
            assert rig.scheduler.num_in_flight == 1
        rig.abort("a")
        for _ in range(rig.scheduler.num_in_flight):
            rig.commit()
        rig.check_empty()
        assert rig.heard["a"].finish is FinishReason.ABORT

    def test_given_up_while_preempted(self) -> None:
        rig = Rig(make_limits(num_blocks=9), prefix_caching=False, max_sequences=2)
        rig.submit(ask("first", 8, 20))
        rig.submit(ask("second", 4, 20))
        while not rig.scheduler.stats().num_preemptions:
            rig.step()
        rig.abort("second")
        assert rig.heard["second"].finish is FinishReason.ABORT
        rig.run(100)

    def test_given_up_while_about_to_be_preempted(self) -> None:
        rig = Rig(make_limits(num_blocks=9, max_in_flight=2), prefix_caching=False, max_sequences=2)
        rig.submit(ask("first", 8, 20))
        rig.submit(ask("second", 4, 20))
        while not any(sequence.is_leaving for sequence in rig.scheduler._running):
            rig.launch()
            if rig.scheduler.num_in_flight == 2:
                rig.commit()
        rig.abort("second")
        rig.run(100)
        assert rig.scheduler.stats().num_preemptions == 0

    def test_unknown_and_ended_ids_are_let_pass(self) -> None:
        rig = Rig(make_limits())
        assert rig.scheduler.abort("nobody") is None
        assert rig.scheduler.finish("nobody", 0) is None
        rig.submit(ask("a", 5, 2))
        rig.run(20)
        rig.abort("a")
        rig.finish("a", 1)

    @pytest.mark.parametrize("max_in_flight", [1, 2])
    def test_a_stop_string_keeps_the_tokens_before_it(self, max_in_flight: int) -> None:
        rig = Rig(make_limits(max_in_flight=max_in_flight))
        rig.submit(ask("a", 5, 30))
        while len(rig.heard["a"].tokens) < 6:
            rig.step()
        rig.finish("a", 4)
        heard = rig.heard["a"]
        assert heard.finish is FinishReason.STOP
        assert heard.last is not None
        assert (heard.last.num_output, heard.last.stop_token) == (4, None)
        rig.run(10)
        assert len(heard.tokens) == 4

    def test_a_stop_string_cannot_keep_more_than_there_is(self) -> None:
        rig = Rig(make_limits())
        rig.submit(ask("a", 5, 30))
        rig.step()
        with pytest.raises(ValueError, match="has 1 tokens, 2 are to be kept"):
            rig.scheduler.finish("a", 2)

    def test_a_stop_string_found_while_preempted(self) -> None:
        rig = Rig(make_limits(num_blocks=9), prefix_caching=False, max_sequences=2)
        rig.submit(ask("first", 8, 20))
        rig.submit(ask("second", 4, 20))
        while not rig.scheduler.stats().num_preemptions:
            rig.step()
        rig.finish("second", 2)
        assert rig.scheduler.num_waiting == 0
        rig.run(100)


def answer_all(plan: StepPlan, token: int = 1, **fields: object) -> StepResult:
    """A result as an executor would give it, with the same token for all."""
    slots = (
        SlotResult(rows.slot, (token,) if rows.want & Want.TOKEN else (), rows.start + rows.num_rows, **fields)  # type: ignore[arg-type]
        for rows in plan.rows
    )
    return StepResult(plan.step, tuple(slots))


def make_scheduler(*, features: frozenset[str] = frozenset(), max_in_flight: int = 1) -> Scheduler:
    limits = replace(make_limits(max_in_flight=max_in_flight), features=features)
    return Scheduler(limits, max_batch_tokens=64, max_sequences=4, max_queued_requests=9, prefix_caching=True)


class TestContract:
    def test_a_grammar_is_not_scheduled_ahead_and_gets_its_mask_rows(self) -> None:
        scheduler = make_scheduler(features=frozenset({"grammar"}), max_in_flight=2)
        constrained = replace(GREEDY, grammar=True)
        for name, sampling in (("plain", GREEDY), ("g1", constrained), ("g2", constrained)):
            assert scheduler.submit(ask(name, 4, sampling=sampling)) is None
        first = scheduler.schedule(0.0)
        assert first is not None
        assert [rows.mask_row for rows in first.rows] == [-1, 0, 1]
        assert first.num_mask_rows == 2
        ahead = scheduler.schedule(0.0)
        assert ahead is not None
        assert [rows.slot for rows in ahead.rows] == [first.rows[0].slot]
        assert ahead.rows[0].tokens == (), "its token is not known yet"
        scheduler.commit(answer_all(first))
        third = scheduler.schedule(0.0)
        assert third is not None
        assert [rows.mask_row for rows in third.rows] == [-1, 0, 1]
        assert [rows.tokens for rows in third.rows] == [(), (1,), (1,)], "the plain one runs ahead still"

    def test_those_that_sit_out_a_step_still_have_their_rows_in_the_next(self) -> None:
        # While two constrained ones wait for their result, a step has rows left; later all three would want one.
        limits = replace(make_limits(max_in_flight=2, max_rows=8), features=frozenset({"grammar"}))
        scheduler = Scheduler(limits, max_batch_tokens=2, max_sequences=4, max_queued_requests=9, prefix_caching=False)
        for name in ("g1", "g2", "g3"):
            scheduler.submit(ask(name, 1, sampling=replace(GREEDY, grammar=True)))
        first = scheduler.schedule(0.0)
        assert first is not None
        assert len(first.rows) == 2
        assert scheduler.schedule(0.0) is None
        scheduler.commit(answer_all(first))
        second = scheduler.schedule(0.0)
        assert second is not None
        assert [rows.slot for rows in second.rows] == [rows.slot for rows in first.rows]

    def test_results_come_in_the_order_of_the_plans(self) -> None:
        scheduler = make_scheduler(max_in_flight=2)
        scheduler.submit(ask("a", 4))
        first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
        assert first is not None
        assert second is not None
        assert scheduler.schedule(0.0) is None, "two are in flight"
        with pytest.raises(ValueError, match="result of step 1 committed, step 0 is due"):
            scheduler.commit(answer_all(second))

    def test_a_result_that_lacks_a_slot_is_refused(self) -> None:
        scheduler = make_scheduler()
        scheduler.submit(ask("a", 4))
        plan = scheduler.schedule(0.0)
        assert plan is not None
        with pytest.raises(ValueError, match=r"step 0 lacks slots \[0\]"):
            scheduler.commit(StepResult(plan.step))

    def test_a_fault_is_told_with_its_message(self) -> None:
        scheduler = make_scheduler()
        scheduler.submit(ask("a", 4))
        plan = scheduler.schedule(0.0)
        assert plan is not None
        (update,) = scheduler.commit(answer_all(plan, fault=Fault(FaultKind.NONFINITE, "logits of row 3 are NaN")))
        assert (update.finish, update.error, update.tokens) == (FinishReason.ERROR, "logits of row 3 are NaN", ())
        assert not scheduler.has_work

    def test_tokens_after_a_stop_within_one_result_are_cut_with_their_logprobs(self) -> None:
        # As speculation will bring them: several tokens at once.
        scheduler = make_scheduler(features=frozenset({"logprobs"}))
        scheduler.submit(ask("a", 4, eos=frozenset({7}), sampling=replace(GREEDY, logprobs=0)))
        plan = scheduler.schedule(0.0)
        assert plan is not None
        logprobs = tuple(TokenLogprobs(token, -1.0, 1) for token in (5, 7, 6))
        result = SlotResult(plan.rows[0].slot, (5, 7, 6), 4, logprobs=logprobs)
        (update,) = scheduler.commit(StepResult(plan.step, (result,)))
        assert update.tokens == (5, 7)
        assert update.logprobs == logprobs[:2]
        assert (update.finish, update.stop_token, update.num_output) == (FinishReason.STOP, 7, 2)

    def test_the_time_in_the_queue_is_told_once(self) -> None:
        scheduler = make_scheduler()
        scheduler.submit(ask("a", 4, arrival_s=10.0))
        plan = scheduler.schedule(12.5)
        assert plan is not None
        (update,) = scheduler.commit(answer_all(plan))
        assert update.queue_s == 2.5
        plan = scheduler.schedule(13.0)
        assert plan is not None
        (update,) = scheduler.commit(answer_all(plan))
        assert update.queue_s is None

    def test_freed_slots_are_named_once_before_they_are_bound_anew(self) -> None:
        rig = Rig(make_limits(max_sequences=1), max_sequences=1)
        for name in ("a", "b"):
            rig.submit(ask(name, 4, 2))
        rig.run(20)
        assert [plan.ends for plan in rig.plans] == [(), (), (0,), ()]

    def test_gauges(self) -> None:
        rig = Rig(make_limits(num_blocks=10), max_sequences=1)
        rig.submit(ask("a", 12, 4))
        rig.submit(ask("b", 12, 4))
        assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (0, 2)
        rig.step()
        stats = rig.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (1, 1, 0.3)
        rig.run(20)
        assert rig.scheduler.stats().kv_usage == 0
