"""The operator as its own process, as a pod runs it."""

from __future__ import annotations

import asyncio
import os
import sys

import aiohttp
import pytest

from emberline_contract import http, metrics, names
from support.operator_rig import eventually, install_account
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
ADDRESS = "127.0.78.1"


async def start(**environ: str) -> asyncio.subprocess.Process:
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "emberline_operator",
        env={**kept, **environ}, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_it_serves_health_and_metrics_and_ends_well(plane: TestPlane) -> None:
    process = await start(
        KUBECONFIG=str(install_account(plane)), EMBERLINE_RUNTIME_IMAGE="emberline/runtime:dev", POD_IP=ADDRESS
    )
    base = f"http://{ADDRESS}:{names.OPERATOR_HEALTH_PORT}"
    try:
        async with aiohttp.ClientSession() as session:

            async def healthy() -> bool:
                try:
                    async with session.get(f"{base}/healthz") as answer:
                        return answer.status == 200
                except aiohttp.ClientConnectionError:
                    assert process.returncode is None
                    return False

            await eventually(healthy, "healthy", 40)
            async with session.get(base + http.METRICS) as answer:
                assert f"# TYPE {metrics.OPERATOR_PASSES}" in await answer.text()
    finally:
        process.terminate()
        async with asyncio.timeout(20):
            _, words = await process.communicate()
    assert process.returncode == 0, words.decode()


async def test_what_it_lacks_is_said_in_a_line() -> None:
    process = await start()
    async with asyncio.timeout(30):
        _, words = await process.communicate()
    assert process.returncode == 1
    assert words.decode().strip() == (
        "emberline-operator: EMBERLINE_RUNTIME_IMAGE is not set; give it the engine image of endpoints that name none"
    )


async def test_an_api_server_that_is_not_there_is_said_too(plane: TestPlane, tmp_path) -> None:
    gone = install_account(plane).read_text().replace(f":{plane.api_port}", ":1")
    path = tmp_path / "kubeconfig"
    path.write_text(gone)
    process = await start(KUBECONFIG=str(path), EMBERLINE_RUNTIME_IMAGE="i", POD_IP="127.0.78.2")
    async with asyncio.timeout(40):
        _, words = await process.communicate()
    assert process.returncode == 1
    assert "the API server is needed to start" in words.decode()
    assert "Traceback" not in words.decode()
