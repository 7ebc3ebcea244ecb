"""All Kubernetes I/O of the nodes: objects as plain JSON, errors converted once, and a watch that never ends by itself."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.exceptions import ApiException

log = logging.getLogger(__name__)

Object = dict[str, Any]

STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_REQUEST_TIMEOUT_S = 10.0
_WATCH_TIMEOUT_S = 300
_RETRY_S = 0.5


class NodeApiError(Exception):
    """The API server refused a request or could not be reached; `status` is 0 for the latter."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status


class NodeApi:
    """Requests of one node through a shared `ApiClient`, which stays its owner's to close."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        """The answer's JSON object. Raises NodeApiError."""
        try:
            response = await self._send(method, path, body, query, content_type, _REQUEST_TIMEOUT_S)
            text = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NodeApiError(0, f"{method} {path}: {type(error).__name__}: {error}") from error
        if response.status >= 400:
            raise NodeApiError(response.status, f"{method} {path}: {_message(text)}")
        answer: Object = json.loads(text)
        return answer

    async def watch(self, path: str, query: Mapping[str, str]) -> AsyncIterator[tuple[str, Object]]:
        """What a list-and-watch sees: `("LISTED", {"items": [...]})` first and after each gap, then single events.

        Ends only when its consumer does; resumes after a lost connection and lists again when the API server no longer
        knows the version.
        """
        version = ""
        while True:
            try:
                if not version:
                    listed = await self.request("GET", path, query=query)
                    version = listed["metadata"]["resourceVersion"]
                    yield "LISTED", listed
                async for kind, item in self._events(path, {**query, "resourceVersion": version}):
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, item
            except NodeApiError as error:
                if error.status == 410:
                    version = ""
                    continue
                log.info("watch of %s interrupted, resuming: %s", path, error)
                await asyncio.sleep(_RETRY_S)

    async def _events(self, path: str, query: Mapping[str, str]) -> AsyncIterator[tuple[str, Object]]:
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(_WATCH_TIMEOUT_S)}
        try:
            response = await self._send("GET", path, None, query, "application/json", _WATCH_TIMEOUT_S + 30)
            raw = response.response
            try:
                if response.status >= 400:
                    raise NodeApiError(response.status, f"watch of {path} refused")
                async for line in raw.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise NodeApiError(
                            event["object"].get("code", 500), event["object"].get("message", "watch error")
                        )
                    yield event["type"], event["object"]
            finally:
                raw.close()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise NodeApiError(0, f"watch of {path}: {type(error).__name__}: {error}") from error

    async def _send(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, str] | None,
        content_type: str,
        timeout_s: float,
    ) -> Any:
        try:
            serialized = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            return await self._client.call_api(*serialized, _request_timeout=timeout_s)
        except ApiException as error:
            raise NodeApiError(error.status or 0, str(error.reason)) from error


def _message(text: bytes) -> str:
    """What a refusal says: a Status object's message, or, of an API server that is only starting, plain text."""
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace")


def pod_path(pod: Object) -> str:
    """Path of a pod."""
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


async def delete_finally(api: NodeApi, pod: Object) -> None:
    """Remove a pod whose processes are gone; one that is gone already, or replaced by a namesake, is fine."""
    uid = pod["metadata"]["uid"]
    try:
        await api.request("DELETE", pod_path(pod), body={"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
    except NodeApiError as error:
        if error.status == 404:
            return
        if error.status == 409 and await _is_replaced(api, pod):
            return
        raise


async def _is_replaced(api: NodeApi, pod: Object) -> bool:
    try:
        found = await api.request("GET", pod_path(pod))
    except NodeApiError as error:
        if error.status == 404:
            return True
        raise
    return bool(found["metadata"]["uid"] != pod["metadata"]["uid"])
