"""A gateway that has just started and has not read yet what there is."""

from __future__ import annotations

import asyncio

import aiohttp
from typing_extensions import override

from emberline_contract import http
from emberline_gateway.directory import Directory
from support.gateway import FakeCluster, eventually, make_endpoint, running_gateway


class LateCluster(FakeCluster):
    """Nothing of it can be read before it says so."""

    def __init__(self) -> None:
        super().__init__(make_endpoint())
        self.may_be_read = asyncio.Event()

    @override
    async def watch(self, directory: Directory) -> None:
        await self.may_be_read.wait()
        await super().watch(directory)


async def test_a_model_that_it_does_not_know_yet_is_no_unknown_one() -> None:
    cluster = LateCluster()
    async with running_gateway(cluster) as running, aiohttp.ClientSession() as session:
        url, body = running.url + http.CHAT_COMPLETIONS, {"model": "default/other", "messages": []}
        async with session.post(url, json=body) as response:
            assert (response.status, response.headers[http.HEADER_RETRY_AFTER]) == (503, "5")
            assert "just started" in (await response.json())["error"]["message"]
        cluster.may_be_read.set()
        await eventually(lambda: running.gateway.directory.is_complete)
        async with session.post(url, json=body) as response:
            assert response.status == 404
