"""HTTP paths, headers and bodies between clients, gateway, engine and operator."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

# OpenAI paths, on gateway and engine; on the gateway also below /{namespace}/{name}.
CHAT_COMPLETIONS: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
MODELS: Final = "/v1/models"
# Engine and gateway.
HEALTH: Final = "/health"
LIVE: Final = "/live"
READY: Final = "/ready"
METRICS: Final = "/metrics"
VERSION: Final = "/version"
# Gateway, admin port.
ADMIN_CLOSE: Final = "/admin/close"
ADMIN_DEMAND: Final = "/admin/demand"

HEADER_TENANT: Final = "x-emberline-tenant"
"""Gateway to engine: opaque; salts the prefix hash. Stripped from clients."""
HEADER_USAGE: Final = "x-emberline-usage"
"""Gateway to engine, value `1`: end each stream, a failing one too, with the comment `: usage {json}`. Stripped from clients."""
HEADER_REQUEST_ID: Final = "x-request-id"
"""Accepted, echoed and logged everywhere."""
HEADER_RETRY_AFTER: Final = "retry-after"
USAGE_COMMENT: Final = b": usage "

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Largest request body that the gateway and the engine read; more is 413."""


class ErrorType(StrEnum):
    """`error.type` of an OpenAI error body."""

    BAD_REQUEST = "BadRequestError"
    UNAUTHORIZED = "AuthenticationError"
    NOT_FOUND = "NotFoundError"
    TOO_LARGE = "RequestEntityTooLargeError"
    RATE_LIMIT = "RateLimitError"
    INTERNAL = "InternalServerError"
    UNAVAILABLE = "ServiceUnavailableError"
    TIMEOUT = "TimeoutError"


def error_body(message: str, kind: ErrorType, code: int, param: str | None = None) -> dict[str, object]:
    """The OpenAI error object, as a body and as the payload of an SSE error event."""
    return {"error": {"message": message, "type": kind.value, "param": param, "code": code}}


class AdminModel(BaseModel):
    """Base of the admin port's bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CloseRequest(AdminModel):
    """POST /admin/close: stop dispatching to an endpoint's region so that it can go to zero."""

    namespace: str
    name: str
    region: str
    epoch: int = Field(ge=0)
    """Rises with each attempt; an older epoch than the one in force is answered `busy`."""
    ttl_s: float = Field(default=15.0, gt=0, le=60)
    """After this the gateway reopens by itself, whatever became of the caller."""
    reopen: bool = False
    """True ends the close of this epoch at once (another gateway was busy, or the write failed)."""


class CloseState(StrEnum):
    """Answer to a close."""

    CLOSED = "closed"
    """Nothing is held, dispatched or running, and new requests are held until the close ends."""
    BUSY = "busy"
    OPEN = "open"
    """Answer to `reopen`."""


class CloseAnswer(AdminModel):
    """Answer of POST /admin/close."""

    state: CloseState
    epoch: int
    reason: str = ""
    """For `busy`: what there is to do (held, dispatched, running on an engine, or an engine that does not answer)."""


class EngineQueue(AdminModel):
    """What an engine says of itself, as one gateway read it."""

    waiting: int
    running: int
    age_s: float
    """Seconds since it was read."""
    waited_s: float = 0.0
    """Seconds for which each reading has found something waiting; 0 when the newest has not, or is the first that has."""


class EndpointDemand(AdminModel):
    """One endpoint and region as one gateway sees it."""

    namespace: str
    name: str
    region: str
    held: int
    dispatched: int
    idle_s: float
    """Seconds since a request last arrived or ended here; since the gateway's start if none ever did; 0 while any is unfinished."""
    held_s: float = 0.0
    """Seconds that the request that is held longest has waited."""
    pods: dict[str, int] = Field(default_factory=dict)
    """Name of a pod -> requests that are dispatched to it and unfinished; pods without any are left out."""
    engines: dict[str, EngineQueue] = Field(default_factory=dict)
    """Name of a pod -> its engine's newest reading; engines that have not answered lately, or have nothing to do, are left out."""


class DemandAnswer(AdminModel):
    """Answer of GET /admin/demand."""

    uptime_s: float
    endpoints: list[EndpointDemand]

    @cached_property
    def by_target(self) -> dict[tuple[str, str, str], EndpointDemand]:
        """Each endpoint's by namespace, name and region."""
        return {(e.namespace, e.name, e.region): e for e in self.endpoints}
