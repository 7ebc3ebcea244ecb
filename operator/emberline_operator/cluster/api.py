"""The API server over HTTP: one request in, one JSON document out.

`kubernetes.aio` does the connecting (certificates, tokens and their renewal); its typed models and its dynamic client, which
asks for the whole discovery first, are not used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from emberline_operator.errors import ClusterError, ConflictError, NotFoundError, RefusedError, UnavailableError
from emberline_operator.snapshot import Json

REQUEST_TIMEOUT_S: Final = 15.0
APPLY: Final = "application/apply-patch+yaml"
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
    """A connection. Close it."""

    def __init__(self, configuration: Any) -> None:
        self._client = client.ApiClient(configuration)

    @classmethod
    async def connect(cls, kubeconfig: Path | None) -> Api:
        """Connect as `load_configuration` says."""
        return cls(await load_configuration(kubeconfig))

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
        try:
            answer = await self._client.call_api(*serialized, _request_timeout=REQUEST_TIMEOUT_S)
            data = await answer.read()
        except ApiException as error:
            raise _converted(what, error.status, str(error.body or error.reason)) from error
        except (TimeoutError, aiohttp.ClientError) as error:
            raise UnavailableError(what, None, f"no answer ({type(error).__name__}: {error})") from error
        text = (data or b"").decode()
        if not 200 <= answer.status <= 299:
            raise _converted(what, answer.status, text)
        document: Json = json.loads(text)
        return document


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
