"""The gateway as a process: the kubeconfig's or the pod's account, signals, exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from emberline_contract import names
from emberline_contract.http import CHAT_COMPLETIONS, READY
from support.plane import TestPlane

pytestmark = pytest.mark.cluster


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def process(plane: TestPlane, port: int, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "emberline_gateway", f"--port={port}", f"--admin-port={free_port()}", *flags),
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def ready(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.get(url + READY) as response:
            return response.status
    except aiohttp.ClientConnectorError:
        return 0


async def until_ready(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30):
        while await ready(session, url) != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_process_starts_drains_and_ends_with_zero(plane: TestPlane, namespace: str) -> None:
    plane.apply(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.ENDPOINT_KIND,
            "metadata": {"name": "tiny", "namespace": namespace},
            "spec": {"model": {"source": "pvc://models/tiny"}, "serving": {"heartbeat": "100ms"}},
        }
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ("--unready-s=0.5", "--grace-s=1")
    async with process(plane, port, *flags) as running, aiohttp.ClientSession() as session:
        await until_ready(session, url)
        body = {"model": f"{namespace}/tiny", "messages": [], "stream": True}
        async with session.post(url + CHAT_COMPLETIONS, json=body, headers={"x-request-id": "abc"}) as response:
            # There is no Deployment to wake: the stream lives on heartbeats.
            assert (await response.content.readuntil(b"\n\n")).startswith(b": waiting phase=scaling")
            running.send_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                while await ready(session, url) != 503:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            rest = await response.content.read()
        assert json.loads(rest.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]["code"] == 503
        assert running.stdout is not None
        logs = (await running.stdout.read()).decode()
        assert await running.wait() == 0
        lines = [json.loads(line) for line in logs.splitlines()]
        (request,) = [line for line in lines if line["event"] == "request"]
        assert (request["request_id"], request["code"], request["endpoint"]) == ("abc", 503, f"{namespace}/tiny")
        assert any(line["event"] == "wake failed" and "404" in line["error"] for line in lines)


async def test_a_port_that_is_taken_is_said_plainly(plane: TestPlane) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with process(plane, taken.getsockname()[1]) as running:
            assert running.stdout is not None
            output = (await running.stdout.read()).decode()
            assert await running.wait() == 1
            port = taken.getsockname()[1]
            assert output == f"cannot listen on 127.0.0.1 port {port}: Address already in use\n"
