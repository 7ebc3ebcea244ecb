"""The runtime's exceptions, in one tree.

RuntimeFailure
├── StartRefused      the configuration or the model folder cannot be served: the process says why and ends with 2
└── RequestRefused    one request cannot be served: the HTTP edge makes a status and an error body of it
"""

from __future__ import annotations

from emberline_contract.http import ErrorType


class RuntimeFailure(Exception):  # noqa: N818 - the tree's root reads better so
    """Base of everything that the runtime raises on purpose."""


class StartRefused(RuntimeFailure):
    """The process cannot start as it was told to: it prints the message, one line, and ends with code 2."""


class RequestRefused(RuntimeFailure):
    """One request cannot be served: the HTTP edge makes a status and an error body of it. The engine is untouched."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        kind: ErrorType = ErrorType.BAD_REQUEST,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


def unavailable(message: str, retry_after_s: int = 1) -> RequestRefused:
    """503: the request is fine, try again later or elsewhere."""
    return RequestRefused(message, status=503, kind=ErrorType.UNAVAILABLE, retry_after_s=retry_after_s)


def failed(message: str) -> RequestRefused:
    """500: the engine failed on this request."""
    return RequestRefused(message, status=500, kind=ErrorType.INTERNAL)
