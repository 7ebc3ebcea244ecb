"""One pod on a process node: prepares what its containers need, runs them, keeps its status, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from emberline_local import pod_logs, volumes
from emberline_local.addresses import AddressPool
from emberline_local.containers import ContainerPlan, ContainerRunner, PodPlace, plan_command, timestamp
from emberline_local.environment import ContainerConfigError, make_environment
from emberline_local.images import LocalImage, UnknownImageError, find_image
from emberline_local.node_api import STRATEGIC_MERGE, NodeApi, NodeApiError, Object, delete_finally, pod_path
from emberline_local.pod_status import CREATING, INITIALIZING, PodView, Waiting, make_status
from emberline_local.process_pod import kill_strays
from emberline_local.restarts import BackOffRule
from emberline_local.sources import Sources, needed_sources, read_sources

log = logging.getLogger(__name__)

HOST_ADDRESS = "127.0.0.1"
_RETRY_S = 1.0
_LEAST_RETRY_S = 0.1
_MOST_RETRY_S = 8.0
_GONE_GRACE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class PodHost:
    """What a node gives to all of its pods."""

    api: NodeApi
    state_dir: Path
    """The cluster's."""
    pods_dir: Path
    """The node's."""
    addresses: AddressPool
    images: Mapping[str, LocalImage]
    environment: Mapping[str, str]
    environment_of: Callable[[Mapping[str, Any]], Mapping[str, str]]
    """What it adds for one container."""
    session: aiohttp.ClientSession
    back_off: BackOffRule
    refresh_s: float
    """How often ConfigMaps and Secrets in volumes are read again."""


