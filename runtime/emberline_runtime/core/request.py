"""What a caller asks of the engine, and what it hears back. Neither changes once made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from emberline_runtime.core.step import SamplingSpec, TokenLogprobs


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    """A stop id was sampled, or the caller found a stop string."""
    LENGTH = "length"
    """`max_tokens` are there."""
    ABORT = "abort"
    """The caller gave it up."""
    ERROR = "error"
    """The executor could not go on with it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and one answer; each of `n` choices is a request of its own."""

    id: str
    """Unique among the requests that have not ended."""
    prompt: tuple[int, ...]
    sampling: SamplingSpec
    max_tokens: int
    """Most tokens of the answer, 1 or more; prompt and answer together fit the model's length."""
    eos: frozenset[int] = frozenset()
    """The model's own end ids; empty if they are to be ignored. Further stop ids are in `sampling.stop_token_ids`."""
    salt: bytes = b""
    """Whose prefixes this request may reuse: the tenant's; prompts with different salts never share KV."""
    group: str = ""
    """The choices of one call name the same group: they share their prompt's blocks also without prefix caching."""
    priority: int = 0
    """Smaller is served earlier; within one priority first come, first served."""
    arrival_s: float = 0.0
    """When it came, on the clock that `Scheduler.schedule` is given."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is new about one request. The one with `finish` is its last."""

    request_id: str
    tokens: tuple[int, ...] = ()
    """New tokens of the answer, the stop id that ended it included."""
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The id that ended the answer; it is the last of `tokens` and not part of the text."""
    error: str | None = None
    """With `FinishReason.ERROR`: what happened, for the caller."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One for each of `tokens`."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """The next positions of the prompt, each position once; the first of the prompt has none."""
    num_prompt: int = 0
    num_cached: int = 0
    """Leading tokens of the prompt whose KV was there at the first start."""
    num_output: int = 0
    """Tokens of the answer up to here."""
    queue_s: float | None = None
    """Seconds from arrival to the first start; said once, with the first update after it."""
