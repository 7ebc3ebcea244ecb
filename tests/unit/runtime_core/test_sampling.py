"""The oracle of sampling against known vectors, closed forms and the order of its steps."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_runtime.core.sampling import (
    MAX_NOISE,
    NoCandidateError,
    NonFiniteError,
    filter_tokens,
    gumbel,
    noise,
    philox4x32,
    process_logits,
    sample_token,
    to_fp32,
    token_logprobs,
)
from emberline_runtime.core.step import SamplingSpec
from support.examples import examples

GREEDY = SamplingSpec(temperature=0)
LOGITS = [0.5, 2.0, 1.0, 2.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == words


def test_noise_stays_within_its_bounds() -> None:
    assert gumbel(0xFFFFFFFF) == pytest.approx(-math.log(-math.log(1 - 2**-24)))
    assert gumbel(0xFFFFFFFF) < MAX_NOISE
    assert gumbel(0) == pytest.approx(-math.log(24 * math.log(2)))
    assert gumbel(0x1FF) == gumbel(0), "the low 9 bits do not count"
    assert gumbel(0x200) > gumbel(0)


def test_noise_takes_every_word_and_every_part_of_its_counter() -> None:
    spec = SamplingSpec(seed=(7 << 32) | 5, choice=3)
    words = philox4x32((11, 3, 2, 0), (5, 7))
    assert [noise(spec, 11, token) for token in range(8, 12)] == [gumbel(word) for word in words]
    assert noise(replace(spec, seed=spec.seed - 2**64), 11, 8) == noise(spec, 11, 8), "seeds count modulo 2^64"
    others = [
        noise(replace(spec, seed=spec.seed + 1), 11, 8),
        noise(replace(spec, seed=spec.seed + (1 << 32)), 11, 8),
        noise(replace(spec, choice=4), 11, 8),
        noise(spec, 12, 8),
    ]
    assert len({noise(spec, 11, 8), *others}) == 5


def test_fp32_rounds_and_overflows() -> None:
    assert to_fp32(0.1) == 0.10000000149011612
    assert to_fp32(1e39) == math.inf


@pytest.mark.parametrize("logits", [[0.0, math.nan], [0.0, math.inf], [-math.inf, 0.0]])
def test_a_logit_that_is_not_finite_gives_no_token(logits: list[float]) -> None:
    with pytest.raises(NonFiniteError):
        sample_token(logits, GREEDY, [0], [])


@pytest.mark.parametrize(
    ("spec", "prompt", "output", "expected"),
    [
        pytest.param(SamplingSpec(), [0], [1], LOGITS, id="defaults change nothing"),
        pytest.param(
            SamplingSpec(allowed_token_ids=(0, 4)), [0], [], [0.5, None, None, None, -1.0, None], id="allowed ids"
        ),
        pytest.param(SamplingSpec(bad_words=((3,),)), [0], [], [0.5, 2, 1, None, -1, 0], id="bad word of one id"),
        pytest.param(
            SamplingSpec(bad_words=((1, 2, 3),)), [0], [5, 1, 2], [0.5, 2, 1, None, -1, 0], id="bad word's end"
        ),
        pytest.param(SamplingSpec(bad_words=((1, 2, 3),)), [1], [2], LOGITS, id="the prompt does not count"),
        pytest.param(SamplingSpec(bad_words=((1, 2, 3),)), [0], [1, 2, 5], LOGITS, id="bad word interrupted"),
        pytest.param(
            SamplingSpec(min_tokens=2, stop_token_ids=(0, 3)), [0], [1], [None, 2, 1, None, -1, 0], id="min tokens"
        ),
        pytest.param(SamplingSpec(min_tokens=1, stop_token_ids=(0, 3)), [0], [1], LOGITS, id="min tokens reached"),
        pytest.param(SamplingSpec(logit_bias=((0, 4.0), (4, -1.0))), [0], [], [4.5, 2, 1, 2, -2, 0], id="bias"),
        pytest.param(
            SamplingSpec(allowed_token_ids=(0,), logit_bias=((1, 100.0),)),
            [0],
            [],
            [0.5, None, None, None, None, None],
            id="bias does not unmask",
        ),
        pytest.param(
            SamplingSpec(repetition_penalty=2.0),
            [1, 4],
            [3, 3],
            [0.5, 1, 1, 1, -2, 0],
            id="repetition counts the prompt",
        ),
        pytest.param(
            SamplingSpec(frequency_penalty=0.5),
            [1, 4],
            [3, 3, 2],
            [0.5, 2, 0.5, 1, -1, 0],
            id="frequency counts the answer",
        ),
        pytest.param(
            SamplingSpec(presence_penalty=0.5), [1, 4], [3, 3, 2], [0.5, 2, 0.5, 1.5, -1, 0], id="presence counts once"
        ),
        pytest.param(
            SamplingSpec(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5, logit_bias=((3, 2.0),)),
            [0],
            [3, 3],
            [0.25, 2, 1, 1.0, -1, 0],
            id="bias, then repetition, then the others",
        ),
    ],
)
def test_logits_before_temperature(
    spec: SamplingSpec, prompt: list[int], output: list[int], expected: list[float | None]
) -> None:
    assert process_logits(LOGITS, spec, prompt, output) == [-math.inf if e is None else e for e in expected]


def test_a_grammar_masks_and_may_leave_nothing() -> None:
    assert sample_token(LOGITS, GREEDY, [0], [], grammar={0, 2}) == 2
    with pytest.raises(NoCandidateError):
        sample_token(LOGITS, SamplingSpec(allowed_token_ids=(1,)), [0], [], grammar={0, 2})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [1, 3, 2, 0, 5, 4]),
        ({"min_p": 0.3}, [1, 3, 2]),  # e^-1 = 0.368 stays, e^-1.5 = 0.223 goes
        ({"min_p": 1.0}, [1, 3]),
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 2]),
        ({"top_k": -1}, [1, 3, 2, 0, 5, 4]),
        ({"top_k": 100}, [1, 3, 2, 0, 5, 4]),
        ({"top_p": 0.0}, [1]),
        ({"top_p": 0.3}, [1]),  # each of the two best has 0.364
        ({"top_p": 0.5}, [1, 3]),
        ({"top_p": 0.75}, [1, 3, 2]),
        # Among the best two each has one half; over all they had 0.364 each and 0.45 would need both.
        ({"top_k": 2, "top_p": 0.45}, [1]),
        ({"min_p": 1.0, "top_p": 0.45}, [1]),
        ({"min_p": 0.3, "top_k": 2}, [1, 3]),
    ],
)
def test_filters_in_their_order(fields: dict[str, float], expected: list[int]) -> None:
    assert filter_tokens(LOGITS, replace(SamplingSpec(), **fields)) == expected


def test_top_p_alone_differs_from_top_p_after_top_k() -> None:
    assert filter_tokens(LOGITS, SamplingSpec(top_p=0.45)) == [1, 3]


def test_greedy_takes_the_smaller_id_of_equals_and_ignores_filters() -> None:
    assert sample_token(LOGITS, GREEDY, [0], []) == 1
    assert sample_token(LOGITS, replace(GREEDY, top_k=2, top_p=0.01, min_p=0.9, seed=5), [0], []) == 1
    assert sample_token(LOGITS, SamplingSpec(temperature=1e-6), [0], []) == 1
    assert sample_token(LOGITS, replace(GREEDY, logit_bias=((4, 9.0),)), [0], []) == 4


def test_top_k_of_one_is_greedy_at_any_temperature() -> None:
    for seed in range(20):
        assert sample_token(LOGITS, SamplingSpec(seed=seed, temperature=2.0, top_k=1), [0], []) == 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_draws_follow_the_softmax(temperature: float) -> None:
    num_draws = 4000
    spec = SamplingSpec(seed=42, temperature=temperature)
    counts = Counter(sample_token(LOGITS, spec, [0], [5] * index) for index in range(num_draws // 8))
    for choice in range(1, 8):
        chosen = replace(spec, choice=choice)
        counts.update(sample_token(LOGITS, chosen, [0], [5] * index) for index in range(num_draws // 8))
    weights = [math.exp(logit / temperature) for logit in LOGITS]
    for token, weight in enumerate(weights):
        part = weight / sum(weights)
        # Five standard deviations: a wrong distribution fails, this seed does not.
        assert abs(counts[token] / num_draws - part) < 5 * math.sqrt(part * (1 - part) / num_draws)


@settings(**examples(100))
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    st.integers(-(2**70), 2**70),
    st.floats(0.1, 3),
    st.integers(0, 50),
)
def test_the_token_is_the_best_of_scaled_logit_plus_noise(
    logits: list[float], seed: int, temperature: float, index: int
) -> None:
    spec = SamplingSpec(seed=seed, temperature=temperature)
    token = sample_token(logits, spec, [0], [0] * index)
    keys = [logit / temperature + noise(spec, index, other) for other, logit in enumerate(logits)]
    assert keys[token] >= max(keys) - 1e-4
    # What the bound on the noise lets a sampler skip never wins.
    assert logits[token] / temperature + MAX_NOISE > max(keys) - 1e-4


def test_logprobs_are_of_the_raw_logits() -> None:
    total = math.log(sum(map(math.exp, LOGITS)))
    told = token_logprobs(LOGITS, 2, 3)
    assert (told.token, told.rank) == (2, 3)
    assert told.logprob == pytest.approx(1.0 - total, abs=1e-6)
    assert [token for token, _ in told.top] == [1, 3, 2]
    assert [logprob for _, logprob in told.top] == pytest.approx([2 - total, 2 - total, 1 - total], abs=1e-6)
    assert token_logprobs(LOGITS, 3, 0).rank == 2, "of equals the smaller id ranks first"
    assert token_logprobs(LOGITS, 3, 0).top == ()
