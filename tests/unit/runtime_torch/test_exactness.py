"""In fp32 on a CPU a request's tokens depend on prompt, sampling and seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emberline_runtime.core.request import Request
from emberline_runtime.core.step import SamplingSpec
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


@pytest.fixture(scope="module")
def executor(tiny_folder: Path) -> Iterator[TorchExecutor]:
    """Thirty blocks, twice what the longest request needs: batches of several preempt one another."""
    executor = load_torch(tiny_folder, kv_cache="120Ki", max_batch_tokens=128)
    assert executor.limits.num_blocks == 30
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def alone(executor: TorchExecutor) -> dict[str, list[int]]:
    """Every request computed by itself, from nothing, its prompt in one chunk."""
    return {request.id: generate(executor, [request])[request.id] for request in make_requests()}


def test_sixteen_at_once_with_preemption(executor: TorchExecutor, alone: dict[str, list[int]]) -> None:
    scheduler = make_scheduler(executor, max_batch_tokens=128)
    assert generate(executor, make_requests(), scheduler=scheduler) == alone
    assert scheduler.stats().num_preemptions > 0, "the cache is large enough for all: the test shows less than it says"


def test_cold_and_warm_prefixes(executor: TorchExecutor, alone: dict[str, list[int]]) -> None:
    scheduler = make_scheduler(executor, prefix_caching=True)
    first, second = (generate_kept(executor, request, scheduler) for request in [make_requests()[15]] * 2)
    assert first == second == alone["r15"]
    assert scheduler.stats().num_prefix_hit_tokens >= 192


def generate_kept(executor: TorchExecutor, request: Request, scheduler: object) -> list[int]:
    return generate(executor, [request], scheduler=scheduler)[request.id]  # type: ignore[arg-type]


@pytest.mark.parametrize("num_threads", [1, 3])
def test_any_number_of_threads(executor: TorchExecutor, num_threads: int) -> None:
    """Not across numbers of threads, which torch does not promise: within one that the machine's cores do not divide."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        requests = make_requests()[::3]
        told = {request.id: generate(executor, [request])[request.id] for request in requests}
        assert generate(executor, requests) == told
    finally:
        torch.set_num_threads(before)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.sets(st.integers(0, NUM_REQUESTS - 1), min_size=1, max_size=8),
    max_batch_tokens=st.sampled_from([16, 33, 64, 128]),
    prefix_caching=st.booleans(),
)
def test_any_company_any_chunking(
    executor: TorchExecutor,
    alone: dict[str, list[int]],
    chosen: set[int],
    max_batch_tokens: int,
    prefix_caching: bool,
) -> None:
    requests = [make_requests()[index] for index in chosen]
    told = generate(executor, requests, max_batch_tokens=max_batch_tokens, prefix_caching=prefix_caching)
    assert told == {request.id: alone[request.id] for request in requests}
