"""Writes. Each answer goes into the caches at once, so that the next pass decides on what it has just written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Final

from emberline_contract import names
from emberline_operator.cluster.api import APPLY, MERGE, Api
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import BY_KIND, CHILDREN, ENDPOINTS, PODS
from emberline_operator.errors import ConflictError, NotFoundError, RefusedError
from emberline_operator.snapshot import Json, Ref, time_text

_TAKEN_UP: Final = frozenset({"TriggeredScaleUp", "Nominated"})
"""Reasons of the Events by which Cluster Autoscaler and Karpenter tell that a node for a pod is on its way."""


class Writer:
    """Applies, scales and deletes children, evicts pods, and writes status."""

    def __init__(self, api: Api, caches: Caches, on_write: Callable[[str, str], None]) -> None:
        self._api = api
        self._caches = caches
        self._on_write = on_write
        """Told the kind and the verb of each write."""

    async def look_up(self, namespace: str, ref: Ref) -> Json | None:
        """The object as the API server has it; None if it is not there."""
        try:
            return await self._api.request("GET", BY_KIND[ref.kind].path(namespace, ref.name))
        except NotFoundError:
            return None

    async def is_taken_up(self, namespace: str, pod: str) -> bool:
        """Whether a cluster autoscaler has said, in an Event, that it makes a node for the pod. Where Events may not be read: no."""
        query = [("fieldSelector", f"regarding.kind=Pod,regarding.name={pod}")]
        try:
            events = await self._api.request(
                "GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", query=query
            )
        except RefusedError:
            return False
        return any(event.get("reason") in _TAKEN_UP for event in events["items"])

    async def apply(self, body: Json, *, manager: str, force: bool) -> None:
        """Server-side apply of a child."""
        kind, metadata = BY_KIND[body["kind"]], body["metadata"]
        self._on_write(kind.kind, "apply")
        written = await self._api.request(
            "PATCH",
            kind.path(metadata["namespace"], metadata["name"]),
            body=body,
            query=[("fieldManager", manager), ("force", "true" if force else "false")],
            content_type=APPLY,
        )
        if kind in CHILDREN:
            self._caches[kind].put(written)

    async def apply_status(self, body: Json) -> int:
        """Server-side apply of an endpoint's status; gives the endpoint's generation at that moment."""
        metadata = body["metadata"]
        self._on_write(ENDPOINTS.kind, "status")
        written = await self._api.request(
            "PATCH",
            ENDPOINTS.path(metadata["namespace"], metadata["name"], "status"),
            body=body,
            query=[("fieldManager", names.OPERATOR_MANAGER), ("force", "true")],
            content_type=APPLY,
        )
        self._caches[ENDPOINTS].put(written)
        return int(written["metadata"]["generation"])

    async def scale(self, namespace: str, ref: Ref, *, replicas: int, uid: str, resource_version: str) -> None:
        """Write a Deployment's scale. Raises ConflictError if the Deployment has changed; without a version, if it is another one.

        An apply, not an update: an update to 0 leaves the field without any owner, since a Scale omits a zero.
        """
        version = {"resourceVersion": resource_version} if resource_version else {}
        metadata = {"name": ref.name, "namespace": namespace, "uid": uid, **version}
        self._on_write(ref.kind, "scale")
        await self._api.request(
            "PATCH",
            BY_KIND[ref.kind].path(namespace, ref.name, "scale"),
            body={
                "apiVersion": "autoscaling/v1",
                "kind": "Scale",
                "metadata": metadata,
                "spec": {"replicas": replicas},
            },
            query=[("fieldManager", names.SCALE_MANAGER), ("force", "true")],
            content_type=APPLY,
        )

    async def delete(self, namespace: str, ref: Ref, *, uid: str) -> None:
        """Delete a child in the background, if it is still that object. Its being gone already is as good."""
        self._on_write(ref.kind, "delete")
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._api.request(
                "DELETE",
                BY_KIND[ref.kind].path(namespace, ref.name),
                body={**options, "propagationPolicy": "Background"},
            )
        except NotFoundError:
            return

    async def evict(self, namespace: str, pod: str, *, uid: str, grace_s: int) -> None:
        """Delete a pod with that grace period, which also shortens a longer one that runs already."""
        self._on_write(PODS.kind, "delete")
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._api.request(
                "DELETE", PODS.path(namespace, pod), body={**options, "gracePeriodSeconds": grace_s}
            )
        except NotFoundError:
            return

    async def set_deletion_cost(self, namespace: str, pod: str, *, uid: str, cost: int, at: datetime) -> None:
        """Write a pod's deletion cost and when that was. A pod that is gone, or another one of that name, needs none."""
        self._on_write(PODS.kind, "patch")
        annotations = {names.POD_DELETION_COST: str(cost), names.ANNOTATION_DELETION_COST_TIME: time_text(at)}
        body = {"metadata": {"uid": uid, "annotations": annotations}}
        try:
            await self._api.request("PATCH", PODS.path(namespace, pod), body=body, content_type=MERGE)
        except (NotFoundError, ConflictError):
            return
        except RefusedError as error:
            # A uid that differs from the live one is refused as an immutable field.
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise

    async def fill_replicas(self, namespace: str, name: str, *, replicas: int, resource_version: str) -> None:
        """Write an endpoint's replicas through its scale subresource. Raises ConflictError if the endpoint has changed."""
        self._on_write(ENDPOINTS.kind, "scale")
        body = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        await self._api.request(
            "PATCH",
            ENDPOINTS.path(namespace, name, "scale"),
            body=body,
            query=[("fieldManager", names.SCALE_MANAGER)],
            content_type=MERGE,
        )
