"""How a supervisor joins what it waits for with what may fail meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from emberline_local.errors import ClusterError, PlaneError
from emberline_local.supervisor import _serving, _unless


class FakeNode:
    """Becomes ready at once or never; ends when it is told to, or at once with an error."""

    def __init__(self, *, is_ready: bool = True, error: Exception | None = None) -> None:
        self.ready = asyncio.Event()
        self.is_running = False
        self._is_ready = is_ready
        self._error = error

    async def run(self, stop: asyncio.Event) -> None:
        if self._error is not None:
            raise self._error
        self.is_running = True
        if self._is_ready:
            self.ready.set()
        await stop.wait()
        self.is_running = False


async def fails(error: Exception) -> None:
    raise error


async def answer() -> int:
    return 1


async def test_work_that_is_done_first_counts() -> None:
    pending = asyncio.ensure_future(asyncio.Event().wait())
    await _unless([pending], answer())
    pending.cancel()


async def test_a_known_failure_ends_the_wait_as_it_is() -> None:
    failing = asyncio.ensure_future(fails(PlaneError("etcd ended")))
    with pytest.raises(PlaneError, match="etcd ended"):
        await _unless([failing], asyncio.Event().wait())


async def test_an_unknown_failure_is_told_by_its_name_and_kept_as_the_cause() -> None:
    failing = asyncio.create_task(fails(ValueError("odd")), name="node a")
    with pytest.raises(ClusterError, match=r"node a ended: ValueError\('odd'\)") as raised:
        await _unless([failing], asyncio.Event().wait())
    assert isinstance(raised.value.__cause__, ValueError)


async def test_nodes_run_until_the_end_of_the_context_and_end_in_order() -> None:
    nodes = {"a": FakeNode(), "b": FakeNode()}
    async with _serving(nodes) as running:
        assert all(node.is_running for node in nodes.values())
        assert [task.get_name() for task in running] == ["node a", "node b"]
    assert not any(node.is_running for node in nodes.values())


async def test_a_node_that_fails_at_its_start_ends_the_others() -> None:
    waiting = FakeNode(is_ready=False)
    with pytest.raises(ClusterError, match="node bad ended"):
        async with _serving({"waiting": waiting, "bad": FakeNode(error=RuntimeError("no"))}):
            pytest.fail("it is not ready")
    assert not waiting.is_running
