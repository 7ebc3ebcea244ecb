"""The executor's side of the contract with core, where it is more than arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emberline_contract.health import Phase
from emberline_runtime.core.request import FinishReason
from emberline_runtime.core.step import BlockMove, FaultKind, SamplingSpec, SlotRows, SlotStart, StepPlan, Want
from emberline_runtime.errors import StartRefused
from emberline_runtime.executors.base import ExecutorLost, ModelFolder
from emberline_runtime.executors.kv_size import KvTooSmallError
from emberline_runtime.executors.machine import MemoryAllowance
from emberline_runtime.executors.torch.executor import TorchExecutor
from emberline_runtime.models.registry import read_spec
from support.tiny_llama import write_tiny_llama
from support.torch_rig import GREEDY, end_slots, generate, load_torch, make_config, make_request, make_scheduler, step

PROMPT = tuple(range(5, 45))


@pytest.fixture
def executor(tiny_folder: Path) -> TorchExecutor:
    return load_torch(tiny_folder, max_model_len=256)


def run(executor: TorchExecutor, plan: StepPlan) -> list[tuple[int, ...]]:
    executor.launch(plan)
    executor.sample(plan.step)
    return [slot.tokens for slot in executor.collect().slots]


def start_plan(sampling: SamplingSpec = GREEDY, slot: int = 0, blocks: tuple[int, ...] = (4, 9, 2)) -> StepPlan:
    start = SlotStart(slot, PROMPT, len(PROMPT), blocks, 0, sampling)
    return StepPlan(0, starts=(start,), rows=(SlotRows(slot, 0, len(PROMPT), PROMPT, want=Want.TOKEN),))


def test_load_tells_its_phases_in_order(tiny_folder: Path) -> None:
    executor = TorchExecutor(num_threads=2)
    phases: list[Phase] = []
    executor.load(ModelFolder(tiny_folder, read_spec(tiny_folder)), make_config(tiny_folder), phases.append)
    assert phases == [Phase.WEIGHTS, Phase.KV, Phase.WARMUP]


def test_limits_follow_the_configuration_and_the_memory(tiny_folder: Path) -> None:
    executor = load_torch(tiny_folder, max_batch_tokens=64, max_sequences=3, max_model_len=200)
    limits = executor.limits
    assert (limits.max_rows, limits.max_sequences, limits.max_model_len, limits.vocab) == (64, 3, 200, 160)
    assert limits.num_blocks == 3 * 13
    small = load_torch(tiny_folder, kv_cache="64Ki")
    assert small.limits.max_model_len == small.limits.num_blocks * 16 < 1024
    poor = TorchExecutor(memory=lambda: MemoryAllowance(1 << 20, 1 << 30), num_threads=2)
    with pytest.raises(KvTooSmallError, match="raise the memory limit"):
        poor.load(ModelFolder(tiny_folder, read_spec(tiny_folder)), make_config(tiny_folder), lambda phase: None)


def test_the_last_sampled_token_may_be_left_out(executor: TorchExecutor) -> None:
    [first] = run(executor, start_plan())
    [named] = run(executor, StepPlan(1, rows=(SlotRows(0, 40, 1, first, want=Want.TOKEN),)))
    run(executor, StepPlan(2, ends=(0,)))
    assert [first] == run(executor, start_plan())
    assert [named] == run(executor, StepPlan(1, rows=(SlotRows(0, 40, 1, (), want=Want.TOKEN),)))
    [by_counter] = run(executor, StepPlan(2, rows=(SlotRows(0, -1, 1, (), want=Want.TOKEN),)))
    assert len(by_counter) == 1


def test_a_copied_block_serves_as_the_first(executor: TorchExecutor) -> None:
    [first] = run(executor, start_plan())
    again = SlotStart(1, PROMPT, len(PROMPT), (11, 12, 13), 32, GREEDY)
    rows = SlotRows(1, 32, 8, PROMPT[32:], want=Want.TOKEN)
    moves = (BlockMove(4, 11, "copy"), BlockMove(9, 12, "copy"))
    assert run(executor, StepPlan(1, moves=moves, starts=(again,), rows=(rows,))) == [first]


def test_results_say_where_the_kv_stands(executor: TorchExecutor) -> None:
    start = SlotStart(0, PROMPT, len(PROMPT), (4, 9, 2), 0, GREEDY)
    executor.launch(StepPlan(5, starts=(start,), rows=(SlotRows(0, 0, 20, PROMPT[:20]),)))
    executor.sample(5)
    result = executor.collect()
    assert result.step == 5
    assert [(slot.slot, slot.tokens, slot.num_valid) for slot in result.slots] == [(0, (), 20)]
    assert result.device_s > 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (SlotRows(0, 40, 20, (1,) * 20), "has 3 blocks of 16, its rows end at 60"),
        (SlotRows(0, 40, 3, (1,)), "3 rows and 1 tokens"),
        (SlotRows(0, 40, 1, (1,), want=Want.POOLED), "samples tokens only"),
        (SlotRows(0, 40, 1, (1,), mask_row=0), "samples tokens only"),
        (SlotRows(0, 40, 2, (1, 2), num_draft=1), "samples tokens only"),
    ],
)
def test_a_plan_that_cannot_be_honoured_is_refused(executor: TorchExecutor, rows: SlotRows, message: str) -> None:
    run(executor, start_plan())
    with pytest.raises(ValueError, match=message):
        run(executor, StepPlan(1, rows=(rows,)))


def test_one_plan_at_a_time(executor: TorchExecutor) -> None:
    with pytest.raises(RuntimeError, match="no step was launched"):
        executor.collect()
    executor.launch(start_plan())
    with pytest.raises(RuntimeError, match="step 0 is not collected"):
        executor.launch(start_plan(slot=1))


def test_a_row_that_is_not_finite_ends_its_request_alone(tmp_path: Path) -> None:
    """Token 7's embedding is poisoned; neighbours, and whoever gets the blocks next, see nothing of it."""
    folder = write_tiny_llama(tmp_path / "model", tie_word_embeddings=False)
    executor = load_torch(folder, max_model_len=64, max_sequences=2)
    good = make_request("good", range(20, 50), 20)
    expected = generate(executor, [good])["good"]
    with torch.inference_mode():
        executor._model._weights.embedding[7] = math.nan
    scheduler = make_scheduler(executor, max_sequences=2, prefix_caching=True)
    told: dict[str, list[int]] = {}
    assert scheduler.submit(good) is None
    assert scheduler.submit(make_request("bad", [9, 8, 7], 20)) is None
    plan = scheduler.schedule(0.0)
    assert plan is not None
    executor.launch(plan)
    result = executor.collect()
    fault = {slot.slot: slot.fault for slot in result.slots}[1]
    assert fault is not None
    assert fault.kind is FaultKind.NONFINITE
    updates = {update.request_id: update for update in scheduler.commit(result)}
    assert updates["bad"].finish is FinishReason.ERROR
    told["good"] = list(updates["good"].tokens)
    # Every block is taken at least once by these, so one of them gets the poisoned one.
    for index in range(8):
        assert scheduler.submit(replace(good, id=f"later-{index}")) is None
    while scheduler.has_work:
        step(executor, scheduler, told)
    assert all(tokens == expected for tokens in told.values()), told


