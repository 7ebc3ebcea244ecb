"""The one background process of a cluster: the control plane's parent, the nodes, the forwards, in one event loop.

`python -m emberline_local.supervisor FOLDER`, started by `up`, which listens to what it says on its standard output (a
JSON object a line) and holds its standard input: if that ends before the word `keep`, whoever asked for the cluster is
gone, and so is the cluster. SIGTERM ends it in order; on either way it removes the folder. After a failure the folder
stays for its logs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from emberline_contract import names
from emberline_contract.crd import all_crds
from emberline_local.addresses import AddressPool
from emberline_local.children import MARK, start_ticks, sweep
from emberline_local.cluster import OVERLAY, Cluster, for_this_machine, make_models_volume
from emberline_local.errors import ClusterError, LocalError, PlaneError
from emberline_local.events import KEEP, Event, EventKind, write_event
from emberline_local.forward import Forwards, bind_local, make_forward
from emberline_local.node import ApiServerAddress, ProcessNode
from emberline_local.node_api import NodeApi
from emberline_local.node_spec import NodeSpec
from emberline_local.options import ClusterOptions
from emberline_local.plane import Plane
from emberline_local.plane_flags import NODE
from emberline_local.record import ClusterFolder, Phase, Record
from emberline_local.status_only import StatusOnlyNodes

log = logging.getLogger(__name__)

_NODES_READY_TIMEOUT_S = 60.0
_AVAILABLE_TIMEOUT_S = 180.0
_MAX_CONNECTIONS = 10_000


class Node(Protocol):
    """What runs pods: process nodes and status-only nodes."""

    ready: asyncio.Event

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`."""


class Supervisor:
    """Brings a cluster up, keeps it, and takes it down."""

    def __init__(self, folder: ClusterFolder, options: ClusterOptions) -> None:
        self._folder = folder
        self._options = options
        self._urls: dict[str, str] = {}

    async def run(self) -> int:
        """The exit code: 0 after an orderly end, 1 after a failure, which it has told."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self._write_record(Phase.STARTING)
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(stop.wait())
        launcher = asyncio.create_task(_stop_when_launcher_goes(stop))
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        launcher.cancel()
        serving.cancel()
        try:
            await serving
        except asyncio.CancelledError:
            return 0
        except LocalError as error:
            log.error("%s", error)
            self._write_record(Phase.FAILED, str(error))
            write_event(Event(EventKind.FAILED, str(error)))
            return 1
        raise AssertionError("a cluster serves until it is stopped")

    async def _serve(self) -> None:
        options = self._options
        async with AsyncExitStack() as stack:
            gateway_socket = None
            if options.is_installed:
                # First of all, so that a taken port costs nobody a start.
                gateway_socket = stack.enter_context(bind_local(options.gateway_port, "the gateway (--gateway-port)"))
                self._urls[names.GATEWAY_NAME] = f"http://127.0.0.1:{gateway_socket.getsockname()[1]}"
            _step("control plane")
            plane = Plane(options.program, self._folder.plane_dir, os.environ, audit_log=options.audit_log)
            await stack.enter_async_context(plane)
            failing = [asyncio.create_task(_fail_when_plane_ends(plane))]
            stack.callback(failing[0].cancel)
            api = await stack.enter_async_context(await _client(plane.kubeconfig_of(NODE)))
            _step("nodes")
            failing += await stack.enter_async_context(_serving(self._make_nodes(stack, api, plane)))
            await _unless(failing, self._fill(stack, plane, NodeApi(api), gateway_socket))
            self._write_record(Phase.READY)
            write_event(Event(EventKind.READY, urls=self._urls))
            _close_standard_output()
            await _unless(failing, asyncio.Event().wait())

    async def _fill(self, stack: AsyncExitStack, plane: Plane, api: NodeApi, gateway_socket: Any) -> None:
        """Puts into the cluster what makes it Emberline's, and waits until that serves."""
        cluster = Cluster(self._options.program, plane.kubeconfig, api)
        # What `crds/` holds: that folder is written from these.
        crds = all_crds().values()
        if not self._options.is_installed:
            _step("custom resources")
            await cluster.apply(crds)
            await cluster.wait_until_established()
            return
        _step("operator and gateway")
        documents = await cluster.render(self._options.manifests or OVERLAY)
        documents = for_this_machine(documents, self._urls[names.GATEWAY_NAME])
        models = make_models_volume(self._options.models_dir) if self._options.models_dir else []
        await cluster.apply([*crds, *documents, *models])
        await cluster.wait_until_established()
        forwards = await stack.enter_async_context(Forwards(api, names.SYSTEM_NAMESPACE))
        for service in await cluster.services(names.SYSTEM_NAMESPACE):
            forward = make_forward(service)
            if forward is None:
                continue
            if forward.name == names.GATEWAY_NAME:
                held = gateway_socket
            else:
                held = stack.enter_context(bind_local(forward.local_port, f"Service {forward.name}"))
            self._urls[forward.name] = f"http://127.0.0.1:{held.getsockname()[1]}"
            await forwards.add(forward, held)
        await cluster.wait_until_available(names.SYSTEM_NAMESPACE, _AVAILABLE_TIMEOUT_S, _detail)

    def _make_nodes(self, stack: AsyncExitStack, api: ApiClient, plane: Plane) -> dict[str, Node]:
        assert plane.ports is not None
        addresses = AddressPool.claim()
        stack.callback(addresses.close)
        server = ApiServerAddress(host="127.0.0.1", port=plane.ports.api)
        # The mark reaches the containers, so that a sweep finds what outlives a killed supervisor.
        marked = [_with_environment(spec, MARK, str(self._folder.path)) for spec in self._options.nodes]
        nodes: dict[str, Node] = {
            spec.name: ProcessNode(spec, api, state_dir=self._folder.path, addresses=addresses, api_server=server)
            for spec in marked
        }
        if self._options.status_only_nodes:
            nodes["status-only"] = StatusOnlyNodes(self._options.status_only_nodes, api)
        return nodes

    def _write_record(self, phase: Phase, message: str = "") -> None:
        ticks = start_ticks(os.getpid())
        assert ticks is not None
        self._folder.write_record(
            Record(
                pid=os.getpid(),
                start_ticks=ticks,
                phase=phase,
                program=str(self._options.program),
                urls=self._urls,
                message=message,
            )
        )


