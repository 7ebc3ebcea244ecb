"""From a port on 127.0.0.1 to a Service's ready pods, connection by connection: what a kube-proxy would do.

EndpointSlices refuse loopback addresses, so the pods themselves are watched. The bytes are never looked at; what one
side does not take is not read from the other; either side may end its direction and go on reading.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from emberline_contract import names
from emberline_local.errors import ClusterError
from emberline_local.joined import Side
from emberline_local.node_api import NodeApi

log = logging.getLogger(__name__)

ANNOTATION_PORT = f"local.{names.GROUP}/port"
"""On a Service: the port on 127.0.0.1 that leads to its port `http`, else to its first."""

Address = tuple[str, int]
_CONNECT_TIMEOUT_S = 5.0
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class ForwardedService:
    """One Service and where it is wanted."""

    namespace: str
    name: str
    selector: Mapping[str, str]
    target_port: int | str
    local_port: int


def make_forward(service: Mapping[str, Any]) -> ForwardedService | None:
    """What a Service's annotation asks for; None without it. Raises ClusterError for a port that is none."""
    metadata, spec = service["metadata"], service["spec"]
    wanted = metadata.get("annotations", {}).get(ANNOTATION_PORT)
    if wanted is None:
        return None
    if not (wanted.isdigit() and int(wanted) <= 65535):
        raise ClusterError(
            f"Service {metadata['name']}: {ANNOTATION_PORT} is {wanted!r}, which is no port; use 1 to 65535"
        )
    port = next((p for p in spec["ports"] if p.get("name") == names.PORT_NAME_HTTP), spec["ports"][0])
    return ForwardedService(
        metadata["namespace"], metadata["name"], spec["selector"], port.get("targetPort", port["port"]), int(wanted)
    )


def ready_addresses(pods: Iterable[Mapping[str, Any]], service: ForwardedService) -> list[Address]:
    """Where the Service's pods that are Ready and not terminating listen, oldest name first."""
    chosen = (pod for pod in pods if _is_selected(pod, service.selector) and _is_ready(pod))
    found = []
    for pod in sorted(chosen, key=lambda pod: str(pod["metadata"]["name"])):
        port = _port(pod, service.target_port)
        if port is not None:
            found.append((pod["status"]["podIP"], port))
    return found


def _is_selected(pod: Mapping[str, Any], selector: Mapping[str, str]) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in selector.items())


def _is_ready(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp") or not status.get("podIP"):
        return False
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))


def _port(pod: Mapping[str, Any], target: int | str) -> int | None:
    if isinstance(target, int):
        return target
    ports = (port for container in pod["spec"]["containers"] for port in container.get("ports", ()))
    return next((int(port["containerPort"]) for port in ports if port.get("name") == target), None)


class Forward:
    """One listening port. Connections are dealt round to whatever `set_addresses` was last told."""

    def __init__(self, service: ForwardedService) -> None:
        self.service = service
        self._addresses: Sequence[Address] = ()
        self._next = 0
        self._server: asyncio.Server | None = None
        self._sides: set[Side] = set()
        self._dialling: set[asyncio.Task[None]] = set()

    def set_addresses(self, addresses: Sequence[Address]) -> None:
        """New connections go there; those that are open stay where they are."""
        self._addresses = addresses

    async def listen(self, held: socket.socket) -> None:
        """Serves a listening socket, which it closes at the end."""
        self._server = await asyncio.get_running_loop().create_server(self._accepted, sock=held, backlog=_BACKLOG)

    async def close(self) -> None:
        """Stops listening and ends every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._dialling:
            task.cancel()
        for side in list(self._sides):
            side.abort()
        await asyncio.gather(*self._dialling, return_exceptions=True)

    def _accepted(self) -> Side:
        return Side(self._sides, self._dial_for)

    def _dial_for(self, client: Side) -> None:
        task = asyncio.ensure_future(self._dial(client))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, client: Side) -> None:
        loop = asyncio.get_running_loop()
        for host, port in self._turn():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    _, backend = await loop.create_connection(lambda: Side(self._sides), host, port)
            except (OSError, TimeoutError) as error:
                # Gone or not listening any more, which the watch has not told yet.
                log.info("service %s: %s:%d does not take a connection: %s", self.service.name, host, port, error)
                continue
            client.join(backend)
            return
        log.info("service %s: no ready pod takes the connection", self.service.name)
        client.abort()

    def _turn(self) -> list[Address]:
        """Every address once, beginning with the next one."""
        if not self._addresses:
            return []
        start = self._next = (self._next + 1) % len(self._addresses)
        return [*self._addresses[start:], *self._addresses[:start]]


def bind_local(port: int, what: str) -> socket.socket:
    """A socket that has a port of 127.0.0.1 (0: a free one) to itself; who connects early waits until it is served."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", port))
        held.listen(_BACKLOG)  # merely bound, the port could be had by others as well
    except OSError as error:
        held.close()
        raise ClusterError(
            f"port {port} of 127.0.0.1 cannot be had for {what}: {error.strerror}; choose another"
        ) from None
    return held


class Forwards:
    """The forwards of one namespace's Services, following its pods while the context is open."""

    def __init__(self, api: NodeApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._forwards: list[Forward] = []
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._follow_pods())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watch is not None
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch
        await asyncio.gather(*(forward.close() for forward in self._forwards))

    async def add(self, service: ForwardedService, held: socket.socket) -> None:
        """Forwards a listening socket to a Service."""
        forward = Forward(service)
        await forward.listen(held)
        self._forwards.append(forward)
        self._tell_addresses()

    async def _follow_pods(self) -> None:
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        async for kind, item in self._api.watch(path, {}):
            if kind == "LISTED":
                self._pods = {pod["metadata"]["name"]: pod for pod in item["items"]}
            elif kind == "DELETED":
                self._pods.pop(item["metadata"]["name"], None)
            else:
                self._pods[item["metadata"]["name"]] = item
            self._tell_addresses()

    def _tell_addresses(self) -> None:
        for forward in self._forwards:
            forward.set_addresses(ready_addresses(self._pods.values(), forward.service))
