"""The same traces over every executor: whatever scheduling does, a request's tokens are those it gets alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from emberline_runtime.core.request import Request
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.executors.base import Executor
from support.torch_rig import GREEDY, end_slots, make_request, step

SHARED = tuple(range(30, 70))


@dataclass(frozen=True)
class Trace:
    """Arrivals by step, aborts by step, and how tight the place is."""

    arrivals: dict[int, list[Request]]
    aborts: dict[int, list[str]]
    num_blocks: int
    max_batch_tokens: int
    prefix_caching: bool

    @property
    def requests(self) -> list[Request]:
        return [request for requests in self.arrivals.values() for request in requests]


def make_trace(seed: int) -> Trace:
    """Random arrivals of greedy and seeded requests, some with a common beginning, some given up midway."""
    rng = random.Random(seed)
    arrivals: dict[int, list[Request]] = {}
    aborts: dict[int, list[str]] = {}
    for index in range(10):
        own = [rng.randrange(3, 150) for _ in range(rng.choice([1, 5, 16, 17, 40]))]
        prompt = (*SHARED, *own) if rng.random() < 0.5 else tuple(own)
        sampling = GREEDY
        if rng.random() < 0.6:
            sampling = SamplingSpec(
                temperature=1.1, top_p=rng.choice([1.0, 0.9]), top_k=rng.choice([0, 20]), seed=index
            )
        request = make_request(f"{seed}-{index}", prompt, rng.choice([1, 4, 18, 30]), sampling)
        when = rng.randrange(12)
        arrivals.setdefault(when, []).append(request)
        if rng.random() < 0.2:
            aborts.setdefault(when + rng.randrange(10), []).append(request.id)
    return Trace(arrivals, aborts, rng.choice([7, 8, 10]), rng.choice([16, 48, 96]), rng.random() < 0.5)


def play(executor: Executor, trace: Trace) -> tuple[dict[str, list[int]], Scheduler]:
    """What each request was told."""
    scheduler = Scheduler(
        replace(executor.limits, num_blocks=trace.num_blocks),
        max_batch_tokens=trace.max_batch_tokens,
        max_sequences=executor.limits.max_sequences,
        max_queued_requests=100,
        prefix_caching=trace.prefix_caching,
    )
    told: dict[str, list[int]] = {request.id: [] for request in trace.requests}
    now, last_event = 0, max([*trace.arrivals, *trace.aborts])
    while scheduler.has_work or now <= last_event:
        for request in trace.arrivals.get(now, []):
            assert scheduler.submit(request) is None
        for request_id in trace.aborts.get(now, []):
            scheduler.abort(request_id)
        step(executor, scheduler, told)
        now += 1
        assert now < 2000, "no progress"
    end_slots(executor, scheduler)
    return told, scheduler


def alone(executor: Executor, request: Request) -> list[int]:
    """The request's tokens with the whole executor to itself and nothing cached."""
    trace = Trace({0: [request]}, {}, executor.limits.num_blocks, executor.limits.max_rows, prefix_caching=False)
    return play(executor, trace)[0][request.id]


@pytest.mark.parametrize("seed", range(6))
def test_tokens_do_not_depend_on_company(executor: Executor, seed: int) -> None:
    trace = make_trace(seed)
    told, _ = play(executor, trace)
    given_up = {request_id for ids in trace.aborts.values() for request_id in ids}
    for request in trace.requests:
        expected = alone(executor, request)
        assert len(expected) == request.max_tokens
        if request.id in given_up:
            assert told[request.id] == expected[: len(told[request.id])]
        else:
            assert told[request.id] == expected


def test_the_traces_meet_what_they_are_for(executor: Executor) -> None:
    """Preemption, hits in the prefix cache and aborts all happen, or the test above shows less than it says."""
    stats = [play(executor, make_trace(seed))[1].stats() for seed in range(6)]
    assert sum(s.num_preemptions for s in stats) > 0
    assert sum(s.num_prefix_hit_tokens for s in stats) > 0
    assert sum(len(make_trace(seed).aborts) for seed in range(6)) > 0


def test_a_newcomer_is_served_while_others_decode(executor: Executor) -> None:
    """Continuous batching: the first token of a late request comes before the early ones end."""
    early = [make_request(f"early-{i}", range(10 + i, 30 + i), 60) for i in range(3)]
    late = make_request("late", range(100, 140), 5)
    scheduler = Scheduler(
        executor.limits, max_batch_tokens=96, max_sequences=8, max_queued_requests=100, prefix_caching=False
    )
    told: dict[str, list[int]] = {}
    for request in early:
        scheduler.submit(request)
    for _ in range(10):
        step(executor, scheduler, told)
    scheduler.submit(late)
    step(executor, scheduler, told)
    assert len(told["late"]) == 1
    assert all(len(told[request.id]) == 11 for request in early)
    while scheduler.has_work:
        step(executor, scheduler, told)
    end_slots(executor, scheduler)


def test_a_long_prompt_does_not_stop_the_others(executor: Executor) -> None:
    """While a prompt of many chunks is computed, whoever decodes gets a token in every step."""
    decoding = make_request("decoding", range(10, 30), 40)
    long = make_request("long", [5 + i % 140 for i in range(300)], 3)
    scheduler = Scheduler(
        executor.limits, max_batch_tokens=32, max_sequences=8, max_queued_requests=100, prefix_caching=False
    )
    told: dict[str, list[int]] = {}
    scheduler.submit(decoding)
    step(executor, scheduler, told)
    scheduler.submit(long)
    num_steps = 0
    while "long" not in told:
        before = len(told["decoding"])
        step(executor, scheduler, told)
        assert len(told["decoding"]) == before + 1
        num_steps += 1
    assert num_steps == -(-300 // 31), "a chunk is what the budget leaves beside one decode"
    while scheduler.has_work:
        step(executor, scheduler, told)
    end_slots(executor, scheduler)
