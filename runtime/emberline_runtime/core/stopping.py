"""When an answer ends by its tokens. Stop strings are the caller's part: it alone knows the text."""

from __future__ import annotations

from emberline_runtime.core.request import FinishReason, Request


def decide_finish(request: Request, token: int, num_output: int) -> FinishReason | None:
    """Whether `token`, the answer's `num_output`-th, ends it; a stop id counts before the length.

    Below `min_tokens` nothing ends an answer: the sampler masks stop ids there, and an id that slips through is text.
    """
    if num_output < request.sampling.min_tokens:
        return None
    if token in request.eos or token in request.sampling.stop_token_ids:
        return FinishReason.STOP
    if num_output >= request.max_tokens:
        return FinishReason.LENGTH
    return None
