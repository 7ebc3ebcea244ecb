"""In fp32 on a CPU a request's tokens depend on prompt, sampling and seed alone.

Tokens alone would hide most differences, since few logits are that close: the bits of the logits are compared too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emberline_runtime.core.request import Request
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.executors.torch.batch import Piece
from emberline_runtime.executors.torch.executor import TorchExecutor
from support.torch_rig import generate, load_torch, make_request, make_scheduler

SHARED = tuple(range(10, 80))
NUM_REQUESTS = 16


def make_requests() -> list[Request]:
    """Prompts of all lengths, half of them with one beginning, all sampled at a temperature that finds near-ties."""
    requests = []
    for index in range(NUM_REQUESTS):
        own = [(7 * index + 3 * position) % 150 + 5 for position in range(1 + 9 * index)]
        prompt = (*SHARED, *own) if index % 2 else own
        sampling = SamplingSpec(temperature=1.2, seed=1000 + index, top_p=0.95 if index % 3 else 1.0)
        requests.append(make_request(f"r{index}", prompt, 34 + index % 5, sampling))
    return requests


Answers = dict[str, list[tuple[int, str]]]
"""Of each request, its tokens, each with a digest of the logits that it was drawn from."""


def answer(executor: TorchExecutor, requests: Sequence[Request], scheduler: Scheduler | None = None) -> Answers:
    """All requests at once, to their ends; by default nothing is cached and 128 rows make a step."""
    scheduler = scheduler or make_scheduler(executor, max_batch_tokens=128)
    digests: dict[str, list[str]] = {}
    choose = executor._choose

    def spy(logits: torch.Tensor, pieces: Sequence[Piece]) -> dict[int, int | None]:
        ids = {sequence.slot: sequence.request.id for sequence in scheduler._running}
        for row, piece in zip(logits, pieces, strict=True):
            digests.setdefault(ids[piece.slot], []).append(blake2b(row.numpy().tobytes(), digest_size=8).hexdigest())
        return choose(logits, pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "_choose", spy)
        told = generate(executor, requests, scheduler=scheduler)
    return {request.id: list(zip(told[request.id], digests[request.id], strict=True)) for request in requests}


@pytest.fixture(scope="module")
def executor(tiny_folder: Path) -> Iterator[TorchExecutor]:
    """Thirty blocks, twice what the longest request needs: batches of several preempt one another."""
    executor = load_torch(tiny_folder, kv_cache="120Ki", max_batch_tokens=128)
    assert executor.limits.num_blocks == 30
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def alone(executor: TorchExecutor) -> Answers:
    """Every request computed by itself, from nothing, its prompt in as few chunks as can be."""
    return {request.id: answer(executor, [request])[request.id] for request in make_requests()}


def test_sixteen_at_once_with_preemption(executor: TorchExecutor, alone: Answers) -> None:
    scheduler = make_scheduler(executor, max_batch_tokens=128)
    assert answer(executor, make_requests(), scheduler) == alone
    assert scheduler.stats().num_preemptions > 0, "the cache is large enough for all: the test shows less than it says"


def test_cold_and_warm_prefixes(executor: TorchExecutor, alone: Answers) -> None:
    scheduler = make_scheduler(executor, prefix_caching=True)
    request = make_requests()[15]
    first = answer(executor, [request], scheduler)
    assert answer(executor, [request], scheduler) == first == {request.id: alone[request.id]}
    assert scheduler.stats().num_prefix_hit_tokens >= 192


@pytest.mark.parametrize("num_threads", [1, 3])
def test_any_number_of_threads(executor: TorchExecutor, num_threads: int) -> None:
    """Not across numbers of threads, which torch does not promise: within one, also where it divides no row evenly."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        requests = make_requests()[::3]
        assert answer(executor, requests) == {
            request.id: answer(executor, [request])[request.id] for request in requests
        }
    finally:
        torch.set_num_threads(before)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.sets(st.integers(0, NUM_REQUESTS - 1), min_size=1, max_size=8),
    max_batch_tokens=st.sampled_from([16, 33, 64, 128]),
    prefix_caching=st.booleans(),
)
def test_any_company_any_chunking(
    executor: TorchExecutor, alone: Answers, chosen: set[int], max_batch_tokens: int, prefix_caching: bool
) -> None:
    requests = [make_requests()[index] for index in chosen]
    scheduler = make_scheduler(executor, max_batch_tokens=max_batch_tokens, prefix_caching=prefix_caching)
    assert answer(executor, requests, scheduler) == {request.id: alone[request.id] for request in requests}


def test_without_tiles_the_bits_differ(
    executor: TorchExecutor, alone: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this file compares would show it, were a product's shape to depend on the batch."""
    monkeypatch.setattr(executor._model, "_is_exact", False)
    monkeypatch.setattr(executor, "_is_exact", False)
    assert answer(executor, make_requests()) != alone
