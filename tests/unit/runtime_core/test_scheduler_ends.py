"""How requests end: stops, lengths, stop strings, callers that give up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.core.request import FinishReason
from support.engine_rig import GREEDY, Rig, ask, make_limits, num_wanted_tokens


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_the_tokens_after_a_stop_are_dropped(max_in_flight: int) -> None:
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
def test_nothing_is_scheduled_past_max_tokens(max_in_flight: int) -> None:
    rig = Rig(make_limits(max_in_flight=max_in_flight))
    rig.submit(ask("r", 5, 6))
    rig.run(50)
    assert sum(map(num_wanted_tokens, rig.plans)) == 6


def test_the_model_learns_all_stop_ids_for_min_tokens() -> None:
    rig = Rig(make_limits())
    rig.submit(ask("r", 5, 6, eos=frozenset({9, 4}), sampling=replace(GREEDY, stop_token_ids=(7, 4), min_tokens=3)))
    rig.launch()
    assert rig.plans[0].starts[0].sampling.stop_token_ids == (4, 7, 9)
    rig.commit()
    rig.run(50)


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_given_up_in_the_queue(max_in_flight: int) -> None:
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
    max_in_flight: int, num_steps: int
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


def test_given_up_while_preempted() -> None:
    rig = Rig(make_limits(num_blocks=9), prefix_caching=False, max_sequences=2)
    rig.submit(ask("first", 8, 20))
    rig.submit(ask("second", 4, 20))
    while not rig.scheduler.stats().num_preemptions:
        rig.step()
    rig.abort("second")
    assert rig.heard["second"].finish is FinishReason.ABORT
    rig.run(100)


def test_given_up_while_about_to_be_preempted() -> None:
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


def test_unknown_and_ended_ids_are_let_pass() -> None:
    rig = Rig(make_limits())
    assert rig.scheduler.abort("nobody") is None
    assert rig.scheduler.finish("nobody", 0) is None
    rig.submit(ask("a", 5, 2))
    rig.run(20)
    rig.abort("a")
    rig.finish("a", 1)


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_a_stop_string_keeps_the_tokens_before_it(max_in_flight: int) -> None:
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


def test_a_stop_string_cannot_keep_more_than_there_is() -> None:
    rig = Rig(make_limits())
    rig.submit(ask("a", 5, 30))
    rig.step()
    with pytest.raises(ValueError, match="has 1 tokens, 2 are to be kept"):
        rig.scheduler.finish("a", 2)


def test_a_stop_string_found_while_preempted() -> None:
    rig = Rig(make_limits(num_blocks=9), prefix_caching=False, max_sequences=2)
    rig.submit(ask("first", 8, 20))
    rig.submit(ask("second", 4, 20))
    while not rig.scheduler.stats().num_preemptions:
        rig.step()
    rig.finish("second", 2)
    assert rig.scheduler.num_waiting == 0
    rig.run(100)
