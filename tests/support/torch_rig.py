"""The torch executor under the real scheduler, and its logits by teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from emberline_contract.engine_config import Dtype, EngineConfig
from emberline_runtime.core.request import FinishReason, Request
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import SamplingSpec, SlotRows, SlotStart, StepPlan, Want
from emberline_runtime.executors.base import Executor, ModelFolder
from emberline_runtime.executors.machine import MemoryAllowance
from emberline_runtime.executors.torch.executor import BLOCK_TOKENS, TorchExecutor
from emberline_runtime.models.registry import read_spec

GREEDY = SamplingSpec(temperature=0.0)
TEST_MEMORY = MemoryAllowance(limit_bytes=4 << 30, available_bytes=4 << 30)


def make_config(folder: Path, dtype: Dtype = "fp32", **changes: object) -> EngineConfig:
    """A small engine's configuration."""
    fields = {"model_path": str(folder), "served_names": ("tiny",), "dtype": dtype, "max_sequences": 16, **changes}
    return EngineConfig.model_validate(fields)


def load_torch(folder: Path, dtype: Dtype = "fp32", **changes: object) -> TorchExecutor:
    """A loaded torch executor with two threads and 4 GiB to plan with."""
    executor = TorchExecutor(memory=lambda: TEST_MEMORY, num_threads=2)
    executor.load(ModelFolder(folder, read_spec(folder)), make_config(folder, dtype, **changes), lambda phase: None)
    return executor


def make_scheduler(
    executor: Executor, *, max_batch_tokens: int = 256, max_sequences: int = 16, prefix_caching: bool = False
) -> Scheduler:
    """A scheduler over the executor; without prefix caching every request is computed from nothing."""
    return Scheduler(
        executor.limits,
        max_batch_tokens=max_batch_tokens,
        max_sequences=max_sequences,
        max_queued_requests=1000,
        prefix_caching=prefix_caching,
    )


def make_request(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingSpec = GREEDY,
    eos: frozenset[int] = frozenset(),
) -> Request:
    return Request(id=request_id, prompt=tuple(prompt), sampling=sampling, max_tokens=max_tokens, eos=eos)


def step(executor: Executor, scheduler: Scheduler, told: dict[str, list[int]]) -> StepPlan | None:
    """One step; new tokens are appended to what each request was `told`."""
    plan = scheduler.schedule(0.0)
    if plan is None:
        return None
    executor.launch(plan)
    executor.sample(plan.step)
    for update in scheduler.commit(executor.collect()):
        told.setdefault(update.request_id, []).extend(update.tokens)
        assert update.finish is not FinishReason.ERROR, update.error
    scheduler.check_integrity()
    return plan


def end_slots(executor: Executor, scheduler: Scheduler) -> None:
    """Tell the executor now of slots that the scheduler freed since its last plan, so that another scheduler may follow."""
    executor.launch(StepPlan(-1, ends=tuple(scheduler._ends)))
    scheduler._ends.clear()
    executor.sample(-1)
    executor.collect()


def generate(
    executor: Executor,
    requests: Sequence[Request],
    *,
    max_batch_tokens: int = 256,
    prefix_caching: bool = False,
    scheduler: Scheduler | None = None,
) -> dict[str, list[int]]:
    """All requests at once through a scheduler, to their ends."""
    scheduler = scheduler or make_scheduler(executor, max_batch_tokens=max_batch_tokens, prefix_caching=prefix_caching)
    told: dict[str, list[int]] = {}
    for request in requests:
        refused = scheduler.submit(request)
        assert refused is None, refused
    while scheduler.has_work:
        assert step(executor, scheduler, told) is not None, "requests are left and nothing is scheduled"
    end_slots(executor, scheduler)
    return told


def forced_logits(executor: TorchExecutor, tokens: Sequence[int], chunk_tokens: int = 128) -> torch.Tensor:
    """fp32 logits after each of `tokens`, fed in chunks as a prompt is: what the executor samples from."""
    num_blocks = -(-len(tokens) // BLOCK_TOKENS)
    seen: list[torch.Tensor] = []
    executor.launch(
        StepPlan(0, starts=(SlotStart(0, tuple(tokens), len(tokens), tuple(range(num_blocks)), 0, GREEDY),))
    )
    executor.collect()
    head = executor._model.logits
    forward = executor._model.forward

    def spy(*args: object) -> torch.Tensor:
        hidden = forward(*args)  # type: ignore[arg-type]
        seen.append(head(hidden))
        return hidden

    executor._model.forward = spy  # type: ignore[method-assign, assignment]
    try:
        for start in range(0, len(tokens), chunk_tokens):
            chunk = tuple(tokens[start : start + chunk_tokens])
            executor.launch(StepPlan(1, rows=(SlotRows(0, start, len(chunk), chunk, want=Want.TOKEN),)))
            executor.collect()
            seen[-1] = seen[-1][: len(chunk)]
    finally:
        del executor._model.forward
    executor.launch(StepPlan(2, ends=(0,)))
    executor.collect()
    return torch.cat(seen)
