"""One container of a pod on a process node: starts, probes, restarts and stops its program and keeps its view."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from emberline_local import pod_logs, probes
from emberline_local.environment import expand
from emberline_local.handlers import HandlerTarget, carry_out
from emberline_local.images import LocalImage
from emberline_local.pod_status import CREATING, ContainerView, Running, State, Terminated, Waiting
from emberline_local.probes import Verdict
from emberline_local.process_pod import ContainerCommand, ContainerProcess, Mount, kill_strays, start_container
from emberline_local.restarts import BackOff, BackOffRule, is_restarted

log = logging.getLogger(__name__)

_DECIDED = frozenset({Verdict.SUCCESS, Verdict.FAILURE})
_LEAST_TERM_S = 2.0
_LOG_MESSAGE_BYTES = 2048


@dataclass(frozen=True)
class ContainerPlan:
    """What to run: everything that comes from the spec, the image and the sources."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    working_dir: str


def plan_command(spec: Mapping[str, Any], image: LocalImage, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Command line of a container: its command, else the image's, then its args, with `$(NAME)` replaced."""
    command = spec.get("command") or (() if spec.get("args") else image.command)
    return tuple(expand(part, environment) for part in (*command, *spec.get("args", ())))


@dataclass(frozen=True, kw_only=True)
class PodPlace:
    """What the containers of one pod share."""

    namespace: str
    name: str
    uid: str
    address: str
    state_dir: Path
    """The cluster's."""
    pod_dir: Path
    session: aiohttp.ClientSession
    back_off: BackOffRule
    grace_s: float
    """What a container gets to end by itself when a probe has failed for good."""


@dataclass(frozen=True)
class _Unhealthy:
    """A probe says that the container must be started again."""

    reason: str
    grace_s: float


class ContainerRunner:
    """Runs one container. `run` may be cancelled at any time; `stop` then ends the program that is left."""

    def __init__(
        self,
        place: PodPlace,
        spec: Mapping[str, Any],
        *,
        restart_policy: str,
        num_restarts: int,
        on_change: Callable[[], None],
    ) -> None:
        self._place = place
        self._spec = spec
        self._restart_policy = restart_policy
        self._on_change = on_change
        self._process: ContainerProcess | None = None
        self._started_at = ""
        self._back_off = BackOff()
        self._plan: ContainerPlan | None = None
        self.view = ContainerView(name=spec["name"], image=spec["image"], state=CREATING, num_restarts=num_restarts)

    def show(self, state: State, **changes: Any) -> None:
        """Change what the status shows."""
        view = replace(self.view, state=state, **changes)
        if view != self.view:
            self.view = view
            self._on_change()

    async def run(self, plan: ContainerPlan) -> int:
        """Run the container, over and over as its policy says; the exit code once it will not run again."""
        self._plan = plan
        while True:
            started_s = time.monotonic()
            ended = await self._run_once(plan)
            ran_s = time.monotonic() - started_s
            if not is_restarted(self._restart_policy, ended.exit_code):
                self.show(ended, is_ready=False, is_started=False)
                return ended.exit_code
            self._back_off, delay_s = self._back_off.after_run(self._place.back_off, ran_s)
            if delay_s > 0:
                await self._wait_before_restart(ended, delay_s)
            self.show(CREATING, last=ended, num_restarts=self.view.num_restarts + 1, is_ready=False, is_started=False)

    async def stop(self, deadline_s: Callable[[], float], *, with_hook: bool) -> None:
        """PreStop hook, SIGTERM, and SIGKILL at the deadline (monotonic time, asked again as it may come nearer)."""
        process = self._process
        if process is None:
            if not isinstance(self.view.state, Terminated) and self.view.last is not None:
                self.show(self.view.last)
            return
        await self._end(process, deadline_s, with_hook=with_hook)
        self.show(await self._ended(process), is_ready=False, is_started=False)

    async def _run_once(self, plan: ContainerPlan) -> Terminated:
        self._started_at = timestamp()
        try:
            process = start_container(self._command(plan))
        except OSError as error:
            return Terminated(128, self._started_at, timestamp(), f"cannot start: {error}")
        self._process = process
        startup = self._spec.get("startupProbe")
        readiness = self._spec.get("readinessProbe")
        self.show(Running(self._started_at), is_started=not startup, is_ready=not startup and not readiness)
        watcher: asyncio.Future[Any] = asyncio.ensure_future(self._probe(process))
        try:
            await asyncio.wait({process.exited, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not process.has_exited:
                found: _Unhealthy = watcher.result()
                log.warning("container %s of pod %s is killed: %s", self.view.name, self._place.name, found.reason)
                self.show(self.view.state, is_ready=False)
                deadline_s = time.monotonic() + found.grace_s
                await self._end(process, lambda: deadline_s, with_hook=True)
            return await self._ended(process)
        finally:
            watcher.cancel()

    def _command(self, plan: ContainerPlan) -> ContainerCommand:
        place, name = self._place, self.view.name
        root = place.pod_dir / "roots" / name
        root.mkdir(parents=True, exist_ok=True)
        path = self._log_path(self.view.num_restarts)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The run before last is of no use to anyone.
        self._log_path(self.view.num_restarts - 2).unlink(missing_ok=True)
        return ContainerCommand(
            mark=f"{place.uid}/{name}",
            arguments=plan.arguments,
            environment=plan.environment,
            mounts=plan.mounts,
            root=root,
            log=path,
            working_dir=plan.working_dir,
        )

    def _log_path(self, restart: int) -> Path:
        place = self._place
        return pod_logs.log_path(
            place.state_dir,
            namespace=place.namespace,
            pod=place.name,
            uid=place.uid,
            container=self.view.name,
            restart=restart,
        )

    async def _ended(self, process: ContainerProcess) -> Terminated:
        await asyncio.wait({process.exited})
        code = process.exited.result()
        kill_strays([f"{self._place.uid}/{self.view.name}"])
        self._process = None
        message = ""
        if code != 0 and self._spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = pod_logs.tail(self._log_path(self.view.num_restarts), num_bytes=_LOG_MESSAGE_BYTES)
        return Terminated(code, self._started_at, timestamp(), message)

    async def _wait_before_restart(self, ended: Terminated, delay_s: float) -> None:
        message = f"back-off {delay_s:g}s restarting failed container={self.view.name} pod={self._place.name}"
        self.show(Waiting("CrashLoopBackOff", message), last=ended, is_ready=False, is_started=False)
        await asyncio.sleep(delay_s)

    async def _end(self, process: ContainerProcess, deadline_s: Callable[[], float], *, with_hook: bool) -> None:
        hook = self._spec.get("lifecycle", {}).get("preStop")
        if hook and with_hook and not process.has_exited:
            acting = asyncio.ensure_future(carry_out(hook, self._target(process), timeout_s=_left(deadline_s)))
            await _wait_until(deadline_s, process.exited, acting)
            if acting.done() and acting.result() is not None:
                log.warning("preStop of %s in pod %s: %s", self.view.name, self._place.name, acting.result())
            acting.cancel()
        process.terminate()
        # A hook that used up the grace period still leaves the program a moment to end by itself.
        least_s = time.monotonic() + _LEAST_TERM_S if hook and with_hook else 0.0
        await _wait_until(lambda: max(deadline_s(), least_s), process.exited)
        process.kill()
        await asyncio.wait({process.exited})

    async def _probe(self, process: ContainerProcess) -> _Unhealthy:
        """Ask the probes; returns when the container has to be killed, or once it has ended."""
        startup, readiness, liveness = (self._spec.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness"))
        if startup:
            verdict, why = await self._ask(process, startup, is_eager=True, until=_DECIDED)
            if verdict is not Verdict.SUCCESS:
                return self._unhealthy(f"startup probe failed: {why}", startup)
            self.show(self.view.state, is_started=True, is_ready=not readiness)

        def follow_readiness(verdict: Verdict) -> None:
            if verdict in _DECIDED:
                self.show(self.view.state, is_ready=verdict is Verdict.SUCCESS)

        asking = []
        if readiness:
            asking.append(self._ask(process, readiness, is_eager=True, until=frozenset(), see=follow_readiness))
        if liveness:
            asking.append(self._ask(process, liveness, is_eager=False, until=frozenset({Verdict.FAILURE})))
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(question) for question in asking]
        try:
            done, _ = await asyncio.wait({process.exited, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            reasons = [task.result()[1] for task in tasks if task in done]
        finally:
            for task in tasks:
                task.cancel()
        return self._unhealthy(f"liveness probe failed: {reasons[0]}" if reasons else "it has ended", liveness or {})

    def _unhealthy(self, reason: str, probe: Mapping[str, Any]) -> _Unhealthy:
        return _Unhealthy(reason, probe.get("terminationGracePeriodSeconds", self._place.grace_s))

    async def _ask(
        self,
        process: ContainerProcess,
        probe: Mapping[str, Any],
        *,
        is_eager: bool,
        until: frozenset[Verdict],
        see: Callable[[Verdict], None] = lambda _: None,
    ) -> tuple[Verdict, str]:
        """Ask one probe until its verdict is one of `until`; that verdict, and what the last answer lacked."""
        spec = probes.read_probe(probe, is_eager=is_eager)
        handler = {key: probe[key] for key in ("httpGet", "tcpSocket", "exec", "grpc") if key in probe}
        state = probes.first_state(spec, time.monotonic())
        while True:
            await asyncio.sleep(max(0.0, state.due_s - time.monotonic()))
            why = await carry_out(handler, self._target(process), timeout_s=spec.timeout_s)
            state = probes.decide_probe(spec, state, success=why is None, now_s=time.monotonic())
            see(state.verdict)
            if state.verdict in until:
                return state.verdict, why or ""

    def _target(self, process: ContainerProcess) -> HandlerTarget:
        assert self._plan is not None, "a container runs by a plan"
        ports = {port["name"]: port["containerPort"] for port in self._spec.get("ports", ()) if "name" in port}
        return HandlerTarget(self._place.session, self._place.address, ports, process.pid, self._plan.environment)


def timestamp() -> str:
    """Now, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _left(deadline_s: Callable[[], float]) -> float:
    return max(0.0, deadline_s() - time.monotonic())


async def _wait_until(deadline_s: Callable[[], float], *futures: asyncio.Future[Any]) -> None:
    """Wait for one of them, at most until the deadline, which is looked at again each second."""
    while not any(future.done() for future in futures) and (left_s := _left(deadline_s)) > 0:
        await asyncio.wait(futures, timeout=min(left_s, 1.0), return_when=asyncio.FIRST_COMPLETED)
