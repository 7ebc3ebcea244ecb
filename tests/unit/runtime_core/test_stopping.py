"""Which token ends an answer."""

from __future__ import annotations

import pytest

from emberline_runtime.core.request import FinishReason, Request
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.core.stopping import decide_finish


@pytest.mark.parametrize(
    ("token", "num_output", "finish"),
    [
        (5, 3, None),
        (7, 3, FinishReason.STOP),
        (9, 3, FinishReason.STOP),
        (5, 8, FinishReason.LENGTH),
        (7, 8, FinishReason.STOP),
        (7, 1, None),
        (9, 1, None),
        (7, 2, FinishReason.STOP),
    ],
)
def test_ends(token: int, num_output: int, finish: FinishReason | None) -> None:
    sampling = SamplingSpec(min_tokens=2, stop_token_ids=(9,))
    request = Request("r", (1,), sampling, max_tokens=8, eos=frozenset({7}))
    assert decide_finish(request, token, num_output) is finish


def test_min_tokens_equal_to_max_tokens_ends_by_length_unless_the_last_is_a_stop() -> None:
    request = Request("r", (1,), SamplingSpec(min_tokens=2), max_tokens=2, eos=frozenset({7}))
    assert decide_finish(request, 7, 1) is None
    assert decide_finish(request, 5, 2) is FinishReason.LENGTH
    assert decide_finish(request, 7, 2) is FinishReason.STOP
