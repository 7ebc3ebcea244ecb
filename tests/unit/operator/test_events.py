"""Events are written at most once per endpoint and reason in ten minutes, also by a new leader."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from emberline_contract.conditions import Reason
from emberline_operator.cluster.api import Api
from emberline_operator.cluster.events import PERIOD, EventWriter, event
from emberline_operator.errors import ConflictError, NotFoundError, RefusedError
from emberline_operator.plan.actions import Notice
from support.operator_objects import NOW, make_endpoint

WRONG = Notice("Warning", Reason.NO_NODES, "no nodes; add one")
OTHER = Notice("Warning", Reason.DOES_NOT_FIT, "too large")


class Events:
    """The API server's Events of one cluster, and the time."""

    def __init__(self) -> None:
        self.now = NOW
        self.stored: dict[str, dict[str, Any]] = {}
        self.is_refusing = False

    def clock(self) -> datetime:
        return self.now

    async def request(self, method: str, path: str, *, body: Any = None) -> dict[str, Any]:
        if self.is_refusing:
            raise RefusedError(f"{method} {path}", 403, "the namespace is being terminated")
        if method == "GET":
            name = path.rsplit("/", 1)[1]
            if name not in self.stored:
                raise NotFoundError(f"{method} {path}", 404, "not found")
            return self.stored[name]
        name = body["metadata"]["name"]
        if name in self.stored:
            raise ConflictError(f"{method} {path}", 409, "already exists")
        self.stored[name] = body
        return cast("dict[str, Any]", body)

    def leader(self, instance: str = "op-1") -> EventWriter:
        return EventWriter(cast("Api", self), instance, self.clock)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(made["reason"], made["regarding"]["name"]) for made in self.stored.values()]


@pytest.mark.parametrize("after_s", [0.0, 1.0, 299.0, 599.0])
@pytest.mark.parametrize("changes_leader", [False, True])
async def test_the_same_is_told_once_in_ten_minutes(after_s: float, *, changes_leader: bool) -> None:
    cluster = Events()
    first = cluster.leader()
    await first.tell(make_endpoint(), WRONG)
    cluster.now += timedelta(seconds=after_s)
    second = cluster.leader("op-2") if changes_leader else first
    await second.tell(make_endpoint(), WRONG)
    assert len(cluster.told) == 1
    cluster.now = NOW + PERIOD
    await second.tell(make_endpoint(), WRONG)
    assert len(cluster.told) == 2


async def test_reasons_and_endpoints_do_not_hide_one_another() -> None:
    cluster = Events()
    writer = cluster.leader()
    other = make_endpoint("other")
    other["metadata"]["uid"] = "another"
    for endpoint in (make_endpoint(), other):
        for notice in (WRONG, OTHER):
            await writer.tell(endpoint, notice)
    assert sorted(cluster.told) == [
        ("DoesNotFit", "other"), ("DoesNotFit", "tiny"), ("NoNodes", "other"), ("NoNodes", "tiny")
    ]  # fmt: skip


async def test_a_refusal_is_survived_and_tried_again_next_time(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Events()
    writer = cluster.leader()
    cluster.is_refusing = True
    await writer.tell(make_endpoint(), WRONG)
    assert "the namespace is being terminated" in caplog.text
    cluster.is_refusing = False
    await writer.tell(make_endpoint(), WRONG)
    assert len(cluster.told) == 1


def test_a_long_message_is_cut() -> None:
    made = event(make_endpoint(), Notice("Normal", Reason.DECIDED, "x" * 2000), NOW, "op-1")
    assert len(made["note"]) == 1024
