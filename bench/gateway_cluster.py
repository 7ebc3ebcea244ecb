"""What the gateway's bench runs on: a real API server with endpoints of every kind, and the processes beside the gateway's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from emberline_contract import http, names
from emberline_contract.crd import all_crds
from emberline_local.node_api import NodeApi
from emberline_local.plane import Plane

HERE = Path(__file__).resolve().parent
MANIFEST = HERE.parent / "manifests" / "base" / "gateway.yaml"
NAMESPACE = "bench"
KEY = "bench-key-0123456789abcdef"
MODELS = ("least", "prefix")
"""Endpoints that serve, with either way to choose an engine."""
NUM_PODS = 2
"""Engines of each."""
MERGE = "application/merge-patch+json"
GROUP_PATH = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{NAMESPACE}/{names.ENDPOINT_PLURAL}"
Raw = dict[str, Any]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def asleep(number: int) -> str:
    """Name of an endpoint that sleeps."""
    return f"asleep-{'abcdefghijklmnopqrstuvwxyz'[number]}"


class Worker:
    """A process of ours that answers commands, line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the bench has ended; what it said is above")
        return json.loads(line)

    async def ask(self, do: str, **fields: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        return await self.line()


@contextlib.asynccontextmanager
async def worker(file: str, *args: str) -> AsyncIterator[Worker]:
    """Runs inside; killed at the end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / file), *args, stdin=pipe, stdout=pipe, limit=1 << 24
    )
    try:
        yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Gateway:
    """The process that is measured."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.pid = process.pid
        self.port = port

    @property
    def rss_mib(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("the gateway has ended")

    @property
    def cpu_s(self) -> float:
        return process_cpu_s(self.pid)


def process_cpu_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> tuple[float, float]:
    """Processor time of all processes, and what the hypervisor gave to others."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, steal / ticks


class BenchCluster:
    """The API server and what is put into it."""

    def __init__(self, plane: Plane, program: Path, api: NodeApi, folder: Path) -> None:
        self._plane = plane
        self._program = program
        self._api = api
        self._folder = folder
        self._audit_at = 0

    async def prepare(self, engine_ports: list[int], num_asleep: int) -> None:
        """CRDs, the gateway's account and rights, the key, endpoints that serve and endpoints that sleep."""
        await self._apply(all_crds().values())
        await self._kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        for namespace in (names.SYSTEM_NAMESPACE, NAMESPACE):
            await self._api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
        await self._kubectl("wait", "--for=create", "-n", NAMESPACE, "serviceaccount/default", "--timeout=30s")
        documents = yaml.safe_load_all(MANIFEST.read_text())
        await self._apply(d for d in documents if d["kind"] not in ("Deployment", "Service"))
        await self._write_kubeconfig()
        ports = iter(engine_ports)
        for name in MODELS:
            await self._endpoint(name)
            for number in range(NUM_PODS):
                await self._pod(name, number, next(ports))
        for number in range(num_asleep):
            await self._endpoint(asleep(number))
            await self._deployment(asleep(number))

    @contextlib.asynccontextmanager
    async def gateway(self, log_level: str) -> AsyncIterator[Gateway]:
        """Runs inside, as in a pod, but with a log file for standard output."""
        port, *others = _free_ports(3)
        flags = (
            f"--port={port}",
            f"--admin-port={others[0]}",
            f"--log-level={log_level}",
            "--unready-s=0",
            "--grace-s=1",
        )
        log = self._folder / "gateway.log"
        environ = {**os.environ, "KUBECONFIG": str(self._folder / "gateway.kubeconfig")}
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "emberline_gateway", *flags, env=environ, stdout=output, stderr=output
            )
        try:
            await self._until_ready(process, port, log)
            yield Gateway(process, port)
            if process.returncode is not None:
                raise RuntimeError(f"the gateway ended: {_end_of(log)}")
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def accepted_scale_up(self, name: str, timeout_s: float = 10.0) -> float:
        """The API server's own wall-clock time at which it had answered the gateway's patch of that endpoint's scale."""
        child = names.child_name(name, names.DEFAULT_REGION)
        async with asyncio.timeout(timeout_s):
            while True:
                for event in self._audit():
                    about = event.get("objectRef", {})
                    is_patch = event["verb"] == "patch" and about.get("subresource") == "scale"
                    if is_patch and about.get("name") == child and event["responseStatus"]["code"] == 200:
                        return datetime.fromisoformat(event["stageTimestamp"]).timestamp()
                await asyncio.sleep(0.01)

    def _audit(self) -> list[Raw]:
        with self._plane.audit_file.open("rb") as log:
            log.seek(self._audit_at)
            data = log.read()
        whole = data.rfind(b"\n") + 1
        self._audit_at += whole
        return [json.loads(line) for line in data[:whole].splitlines()]

    async def _until_ready(self, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        headers = {"authorization": f"Bearer {KEY}"}
        async with asyncio.timeout(30), aiohttp.ClientSession(headers=headers) as session:
            while True:
                if process.returncode is not None:
                    raise RuntimeError(f"the gateway did not start: {_end_of(log)}")
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}{http.READY}") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.1)

    async def _kubectl(self, *args: str, stdin: str | None = None) -> str:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            str(self._program), "kubectl", "--kubeconfig", str(self._plane.kubeconfig), *args,
            stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        out, err = await process.communicate(stdin.encode() if stdin else None)
        if process.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(args)}: {err.decode()}")
        return out.decode()

    async def _apply(self, documents: Iterable[Raw]) -> None:
        await self._kubectl("apply", "--server-side", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))

    async def _write_kubeconfig(self) -> None:
        """The gateway has its own account's rights and no more."""
        account = ("-n", names.SYSTEM_NAMESPACE, "create", "token", names.GATEWAY_NAME)
        token = (await self._kubectl(*account, "--duration=6h")).strip()
        admin = yaml.safe_load(self._plane.kubeconfig.read_text())
        document = {
            **admin,
            "users": [{"name": "gateway", "user": {"token": token}}],
            "contexts": [{"name": "b", "context": {"cluster": admin["clusters"][0]["name"], "user": "gateway"}}],
            "current-context": "b",
        }
        (self._folder / "gateway.kubeconfig").write_text(json.dumps(document))

    async def _endpoint(self, name: str) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.ENDPOINT_KIND,
            "metadata": {"name": name},
            "spec": {"model": {"source": "pvc://models/bench"}},
        }
        await self._api.request("POST", GROUP_PATH, body=body)

    async def _pod(self, endpoint: str, number: int, port: int) -> None:
        """No scheduler and no node look at it: its status is played, its engine is real."""
        path, name = f"/api/v1/namespaces/{NAMESPACE}/pods", f"{endpoint}-{number}"
        ports = [{"name": names.PORT_NAME_HTTP, "containerPort": port}]
        spec = {"schedulerName": "nobody", "containers": [_container(ports)]}
        body = {"metadata": {"name": name, "labels": _labels(endpoint)}, "spec": spec}
        await self._api.request("POST", path, body=body)
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": conditions,
        }
        await self._api.request("PATCH", f"{path}/{name}/status", body={"status": status}, content_type=MERGE)

    async def _deployment(self, endpoint: str) -> None:
        spec = {
            "replicas": 0,
            "selector": {"matchLabels": _labels(endpoint)},
            "template": {
                "metadata": {"labels": _labels(endpoint)},
                "spec": {"schedulerName": "nobody", "containers": [_container([])]},
            },
        }
        child = names.child_name(endpoint, names.DEFAULT_REGION)
        body = {"metadata": {"name": child, "labels": _labels(endpoint)}, "spec": spec}
        await self._api.request("POST", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", body=body)


def _end_of(log: Path) -> str:
    return log.read_text()[-3000:]


def _container(ports: list[Raw]) -> Raw:
    return {"name": names.ENGINE_CONTAINER, "image": "none", "ports": ports}


def _labels(endpoint: str) -> dict[str, str]:
    return {names.LABEL_ENDPOINT: endpoint, names.LABEL_REGION: names.DEFAULT_REGION}


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
