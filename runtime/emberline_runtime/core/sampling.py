"""How the next token is chosen: the definition of docs/sampling.md in plain Python, the oracle of all samplers.

Floats go in and a token comes out; single precision is imitated where the definition asks for it. Slow on purpose: it is
what samplers are tested against, not one of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Sequence
from ctypes import c_float

from emberline_runtime.core.step import SamplingSpec, TokenLogprobs

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow."""
MAX_NOISE = 16.64
"""No noise is larger: a token whose logit / T + MAX_NOISE is below the best key so far cannot win."""

_MASK = 0xFFFFFFFF


class NonFiniteError(ValueError):
    """A logit is NaN or infinite; the request ends with FaultKind.NONFINITE."""


class NoCandidateError(ValueError):
    """The masks leave no token; the request ends with FaultKind.NO_CANDIDATE."""


def to_fp32(value: float) -> float:
    """Rounded to single precision; beyond its range, infinite."""
    return c_float(value).value


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 (Salmon et al., 2011): four random words for a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def gumbel(word: int) -> float:
    """Standard Gumbel noise from 32 random bits, of which the upper 23 count."""
    uniform = ((word >> 9) + 0.5) * 2.0**-23
    return to_fp32(-math.log(-math.log(uniform)))


def noise(spec: SamplingSpec, output_index: int, token: int) -> float:
    """The noise of one token at one position: a function of seed, choice, position and token, of nothing else."""
    seed = spec.seed % 2**64
    words = philox4x32((output_index, spec.choice, token >> 2, 0), (seed & _MASK, seed >> 32))
    return gumbel(words[token & 3])


def sample_token(
    logits: Sequence[float],
    spec: SamplingSpec,
    prompt: Sequence[int],
    output: Sequence[int],
    grammar: Container[int] | None = None,
) -> int:
    """The token that follows `prompt` and `output`. `grammar`: the ids that it allows here."""
    scores = process_logits(logits, spec, prompt, output, grammar)
    if spec.temperature < GREEDY_BELOW:
        return _ranked(scores)[0]
    scaled = [to_fp32(score / to_fp32(spec.temperature)) for score in scores]
    keys = {token: to_fp32(scaled[token] + noise(spec, len(output), token)) for token in filter_tokens(scaled, spec)}
    return min(keys, key=lambda token: (-keys[token], token))


def process_logits(
    logits: Sequence[float],
    spec: SamplingSpec,
    prompt: Sequence[int],
    output: Sequence[int],
    grammar: Container[int] | None = None,
) -> list[float]:
    """Logits after masks, bias and penalties, before temperature; masked ones are -inf."""
    if not all(map(math.isfinite, logits)):
        raise NonFiniteError("a logit is not finite")
    scores = [to_fp32(logit) for logit in logits]
    for token in range(len(scores)):
        if (grammar is not None and token not in grammar) or (
            spec.allowed_token_ids is not None and token not in spec.allowed_token_ids
        ):
            scores[token] = -math.inf
    for word in spec.bad_words:
        *start, last = word
        if len(start) <= len(output) and list(output[len(output) - len(start) :]) == start:
            scores[last] = -math.inf
    if len(output) < spec.min_tokens:
        for token in spec.stop_token_ids:
            scores[token] = -math.inf
    for token, bias in spec.logit_bias:
        scores[token] = to_fp32(scores[token] + to_fp32(bias))
    _penalise(scores, spec, prompt, output)
    if max(scores) == -math.inf:
        raise NoCandidateError("allowed ids, bad words, min_tokens and the grammar leave no token")
    return scores


def _penalise(scores: list[float], spec: SamplingSpec, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Repetition over prompt and output, then frequency and presence over the output."""
    if spec.repetition_penalty != 1:
        repetition = to_fp32(spec.repetition_penalty)
        for token in {*prompt, *output}:
            score = scores[token]
            scores[token] = to_fp32(score / repetition if score > 0 else score * repetition)
    for token, count in Counter(output).items():
        scores[token] = to_fp32(scores[token] - to_fp32(to_fp32(spec.frequency_penalty) * count))
        scores[token] = to_fp32(scores[token] - to_fp32(spec.presence_penalty))


def filter_tokens(scaled: Sequence[float], spec: SamplingSpec) -> list[int]:
    """The tokens that min-p, then top-k, then top-p leave, best first, given logits / T."""
    order = [token for token in _ranked(scaled) if scaled[token] > -math.inf]
    best = scaled[order[0]]
    weights = [to_fp32(math.exp(to_fp32(scaled[token] - best))) for token in order]
    num_left = len(order)
    if spec.min_p > 0:
        num_left = sum(weight >= to_fp32(spec.min_p) for weight in weights)
    if spec.top_k > 0:
        num_left = min(num_left, spec.top_k)
    num_left = max(num_left, 1)
    if spec.top_p < 1:
        wanted = spec.top_p * math.fsum(weights[:num_left])
        total = 0.0
        for index in range(num_left):
            total += weights[index]
            if total >= wanted:
                num_left = index + 1
                break
    return order[:num_left]


def token_logprobs(logits: Sequence[float], token: int, num_top: int) -> TokenLogprobs:
    """Log-probabilities of the raw logits, before any mask, bias, penalty or temperature."""
    order = _ranked(logits)
    best = logits[order[0]]
    log_sum = math.log(math.fsum(math.exp(logit - best) for logit in logits))

    def logprob(of: int) -> float:
        return to_fp32(logits[of] - best - log_sum)

    top = tuple((other, logprob(other)) for other in order[:num_top])
    return TokenLogprobs(token, logprob(token), order.index(token) + 1, top)


def _ranked(scores: Sequence[float]) -> list[int]:
    """Ids from the best on; of equals the smaller id comes first."""
    return sorted(range(len(scores)), key=lambda token: -scores[token])
