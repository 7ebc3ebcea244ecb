"""One request of the engine as the server sees it: tokens come in on the loop, text waits here until a client takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from emberline_runtime.core.admission import RefusalKind, Refused
from emberline_runtime.core.request import FinishReason, Request, Update
from emberline_runtime.errors import RequestRefused, failed, unavailable
from emberline_runtime.text.detokenizer import Detokenizer
from emberline_runtime.text.stop_strings import StopMatcher

STREAM_UNREAD_CHARACTERS = 1024 * 1024
"""Text of a stream that may wait for a client that does not read; more ends its request."""


class Submitter(Protocol):
    """What a choice needs of the engine."""

    def abort(self, request_id: str) -> None:
        """Give the request up."""

    def finish(self, request_id: str, num_tokens: int) -> None:
        """End the answer after so many tokens."""


class RequestObserver(Protocol):
    """Hears what becomes of requests (metrics)."""

    def on_tokens(self, choice: Choice, num_tokens: int, time_s: float) -> None:
        """New tokens of a request."""

    def on_end(self, choice: Choice, reason: FinishReason, time_s: float) -> None:
        """A request that was taken has ended."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended: OpenAI's word, and vLLM's `stop_reason` (the stop string or stop token id)."""

    reason: str
    stop_reason: str | int | None = None


class Choice:
    """Listener of one engine request. `wake` is called when there is something new to take."""

    def __init__(
        self,
        index: int,
        request: Request,
        detokenizer: Detokenizer,
        stops: tuple[str, ...],
        engine: Submitter,
        observer: RequestObserver,
        wake: Callable[[], None],
        *,
        prompt_param: str,
        max_unread_characters: int | None,
    ) -> None:
        self.index = index
        self.request = request
        self.num_cached = 0
        self.num_output = 0
        """Tokens of the answer, the one that ended it included."""
        self.queue_s: float | None = None
        self.first_token_s: float | None = None
        """When the first token was there, on the engine's clock."""
        self.last_token_s: float | None = None
        self.ending: Ending | None = None
        self.error: RequestRefused | None = None
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)
        self._engine = engine
        self._observer = observer
        self._wake = wake
        self._pieces: list[str] = []
        self._num_unread = 0
        self._max_unread = max_unread_characters
        """None: the answer is taken as a whole."""
        self._prompt_param = prompt_param

    @property
    def is_over(self) -> bool:
        """Nothing more will come."""
        return self.ending is not None or self.error is not None

    def take(self) -> str:
        """The text that came since the last call."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._num_unread = 0
        return text

    def on_update(self, update: Update, time_s: float) -> None:
        """New tokens, or the end."""
        if update.queue_s is not None:
            self.queue_s = update.queue_s
        self.num_cached = update.num_cached
        if update.tokens:
            self._observer.on_tokens(self, len(update.tokens), time_s)
            self.first_token_s = self.first_token_s if self.first_token_s is not None else time_s
            self.last_token_s = time_s
        if not self.is_over:
            self._read(update)
        if update.finish is not None:
            self._observer.on_end(self, update.finish, time_s)

    def on_refused(self, refused: Refused) -> None:
        """The request was not taken."""
        if refused.kind is RefusalKind.QUEUE_FULL:
            self._fail(unavailable(refused.message))
        else:
            param = self._prompt_param if refused.field == "prompt" else refused.field or None
            self._fail(RequestRefused(refused.message, param=param))

    def on_lost(self, message: str) -> None:
        """The engine will not go on with the request."""
        self._fail(unavailable(message))

    def abandon(self) -> None:
        """Nobody wants the rest: free its place in the engine."""
        if not self.is_over:
            self._fail(RequestRefused("the request was given up", status=499))
            self._engine.abort(self.request.id)

    def _fail(self, error: RequestRefused) -> None:
        if not self.is_over:
            self.error = error
            self._wake()

    def _read(self, update: Update) -> None:
        """Turn tokens into text, one by one, so that the result does not depend on how they were batched."""
        for token in update.tokens:
            self.num_output += 1
            # The token that ended the answer is not part of its text.
            is_text = update.stop_token is None or self.num_output < update.num_output
            if is_text and self._show(self._detokenizer.push(token)):
                self._engine.finish(self.request.id, self.num_output)
            if self.is_over:
                break
        if not self.is_over and update.finish is not None:
            self._end(update)
        # A whole answer is taken once it is over; a stream takes each step's text.
        if self.is_over or (self._max_unread is not None and update.tokens):
            self._wake()

    def _show(self, piece: str) -> bool:
        """Add a token's text. True if a stop string ended the answer."""
        if self.num_output <= self.request.sampling.min_tokens:
            passed_text, stop = piece, None
        else:
            passed = self._matcher.push(piece)
            passed_text, stop = passed.text, passed.stop
        self._add(passed_text)
        if stop is not None:
            self.ending = Ending("stop", stop)
        return stop is not None

    def _add(self, text: str) -> None:
        if not text:
            return
        self._pieces.append(text)
        self._num_unread += len(text)
        if self._max_unread is not None and self._num_unread > self._max_unread:
            self._fail(
                RequestRefused(
                    f"{self._num_unread} characters wait unread and the limit is {self._max_unread}; read the stream faster",
                    status=499,
                )
            )
            self._engine.abort(self.request.id)

    def _end(self, update: Update) -> None:
        match update.finish:
            case FinishReason.STOP | FinishReason.LENGTH:
                if self._show(self._detokenizer.flush()):
                    return
                self._add(self._matcher.flush())
                is_own = update.stop_token is not None and update.stop_token not in self.request.eos
                self.ending = Ending(update.finish.value, update.stop_token if is_own else None)
            case FinishReason.ERROR:
                self.error = failed(update.error or "the engine could not go on with this request")
            case FinishReason.ABORT | None:
                self.error = RequestRefused("the request was given up", status=499)
