"""The election over a Lease that is kept here: taking, renewing, losing and giving up, with clocks of the test's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.cluster.election import Election
from emberline_operator.cluster.lease import LEASES, Lease, lease_of, record_of
from emberline_operator.errors import (
    ClusterError,
    ConflictError,
    LostLeadershipError,
    NotFoundError,
    UnavailableError,
)
from emberline_operator.leadership import Gate, Record
from emberline_operator.settings import LeaseTimes

TIMES = LeaseTimes()
PATH = f"{LEASES}/{names.OPERATOR_NAME}"
WALL = datetime(2026, 12, 1, 10, 0, 0, 123456, tzinfo=UTC)


class Server:
    """One Lease behind an Api's `request`, with compare and set as the API server does it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.fails: list[ClusterError | None] = []
        """What the next requests raise; None: nothing."""
        self.loses_answer = False
        self.log: list[str] = []

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return record_of(self.lease).holder

    def put(self, holder: str) -> None:
        """Somebody else writes the Lease."""
        self.version += 1
        self.lease = lease_of(Record(holder, 15, str(self.version)), "then")

    async def request(self, method: str, path: str, *, body: Any = None) -> Any:
        self.log.append(method)
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        if method == "GET":
            assert path == PATH
            if self.lease is None:
                raise NotFoundError("GET", 404, "not there")
            return self.lease
        known = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        assert path == (LEASES if method == "POST" else PATH)
        if body["metadata"].get("resourceVersion") != known:
            raise ConflictError(method, 409, "changed")
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        if self.loses_answer:
            self.loses_answer = False
            raise UnavailableError(method, None, "no answer")
        return self.lease


class Candidate:
    """An election with a clock that moves when it sleeps."""

    def __init__(self, server: Server, identity: str = "me") -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        self.gate = Gate(lambda: self.now_s, TIMES)
        lease = Lease(server, lambda: WALL)  # type: ignore[arg-type]
        self.election = Election(lease, self.gate, identity, TIMES, lambda: self.now_s, self.sleep)

    async def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)
        self.now_s += wait_s


async def test_a_lease_that_is_not_there_is_made() -> None:
    server = Server()
    mine = Candidate(server)
    assert not mine.election.has_won
    await mine.election.win()
    assert mine.election.has_won
    assert mine.gate.is_open
    assert server.lease is not None
    assert server.lease["metadata"]["namespace"] == names.SYSTEM_NAMESPACE
    assert server.lease["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-12-01T10:00:00.123456Z",
        "renewTime": "2026-12-01T10:00:00.123456Z",
        "leaseTransitions": 0,
    }


async def test_a_dead_holder_is_waited_for_and_no_longer() -> None:
    server = Server()
    server.put("other")
    mine = Candidate(server)
    await mine.election.win()
    assert mine.now_s == 15
    assert mine.slept == [2.0] * 7 + [1.0], "the last wait ends with the Lease"
    assert server.holder == "me"
    assert record_of(server.lease or {}).transitions == 1


async def test_a_released_lease_is_taken_at_once() -> None:
    server = Server()
    first, second = Candidate(server, "first"), Candidate(server, "second")
    await first.election.win()
    await first.election.release()
    assert not first.gate.is_open
    assert server.lease is not None
    assert "holderIdentity" not in server.lease["spec"]
    await second.election.win()
    assert second.slept == []
    assert server.holder == "second"


async def test_of_two_one_wins() -> None:
    server = Server()
    first, second = Candidate(server, "first"), Candidate(server, "second")

    async def overtaken(wait_s: float) -> None:
        await Candidate.sleep(second, wait_s)
        if second.now_s > 20:
            raise TimeoutError

    second.election._sleep = overtaken
    await first.election.win()
    stale = Server.request

    async def too_late(method: str, path: str, *, body: Any = None) -> Any:
        # The record as it was before the first one took it.
        if method == "GET" and not second.slept:
            raise NotFoundError("GET", 404, "not there")
        if method == "PUT":
            pytest.fail("the Lease is the other's")
        if method == "GET":
            server.put("first")
        return await stale(server, method, path, body=body)

    server.request = too_late  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await second.election.win()
    assert not second.election.has_won
    assert not second.gate.is_open


async def test_a_leader_renews_until_it_cannot() -> None:
    server = Server()
    mine = Candidate(server)
    await mine.election.win()
    server.log.clear()
    server.fails = [None, None, *[UnavailableError("PUT", 503, "not now")] * 20]
    with pytest.raises(LostLeadershipError, match=r"last renewed 10\.0 s ago"):
        await mine.election.hold()
    assert mine.now_s == 14, "two renewals, 2 s apart, and ten seconds more"
    assert server.log == ["PUT"] * 6
    assert not mine.gate.is_open


async def test_a_process_that_slept_does_not_try_again() -> None:
    """Others may lead by now, and even if the Lease were still ours, what was decided long ago is not to be done."""
    server = Server()
    mine = Candidate(server)
    await mine.election.win()
    server.log.clear()
    mine.now_s += 30
    with pytest.raises(LostLeadershipError):
        await mine.election.hold()
    assert server.log == []


async def test_another_holder_is_a_loss_and_a_strangers_change_is_none() -> None:
    server = Server()
    mine = Candidate(server)
    await mine.election.win()
    server.put("me")
    server.fails = [None, None, None, UnavailableError("PUT", None, "no answer")]
    hold = mine.election.hold()

    async def robbed(wait_s: float) -> None:
        await Candidate.sleep(mine, wait_s)
        if mine.now_s > 7:
            server.put("other")

    mine.election._sleep = robbed
    with pytest.raises(LostLeadershipError, match="held by other"):
        await hold
    assert mine.now_s == 8
    assert server.holder == "other"


async def test_a_renewal_whose_answer_is_lost_costs_nothing() -> None:
    server = Server()
    mine = Candidate(server)
    await mine.election.win()
    server.loses_answer = True

    async def three_times(wait_s: float) -> None:
        await Candidate.sleep(mine, wait_s)
        if mine.now_s >= 20:
            raise TimeoutError

    mine.election._sleep = three_times
    with pytest.raises(TimeoutError):
        await mine.election.hold()
    assert mine.gate.is_open


async def test_a_release_after_a_lost_answer_finds_its_version() -> None:
    server = Server()
    mine = Candidate(server)
    await mine.election.win()
    server.put("me")
    await mine.election.release()
    assert server.holder == ""
    server.put("other")
    await mine.election.release()
    assert server.holder == "other", "only our own is released"


async def test_what_cannot_be_released_is_said(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    mine = Candidate(server)
    await mine.election.win()
    server.fails = [UnavailableError("PUT", None, "no answer")]
    await mine.election.release()
    assert "could not be released" in caplog.text
    assert not mine.gate.is_open


@pytest.mark.parametrize("spec", [{}, {"holderIdentity": None}, {"holderIdentity": "", "leaseDurationSeconds": None}])
def test_a_lease_of_somebody_elses_making_can_be_read(spec: dict[str, Any]) -> None:
    assert record_of({"metadata": {"resourceVersion": "7"}, "spec": spec}) == Record("", 0, "7")
