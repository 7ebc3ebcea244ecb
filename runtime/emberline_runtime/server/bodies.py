"""The bytes of answers: whole JSON bodies, and stream chunks as templates that a text is put into. Pure.

A chunk by template costs 0.2 us, one dumped from a model 10 us.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from emberline_contract.http import USAGE_COMMENT, error_body
from emberline_runtime.errors import RequestRefused
from emberline_runtime.server.choice import Choice, Ending

DONE: Final = b"data: [DONE]\n\n"
_TEXT: Final = "\x00text\x00"
_quote = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP request, over all its choices."""

    num_prompt: int
    num_output: int
    num_cached: int

    def as_dict(self) -> dict[str, Any]:
        """The OpenAI object."""
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": self.num_output,
            "total_tokens": self.num_prompt + self.num_output,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
        }


@dataclass(frozen=True, slots=True)
class Identity:
    """What every body of one answer repeats."""

    id: str
    model: str
    created_s: int


class Bodies:
    """Bodies of one answer; the two subclasses are the two endpoints' shapes."""

    whole_object: str
    chunk_object: str

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        self._identity = identity
        self._usage = {"usage": None} if include_usage else {}
        self._templates: dict[int, tuple[bytes, bytes]] = {}

    def opening(self, choice: Choice) -> bytes:
        """The first event of a choice."""
        raise NotImplementedError

    def text(self, choice: Choice, text: str) -> bytes:
        """An event with new text."""
        template = self._templates.get(choice.index)
        if template is None:
            whole = self._event([self._delta(choice.index, _TEXT, None)])
            before, _, after = whole.partition(_quote(_TEXT).encode())
            template = self._templates[choice.index] = before, after
        return template[0] + _quote(text).encode() + template[1]

    def closing(self, choice: Choice, ending: Ending) -> bytes:
        """The last event of a choice: why it ended, and no text."""
        return self._event([self._delta(choice.index, None, ending)])

    def usage(self, usage: Usage) -> bytes:
        """The event after all choices that `include_usage` asks for."""
        return _sse({**self._head(self.chunk_object), "choices": [], "usage": usage.as_dict()})

    def whole(self, texts: Sequence[tuple[Choice, str]], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
        choices = [self._choice(choice.index, text, choice.ending or Ending("stop")) for choice, text in texts]
        return _dump({**self._head(self.whole_object), "choices": choices, "usage": usage.as_dict()})

    def _head(self, kind: str) -> dict[str, Any]:
        identity = self._identity
        return {"id": identity.id, "object": kind, "created": identity.created_s, "model": identity.model}

    def _event(self, choices: list[dict[str, Any]]) -> bytes:
        return _sse({**self._head(self.chunk_object), "choices": choices, **self._usage})

    def _delta(self, index: int, text: str | None, ending: Ending | None) -> dict[str, Any]:
        raise NotImplementedError

    def _choice(self, index: int, text: str, ending: Ending) -> dict[str, Any]:
        raise NotImplementedError


class ChatBodies(Bodies):
    """Shapes of /v1/chat/completions."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    @override
    def opening(self, choice: Choice) -> bytes:
        """The role, before any text."""
        delta = self._delta(choice.index, "", None)
        return self._event([{**delta, "delta": {"role": "assistant", "content": ""}}])

    @override
    def _delta(self, index: int, text: str | None, ending: Ending | None) -> dict[str, Any]:
        delta = {} if text is None else {"content": text}
        return {"index": index, "delta": delta, "logprobs": None, **_reasons(ending)}

    @override
    def _choice(self, index: int, text: str, ending: Ending) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, **_reasons(ending)}


class CompletionBodies(Bodies):
    """Shapes of /v1/completions."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    @override
    def opening(self, choice: Choice) -> bytes:
        """None: completions have no role to tell."""
        return b""

    @override
    def _delta(self, index: int, text: str | None, ending: Ending | None) -> dict[str, Any]:
        return {"index": index, "text": text or "", "logprobs": None, **_reasons(ending)}

    @override
    def _choice(self, index: int, text: str, ending: Ending) -> dict[str, Any]:
        return self._delta(index, text, ending)


def error_json(error: RequestRefused) -> bytes:
    """Body of an error answer."""
    return _dump(error_body(error.message, error.kind, error.status, error.param))


def error_event(error: RequestRefused) -> bytes:
    """The same in a stream whose status line is out already."""
    return _sse(error_body(error.message, error.kind, error.status, error.param))


def usage_comment(usage: Usage) -> bytes:
    """What the gateway reads at the end of a stream and takes out."""
    return USAGE_COMMENT + _dump(usage.as_dict()) + b"\n\n"


def _reasons(ending: Ending | None) -> dict[str, Any]:
    if ending is None:
        return {"finish_reason": None, "stop_reason": None}
    return {"finish_reason": ending.reason, "stop_reason": ending.stop_reason}


def _dump(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _sse(content: object) -> bytes:
    return b"data: " + _dump(content) + b"\n\n"
