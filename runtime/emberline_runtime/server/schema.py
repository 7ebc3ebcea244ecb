"""What the OpenAI endpoints take: every parameter is honoured, neutral, or refused by name; nothing is ignored. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError, from_json

from emberline_runtime.errors import RequestRefused

MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKEN_IDS: Final = 128
MAX_MESSAGES: Final = 4096
MAX_CONTENT_PARTS: Final = 256
MAX_PROMPTS: Final = 64
MAX_NAME_CHARACTERS: Final = 512
MAX_USER_CHARACTERS: Final = 1024
ROLES: Final = ("system", "developer", "user", "assistant")

Model = TypeVar("Model", bound=BaseModel)

_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "return_token_ids": (False,),
    "use_beam_search": (False,),
    "structured_outputs": (),
    "priority": (0,),
    "cache_salt": (),
    "request_id": (),
    "service_tier": ("auto", "default"),
}
"""Parameters of both endpoints that are not done yet, and their values that ask for nothing; null always does."""
_NEUTRAL_CHAT: Final[dict[str, tuple[object, ...]]] = _NEUTRAL | {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "store": (False,),
    "metadata": ({},),
    "safety_identifier": (),
    "prompt_cache_key": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}
_NEUTRAL_COMPLETION: Final[dict[str, tuple[object, ...]]] = _NEUTRAL | {
    "logprobs": (),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "add_special_tokens": (True,),
    "response_format": ({"type": "text"},),
}
_MESSAGE_NEUTRAL: Final[dict[str, tuple[object, ...]]] = {
    "refusal": (),
    "tool_calls": ([],),
    "function_call": (),
    "audio": (),
    "annotations": ([],),
    "reasoning": (),
}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    include_usage: bool = False
    """One more chunk at the end that carries the usage."""


class GenerationParameters(BaseModel):
    """What both endpoints have in common."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    model: str = Field(min_length=1, max_length=MAX_NAME_CHARACTERS)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    top_k: int = Field(default=0, ge=-1, le=2**31 - 1)
    top_p: float = Field(default=1.0, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**64 - 1)
    max_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)
    stop: tuple[str, ...] = ()
    stop_token_ids: list[int] = Field(default=[], max_length=MAX_STOP_TOKEN_IDS)
    min_tokens: int = Field(default=0, ge=0, le=2**31 - 1)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str = Field(default="", max_length=MAX_USER_CHARACTERS)

    @field_validator("stop", mode="before")
    @classmethod
    def _stops(cls, value: object) -> tuple[str, ...]:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
            raise _wrong("a string or a list of strings is needed")
        if len(stops) > MAX_STOPS:
            raise _wrong(f"{len(stops)} entries were given; at most {MAX_STOPS} are taken")
        if any(not stop for stop in stops):
            raise _wrong("an entry is empty; give each at least one character")
        longest = max((len(stop) for stop in stops), default=0)
        if longest > MAX_STOP_CHARACTERS:
            raise _wrong(f"an entry has {longest} characters; at most {MAX_STOP_CHARACTERS} are taken")
        return tuple(stops)

    @field_validator("stop_token_ids")
    @classmethod
    def _stop_ids(cls, value: list[int]) -> list[int]:
        if any(not 0 <= token < 2**31 for token in value):
            raise _wrong("token ids lie between 0 and the size of the vocabulary")
        return value

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> GenerationParameters:
        if self.stream_options is not None and not self.stream:
            raise _wrong("it needs stream: true", "stream_options")
        return self

    @property
    def include_usage(self) -> bool:
        """A usage chunk was asked for."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(GenerationParameters):
    """POST /v1/chat/completions."""

    messages: list[dict[str, str]]
    """Roles and texts as templates get them."""
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31 - 1)

    @field_validator("messages", mode="before")
    @classmethod
    def _messages(cls, value: object) -> list[dict[str, str]]:
        if not isinstance(value, list) or not value:
            raise _wrong("a list of at least one message is needed")
        if len(value) > MAX_MESSAGES:
            raise _wrong(f"{len(value)} messages were given; at most {MAX_MESSAGES} are taken")
        return [_message(index, message) for index, message in enumerate(value)]

    @model_validator(mode="after")
    def _one_limit(self) -> ChatRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise _wrong(
                f"it is {self.max_tokens} and max_completion_tokens is {self.max_completion_tokens}; give one of them",
                "max_tokens",
            )
        return self

    @property
    def max_output_tokens(self) -> int | None:
        """The answer's limit by either name; None leaves it to what the model's length allows."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


