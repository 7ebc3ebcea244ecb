"""Replicas of the operator as processes of their own, which can be killed, stopped and continued; and what the Lease says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from emberline_contract import names
from emberline_operator.cluster.lease import LEASES, record_of
from emberline_operator.errors import NotFoundError
from support.operator_rig import OperatorRig, eventually
from support.plane import TestPlane

Raw = dict[str, Any]
LEASE = f"{LEASES}/{names.OPERATOR_NAME}"
QUICK = {"duration_s": 5.0, "renew_deadline_s": 3.5, "retry_s": 0.5, "request_timeout_s": 1.0, "drain_s": 5.0}
"""The shipped times, three times as fast: a busy machine must not look like a dead leader."""
_RUN = """
import json, pathlib, sys
from emberline_operator import main
from emberline_operator.settings import Install, LeaseTimes, Settings
told = json.loads(sys.argv[1])
for name in ("kubeconfig", "admin_token_path"):
    told[name] = pathlib.Path(told[name])
main.run_process(Settings(Install(**told.pop("install")), lease=LeaseTimes(**told.pop("lease")), **told))
"""


@dataclass
class OperatorProcess:
    """One replica."""

    name: str
    process: asyncio.subprocess.Process
    base: str
    log: Path

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.returncode

    def words(self) -> str:
        """All that it has logged."""
        return self.log.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def ended(self, timeout_s: float = 20) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(timeout_s):
            return await self.process.wait()

    async def asked(self, path: str) -> tuple[int, Raw]:
        """Status and document of a probe; 0 while nothing listens."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.base + path) as answer:
                return answer.status, await answer.json()
        except aiohttp.ClientConnectionError:
            return 0, {}

    async def ready(self, timeout_s: float = 40) -> None:
        """Return once it has listed everything."""

        async def is_ready() -> bool:
            assert self.code is None, self.words()
            return (await self.asked("/readyz"))[0] == 200

        await eventually(is_ready, f"{self.name} ready", timeout_s)


@asynccontextmanager
async def replica(rig: OperatorRig, name: str, folder: Path, **changes: Any) -> AsyncIterator[OperatorProcess]:
    """A replica of the rig's settings; killed at the end. `changes` are fields of Settings."""
    port = _free_port()
    settings = rig.settings
    told = {
        "install": {"runtime_image": settings.install.runtime_image, "public_url": settings.install.public_url},
        "kubeconfig": str(settings.kubeconfig),
        "admin_token_path": str(settings.admin_token_path),
        "gateway_admin_port": settings.gateway_admin_port,
        "health_port": port,
        "pod_name": name,
        "lease": QUICK,
        **changes,
    }
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            # A process that must end at once closes no connection gently.
            sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", _RUN, json.dumps(told),
            env={key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH") if key in os.environ},
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield OperatorProcess(name, process, f"http://127.0.0.1:{port}", log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def holder(rig: OperatorRig) -> str:
    """Name of the replica that holds the Lease; empty if none does."""
    try:
        record = record_of(await rig.admin.request("GET", LEASE))
    except NotFoundError:
        return ""
    return record.holder.rpartition("_")[0]


async def led_by(rig: OperatorRig, wanted: set[str], timeout_s: float = 30) -> tuple[str, float]:
    """The leader, once it is one of those, and the seconds that it took."""
    begun_s = time.monotonic()

    async def found() -> str:
        name = await holder(rig)
        return name if name in wanted else ""

    name = await eventually(found, f"led by one of {sorted(wanted)}", timeout_s)
    return name, time.monotonic() - begun_s


async def free_lease(rig: OperatorRig) -> None:
    """Without what earlier tests left, the first replica need not wait."""
    try:
        await rig.admin.request("DELETE", LEASE)
    except NotFoundError:
        return


def own_kubeconfig(plane: TestPlane, kubeconfig: Path, path: Path) -> tuple[Path, str]:
    """The operator's kubeconfig with a token of its own, and the id by which the audit log names that token."""
    token = plane.kubectl("-n", names.SYSTEM_NAMESPACE, "create", "token", names.OPERATOR_NAME).strip()
    document = json.loads(kubeconfig.read_text())
    document["users"][0]["user"]["token"] = token
    path.write_text(json.dumps(document))
    review = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}})
    answer = json.loads(plane.kubectl("create", "-o", "json", "-f", "-", stdin=review))
    return path, answer["status"]["user"]["extra"]["authentication.kubernetes.io/credential-id"][0]


def requests_by(plane: TestPlane, credential: str) -> Iterator[Raw]:
    """Finished requests that were made with one token, from the audit log."""
    for line in plane.audit_file.read_text().splitlines():
        if credential in line:
            event: Raw = json.loads(line)
            ids = event["user"].get("extra", {}).get("authentication.kubernetes.io/credential-id", [])
            if credential in ids and event["stage"] == "ResponseComplete" and event["verb"] != "watch":
                yield event


def is_write(event: Raw) -> bool:
    """Whether an audited request changes something other than the Lease."""
    return event["verb"] not in ("get", "list", "watch") and event["objectRef"]["resource"] != "leases"


def _free_port() -> int:

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
