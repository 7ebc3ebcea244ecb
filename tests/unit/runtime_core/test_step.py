"""Plans and results travel between processes as they are."""

from __future__ import annotations

import pickle

from emberline_runtime.core.step import (
    BlockMove,
    ExecutorLimits,
    Fault,
    FaultKind,
    SamplingSpec,
    SlotResult,
    SlotRows,
    SlotStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
    Want,
)


def test_all_step_types_are_picklable_and_compare_by_value() -> None:
    plan = StepPlan(
        3,
        ends=(1,),
        moves=(BlockMove(0, 1, "copy"),),
        starts=(SlotStart(0, (1, 2, 3), 2, (4, 5), 0, SamplingSpec(seed=2**64 - 1, bad_words=((1, 2),))),),
        rows=(SlotRows(0, -1, 2, (3,), num_draft=1, new_blocks=(6,), want=Want.TOKEN | Want.POOLED, mask_row=0),),
        num_mask_rows=2,
    )
    logprobs = (TokenLogprobs(3, -0.5, 2, ((4, -0.1),)),)
    fault = Fault(FaultKind.NONFINITE, "logits are NaN")
    result = StepResult(3, (SlotResult(0, (3,), 7, 1, logprobs, logprobs, b"vector", fault),), 0.25)
    limits = ExecutorLimits(1, 16, 256, 8, 4096, 100, features=frozenset({"min_p"}))
    for value in (plan, result, limits):
        assert pickle.loads(pickle.dumps(value)) == value
