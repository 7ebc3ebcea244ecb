"""The two HTTP applications: the public one, whose engine paths never reach FastAPI, and the operator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as StarletteHTTPException

from emberline_contract import http
from emberline_contract.http import CloseAnswer, CloseRequest, DemandAnswer, ErrorType
from emberline_gateway.activation import ClusterError
from emberline_gateway.callers import Callers, ForbiddenError, UnauthenticatedError
from emberline_gateway.demand import Demand
from emberline_gateway.directory import Directory, UnknownModelError
from emberline_gateway.exchange import Message, Receive, Send
from emberline_gateway.measures import Measures
from emberline_gateway.objects import Endpoint
from emberline_gateway.proxy import Proxy
from emberline_gateway.question import match_route

Readiness = Callable[[], str]
"""Why the gateway takes no requests now; empty when it does."""
_OWNER: Final = "emberline"


class PublicApp:
    """Looks at the path once: engine paths go straight to the proxy, everything else to FastAPI."""

    def __init__(self, proxy: Proxy, directory: Directory, measures: Measures, why_not_ready: Readiness) -> None:
        self._proxy = proxy
        self._pages = make_pages(directory, measures, why_not_ready)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """ASGI."""
        route = match_route(scope["path"]) if scope["type"] == "http" else None
        if route is not None:
            await self._proxy(route, scope, receive, send)
        else:
            await self._pages(scope, receive, send)


def make_pages(directory: Directory, measures: Measures, why_not_ready: Readiness) -> FastAPI:
    """Models, health and metrics."""
    pages = FastAPI(title="Emberline gateway", docs_url=None, redoc_url=None, openapi_url=None)
    pages.add_exception_handler(StarletteHTTPException, _openai_error)
    _add_health(pages, why_not_ready)

    @pages.get(http.MODELS)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card for e in directory.endpoints() for card in _cards(directory, e)]}

    @pages.get(http.MODELS + "/{model:path}")
    async def model(model: str) -> dict[str, Any]:
        try:
            return _card(directory.resolve(model, None), model)
        except UnknownModelError as error:
            raise HTTPException(404, str(error)) from error

    @pages.get("/{namespace}/{name}" + http.MODELS)
    async def models_of(namespace: str, name: str) -> dict[str, Any]:
        return {"object": "list", "data": _cards(directory, _endpoint(directory, namespace, name))}

    @pages.get("/{namespace}/{name}" + http.MODELS + "/{model:path}")
    async def model_of(namespace: str, name: str, model: str) -> dict[str, Any]:
        try:
            return _card(directory.resolve(model, (namespace, name)), model)
        except UnknownModelError as error:
            raise HTTPException(404, str(error)) from error

    @pages.get(http.METRICS)
    async def metrics() -> Response:
        return PlainTextResponse(measures.text(), media_type=CONTENT_TYPE_LATEST)

    return pages


def _add_health(app: FastAPI, why_not_ready: Readiness) -> None:
    """On both ports: probes use the operator's, which clients cannot fill."""

    @app.get(http.HEALTH)
    @app.get(http.LIVE)
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(http.READY)
    async def ready() -> Response:
        reason = why_not_ready()
        return JSONResponse({"status": reason or "ready"}, 503 if reason else 200)


def _endpoint(directory: Directory, namespace: str, name: str) -> Endpoint:
    try:
        return directory.resolve(None, (namespace, name))
    except UnknownModelError as error:
        raise HTTPException(404, str(error)) from error


def _cards(directory: Directory, endpoint: Endpoint) -> list[dict[str, Any]]:
    return [_card(endpoint, name) for name in directory.model_names(endpoint)]


def _card(endpoint: Endpoint, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": endpoint.created_s,
        "owned_by": _OWNER,
        "root": endpoint.qualified,
        "parent": None,
    }


def make_admin(demand: Demand, callers: Callers, why_not_ready: Readiness) -> FastAPI:
    """The operator's port."""
    admin = FastAPI(title="Emberline gateway, admin", docs_url=None, redoc_url=None, openapi_url=None)
    admin.add_exception_handler(StarletteHTTPException, _openai_error)
    admin.add_exception_handler(RequestValidationError, _invalid)
    _add_health(admin, why_not_ready)

    async def is_allowed(authorization: Annotated[str | None, Header()] = None) -> None:
        try:
            await callers.check(authorization)
        except UnauthenticatedError as error:
            raise HTTPException(401, str(error), {"www-authenticate": "Bearer"}) from error
        except ForbiddenError as error:
            raise HTTPException(403, str(error)) from error
        except ClusterError as error:
            raise HTTPException(503, str(error)) from error

    @admin.post(http.ADMIN_CLOSE, dependencies=[Depends(is_allowed)])
    async def close(request: CloseRequest) -> CloseAnswer:
        return await demand.close(request)

    @admin.get(http.ADMIN_DEMAND, dependencies=[Depends(is_allowed)])
    async def show_demand() -> DemandAnswer:
        return demand.answer()

    return admin


_KINDS: Final = {
    401: ErrorType.UNAUTHORIZED,
    404: ErrorType.NOT_FOUND,
    503: ErrorType.UNAVAILABLE,
}


async def _openai_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    kind = _KINDS.get(error.status_code, ErrorType.BAD_REQUEST)
    return JSONResponse(
        http.error_body(str(error.detail), kind, error.status_code), error.status_code, dict(error.headers or {})
    )


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    return JSONResponse(http.error_body(said, ErrorType.BAD_REQUEST, 400), 400)
