"""When the keeper of the metrics API looks, and what it does at its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emberline_contract import names
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import API_SERVICES as KIND
from emberline_operator.cluster.kinds import ENDPOINTS
from emberline_operator.errors import ClusterError, NotFoundError, RefusedError, UnavailableError
from emberline_operator.metrics_api.decide import API_SERVICES
from emberline_operator.metrics_api.keeper import FIRST_PAUSE, LAST_PAUSE, LOOK_AGAIN, Keeper

Raw = dict[str, Any]
NOW = datetime(2026, 12, 1, tzinfo=UTC)
NAMESPACE = f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}"
ENDPOINT: Raw = {
    "kind": names.ENDPOINT_KIND,
    "metadata": {"namespace": "team", "name": "tiny", "uid": "e", "resourceVersion": "1"},
    "spec": {},
}


class FakeApi:
    """Objects by path; applies become objects."""

    def __init__(self) -> None:
        self.objects: dict[str, Raw] = {
            NAMESPACE: {"metadata": {}},
            f"{NAMESPACE}/services/{names.METRICS_SERVICE}": {"spec": {"ports": [{"port": 443}]}},
            f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{names.OPERATOR_NAME}": {
                "metadata": {"name": names.OPERATOR_NAME, "uid": "r"}
            },
        }
        self.asked: list[tuple[str, str]] = []
        self.failure: ClusterError | None = None

    async def request(self, method: str, path: str, *, body: Raw | None = None, **_options: Any) -> Raw:
        self.asked.append((method, path))
        if self.failure is not None:
            raise self.failure
        if method == "DELETE":
            return self.objects.pop(path)
        if method == "PATCH":
            assert body is not None
            self.objects[path] = {**body, "metadata": {**body["metadata"], "uid": path, "resourceVersion": "1"}}
        if path not in self.objects:
            raise NotFoundError(path, 404, "not there")
        return self.objects[path]

    def services(self) -> set[str]:
        return {name for name in API_SERVICES if KIND.path("", name) in self.objects}


class World:
    """A keeper with its own time."""

    def __init__(self) -> None:
        self.api, self.caches, self.now = FakeApi(), Caches(()), NOW
        api: Any = self.api
        self.keeper = Keeper(api, self.caches, lambda: self.now)

    async def round(self, after: timedelta = timedelta()) -> list[tuple[str, str]]:
        """What is asked in a round."""
        self.now += after
        self.api.asked.clear()
        await self.keeper.round()
        return list(self.api.asked)

    def watched(self) -> None:
        """The watch tells of what was written."""
        for name in self.api.services():
            self.caches[KIND].put(self.api.objects[KIND.path("", name)])


async def test_nothing_is_asked_while_nobody_wants_it() -> None:
    world = World()
    assert await world.round() == []


async def test_it_is_made_once_and_looked_at_once_a_minute() -> None:
    world = World()
    world.caches[ENDPOINTS].put(ENDPOINT)
    await world.round()
    assert world.api.services() == set(API_SERVICES)
    world.watched()
    assert {method for method, _ in await world.round()} <= {"GET", "PATCH"}, "what was written is looked at once more"
    assert await world.round(timedelta(seconds=2)) == []
    assert {method for method, _ in await world.round(LOOK_AGAIN)} >= {"GET"}


@pytest.mark.parametrize(
    ("failure", "pause"),
    [(UnavailableError("GET x", 500, "out of order"), 2 * FIRST_PAUSE), (RefusedError("GET x", 403, "no"), LAST_PAUSE)],
)
async def test_a_failure_is_tried_again_later(
    failure: ClusterError, pause: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.caches[ENDPOINTS].put(ENDPOINT)
    world.api.failure = failure
    assert await world.round()
    assert "cannot be kept" in caplog.text
    assert await world.round(pause - timedelta(seconds=1)) == []
    world.api.failure = None
    await world.round(timedelta(seconds=1))
    assert world.api.services() == set(API_SERVICES)


@pytest.mark.parametrize("ends", [True, False])
async def test_the_last_thing_it_does_in_a_namespace_that_ends_is_to_take_them_away(ends: bool) -> None:
    world = World()
    world.caches[ENDPOINTS].put(ENDPOINT)
    await world.round()
    world.watched()
    if ends:
        world.api.objects[NAMESPACE]["metadata"]["deletionTimestamp"] = "2026-12-01T00:00:00Z"
    await world.keeper.leave()
    assert world.api.services() == (set() if ends else set(API_SERVICES))


async def test_an_api_server_that_does_not_answer_does_not_hold_up_the_end() -> None:
    world = World()
    world.api.failure = UnavailableError("GET x", None, "no answer")
    await world.keeper.leave()
