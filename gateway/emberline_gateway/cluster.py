"""The only Kubernetes I/O of the gateway: watches, the scale-up from zero, token reviews."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from emberline_contract import names
from emberline_gateway.activation import ClusterError, WakeOutcome
from emberline_gateway.callers import Caller
from emberline_gateway.directory import Directory, Sink
from emberline_gateway.logs import log
from emberline_gateway.objects import Raw, Target

REQUEST_TIMEOUT_S: Final = 5.0
WATCH_S: Final = 300
"""After this the API server ends a watch by itself; it is resumed where it ended."""
WATCH_SILENCE_S: Final = 90.0
"""Bookmarks come about every minute: a watch that says nothing for longer is dead."""
MIN_BACKOFF_S: Final = 0.1
MAX_BACKOFF_S: Final = 5.0
_PAGE: Final = 500
_TRANSPORT_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError)

List = Callable[..., Awaitable[aiohttp.ClientResponse]]


class _GoneError(Exception):
    """The resource version is too old: the list must be read again."""


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    list: List
    sink: Sink


class Cluster:
    """One connection to the API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._core = client.CoreV1Api(api)
        self._apps = client.AppsV1Api(api)
        self._auth = client.AuthenticationV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    async def watch(self, directory: Directory) -> None:
        """Feeds the directory until cancelled; lists again whenever a watch cannot be resumed."""

        async def endpoints(**query: Any) -> aiohttp.ClientResponse:
            response: aiohttp.ClientResponse = await self._custom.list_cluster_custom_object_without_preload_content(
                names.GROUP, names.VERSION, names.ENDPOINT_PLURAL, **query
            )
            return response

        async def pods(**query: Any) -> aiohttp.ClientResponse:
            response: aiohttp.ClientResponse = await self._core.list_pod_for_all_namespaces_without_preload_content(
                label_selector=f"{names.LABEL_ENDPOINT},{names.LABEL_REGION}", **query
            )
            return response

        async with asyncio.TaskGroup() as group:
            group.create_task(_follow(_Kind(names.ENDPOINT_PLURAL, endpoints, directory.endpoint_sink)))
            group.create_task(_follow(_Kind("pods", pods, directory.pod_sink)))

    async def wake(self, target: Target) -> WakeOutcome:
        """Writes replicas 0 -> 1 with a test in the same patch, so that it can never lower or repeat anything."""
        # The API server leaves a replicas of 0 out of a Scale: only a test for null finds it (one for 0 fails).
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/spec/replicas", "value": None},
            {"op": "add", "path": "/spec/replicas", "value": 1},
        ]
        try:
            await self._apps.patch_namespaced_deployment_scale(
                target.child,
                target.namespace,
                patch,
                field_manager=names.GATEWAY_MANAGER,
                _request_timeout=REQUEST_TIMEOUT_S,
            )
        except ApiException as error:
            # 422 is a failed test, but not only that.
            if error.status == 422 and await self.replicas(target) > 0:
                return WakeOutcome.AWAKE_ALREADY
            raise _converted(error, f"scale-up of Deployment {target}") from error
        except _TRANSPORT_ERRORS as error:
            raise ClusterError(f"scale-up of Deployment {target}: the API server does not answer") from error
        return WakeOutcome.WOKE

    async def replicas(self, target: Target) -> int:
        """Reads the scale subresource."""
        try:
            scale = await self._apps.read_namespaced_deployment_scale(
                target.child, target.namespace, _request_timeout=REQUEST_TIMEOUT_S
            )
        except ApiException as error:
            raise _converted(error, f"scale of Deployment {target}") from error
        except _TRANSPORT_ERRORS as error:
            raise ClusterError(f"scale of Deployment {target}: the API server does not answer") from error
        return int(scale.spec.replicas or 0) if scale.spec else 0

    async def review(self, token: str, audience: str) -> Caller | None:
        """Who presents the token; None when it is not valid for the audience. Raises ClusterError."""
        body = client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token, audiences=[audience]))
        try:
            review = await self._auth.create_token_review(body, _request_timeout=REQUEST_TIMEOUT_S)
        except ApiException as error:
            raise _converted(error, "token review") from error
        except _TRANSPORT_ERRORS as error:
            raise ClusterError("token review: the API server does not answer") from error
        status = review.status
        if not status or not status.authenticated or audience not in (status.audiences or ()):
            return None
        return Caller(str(status.user.username)) if status.user else None


@asynccontextmanager
async def connected() -> AsyncIterator[Cluster]:
    """A connection with the pod's own account, or the kubeconfig's where there is no pod."""
    configuration = client.Configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(configuration)
        else:
            await config.load_kube_config(client_configuration=configuration)
    except config.ConfigException as error:
        raise ClusterError(f"no API server to talk to, neither a pod's account nor a kubeconfig: {error}") from error
    async with client.ApiClient(configuration) as api:
        yield Cluster(api)


def _converted(error: ApiException, what: str) -> ClusterError:
    try:
        said = json.loads(error.body or "{}").get("message") or error.reason
    except ValueError:
        said = error.reason
    return ClusterError(f"{what}: {error.status} {str(said)[:300]}")


async def _follow(kind: _Kind) -> None:
    """List, watch, resume; the loop's top is where every failure of the API server ends."""
    version = ""
    backoff_s = MIN_BACKOFF_S
    while True:
        try:
            if not version:
                version = await _read_list(kind)
                log(logging.INFO, "list read", kind=kind.name, version=version)
            async for seen in _events(kind, version):
                version, backoff_s = seen, MIN_BACKOFF_S
        except _GoneError:
            version = ""
            await asyncio.sleep(MIN_BACKOFF_S)
        except (*_TRANSPORT_ERRORS, ClusterError, ValueError) as error:
            log(logging.WARNING, "watch broke", kind=kind.name, error=str(error) or type(error).__name__)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)


async def _read_list(kind: _Kind) -> str:
    items: list[Raw] = []
    token = None
    while True:
        query = {"limit": _PAGE, "_request_timeout": 6 * REQUEST_TIMEOUT_S}
        if token:
            query["_continue"] = token
        async with await kind.list(**query) as response:
            body = await response.read()
            if response.status == 410:
                raise _GoneError
            if response.status != 200:
                raise ClusterError(f"list of {kind.name}: {response.status} {body[:300].decode(errors='replace')}")
        page = json.loads(body)
        items += page["items"]
        token = page["metadata"].get("continue")
        if not token:
            kind.sink.replace(items)
            return str(page["metadata"]["resourceVersion"])


async def _events(kind: _Kind, version: str) -> AsyncIterator[str]:
    """Feeds the sink and yields the resource version after each event."""
    query = {"watch": True, "resource_version": version, "allow_watch_bookmarks": True, "timeout_seconds": WATCH_S}
    async with await kind.list(**query, _request_timeout=WATCH_S + 30.0) as response:
        if response.status == 410:
            raise _GoneError
        if response.status != 200:
            raise ClusterError(f"watch of {kind.name}: {response.status}")
        while True:
            async with asyncio.timeout(WATCH_SILENCE_S):
                line = await response.content.readline()
            if not line:
                return
            event = json.loads(line)
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    kind.sink.put(event["object"])
                case "DELETED":
                    kind.sink.drop(event["object"])
                case "BOOKMARK":
                    pass
                case _:
                    # ERROR, mostly 410; a fresh list is right after any other failure of a watch, too.
                    raise _GoneError
            yield event["object"]["metadata"]["resourceVersion"]
