"""Carrying out what probes and lifecycle hooks ask for: HTTP, TCP, a command in the container, sleep."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from emberline_local.process_pod import enter_command


@dataclass(frozen=True)
class HandlerTarget:
    """The running container that a handler talks to."""

    session: aiohttp.ClientSession
    address: str
    ports: Mapping[str, int]
    """By name."""
    pid: int
    environment: Mapping[str, str]


async def carry_out(handler: Mapping[str, Any], target: HandlerTarget, *, timeout_s: float) -> str | None:
    """Do what a probe or hook says; None is success, else why it failed."""
    try:
        async with asyncio.timeout(timeout_s):
            if "httpGet" in handler:
                return await _http_get(handler["httpGet"], target)
            if "tcpSocket" in handler:
                return await _connect(handler["tcpSocket"], target)
            if "exec" in handler:
                return await _execute(handler["exec"]["command"], target)
            if "sleep" in handler:
                await asyncio.sleep(handler["sleep"]["seconds"])
                return None
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return f"a process node knows httpGet, tcpSocket, exec and sleep, not {sorted(handler)}"


def _port(wanted: int | str, target: HandlerTarget) -> int:
    if isinstance(wanted, int):
        return wanted
    if wanted not in target.ports:
        raise OSError(f"the container has no port named {wanted!r}")
    return target.ports[wanted]


async def _http_get(request: Mapping[str, Any], target: HandlerTarget) -> str | None:
    scheme = request.get("scheme", "HTTP").lower()
    url = f"{scheme}://{request.get('host', target.address)}:{_port(request['port'], target)}{request.get('path', '/')}"
    headers = {header["name"]: header["value"] for header in request.get("httpHeaders", ())}
    # Like a kubelet: certificates are not checked, redirects are success.
    async with target.session.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
        return None if 200 <= response.status < 400 else f"{url} answered {response.status}"


async def _connect(request: Mapping[str, Any], target: HandlerTarget) -> str | None:
    _, writer = await asyncio.open_connection(request.get("host", target.address), _port(request["port"], target))
    writer.close()
    return None


async def _execute(command: list[str], target: HandlerTarget) -> str | None:
    process = await asyncio.create_subprocess_exec(
        *enter_command(target.pid, command),
        env=dict(target.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    return None if code == 0 else f"command exited with {code}"