class PodRunner:
    """Runs one pod from its binding until it is gone from the API server, or until the node stops."""

    def __init__(self, host: PodHost, pod: Object) -> None:
        self.pod = pod
        self._host = host
        metadata, spec = pod["metadata"], pod["spec"]
        self._address = host.addresses.take()
        self._dir = host.pods_dir / metadata["uid"]
        self._place = PodPlace(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            address=self._address,
            state_dir=host.state_dir,
            pod_dir=self._dir,
            session=host.session,
            back_off=host.back_off,
            grace_s=spec.get("terminationGracePeriodSeconds", 30),
        )
        self._inits = [self._container(container, is_init=True) for container in spec.get("initContainers", ())]
        self._containers = [self._container(container, is_init=False) for container in spec["containers"]]
        self._started_at = pod.get("status", {}).get("startTime") or timestamp()
        self._sources = Sources()
        self._plans: dict[str, ContainerPlan] = {}
        self._is_over = False
        self._status: dict[str, Any] = {}
        self._changed = asyncio.Event()
        self._leaving = asyncio.Event()
        self._deadline_s = float("inf")
        self._is_deleted = False

    def _container(self, spec: Mapping[str, Any], *, is_init: bool) -> ContainerRunner:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        if is_init and policy == "Always":
            policy = "OnFailure"
        key = "initContainerStatuses" if is_init else "containerStatuses"
        known = {status["name"]: status for status in self.pod.get("status", {}).get(key, ())}
        before = known.get(spec["name"], {})
        # A node that starts again finds pods whose processes died with the node before it.
        num_restarts = before.get("restartCount", 0) + ("running" in before.get("state", {}))
        return ContainerRunner(
            self._place, spec, restart_policy=policy, num_restarts=num_restarts, on_change=self._mark_changed
        )

    def update(self, pod: Object) -> None:
        """The pod as the API server has it now."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds", 0))
            self._deadline_s = min(self._deadline_s, time.monotonic() + grace_s)
            self._leaving.set()

    def vanish(self) -> None:
        """The pod is gone from the API server: end what runs, soon."""
        self._is_deleted = True
        self._deadline_s = min(self._deadline_s, time.monotonic() + _GONE_GRACE_S)
        self._leaving.set()

    async def run(self) -> None:
        """Run the pod until it was deleted. When cancelled, nothing has been ended yet: see `shut_down`."""
        if is_terminal(self.pod):
            await self._leaving.wait()
        else:
            await self._run_until_leaving()
            await self._stop_containers(with_hook=True)
            self._is_over = True
        await self._finish()

    async def _run_until_leaving(self) -> None:
        writer = asyncio.ensure_future(self._keep_status())
        living = asyncio.ensure_future(self._live())
        leaving = asyncio.ensure_future(self._leaving.wait())
        try:
            await asyncio.wait({living, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not leaving.done():
                if (error := living.exception()) is not None:
                    await self._give_up(error)
                await leaving
        finally:
            for task in (living, leaving, writer):
                task.cancel()
            await asyncio.gather(living, leaving, writer, return_exceptions=True)

    async def _give_up(self, error: BaseException) -> None:
        """Something that nobody foresaw: nothing of the pod goes on unwatched, and its status says so."""
        log.error("pod %s cannot be run", self._place.name, exc_info=error)
        self._deadline_s = min(self._deadline_s, time.monotonic() + _GONE_GRACE_S)
        await self._stop_containers(with_hook=False)
        for container in self._containers:
            container.show(Waiting("RunContainerError", f"{type(error).__name__}: {error}"), is_ready=False)

    async def shut_down(self, grace_s: float) -> None:
        """End everything that still runs, for a node that stops; the pod stays in the API server."""
        self._deadline_s = time.monotonic() + grace_s
        await self._stop_containers(with_hook=False)
        self._clean_up()

    async def _live(self) -> None:
        self._mark_changed()
        await self._prepare()
        refreshing = asyncio.ensure_future(self._refresh())
        try:
            for init in self._inits:
                code = await init.run(self._plans[init.view.name])
                if code != 0:
                    self._end_run()
                    return
            async with asyncio.TaskGroup() as group:
                for container in self._containers:
                    container.show(CREATING)
                    group.create_task(container.run(self._plans[container.view.name]))
            self._end_run()
        finally:
            refreshing.cancel()

    def _end_run(self) -> None:
        self._is_over = True
        self._mark_changed()

    async def _prepare(self) -> None:
        """Gather, plan and write until all of it works; what is missing shows as waiting reasons."""
        for container in self._containers:
            container.show(INITIALIZING if self._inits else CREATING)
        for num_tries in itertools.count():
            try:
                await self._read_sources()
                if self._plan_all():
                    return
            except NodeApiError as error:
                log.warning("pod %s: %s", self._place.name, error)
            except (ContainerConfigError, OSError) as error:
                for container in (*self._inits, *self._containers):
                    container.show(Waiting("CreateContainerConfigError", str(error)))
            await asyncio.sleep(min(_LEAST_RETRY_S * 2**num_tries, _MOST_RETRY_S))

    async def _read_sources(self) -> None:
        self._sources = await read_sources(
            self._host.api, self.pod, needed_sources(self.pod), previous=self._sources, now_s=time.time()
        )
        volumes.write_volumes(volumes.plan_volumes(self._pod_with_address(), self._sources), self._dir / "volumes")

    def _plan_all(self) -> bool:
        spec = self.pod["spec"]
        is_complete = True
        for runner, container in zip(
            (*self._inits, *self._containers), (*spec.get("initContainers", ()), *spec["containers"]), strict=True
        ):
            try:
                self._plans[container["name"]] = self._plan(container)
                continue
            except UnknownImageError as error:
                runner.show(Waiting("ErrImagePull", str(error)))
            except ContainerConfigError as error:
                runner.show(Waiting("CreateContainerConfigError", str(error)))
            is_complete = False
        return is_complete

    def _plan(self, container: Mapping[str, Any]) -> ContainerPlan:
        if container.get("restartPolicy"):
            raise ContainerConfigError(
                f"container {container['name']!r}: a process node runs no sidecars (restartPolicy)"
            )
        image = find_image(self._host.images, container["image"])
        base = {
            "HOSTNAME": self._place.name,
            "HOME": "/tmp",  # noqa: S108 - of the container, which may have a volume there
            **image.environment,
            **self._host.environment,
            **self._host.environment_of(container),
        }
        pod = self._pod_with_address()
        environment = make_environment(pod, container, self._sources, base)
        arguments = plan_command(container, image, environment)
        if not arguments:
            raise ContainerConfigError(f"container {container['name']!r} names no command, and its image has none here")
        planned = volumes.plan_volumes(pod, self._sources)
        mounts = volumes.plan_mounts(container, planned, self._dir / "volumes", environment, image.host_paths)
        volumes.check_mounts(mounts)
        return ContainerPlan(arguments, environment, tuple(mounts), container.get("workingDir") or "/")

    def _pod_with_address(self) -> Object:
        status = {**self.pod.get("status", {}), "podIP": self._address, "hostIP": HOST_ADDRESS}
        return {**self.pod, "status": status}

    async def _refresh(self) -> None:
        """Renew tokens and bring ConfigMaps and Secrets in volumes up to date."""
        needed = needed_sources(self.pod)
        if not (needed.tokens or needed.config_maps or needed.secrets):
            return
        while True:
            renew_at_s = self._sources.renew_at_s
            due_s = self._host.refresh_s if renew_at_s is None else min(self._host.refresh_s, renew_at_s - time.time())
            await asyncio.sleep(max(_RETRY_S, due_s))
            try:
                await self._read_sources()
            except (NodeApiError, ContainerConfigError, OSError) as error:
                log.warning("pod %s keeps its old volumes: %s", self._place.name, error)

    def _mark_changed(self) -> None:
        self._changed.set()

    async def _keep_status(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write_status()
            except NodeApiError as error:
                if error.status == 404:
                    return
                log.warning("status of pod %s: %s", self._place.name, error)
                await asyncio.sleep(_RETRY_S)
                self._changed.set()

    async def _write_status(self) -> None:
        view = PodView(
            inits=[init.view for init in self._inits],
            containers=[container.view for container in self._containers],
            address=self._address,
            host_address=HOST_ADDRESS,
            started_at=self._started_at,
            is_over=self._is_over,
        )
        status = make_status(self.pod, view, self._status, timestamp())
        if status == self._status:
            return
        # The uid keeps a namesake that was created meanwhile from getting this pod's status. A strategic merge would
        # add these addresses to those of an earlier run of the node.
        replaced = {key: [*status[key], {"$patch": "replace"}] for key in ("podIPs", "hostIPs")}
        body = {"metadata": {"uid": self._place.uid}, "status": {**status, **replaced}}
        await self._host.api.request("PATCH", f"{pod_path(self.pod)}/status", body=body, content_type=STRATEGIC_MERGE)
        self._status = status

    async def _stop_containers(self, *, with_hook: bool) -> None:
        def deadline_s() -> float:
            return self._deadline_s

        await asyncio.gather(
            *(runner.stop(deadline_s, with_hook=with_hook) for runner in (*self._inits, *self._containers))
        )
        kill_strays([self._place.uid])

    async def _finish(self) -> None:
        while not self._is_deleted:
            try:
                if not is_terminal(self.pod):
                    with contextlib.suppress(NodeApiError):
                        await self._write_status()
                await delete_finally(self._host.api, self.pod)
                break
            except NodeApiError as error:
                log.warning("pod %s cannot be removed yet: %s", self._place.name, error)
                await asyncio.sleep(_RETRY_S)
        self._clean_up()

    def _clean_up(self) -> None:
        shutil.rmtree(self._dir, ignore_errors=True)
        self._host.addresses.give_back(self._address)

    @property
    def logs_dir(self) -> Path:
        """Folder of the pod's output, which outlives the pod."""
        place = self._place
        return pod_logs.log_path(
            place.state_dir, namespace=place.namespace, pod=place.name, uid=place.uid, container="_", restart=0
        ).parents[1]


def is_terminal(pod: Object) -> bool:
    """The pod has ended for good; nothing of it is to be run."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
