"""Whether a request may enter the queue: the pure decision, and the named answer that a refused caller gets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from emberline_runtime.core.request import Request
from emberline_runtime.core.step import ExecutorLimits, SamplingSpec


class RefusalKind(StrEnum):
    """Why a request is not taken. All but QUEUE_FULL hold for ever: the same request never works on this engine."""

    INVALID = "invalid"
    """A field's value makes no sense."""
    UNSUPPORTED = "unsupported"
    """The executor lacks a field that is set."""
    TOO_LONG = "too_long"
    """Prompt and answer exceed the model's length."""
    NEVER_FITS = "never_fits"
    """Prompt and answer exceed the whole KV cache."""
    QUEUE_FULL = "queue_full"
    """Too many wait; the same request may work later."""
    DUPLICATE = "duplicate"
    """A request of this id has not ended."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request was not taken, with both numbers and what to do."""

    kind: RefusalKind
    message: str
    field: str = ""
    """The request's or SamplingSpec's field at fault, if one is."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """What admission needs to know of the queue."""

    num_waiting: int
    num_startable: int
    """Places among the running that are free."""
    max_queued: int


PLAIN_FIELDS = frozenset({"seed", "choice", "temperature", "top_k", "top_p", "stop_token_ids"})
"""Fields of SamplingSpec that every executor honours; `stop_token_ids` are seen to by core."""


def unsupported_fields(spec: SamplingSpec, features: frozenset[str]) -> list[str]:
    """Names of the fields that differ from their default and that an executor with `features` lacks, in order."""
    defaults = _DEFAULTS
    return [
        name
        for name in SamplingSpec.__dataclass_fields__
        if name not in PLAIN_FIELDS and name not in features and getattr(spec, name) != getattr(defaults, name)
    ]


_DEFAULTS = SamplingSpec()


def blocks_for(num_tokens: int, block_tokens: int) -> int:
    """Blocks that hold the KV of so many positions."""
    return -(-num_tokens // block_tokens)


def decide_admission(request: Request, limits: ExecutorLimits, queue: QueueState) -> Refused | None:
    """None if the request may enter the queue: then it will be served, whatever else comes."""
    return (
        _invalid(request, limits)
        or _unsupported(request, limits)
        or _too_long(request, limits)
        or _never_fits(request, limits)
        or _queue_full(queue)
    )


def _invalid(request: Request, limits: ExecutorLimits) -> Refused | None:
    sampling = request.sampling

    def refuse(field: str, message: str) -> Refused:
        return Refused(RefusalKind.INVALID, message, field)

    if not request.prompt:
        return refuse("prompt", "the prompt has 0 tokens; it needs at least 1")
    if request.max_tokens < 1:
        return refuse("max_tokens", f"max_tokens is {request.max_tokens}; ask for at least 1")
    if not 0 <= sampling.min_tokens <= request.max_tokens:
        return refuse(
            "min_tokens",
            f"min_tokens is {sampling.min_tokens} and max_tokens {request.max_tokens}; keep min_tokens from 0 to max_tokens",
        )
    ids = (
        ("prompt", request.prompt),
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", tuple(token for token, _ in sampling.logit_bias)),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("bad_words", tuple(token for word in sampling.bad_words for token in word)),
    )
    for field, tokens in ids:
        if tokens and (min(tokens) < 0 or max(tokens) >= limits.vocab):
            wrong = min(tokens) if min(tokens) < 0 else max(tokens)
            return refuse(field, f"{field} holds token id {wrong}; this model's ids are 0 to {limits.vocab - 1}")
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        return refuse("allowed_token_ids", "allowed_token_ids has 0 entries; give at least 1 or leave it out")
    if not all(sampling.bad_words):
        return refuse("bad_words", "bad_words holds a word of 0 tokens; leave it out")
    return None


def _unsupported(request: Request, limits: ExecutorLimits) -> Refused | None:
    names = unsupported_fields(request.sampling, limits.features)
    if not names:
        return None
    message = f"this engine does not support {', '.join(names)} yet; leave {'it' if len(names) == 1 else 'them'} out"
    return Refused(RefusalKind.UNSUPPORTED, message, names[0])


def _too_long(request: Request, limits: ExecutorLimits) -> Refused | None:
    num_prompt, num_total = len(request.prompt), len(request.prompt) + request.max_tokens
    if num_total <= limits.max_model_len:
        return None
    message = (
        f"the prompt has {num_prompt} tokens and max_tokens is {request.max_tokens}, {num_total} together; "
        f"this engine's limit is {limits.max_model_len}; shorten the prompt or lower max_tokens"
    )
    return Refused(RefusalKind.TOO_LONG, message, "prompt" if num_prompt >= limits.max_model_len else "max_tokens")


def _never_fits(request: Request, limits: ExecutorLimits) -> Refused | None:
    # The last token of the answer is never fed back: it needs no KV.
    num_positions = len(request.prompt) + request.max_tokens - 1
    num_blocks = blocks_for(num_positions, limits.block_tokens)
    if num_blocks <= limits.num_blocks:
        return None
    message = (
        f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.max_tokens}: they need "
        f"{num_positions} tokens of KV cache, and the whole cache holds {limits.num_blocks * limits.block_tokens}; "
        "shorten the prompt, lower max_tokens, or give the engine more kvCache"
    )
    return Refused(RefusalKind.NEVER_FITS, message, "max_tokens")


def _queue_full(queue: QueueState) -> Refused | None:
    if queue.num_waiting < queue.max_queued + queue.num_startable:
        return None
    message = (
        f"{queue.num_waiting} requests wait already and maxQueuedRequests is {queue.max_queued}; "
        "try again later or add replicas"
    )
    return Refused(RefusalKind.QUEUE_FULL, message)
