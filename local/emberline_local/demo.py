"""`emberline-local demo`: a cluster, a sleeping endpoint, its wake with the time of each phase, eight at once, its sleep.

Everything that it shows is asked of the running system: kubectl, the `openai` client, the engine's own metrics.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table

from emberline_contract import http, metrics, names
from emberline_local import launch
from emberline_local.cluster import ROOT
from emberline_local.errors import ClusterError, ClusterStateError, LocalError
from emberline_local.node_api import NodeApi
from emberline_local.options import ClusterOptions
from emberline_local.progress import Steps
from emberline_local.record import ClusterFolder
from emberline_local.timeline import Mark, Timeline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai import AsyncOpenAI

SAMPLE = ROOT / "manifests" / "samples" / "smollm2.yaml"
ENDPOINT = "smollm2"
NAMESPACE = "default"
PROMPT = "Explain in a few sentences why the sky is blue."
QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "What do bees make?",
    "Write a haiku about the sea.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "What is a volcano?",
    "Give me a word that rhymes with light.",
)
_READY_TIMEOUT_S = 60.0
_ANSWER_TIMEOUT_S = 180.0
_SLEEP_TIMEOUT_S = 120.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the eight."""

    question: str
    text: str
    num_tokens: int
    first_token_s: float
    total_s: float


class Demo:
    """The demo against one cluster that is up."""

    def __init__(self, console: Console, program: Path, folder: ClusterFolder, clock: Callable[[], float]) -> None:
        self._console = console
        self._program = program
        self._folder = folder
        self._clock = clock

    async def run(self) -> None:
        """All of it. Raises ClusterError for what did not happen in time."""
        self._step("An endpoint that sleeps")
        self._console.print(Syntax(SAMPLE.read_text().strip(), "yaml", background_color="default"))
        self._kubectl("apply", "-f", str(SAMPLE))
        url = await self._until_ready()
        self._show_endpoint()
        from openai import AsyncOpenAI

        # The endpoint asks for no key; the client insists on one.
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=_ANSWER_TIMEOUT_S) as client:
            self._step("The first request wakes it")
            await self._wake(client)
            self._step("Eight at once")
            await self._eight(client)
        self._step("Nobody calls, so it goes back to sleep")
        await self._until_asleep()

    def _step(self, title: str) -> None:
        self._console.print()
        self._console.print(Rule(f"[bold]{title}[/]", align="left"))

    def _kubectl(self, *words: str) -> str:
        """Shows and runs a kubectl command."""
        self._console.print(f"[bold cyan]$ kubectl {' '.join(_shown(w) for w in words)}[/]", highlight=False)
        output = self._ask(*words)
        self._console.print(output.rstrip(), markup=False, highlight=False)
        return output

    def _ask(self, *words: str) -> str:
        done = subprocess.run(
            [str(self._program), "kubectl", "--kubeconfig", str(self._folder.kubeconfig), *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(words)} ended with code {done.returncode}:\n{done.stderr.strip()}")
        return done.stdout

    def _endpoint(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._ask("get", names.ENDPOINT_SHORT, ENDPOINT, "-n", NAMESPACE, "-o", "json")
        )
        return found

    def _show_endpoint(self) -> None:
        self._kubectl("get", names.ENDPOINT_SHORT)

    async def _until_ready(self) -> str:
        deadline_s = self._clock() + _READY_TIMEOUT_S
        while True:
            status = self._endpoint().get("status", {})
            ready = condition(status, "Ready")
            if ready.get("status") == "True" and status.get("url"):
                return str(status["url"])
            if self._clock() > deadline_s:
                raise ClusterError(
                    f"endpoint {ENDPOINT} was not ready after {_READY_TIMEOUT_S:.0f} s: {ready.get('reason')}: {ready.get('message')}"
                )
            await asyncio.sleep(_POLL_S)

    async def _wake(self, client: AsyncOpenAI) -> None:
        self._console.print(f"[bold cyan]>[/] {PROMPT}\n", highlight=False)
        timeline = Timeline()
        phases: dict[str, float] = {}
        async with self._watching(timeline, phases):
            timeline.mark(Mark.SENT, self._clock())
            stream = await client.chat.completions.create(
                model=ENDPOINT,
                messages=[{"role": "user", "content": PROMPT}],
                stream=True,
                max_tokens=120,
                temperature=0,
            )
            async for chunk in stream:
                text = chunk.choices[0].delta.content if chunk.choices else None
                if text:
                    timeline.mark(Mark.FIRST_TOKEN, self._clock())
                    self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
            self._console.print("\n")
        self._console.print(wake_table(timeline, phases))

    @asynccontextmanager
    async def _watching(self, timeline: Timeline, phases: dict[str, float]) -> AsyncIterator[None]:
        """Follows the endpoint's pods, and asks the engine how long the phases of its start took."""
        configuration = Configuration()
        await config.load_kube_config(str(self._folder.kubeconfig), client_configuration=configuration)
        async with ApiClient(configuration) as api:
            watch = asyncio.create_task(self._watch_pods(NodeApi(api), timeline, phases))
            try:
                yield
            finally:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch

    async def _watch_pods(self, api: NodeApi, timeline: Timeline, phases: dict[str, float]) -> None:
        selector = {"labelSelector": f"{names.LABEL_ENDPOINT}={ENDPOINT}"}
        async for kind, pod in api.watch(f"/api/v1/namespaces/{NAMESPACE}/pods", selector):
            if kind in ("ADDED", "MODIFIED"):
                timeline.see_pod(pod, self._clock())
                if Mark.READY in timeline.marks_s and not phases:
                    phases.update(await read_phases(pod["status"]["podIP"]))

    async def _eight(self, client: AsyncOpenAI) -> None:
        start_s = self._clock()
        answers = await asyncio.gather(*(self._answer(client, question) for question in QUESTIONS))
        took_s = self._clock() - start_s
        table = Table("question", "answer", "first token", "all", box=None, header_style="dim", pad_edge=False)
        for answer in answers:
            table.add_row(
                answer.question,
                " ".join(answer.text.split())[:60],
                f"{answer.first_token_s:.2f} s",
                f"{answer.total_s:.2f} s",
            )
        self._console.print(table)
        num_tokens = sum(answer.num_tokens for answer in answers)
        self._console.print(
            f"\n{num_tokens} tokens in {took_s:.2f} s: [bold]{num_tokens / took_s:.0f} tokens/s[/] on one engine",
            highlight=False,
        )

    async def _answer(self, client: AsyncOpenAI, question: str) -> Answer:
        start_s = self._clock()
        first_s: float | None = None
        parts: list[str] = []
        num_tokens = 0
        stream = await client.chat.completions.create(
            model=ENDPOINT,
            messages=[{"role": "user", "content": question}],
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=48,
            temperature=0,
        )
        async for chunk in stream:
            if chunk.usage is not None:
                num_tokens = chunk.usage.completion_tokens
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                first_s = first_s or self._clock() - start_s
                parts.append(text)
        total_s = self._clock() - start_s
        return Answer(question, "".join(parts), num_tokens, first_s or total_s, total_s)

    async def _until_asleep(self) -> None:
        start_s = self._clock()
        with self._console.status("waiting") as status:
            while True:
                endpoint = self._endpoint()
                ready = condition(endpoint.get("status", {}), "Ready")
                if ready.get("reason") == "ScaledToZero":
                    break
                waited_s = self._clock() - start_s
                if waited_s > _SLEEP_TIMEOUT_S:
                    scaling = condition(endpoint.get("status", {}), "ScalingActive")
                    raise ClusterError(
                        f"the endpoint did not go to sleep within {_SLEEP_TIMEOUT_S:.0f} s: {ready.get('reason')};"
                        f" scaling: {scaling.get('reason')}: {scaling.get('message')}"
                    )
                idle_after = endpoint["spec"]["scaling"]["idleAfter"]
                status.update(f"idle for {waited_s:.0f} s (idleAfter is {idle_after})")
                await asyncio.sleep(_POLL_S)
        self._console.print(f"asleep after {self._clock() - start_s:.1f} s without a request", highlight=False)
        self._show_endpoint()


def _shown(word: str) -> str:
    with suppress(ValueError):
        return str(Path(word).relative_to(ROOT))
    return word


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    """One of a status's conditions, empty if it is not there."""
    return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})


