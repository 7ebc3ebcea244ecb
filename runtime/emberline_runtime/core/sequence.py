"""A request on its way through the engine: the progress that the scheduler and the KV cache keep of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from emberline_runtime.core.prefix_index import Chain, Entry
from emberline_runtime.core.request import FinishReason, Request, Update
from emberline_runtime.core.step import SamplingSpec, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of one request.

    Positions run ahead of each other: `num_computed <= num_scheduled <= len(tokens) + num_pending`. A position is
    scheduled when a plan that computes it is launched, computed when that plan is committed.
    """

    request: Request
    sampling: SamplingSpec
    """The request's, with the model's end ids among the stop ids, so that the sampler can mask them."""
    order: int
    """Place in the order of submission."""
    tokens: list[int]
    """Prompt and answer as far as known."""

    slot: int = -1
    """The executor's slot while running, else -1."""
    blocks: list[int] = field(default_factory=list)
    num_history: int = 0
    """Tokens known at the last start: they must be back in the KV cache before the next token is sampled."""
    num_computed: int = 0
    num_scheduled: int = 0
    num_pending: int = 0
    """Tokens that launched plans will sample."""
    num_in_flight: int = 0
    """Plans launched and not committed that name this sequence."""
    num_preemptions: int = 0
    is_leaving: bool = False
    """To be preempted once no plan in flight names it."""
    finish: FinishReason | None = None
    """Set once it has ended; then it only waits for its plans in flight."""

    chain: Chain | None = None
    """None: neither looks for prefixes nor offers any."""
    last_entry: Entry | None = None
    """What stands in the index for the prefix up to the last registered block."""
    num_registered: int = 0
    """Leading blocks that are in the index."""
    waits_for: bytes | None = None
    """Key of the block that another sequence was computing when this one was last looked at."""

    num_cached: int = 0
    """Prompt tokens found in the cache at the first start."""
    num_prompt_told: int = 1
    """Prompt positions whose logprobs were handed out; the first position has none."""
    queue_s: float | None = None
    """Seconds from arrival to the first start, until it was told."""
    was_started: bool = False

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def num_output(self) -> int:
        """Tokens of the answer, as far as known."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether positions of the prompt are still to be told; such a sequence may not skip computing them."""
        return self.sampling.prompt_logprobs is not None and self.num_prompt_told < self.num_prompt

    @property
    def can_be_scheduled(self) -> bool:
        """Whether the next plan may name it: a grammar's mask needs the token before it, all else may run ahead."""
        return self.finish is None and not self.is_leaving and not (self.sampling.grammar and self.num_in_flight)

    @property
    def can_decode(self) -> bool:
        """Whether its next row is one that follows a sampled token, known or pending."""
        return (
            self.num_scheduled >= self.num_history
            and self.num_output + self.num_pending < self.request.max_tokens
            and self.can_be_scheduled
        )

    @property
    def can_prefill(self) -> bool:
        """Whether history is missing in the KV cache."""
        return self.num_scheduled < self.num_history and self.can_be_scheduled

    def update(
        self,
        tokens: tuple[int, ...] = (),
        *,
        stop_token: int | None = None,
        error: str | None = None,
        logprobs: tuple[TokenLogprobs, ...] | None = None,
        prompt_logprobs: tuple[TokenLogprobs, ...] | None = None,
    ) -> Update:
        """What to tell the caller now."""
        queue_s, self.queue_s = self.queue_s, None
        return Update(
            self.request.id,
            tokens,
            self.finish,
            stop_token,
            error,
            logprobs,
            prompt_logprobs,
            self.num_prompt,
            self.num_cached,
            self.num_output,
            queue_s,
        )
