"""What may enter the queue, and what a refused caller reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emberline_runtime.core.admission import QueueState, RefusalKind, decide_admission, unsupported_fields
from emberline_runtime.core.request import Request
from emberline_runtime.core.step import ExecutorLimits, SamplingSpec

LIMITS = ExecutorLimits(
    num_blocks=8,
    block_tokens=4,
    max_rows=16,
    max_sequences=4,
    max_model_len=24,
    vocab=50,
    features=frozenset({"min_tokens"}),
)
IDLE = QueueState(num_waiting=0, num_startable=4, max_queued=2)
REQUEST = Request("r", (1, 2, 3), SamplingSpec(), max_tokens=5)


def with_sampling(**fields: object) -> Request:
    return replace(REQUEST, sampling=replace(SamplingSpec(), **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "kind", "field", "words"),
    [
        (replace(REQUEST, prompt=()), RefusalKind.INVALID, "prompt", ["0 tokens", "at least 1"]),
        (replace(REQUEST, max_tokens=0), RefusalKind.INVALID, "max_tokens", ["0", "at least 1"]),
        (replace(REQUEST, prompt=(1, 50)), RefusalKind.INVALID, "prompt", ["50", "0 to 49"]),
        (replace(REQUEST, prompt=(1, -1)), RefusalKind.INVALID, "prompt", ["-1", "0 to 49"]),
        (with_sampling(stop_token_ids=(50,)), RefusalKind.INVALID, "stop_token_ids", ["50", "0 to 49"]),
        (with_sampling(logit_bias=((2**31, 1.0),)), RefusalKind.INVALID, "logit_bias", [str(2**31), "0 to 49"]),
        (with_sampling(logit_bias=((-1, 1.0),)), RefusalKind.INVALID, "logit_bias", ["-1", "0 to 49"]),
        (with_sampling(allowed_token_ids=()), RefusalKind.INVALID, "allowed_token_ids", ["0 entries"]),
        (with_sampling(allowed_token_ids=(50,)), RefusalKind.INVALID, "allowed_token_ids", ["50", "0 to 49"]),
        (with_sampling(bad_words=((1, 50),)), RefusalKind.INVALID, "bad_words", ["50", "0 to 49"]),
        (with_sampling(bad_words=((),)), RefusalKind.INVALID, "bad_words", ["0 tokens"]),
        (with_sampling(min_tokens=6), RefusalKind.INVALID, "min_tokens", ["6", "5"]),
        (with_sampling(min_tokens=-1), RefusalKind.INVALID, "min_tokens", ["-1"]),
        (with_sampling(min_p=0.1), RefusalKind.UNSUPPORTED, "min_p", ["min_p"]),
        (
            with_sampling(min_p=0.1, grammar=True),
            RefusalKind.UNSUPPORTED,
            "min_p",
            ["min_p, grammar", "leave them out"],
        ),
        (replace(REQUEST, max_tokens=22), RefusalKind.TOO_LONG, "max_tokens", ["25", "24", "lower max_tokens"]),
        (replace(REQUEST, prompt=(1,) * 24, max_tokens=1), RefusalKind.TOO_LONG, "prompt", ["24", "25"]),
    ],
)
def test_refused(request_: Request, kind: RefusalKind, field: str, words: list[str]) -> None:
    refused = decide_admission(request_, LIMITS, IDLE)
    assert refused is not None
    assert (refused.kind, refused.field) == (kind, field)
    for word in words:
        assert word in refused.message


@pytest.mark.parametrize(
    "request_",
    [
        REQUEST,
        replace(REQUEST, max_tokens=21),  # fits exactly
        replace(REQUEST, prompt=(0, 49)),
        replace(REQUEST, prompt=(1,) * 23, max_tokens=1),
        with_sampling(min_tokens=5, stop_token_ids=(0, 49)),
        with_sampling(temperature=0.0, top_k=5, top_p=0.5, seed=2**70, choice=3),
    ],
)
def test_taken(request_: Request) -> None:
    assert decide_admission(request_, LIMITS, IDLE) is None


@pytest.mark.parametrize(("num_blocks", "is_taken"), [(1, False), (2, True)])
def test_what_exceeds_the_whole_cache_is_refused_at_once(num_blocks: int, is_taken: bool) -> None:
    # 3 + 6 tokens are 8 positions: the last token is never fed back.
    request = replace(REQUEST, max_tokens=6)
    refused = decide_admission(request, replace(LIMITS, num_blocks=num_blocks), IDLE)
    assert (refused is None) == is_taken
    if refused is not None:
        assert refused.kind is RefusalKind.NEVER_FITS
        assert "8 tokens of KV cache" in refused.message
        assert "holds 4" in refused.message
        assert "kvCache" in refused.message


@pytest.mark.parametrize(
    ("num_waiting", "num_startable", "max_queued", "is_taken"),
    [
        (0, 0, 0, False),
        (0, 1, 0, True),
        (1, 1, 0, False),
        (1, 0, 2, True),
        (2, 0, 2, False),
        (4, 4, 2, True),
        (6, 4, 2, False),
    ],
)
def test_the_queue_is_bounded(num_waiting: int, num_startable: int, max_queued: int, is_taken: bool) -> None:
    refused = decide_admission(REQUEST, LIMITS, QueueState(num_waiting, num_startable, max_queued))
    assert (refused is None) == is_taken
    if refused is not None:
        assert refused.kind is RefusalKind.QUEUE_FULL
        assert f"{num_waiting} requests wait" in refused.message
        assert f"maxQueuedRequests is {max_queued}" in refused.message


def test_what_never_works_is_said_before_what_may_work_later() -> None:
    refused = decide_admission(replace(REQUEST, max_tokens=100), LIMITS, QueueState(9, 0, 0))
    assert refused is not None
    assert refused.kind is RefusalKind.TOO_LONG


SET_FIELDS = SamplingSpec(
    seed=1,
    choice=1,
    temperature=0.5,
    top_k=1,
    top_p=0.5,
    min_p=0.1,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    repetition_penalty=1.1,
    logit_bias=((1, 1.0),),
    allowed_token_ids=(1,),
    bad_words=((1,),),
    min_tokens=1,
    stop_token_ids=(1,),
    logprobs=0,
    prompt_logprobs=0,
    grammar=True,
)
OPTIONAL = [
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "grammar",
]


def test_unsupported_fields_are_named_in_order() -> None:
    assert unsupported_fields(SET_FIELDS, frozenset()) == OPTIONAL
    assert unsupported_fields(SET_FIELDS, frozenset(OPTIONAL)) == []
    assert unsupported_fields(SET_FIELDS, frozenset(OPTIONAL) - {"logprobs"}) == ["logprobs"]
    assert unsupported_fields(SamplingSpec(), frozenset()) == []
