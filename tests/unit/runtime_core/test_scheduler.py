"""Named situations: the token budget, chunks, order, and who yields when blocks run out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.core.admission import RefusalKind
from emberline_runtime.core.request import FinishReason
from emberline_runtime.core.step import (
    Want,
)
from support.engine_rig import Rig, ask, make_limits


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
