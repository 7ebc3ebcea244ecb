"""What the gateway reads of a request: its path, and `model` and `stream` of its body. Pure; the rest is the engine's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from emberline_contract import http
from emberline_gateway.answers import bad_request

MAX_MODEL_LENGTH: Final = 256
_PATHS: Final = (http.CHAT_COMPLETIONS, http.COMPLETIONS)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse_constant)
"""As engines read: UTF-8 only, no NaN and no Infinity."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path that goes to an engine."""

    path: str
    """As the engine knows it."""
    endpoint: tuple[str, str] | None = None
    """Namespace and name, of the path form `/{namespace}/{name}/v1/...`."""


_PLAIN: Final = {path: Route(path) for path in _PATHS}


def match_route(path: str) -> Route | None:
    """None for a path that goes to no engine."""
    route = _PLAIN.get(path)
    if route is not None:
        return route
    for suffix in _PATHS:
        if path.endswith(suffix):
            parts = path[: -len(suffix)].split("/")
            if len(parts) == 3 and not parts[0] and parts[1] and parts[2]:
                return Route(suffix, (parts[1], parts[2]))
    return None


@dataclass(frozen=True, slots=True)
class Question:
    """The two fields that the gateway needs."""

    model: str | None
    is_stream: bool


def read_question(body: bytes) -> Question:
    """Raises RefusalError for a body that no engine could read either, before anything is woken for it."""
    try:
        parsed = _JSON.decode(str(body, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {type(error).__name__}") from error
    if not isinstance(parsed, dict):
        raise bad_request("the body must be a JSON object")
    model = parsed.get("model")
    if model is not None and not isinstance(model, str):
        raise bad_request("model must be a string", param="model")
    if model is not None and len(model) > MAX_MODEL_LENGTH:
        raise bad_request(f"model has {len(model)} characters; names have at most {MAX_MODEL_LENGTH}", param="model")
    return Question(model, parsed.get("stream") is True)
