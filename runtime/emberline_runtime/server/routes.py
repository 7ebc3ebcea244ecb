"""The Starlette app of an engine pod: which path is answered by whom, request ids, and errors in OpenAI's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emberline_contract import http
from emberline_contract.http import ErrorType
from emberline_runtime.errors import RequestRefused
from emberline_runtime.server.bodies import error_json
from emberline_runtime.server.generation import ChatEndpoint, CompletionEndpoint, Service
from emberline_runtime.server.health import Verdict, decide_health, decide_live, decide_ready
from emberline_runtime.server.metrics import Metrics

_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
_KINDS: Final = {404: ErrorType.NOT_FOUND, 413: ErrorType.TOO_LARGE, 500: ErrorType.INTERNAL}


def make_app(service: Service, metrics: Metrics, started_unix_s: int) -> ASGIApp:
    """The app; it answers health and metrics from the start, and requests once `service.prompts` is there."""
    engine = service.engine

    def model_card(name: str) -> dict[str, object]:
        names = service.config.served_names
        limits = engine.limits
        return {
            "id": name,
            "object": "model",
            "created": started_unix_s,
            "owned_by": "emberline",
            "root": names[0],
            "parent": None,
            "max_model_len": limits.max_model_len if limits else service.config.max_model_len,
            "permission": [],
        }

    async def models(request: Request) -> Response:
        names = service.config.served_names
        return _json(200, {"object": "list", "data": [model_card(name) for name in names]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in service.config.served_names:
            raise HTTPException(404, f"the model {name[:100]!r} does not exist here")
        return _json(200, model_card(name))

    async def version(request: Request) -> Response:
        return _json(200, {"version": package_version()})

    async def health(request: Request) -> Response:
        return _verdict(decide_health(engine.phase, engine.stalled_s()))

    async def live(request: Request) -> Response:
        return _verdict(decide_live(engine.phase, engine.stalled_s()))

    async def ready(request: Request) -> Response:
        return _verdict(decide_ready(engine.phase))

    async def exposition(request: Request) -> Response:
        metrics.set_startup(engine.startup_s)
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [
        Route(http.CHAT_COMPLETIONS, ChatEndpoint(service), methods=["POST"]),
        Route(http.COMPLETIONS, CompletionEndpoint(service), methods=["POST"]),
        Route(http.MODELS, models),
        Route(http.MODELS + "/{name:path}", model),
        Route(http.VERSION, version),
        Route(http.HEALTH, health),
        Route(http.LIVE, live),
        Route(http.READY, ready),
        Route(http.METRICS, exposition),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _internal_error})
    return RequestIds(app, service.draw_id)


class RequestIds:
    """Gives every request an id: the caller's `x-request-id` if it is decent, else a new one; the answer carries it."""

    def __init__(self, app: ASGIApp, draw_id: Callable[[], str]) -> None:
        self._app = app
        self._draw_id = draw_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the id in `scope["state"]`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = http.HEADER_REQUEST_ID.encode()
        given = next((value for key, value in scope["headers"] if key == name), b"")
        request_id = given if _REQUEST_ID.fullmatch(given) else self._draw_id().encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (name, request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


@cache
def package_version() -> str:
    """The installed version of this product."""
    from importlib.metadata import version

    return version("emberline")


def _json(status: int, content: object) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")


def _verdict(verdict: Verdict) -> Response:
    return _json(verdict.status, verdict.body)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = _KINDS.get(error.status_code, ErrorType.BAD_REQUEST)
    refused = RequestRefused(
        f"{request.method} {request.url.path[:200]}: {error.detail}", status=error.status_code, kind=kind
    )
    return Response(error_json(refused), error.status_code, headers=error.headers, media_type="application/json")


async def _internal_error(request: Request, error: Exception) -> Response:
    # Starlette raises it again afterwards, so that the log has the traceback; the client learns no internals.
    refused = RequestRefused(
        "an internal error; the log has it under this request's id", status=500, kind=ErrorType.INTERNAL
    )
    return Response(error_json(refused), 500, media_type="application/json")