def test_a_failing_device_is_lost_not_hidden(executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(executor._model, "forward", fail)
    executor.launch(start_plan())
    with pytest.raises(ExecutorLost, match="step 0 failed on cpu: out of memory"):
        executor.collect()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_start_says_what_to_do(tiny_folder: Path) -> None:
    config = make_config(tiny_folder, "bf16", device="cuda")
    with pytest.raises(StartRefused, match="no CUDA device; give the pod a GPU"):
        TorchExecutor().load(ModelFolder(tiny_folder, read_spec(tiny_folder)), config, lambda phase: None)


def test_seeds_choices_and_temperatures_matter(executor: TorchExecutor) -> None:
    hot = SamplingSpec(temperature=1.5, seed=1)
    specs = [hot, hot, replace(hot, seed=2), replace(hot, choice=1), replace(hot, top_k=1), GREEDY]
    requests = [make_request(str(i), PROMPT, 24, spec) for i, spec in enumerate(specs)]
    told = generate(executor, requests)
    assert told["0"] == told["1"]
    assert told["4"] == told["5"]
    assert len({tuple(told[i]) for i in "0234"}) == 4


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_sixteen_bit_types_run_batches_and_chunks(tiny_folder: Path, dtype: str) -> None:
    executor = load_torch(tiny_folder, dtype, max_batch_tokens=32)  # type: ignore[arg-type]
    requests = [make_request(str(i), range(3, 10 + 17 * i), 12) for i in range(5)]
    told = generate(executor, requests, max_batch_tokens=32)
    assert [len(told[str(i)]) for i in range(5)] == [12] * 5


def test_after_the_end_another_scheduler_may_follow(executor: TorchExecutor) -> None:
    first = generate(executor, [make_request("a", PROMPT, 8)])
    scheduler = make_scheduler(executor)
    end_slots(executor, scheduler)
    assert generate(executor, [make_request("a", PROMPT, 8)], scheduler=scheduler) == first


def test_twenty_executors_leave_nothing_behind(tiny_folder: Path) -> None:
    expected = None
    for _ in range(20):
        executor = load_torch(tiny_folder, max_model_len=64)
        told = generate(executor, [make_request("a", PROMPT[:10], 4)])
        executor.close()
        expected = expected or told
        assert told == expected
        assert not executor._slots
        assert not hasattr(executor, "_kv")
