"""Which headers cross the gateway. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from emberline_contract import http
from emberline_gateway.answers import Headers

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The engine has no use for a client's credentials; host, length and id are the gateway's own.
_NOT_TO_ENGINE: Final = _HOP_BY_HOP | {
    b"authorization",
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    http.HEADER_REQUEST_ID.encode(),
}
_NOT_TO_CLIENT: Final = _HOP_BY_HOP | {b"content-length", b"date", b"server", http.HEADER_REQUEST_ID.encode()}
_OURS: Final = b"x-emberline-"
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def to_engine(headers: Headers, request_id: str) -> list[tuple[str, str]]:
    """The client's end-to-end headers, without those that only the gateway may set."""
    nominated = _nominated(headers)
    kept = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in _NOT_TO_ENGINE and not name.startswith(_OURS) and name not in nominated
    ]
    kept.append((http.HEADER_REQUEST_ID, request_id))
    return kept


def to_client(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> Headers:
    """The engine's end-to-end headers; the length is for the caller to add, who knows what is sent."""
    lowered = [(name.lower(), value) for name, value in headers]
    nominated = _nominated(lowered)
    kept = [
        (name, value)
        for name, value in lowered
        if name not in _NOT_TO_CLIENT and not name.startswith(_OURS) and name not in nominated
    ]
    kept.append((http.HEADER_REQUEST_ID.encode(), request_id.encode()))
    return kept


def _nominated(headers: Headers) -> frozenset[bytes]:
    """Headers that `Connection` declares hop-by-hop."""
    return frozenset(
        token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b",")
    )


def header(headers: Headers, name: bytes) -> bytes | None:
    """The first value."""
    return next((value for key, value in headers if key == name), None)


def request_id(headers: Headers, make: Callable[[], str]) -> str:
    """The client's id when it is short and plain, else a new one: it goes into logs and headers."""
    given = header(headers, http.HEADER_REQUEST_ID.encode())
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return make()
