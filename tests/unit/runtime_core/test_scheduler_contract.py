"""What the scheduler and an executor owe each other, with results made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.core.request import FinishReason
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import (
    Fault,
    FaultKind,
    SlotResult,
    StepPlan,
    StepResult,
    TokenLogprobs,
    Want,
)
from support.engine_rig import GREEDY, Rig, ask, make_limits


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


def test_a_grammar_is_not_scheduled_ahead_and_gets_its_mask_rows() -> None:
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


def test_those_that_sit_out_a_step_still_have_their_rows_in_the_next() -> None:
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


def test_results_come_in_the_order_of_the_plans() -> None:
    scheduler = make_scheduler(max_in_flight=2)
    scheduler.submit(ask("a", 4))
    first, second = scheduler.schedule(0.0), scheduler.schedule(0.0)
    assert first is not None
    assert second is not None
    assert scheduler.schedule(0.0) is None, "two are in flight"
    with pytest.raises(ValueError, match="result of step 1 committed, step 0 is due"):
        scheduler.commit(answer_all(second))


def test_a_result_that_lacks_a_slot_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.submit(ask("a", 4))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    with pytest.raises(ValueError, match=r"step 0 lacks slots \[0\]"):
        scheduler.commit(StepResult(plan.step))


def test_a_fault_is_told_with_its_message() -> None:
    scheduler = make_scheduler()
    scheduler.submit(ask("a", 4))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    (update,) = scheduler.commit(answer_all(plan, fault=Fault(FaultKind.NONFINITE, "logits of row 3 are NaN")))
    assert (update.finish, update.error, update.tokens) == (FinishReason.ERROR, "logits of row 3 are NaN", ())
    assert not scheduler.has_work


def test_tokens_after_a_stop_within_one_result_are_cut_with_their_logprobs() -> None:
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


def test_the_time_in_the_queue_is_told_once() -> None:
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


def test_freed_slots_are_named_once_before_they_are_bound_anew() -> None:
    rig = Rig(make_limits(max_sequences=1), max_sequences=1)
    for name in ("a", "b"):
        rig.submit(ask(name, 4, 2))
    rig.run(20)
    assert [plan.ends for plan in rig.plans] == [(), (), (0,), ()]


def test_gauges() -> None:
    rig = Rig(make_limits(num_blocks=10), max_sequences=1)
    rig.submit(ask("a", 12, 4))
    rig.submit(ask("b", 12, 4))
    assert (rig.scheduler.num_running, rig.scheduler.num_waiting) == (0, 2)
    rig.step()
    stats = rig.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (1, 1, 0.3)
    rig.run(20)
    assert rig.scheduler.stats().kv_usage == 0
