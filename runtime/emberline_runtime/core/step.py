"""The types that cross between the scheduler and an executor. Standard library only, and picklable, so that the ranks of
tensor parallelism get a plan as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import Literal


class Want(IntFlag):
    """What a slot's rows should yield besides KV."""

    NOTHING = 0
    TOKEN = 1
    PROMPT_LOGPROBS = 2
    POOLED = 4


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How the next token is chosen. Every field of the definition is here; an executor refuses by name what it lacks.

    `docs/sampling.md` is the definition, `core/sampling.py` the oracle. Defaults switch each part off.
    """

    seed: int = 0
    """Always set; a missing one is drawn at submit."""
    choice: int = 0
    """Index among the `n` choices of a request; part of the noise counter."""
    temperature: float = 1.0
    """0 (and anything below 1e-5) is greedy; then every filter below is without effect."""
    top_k: int = 0
    """0 and -1 are off."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the answer (the model's own eos ids included unless ignored); masked while min_tokens is not reached."""
    logprobs: int | None = None
    """Number of alternatives to report per token; None reports nothing, 0 the chosen token's alone."""
    prompt_logprobs: int | None = None
    grammar: bool = False
    """A mask row constrains each sampled position."""


@dataclass(frozen=True, slots=True)
class SlotStart:
    """Binds a slot to a request; sent again after preemption."""

    slot: int
    tokens: tuple[int, ...]
    """All known tokens; `tokens[num_prompt:]` is output (penalties, min_tokens, noise counter)."""
    num_prompt: int
    blocks: tuple[int, ...]
    num_cached: int
    """Leading tokens whose KV is in `blocks` already."""
    sampling: SamplingSpec


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of one slot in one step."""

    slot: int
    start: int
    """Position of the first row; -1: where the executor's own counter stands (lookahead after speculation)."""
    num_rows: int
    tokens: tuple[int, ...]
    """Shorter than num_rows: the executor fills in its last sampled token, then its own draft."""
    num_draft: int = 0
    """The last num_draft rows are guesses."""
    new_blocks: tuple[int, ...] = ()
    want: Want = Want.NOTHING
    mask_row: int = -1
    """First of num_draft + 1 grammar mask rows."""


@dataclass(frozen=True, slots=True)
class BlockMove:
    """A copy of one KV block, done before the step's rows are computed."""

    src: int
    dst: int
    kind: Literal["copy", "to_host", "from_host"]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: ends first, then moves, then starts, then rows."""

    step: int
    ends: tuple[int, ...] = ()
    """Slots that are free from here on."""
    moves: tuple[BlockMove, ...] = ()
    starts: tuple[SlotStart, ...] = ()
    rows: tuple[SlotRows, ...] = ()
    num_mask_rows: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Raw log-probabilities at one position: the token's own, its rank (1 is best), and the best alternatives."""

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class FaultKind(StrEnum):
    """Why an executor could not go on with one request."""

    NONFINITE = "nonfinite"
    """A logit is not finite."""
    NO_CANDIDATE = "no_candidate"
    """Masks (allowed ids, bad words, min_tokens, grammar) leave no token to choose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Ends one request, no other."""

    kind: FaultKind
    message: str


@dataclass(frozen=True, slots=True)
class SlotResult:
    """What came of one slot's rows."""

    slot: int
    tokens: tuple[int, ...]
    """Accepted drafts, then one more; empty unless a token was wanted."""
    num_valid: int
    """Positions with valid KV after the step."""
    num_draft: int = 0
    """Drafts verified."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    pooled: bytes | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one plan."""

    step: int
    slots: tuple[SlotResult, ...] = ()
    device_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """What an executor can do, known after `load`."""

    num_blocks: int
    block_tokens: int
    max_rows: int
    """Rows over all slots of one step."""
    max_sequences: int
    """Slots; numbered from 0."""
    max_model_len: int
    vocab: int
    """Width of the logits."""
    num_host_blocks: int = 0
    max_in_flight: int = 1
    """Plans launched and not yet collected."""
    max_draft: int = 0
    features: frozenset[str] = field(default_factory=frozenset)
    """Names of SamplingSpec fields and Want members beyond the plain ones (temperature, top_k, top_p, seed) that it honours."""