def parse_phases(text: str) -> dict[str, float]:
    """Phase -> seconds, from an engine's metrics page."""
    pattern = rf'^{metrics.STARTUP_SECONDS}\{{[^}}]*phase="([^"]+)"[^}}]*\}} (\S+)$'
    return {phase: float(value) for phase, value in re.findall(pattern, text, re.MULTILINE)}


async def read_phases(address: str) -> dict[str, float]:
    """What an engine says of its own start; empty if it does not answer."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(f"http://{address}:{names.ENGINE_PORT}{http.METRICS}") as response,
        ):
            return parse_phases(await response.text())
    except (aiohttp.ClientError, TimeoutError):
        return {}


def wake_table(timeline: Timeline, phases: Mapping[str, float]) -> Table:
    """The wake, a row a phase; the engine's own phases below the one that they are part of."""
    table = Table("phase of the wake", "took", "since request", box=None, header_style="dim", pad_edge=False)
    for mark, took_s, since_s in timeline.stages():
        style = "bold" if mark is Mark.FIRST_TOKEN else ""
        table.add_row(mark.value, f"{took_s:.2f} s", f"{since_s:.2f} s", style=style)
        if mark is Mark.READY:
            for phase, seconds in phases.items():
                table.add_row(f"  of which {phase}", f"{seconds:.2f} s", "", style="dim")
    return table


def run_demo(console: Console, folder: ClusterFolder, options: ClusterOptions, environ: Mapping[str, str]) -> None:
    """Brings a cluster up, shows it at work, and takes it down whatever happens.

    Of a cluster that did not come up nothing runs, and its logs stay for whoever wants to know why.
    """
    record = folder.read_record()
    if record is not None and record.is_alive:
        raise ClusterStateError(
            f"cluster {folder.path.name!r} is up, and the demo makes one of its own: choose another --name,"
            f" or take that one down first (`emberline-local down --name {folder.path.name}`)"
        )
    start_s = time.monotonic()
    console.print(Rule("[bold]A Kubernetes cluster on this machine[/]", align="left"))
    has_come_up = True
    try:
        try:
            with Steps(console) as steps:
                launch.up(folder, options, environ, steps.show)
        except LocalError:
            has_come_up = False
            raise
        asyncio.run(Demo(console, options.program, folder, time.monotonic).run())
    finally:
        if has_come_up:
            console.print()
            with console.status("taking everything down"):
                launch.down(folder)
    console.print(f"everything is down; the demo took {time.monotonic() - start_s:.0f} s", highlight=False)
