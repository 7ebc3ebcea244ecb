"""Waves: one scale-up for many requests, and what happens when it fails, is undone, or comes during a close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from emberline_gateway import activation
from emberline_gateway.activation import Activation
from emberline_gateway.desk import Desk, Desks, Tools, Waiter
from emberline_gateway.directory import Directory
from emberline_gateway.holding import Held
from emberline_gateway.measures import Measures
from emberline_gateway.objects import Target
from emberline_gateway.routing import Load
from support.gateway import FakeCluster, eventually, make_endpoint, make_pod

TINY = Target("default", "tiny", "default")


class Rig:
    def __init__(self) -> None:
        self.cluster = FakeCluster(make_endpoint())
        self.measures = Measures()
        self.activation = Activation(self.cluster, self.measures)
        self.directory = Directory()
        loop = asyncio.get_running_loop()
        tools = Tools(self.directory, Load(), self.measures, loop.time, loop.call_later, self.activation.wanted)
        self.desk: Desk = Desks(tools).at(TINY)
        self.num_arrived = 0

    def hold(self) -> Held[Waiter]:
        self.num_arrived += 1
        return self.desk.hold(self.num_arrived, 100)


@asynccontextmanager
async def running() -> AsyncIterator[Rig]:
    rig = Rig()
    watching = asyncio.create_task(rig.cluster.watch(rig.directory))
    await eventually(lambda: rig.directory.is_complete)
    try:
        yield rig
    finally:
        watching.cancel()
        await rig.activation.stop()


async def test_the_first_request_wakes_at_once_and_a_burst_wakes_once() -> None:
    async with running() as rig:
        for _ in range(20):
            rig.hold()
        for _ in range(3):  # turns of the loop, no timer: the write is the first thing that happens
            await asyncio.sleep(0)
        assert [target for _, target in rig.cluster.wakes] == [TINY]
        rig.cluster.put_pod(make_pod())
        await asyncio.sleep(1.5 * activation.RECHECK_S)
        assert (rig.cluster.num_attempts, len(rig.cluster.wakes)) == (1, 1)
        assert rig.desk.num_held == 0


async def test_an_endpoint_that_others_scale_is_waited_for_and_not_woken() -> None:
    async with running() as rig:
        external = make_endpoint()
        external["spec"]["scaling"]["via"] = "External"
        rig.directory.endpoint_sink.put(external)
        held = rig.hold()
        await asyncio.sleep(1.5 * activation.RECHECK_S)
        assert (rig.cluster.num_attempts, held.waiter.done()) == (0, False)
        rig.cluster.put_pod(make_pod())
        await eventually(held.waiter.done)


async def test_somebody_else_was_faster() -> None:
    async with running() as rig:
        rig.cluster.num_replicas[TINY] = 1
        rig.hold()
        await eventually(lambda: rig.cluster.num_attempts == 1)
        await asyncio.sleep(1.5 * activation.RECHECK_S)
        assert rig.cluster.wakes == []
        assert rig.cluster.num_attempts == 1


async def test_a_failing_wake_is_tried_again_and_told() -> None:
    async with running() as rig:
        rig.cluster.failure = "403 forbidden"
        rig.hold()
        await eventually(lambda: rig.cluster.num_attempts >= 2)
        assert "403 forbidden" in str(rig.desk.wait())
        rig.cluster.failure = ""
        await eventually(lambda: len(rig.cluster.wakes) == 1)
        await eventually(lambda: str(rig.desk.wait()) == "scaling")


async def test_a_scale_up_that_was_undone_is_repeated_while_somebody_waits() -> None:
    async with running() as rig:
        rig.hold()
        await eventually(lambda: len(rig.cluster.wakes) == 1)
        rig.cluster.num_replicas[TINY] = 0
        await eventually(lambda: len(rig.cluster.wakes) == 2)


async def test_the_write_goes_on_when_the_client_does_not_wait_for_it() -> None:
    async with running() as rig:
        held = rig.hold()
        await asyncio.sleep(0)
        rig.desk.withdraw(held)
        await eventually(lambda: len(rig.cluster.wakes) == 1)


async def test_the_next_wave_is_as_quick_as_the_first() -> None:
    async with running() as rig:
        rig.desk.withdraw(rig.hold())
        rig.hold()  # before the first wave has noticed that nobody waits
        await eventually(lambda: len(rig.cluster.wakes) == 1)
        rig.cluster.put_pod(pod := make_pod())
        assert rig.desk.num_held == 0
        await asyncio.sleep(0)
        rig.cluster.drop_pod(pod)
        rig.cluster.num_replicas[TINY] = 0
        began_s = asyncio.get_running_loop().time()
        rig.hold()
        await eventually(lambda: len(rig.cluster.wakes) == 2)
        assert asyncio.get_running_loop().time() - began_s < activation.RECHECK_S / 2


async def test_loading_pods_are_waited_for_without_a_write() -> None:
    async with running() as rig:
        rig.cluster.num_replicas[TINY] = 1
        rig.cluster.put_pod(make_pod("loading"))
        rig.hold()
        await asyncio.sleep(1.5 * activation.RECHECK_S)
        assert rig.cluster.num_attempts == 0
        # It is scaled to zero under the waiting request's feet, and the pod is still to be seen.
        rig.cluster.num_replicas[TINY] = 0
        await eventually(lambda: len(rig.cluster.wakes) == 1)


async def test_what_comes_during_a_close_wakes_the_endpoint_once_zero_is_written() -> None:
    async with running() as rig:
        rig.cluster.num_replicas[TINY] = 1
        rig.cluster.put_pod(pod := make_pod())
        assert rig.desk.close(1, 15.0)
        held = rig.hold()
        await asyncio.sleep(1.5 * activation.RECHECK_S)
        assert (rig.cluster.num_attempts, held.waiter.done()) == (0, False)
        rig.cluster.num_replicas[TINY] = 0
        rig.cluster.put_pod(make_pod("leaving", uid=pod["metadata"]["uid"]))
        await eventually(lambda: len(rig.cluster.wakes) == 1)
        assert not rig.desk.is_closed
        rig.cluster.put_pod(make_pod())
        assert held.waiter.done()


async def test_what_comes_during_a_close_that_fails_goes_to_the_pod() -> None:
    async with running() as rig:
        rig.cluster.num_replicas[TINY] = 1
        rig.cluster.put_pod(make_pod())
        assert rig.desk.close(1, 0.2)
        held = rig.hold()
        await eventually(held.waiter.done)
        assert rig.cluster.num_attempts == 0
