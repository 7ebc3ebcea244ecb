"""The API server over HTTP: one request in, one JSON document out.

`kubernetes.aio` does the connecting (certificates, tokens and their renewal); its typed models and its dynamic client, which
asks for the whole discovery first, are not used.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from emberline_operator.cluster.throttle import Throttle, retry_after_s
from emberline_operator.errors import (
    ClusterError,
    ConflictError,
    LostLeadershipError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from emberline_operator.snapshot import Json

REQUEST_TIMEOUT_S: Final = 15.0
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json"
_REFUSALS: Final = frozenset({400, 403, 405, 415, 422})


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the API server is and who we are, as files and a token."""

    server: str
    ca_path: str | None
    certificate_path: str | None
    key_path: str | None
    token: str | None


async def load_configuration(kubeconfig: Path | None) -> Any:
    """Connect with a kubeconfig file, the pod's ServiceAccount, or $KUBECONFIG, in this order."""
    configuration = client.Configuration()
    if kubeconfig is not None:
        await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        return configuration
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    return configuration


async def load_credentials(kubeconfig: Path | None) -> Credentials:
    """The same for a client that is not ours; read anew each time, so a renewed token is in it."""
    configuration = await load_configuration(kubeconfig)
    token = configuration.api_key.get("BearerToken", "").split(" ", 1)[-1].strip()
    return Credentials(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        certificate_path=configuration.cert_file,
        key_path=configuration.key_file,
        token=token or None,
    )


class Api:
    """A connection. Close it.

    `may_write` is asked before each request that changes something, in the last moment before it goes out: it gives the
    seconds that the request may take, or raises LostLeadershipError. Requests of one connection pause together when the
    API server asks for it.
    """

    def __init__(
        self,
        configuration: Any,
        *,
        may_write: Callable[[], float] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._may_write = may_write
        self._timeout_s = timeout_s
        self._clock = clock
        self._throttle = Throttle(chance)
        if may_write is not None:
            configuration.trace_configs = [_last_look(may_write)]
        self._client = client.ApiClient(configuration)

    @classmethod
    async def connect(cls, kubeconfig: Path | None, **options: Any) -> Api:
        """Connect as `load_configuration` says; the options are the constructor's."""
        return cls(await load_configuration(kubeconfig), **options)

    async def close(self) -> None:
        """Give up the connection."""
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Json | None = None,
        query: Sequence[tuple[str, str]] = (),
        content_type: str = JSON,
    ) -> Json:
        """The answer's document. Raises a ClusterError that names the request."""
        what = f"{method} {path}"
        await self._throttled()
        serialized = await self._client.param_serialize(
            method,
            path,
            path_params={},
            query_params=list(query),
            header_params={"Accept": JSON, "Content-Type": content_type},
            body=body,
            post_params=[],
            files={},
            auth_settings=["BearerToken"],
        )
        timeout_s = self._timeout_s
        if self._may_write is not None and method != "GET":
            timeout_s = min(timeout_s, self._may_write())
        try:
            answer = await self._client.call_api(*serialized, _request_timeout=timeout_s)
            data = await answer.read()
        except ApiException as error:
            raise _converted(what, error.status, str(error.body or error.reason)) from error
        except (TimeoutError, aiohttp.ClientError) as error:
            if isinstance(error.__cause__, LostLeadershipError):
                raise error.__cause__ from None
            raise UnavailableError(what, None, f"no answer ({type(error).__name__}: {error})") from error
        self._throttle.heard(answer.status, retry_after_s(answer.headers.get("Retry-After")), self._clock())
        text = (data or b"").decode()
        if not 200 <= answer.status <= 299:
            raise _converted(what, answer.status, text)
        document: Json = json.loads(text)
        return document

    async def _throttled(self) -> None:
        """Wait as long as the API server has asked for."""
        pause_s = self._throttle.pause_s(self._clock())
        while pause_s > 0:
            await asyncio.sleep(pause_s)
            pause_s = self._throttle.pause_s(self._clock())


def _last_look(may_write: Callable[[], float]) -> aiohttp.TraceConfig:
    """Asks once more when a connection is there and the request is about to be written to it.

    aiohttp tells of a body before it sends it, and the headers wait for the body; so a process that was stopped while it
    waited for a connection sends nothing.
    """

    async def look(_session: object, _context: object, chunk: aiohttp.TraceRequestChunkSentParams) -> None:
        if chunk.method != "GET":
            may_write()

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(look)
    return trace


def _converted(request: str, status: int | None, text: str) -> ClusterError:
    """The error of an answer, with the message of its Status document."""
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        message = text.strip() or f"HTTP {status}"
    if status == 404:
        return NotFoundError(request, status, message)
    if status == 409:
        return ConflictError(request, status, message)
    if status in _REFUSALS:
        return RefusedError(request, status, message)
    return UnavailableError(request, status, message)
