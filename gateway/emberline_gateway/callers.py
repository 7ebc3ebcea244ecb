"""Who may use the admin port: the operator's and the gateways' own accounts, proven by a token for our audience."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from emberline_contract import names

VALID_S: Final = 10.0
"""How long a review's answer is trusted. Short: a deleted account or pod loses its power within this time."""
MAX_CACHED: Final = 256


def account(name: str) -> str:
    """User name of a ServiceAccount in our own namespace."""
    return f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{name}"


ALLOWED: Final = frozenset({account(names.OPERATOR_NAME), account(names.GATEWAY_NAME)})


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom the API server says a token belongs to."""

    username: str


class UnauthenticatedError(Exception):
    """No token, or one that is not valid for us: 401."""


class ForbiddenError(Exception):
    """A valid token of somebody who has no business here: 403."""


class Reviewer(Protocol):
    """Reviews tokens."""

    async def review(self, token: str, audience: str) -> Caller | None:
        """Who presents the token; None when it is not valid for the audience."""
        ...


class Callers:
    """Checks bearer tokens; keeps answers for a short time by the token's digest, never the token."""

    def __init__(self, reviewer: Reviewer, clock: Callable[[], float]) -> None:
        self._reviewer = reviewer
        self._clock = clock
        self._known: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()

    async def check(self, authorization: str | None) -> Caller:
        """Raises UnauthenticatedError or ForbiddenError; ClusterError when the API server cannot be asked."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise UnauthenticatedError("a bearer token is needed")
        caller = await self._who(token)
        if caller is None:
            raise UnauthenticatedError(f"the token is not valid for the audience {names.ADMIN_AUDIENCE!r}")
        if caller.username not in ALLOWED:
            raise ForbiddenError(f"{caller.username} may not use this port")
        return caller

    async def _who(self, token: str) -> Caller | None:
        digest = hashlib.sha256(token.encode()).digest()
        now_s = self._clock()
        known = self._known.get(digest)
        if known is not None and known[0] > now_s:
            return known[1]
        caller = await self._reviewer.review(token, names.ADMIN_AUDIENCE)
        self._known[digest] = (now_s + VALID_S, caller)
        self._known.move_to_end(digest)
        while len(self._known) > MAX_CACHED:
            self._known.popitem(last=False)
        return caller