class CompletionRequest(GenerationParameters):
    """POST /v1/completions."""

    prompt: tuple[str | tuple[int, ...], ...]
    """Texts or token ids, one answer each."""

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompts(cls, value: object) -> tuple[str | tuple[int, ...], ...]:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not value:
            raise _wrong(
                "a string, a list of strings, a list of token ids or a list of such lists is needed, not empty"
            )
        if all(_is_token_id(item) for item in value):
            return (tuple(value),)
        if len(value) > MAX_PROMPTS:
            raise _wrong(f"{len(value)} prompts were given; at most {MAX_PROMPTS} are taken at once")
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(isinstance(item, list) and item and all(_is_token_id(token) for token in item) for item in value):
            return tuple(tuple(item) for item in value)
        raise _wrong("a string, a list of strings, a list of token ids or a list of such lists is needed, not empty")


def parse_chat(body: bytes) -> ChatRequest:
    """A chat request, or RequestRefused that names the parameter at fault."""
    return _parse(ChatRequest, _NEUTRAL_CHAT, body)


def parse_completion(body: bytes) -> CompletionRequest:
    """A completion request, or RequestRefused that names the parameter at fault."""
    return _parse(CompletionRequest, _NEUTRAL_COMPLETION, body)


def _parse(kind: type[Model], neutral: Mapping[str, tuple[object, ...]], body: bytes) -> Model:
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        # The parser refuses nesting beyond 200 levels itself, before anything recursive sees it.
        raise RequestRefused(f"the body is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise RequestRefused("the body is no JSON object")
    given = {name: value for name, value in content.items() if value is not None}
    asked = {name: value for name, value in given.items() if not _is_neutral(name, value, kind, neutral)}
    try:
        return kind.model_validate(asked)
    except ValidationError as error:
        raise _refused(error) from error


def _is_neutral(name: str, value: object, kind: type[BaseModel], neutral: Mapping[str, tuple[object, ...]]) -> bool:
    """True if the parameter may be dropped; RequestRefused if it is one that is not done."""
    if name in kind.model_fields:
        return False
    if name not in neutral:
        shown = name[:100]
        raise RequestRefused(f"{shown}: there is no such parameter; leave it out", param=shown)
    if any(_is_same(value, allowed) for allowed in neutral[name]):
        return True
    allowed_text = " or ".join(["null", *(json.dumps(allowed) for allowed in neutral[name])])
    raise RequestRefused(f"{name}: not supported by this version; leave it out or set it to {allowed_text}", param=name)


def _is_same(value: object, allowed: object) -> bool:
    """Equal, but `true` is not 1 and `false` is not 0."""
    return value == allowed and isinstance(value, bool) == isinstance(allowed, bool)


def _is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _message(index: int, message: object) -> dict[str, str]:
    """One message as templates get it: role, content, name."""
    if not isinstance(message, dict):
        raise _wrong("it is no object", f"messages[{index}]")
    where = f"messages[{index}]"
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"the role is none of {', '.join(ROLES)}", f"{where}.role")
    result = {"role": str(role), "content": _content(message.get("content"), str(role), f"{where}.content")}
    for key, value in message.items():
        if key in ("role", "content") or value is None:
            continue
        if key == "name":
            if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS:
                raise _wrong(f"a string of at most {MAX_NAME_CHARACTERS} characters is needed", f"{where}.name")
            result["name"] = value
        elif not any(_is_same(value, allowed) for allowed in _MESSAGE_NEUTRAL.get(key, ())):
            raise _wrong("not supported by this version; leave it out", f"{where}.{key[:100]}")
    return result


def _content(content: object, role: str, where: str) -> str:
    """Text of a message. Parts are joined by line breaks, as templates that take plain text need it."""
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise _wrong("a string or a list of text parts is needed", where)
    if len(content) > MAX_CONTENT_PARTS:
        raise _wrong(f"{len(content)} parts were given; at most {MAX_CONTENT_PARTS} are taken", where)
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise _wrong('only parts {"type": "text", "text": ...} are supported', f"{where}[{index}]")
        texts.append(text)
    return "\n".join(texts)


def _wrong(message: str, param: str | None = None) -> PydanticCustomError:
    """A refusal from inside a validator; `param` where the field's own name is not precise enough."""
    # Braces in the message are no placeholders: it is handed over as a value.
    return PydanticCustomError("wrong", "{text}", {"text": message, "param": param})


def _refused(error: ValidationError) -> RequestRefused:
    first = error.errors(include_url=False, include_input=False)[0]
    param = first.get("ctx", {}).get("param") or _path(first["loc"])
    message = "a parameter that must be given is missing" if first["type"] == "missing" else first["msg"]
    return RequestRefused(f"{param}: {message}", param=param)


def _path(location: tuple[int | str, ...]) -> str:
    """`stop_token_ids[2]` of ("stop_token_ids", 2)."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
