"""A gateway as a process of its own, on a cluster that is played in it: what it costs and keeps can be told from the test's own.

Run with a JSON object of endpoints and the URLs of their engines; prints the public port. Time-outs of minutes are seconds here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import uvloop

from emberline_contract import http, metrics
from emberline_gateway import logs, proxy, server
from emberline_gateway.gateway import gateway, settle_memory
from support.gateway import FakeCluster, make_endpoint, make_pod

BODY_SILENCE_S = 1.0
HEADERS_TIMEOUT_S = 1.0


class GatewayProcess:
    """The running process, from outside."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def rss_mib(self) -> float:
        """Memory that it has now."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("the gateway has ended")

    @property
    def num_descriptors(self) -> int:
        """Open files and sockets."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def metrics(self) -> str:
        """What it tells of itself."""
        # A connection of its own, which is gone afterwards.
        async with aiohttp.ClientSession() as session, session.get(self.url + http.METRICS) as response:
            return await response.text()

    async def num_unfinished(self) -> int:
        """Requests that are held or at an engine."""
        gauges = (metrics.GATEWAY_HELD + "{", metrics.GATEWAY_DISPATCHED + "{")
        lines = (await self.metrics()).splitlines()
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(gauges)))


@asynccontextmanager
async def gateway_process(engines: Mapping[str, str]) -> AsyncIterator[GatewayProcess]:
    """Runs inside, with one pod for each endpoint."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        json.dumps(engines),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    try:
        assert process.stdout is not None
        yield GatewayProcess(process, int(await process.stdout.readline()))
        assert process.returncode is None, "the gateway has ended by itself"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def serve(engines: Mapping[str, str]) -> None:
    """Until killed."""
    cluster = FakeCluster(*(make_endpoint(name) for name in engines))
    for name, url in engines.items():
        cluster.put_pod(make_pod(name=name, url=url))
    public, admin = server.listen("127.0.0.1", 0), server.listen("127.0.0.1", 0, num_listeners=1)
    async with gateway(cluster, 1.0) as made:
        settle_memory()
        print(public[0].getsockname()[1], flush=True)
        await made.serve(public, admin)


def main() -> None:
    """Entry point of the process."""
    proxy.BODY_SILENCE_S = BODY_SILENCE_S  # type: ignore[misc]
    server.HEADERS_TIMEOUT_S = HEADERS_TIMEOUT_S  # type: ignore[misc]
    logs.set_up("WARNING")
    server.raise_descriptor_limit()
    uvloop.run(serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