def _with_environment(spec: NodeSpec, name: str, value: str) -> NodeSpec:
    return dataclasses.replace(spec, environment={**spec.environment, name: value})


async def _client(kubeconfig: Path) -> ApiClient:
    configuration = Configuration(connection_pool_maxsize=_MAX_CONNECTIONS)
    await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    return ApiClient(configuration)


@asynccontextmanager
async def _serving(nodes: Mapping[str, Node]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Runs nodes, from when they are ready until the end of the context; the tasks end early only by failing."""
    stop = asyncio.Event()
    running = [asyncio.create_task(node.run(stop), name=f"node {name}") for name, node in nodes.items()]
    try:
        ready = asyncio.gather(*(node.ready.wait() for node in nodes.values()))
        try:
            async with asyncio.timeout(_NODES_READY_TIMEOUT_S):
                await _unless(running, ready)
        except TimeoutError:
            late = [name for name, node in nodes.items() if not node.ready.is_set()]
            raise ClusterError(f"nodes {', '.join(late)} were not ready after {_NODES_READY_TIMEOUT_S} s") from None
        yield running
    finally:
        stop.set()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a node ended badly", exc_info=result)


async def _unless(failing: Sequence[asyncio.Task[None]], work: Coroutine[Any, Any, Any] | asyncio.Future[Any]) -> None:
    """Awaits `work`, unless one of `failing` ends before: then raises what that one has raised."""
    wanted = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({wanted, *failing}, return_when=asyncio.FIRST_COMPLETED)
        for task in failing:
            if task in done:
                error = task.exception()
                if isinstance(error, LocalError):
                    raise error
                raise ClusterError(f"{task.get_name()} ended: {error!r}") from error
    finally:
        if not wanted.done():
            wanted.cancel()
            with suppress(asyncio.CancelledError):
                await wanted
    await wanted


async def _fail_when_plane_ends(plane: Plane) -> None:
    raise PlaneError(await plane.wait_until_one_ends())


async def _stop_when_launcher_goes(stop: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        if (await reader.read()).decode() != KEEP:
            log.info("the launcher is gone before the cluster was ready: stopping")
            stop.set()
    finally:
        transport.close()


def _step(text: str) -> None:
    log.info("step: %s", text)
    write_event(Event(EventKind.STEP, text))


def _detail(text: str) -> None:
    log.info("waiting: %s", text)
    write_event(Event(EventKind.DETAIL, text))


def _close_standard_output() -> None:
    """Lets the launcher go: it reads to the end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def main() -> None:
    """Entry point of the background process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    folder = ClusterFolder(Path(sys.argv[1]))
    code = asyncio.run(Supervisor(folder, folder.read_options()).run())
    if code == 0:
        # What a pod's program left behind goes before the files that it may hold.
        sweep(folder.path)
        folder.remove()
    sys.exit(code)


if __name__ == "__main__":
    main()
