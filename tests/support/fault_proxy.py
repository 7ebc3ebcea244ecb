"""A proxy in front of an API server that answers badly, cuts connections or lets watches fall silent, as a test says."""

from __future__ import annotations

import itertools
import json
import random
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import aiohttp
from aiohttp import web

from support.plane import TestPlane

_HOP_HEADERS = frozenset({"host", "connection", "transfer-encoding", "content-length", "content-encoding"})


class Fault(Enum):
    """What becomes of a request."""

    CONFLICT = "409, and nothing is done"
    BUSY = "429, and nothing is done"
    BROKEN = "500, and nothing is done"
    LOST = "500, although it is done"
    CUT = "no answer, although it is done"


_OF_READS = (Fault.BUSY, Fault.BROKEN)
_CODES = {Fault.CONFLICT: 409, Fault.BUSY: 429, Fault.BROKEN: 500, Fault.LOST: 500}


@dataclass
class FaultProxy:
    """The proxy and what it does wrong now."""

    upstream: str
    ca_file: Path
    chance: random.Random
    rate: float = 0.0
    """Part of the requests that meet a fault."""
    silent: set[str] = field(default_factory=set)
    """Plurals whose watches tell nothing while their connections stay."""
    injected: dict[Fault, int] = field(default_factory=dict)
    base: str = ""
    _watches: list[web.Request] = field(default_factory=list)
    _of_reads: Iterator[Fault] = field(default_factory=lambda: itertools.cycle(_OF_READS))
    _of_writes: Iterator[Fault] = field(default_factory=lambda: itertools.cycle(Fault))

    def cut_watches(self) -> int:
        """End the connections of all watches at once; gives their number."""
        watches = list(self._watches)
        for request in watches:
            if request.transport is not None:
                request.transport.abort()
        return len(watches)

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """The same user, by way of this proxy."""
        document = json.loads(original.read_text())
        document["clusters"][0]["cluster"] = {"server": self.base}
        path.write_text(json.dumps(document))
        return path

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Listen while inside."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            app = web.Application(client_max_size=2**24)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(session, request)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield
            finally:
                self.cut_watches()
                await runner.cleanup()

    def _choose(self, request: web.Request) -> Fault | None:
        """Which requests is chance; the kinds take turns, so that each occurs."""
        if self.chance.random() >= self.rate:
            return None
        fault = next(self._of_reads if request.method == "GET" else self._of_writes)
        self.injected[fault] = self.injected.get(fault, 0) + 1
        return fault

    async def _handle(self, session: aiohttp.ClientSession, request: web.Request) -> web.StreamResponse:
        body, fault = await request.read(), self._choose(request)
        if fault in (Fault.CONFLICT, Fault.BUSY, Fault.BROKEN):
            return _refusal(fault)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_HEADERS}
        url = self.upstream + request.raw_path
        try:
            async with session.request(request.method, url, headers=headers, data=body or None) as answer:
                if request.query.get("watch"):
                    return await self._stream(request, answer)
                data = await answer.read()
        except aiohttp.ClientError:
            # The API server is not there, or went while it answered.
            fault = Fault.CUT
        if fault is Fault.CUT:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if fault is Fault.LOST:
            return _refusal(fault)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_HEADERS}
        return web.Response(status=answer.status, body=data, headers=kept)

    async def _stream(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        plural = request.path.rpartition("/")[2]
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._watches.append(request)
        try:
            async for chunk in answer.content.iter_any():
                if plural not in self.silent:
                    await response.write(chunk)
        except ConnectionResetError:
            pass  # cut by the test, or given up by the operator
        finally:
            self._watches.remove(request)
        return response


def _refusal(fault: Fault) -> web.Response:
    code = _CODES[fault]
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "injected", "code": code}
    headers = {"Retry-After": "1"} if fault is Fault.BUSY else {}
    return web.json_response(status, status=code, headers=headers)


def fault_proxy(plane: TestPlane, seed: int) -> FaultProxy:
    """A proxy for a plane; the same seed draws the same faults."""
    return FaultProxy(f"https://127.0.0.1:{plane.api_port}", plane.ca_file, random.Random(seed))
