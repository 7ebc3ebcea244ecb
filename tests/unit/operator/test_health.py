"""What lists prove about watches, what the probes say of it, and how long the API server may ask to be left alone."""

from __future__ import annotations

import aiohttp
import pytest

from emberline_contract import http, metrics
from emberline_operator.cluster.throttle import DEFAULT_PAUSE_S, MAX_PAUSE_S, SPREAD, Throttle, retry_after_s
from emberline_operator.health import Health, Metrics, serve
from emberline_operator.watching import Watch

A, B = ("team", "a"), ("team", "b")


def test_a_quiet_watch_is_current_as_long_as_lists_show_nothing_new() -> None:
    watch = Watch(grace_s=10)
    assert watch.age_s(5) is None
    watch.listed({A}, {}, lost=(), now_s=100)
    watch.listed({A}, {}, lost=(), now_s=400)
    assert watch.age_s(405) == 5
    assert watch.event_age_s(405) is None
    assert not watch.needs_second_look(9999)
    assert not watch.is_stale


def test_what_a_list_shows_must_come_from_the_watch() -> None:
    watch = Watch(grace_s=10)
    watch.listed({A, B}, {A: 5, B: 6}, lost=(), now_s=100)
    assert watch.num_untold == 2
    watch.told(A, 5, 101)
    assert watch.age_s(101) is None, "one of two"
    watch.told(B, 5, 102)
    assert watch.num_untold == 1, "an older version is not it"
    watch.told(B, 8, 103)
    assert watch.num_untold == 0
    assert watch.age_s(103) == 3, "proven for the time of the list"
    assert watch.event_age_s(104) == 1


def test_a_watch_that_says_nothing_of_what_is_there_is_stale_until_it_does() -> None:
    watch = Watch(grace_s=10)
    watch.listed({A}, {A: 5}, lost=(), now_s=100)
    assert not watch.needs_second_look(109)
    assert watch.needs_second_look(110)
    assert not watch.is_stale, "one look proves nothing: the object may be gone"
    watch.listed({A}, {}, lost=(), now_s=110)
    assert watch.is_stale
    assert watch.num_lost == 1
    assert watch.age_s(110) is None
    watch.told(A, 5, 111)
    assert not watch.is_stale
    assert watch.age_s(111) == 1


def test_a_newer_version_does_not_make_an_untold_object_younger() -> None:
    watch = Watch(grace_s=10)
    watch.listed({A}, {A: 5}, lost=(), now_s=100)
    watch.listed({A}, {A: 7}, lost=(), now_s=108)
    watch.listed({A}, {A: 9}, lost=(), now_s=111)
    assert watch.is_stale


def test_what_is_gone_by_the_second_look_proves_nothing() -> None:
    watch = Watch(grace_s=10)
    watch.listed({A}, {A: 5}, lost=(), now_s=100)
    watch.listed(set(), {}, lost={A}, now_s=111)
    assert not watch.is_stale
    assert watch.num_untold == 0
    assert watch.age_s(111) is None, "the watch may have told the end, or not"
    watch.listed(set(), {}, lost=(), now_s=120)
    assert watch.age_s(120) == 0


def test_an_end_that_is_told_late_is_proof_as_well() -> None:
    """A list that is faster than the watch must not leave the watch in doubt, or in a busy cluster it always would be."""
    watch = Watch(grace_s=10)
    watch.listed({B}, {B: 7}, lost={A}, now_s=100)
    watch.told(B, 7, 101)
    assert watch.age_s(101) is None
    watch.told(A, 6, 102)
    assert watch.age_s(102) == 2


def a_health(now: list[float]) -> Health:
    return Health(lambda: now[0], ["pods", "services"], list_period_s=10, watch_grace_s=5)


def test_healthy_while_lists_succeed() -> None:
    now = [0.0]
    health = a_health(now)
    assert health.troubles() == ["nothing has been listed yet"]
    for watch in health.watches.values():
        watch.listed({A}, {}, lost=(), now_s=0)
    health.on_list()
    now[0] = 24
    assert health.troubles() == health.doubts() == []
    now[0] = 29
    assert health.troubles() == []
    assert len(health.doubts()) == 2, "what is known is old, and a restart would not make it newer"
    now[0] = 31
    assert health.troubles() == ["the last list is 31 s old, and there should be one every 10 s"]


def test_one_stale_watch_is_named() -> None:
    now = [0.0]
    health = a_health(now)
    health.on_list()
    health.watches["services"].listed({A}, {}, lost=(), now_s=0)
    pods = health.watches["pods"]
    pods.listed({A}, {A: 5}, lost=(), now_s=0)
    assert health.troubles() == []
    now[0] = 6
    pods.listed({A}, {}, lost=(), now_s=6)
    words = ["the watch of pods has told nothing of 1 objects that lists show"]
    assert health.troubles() == health.doubts() == words
    assert health.report(leads=False) == {
        "leader": False,
        "troubles": words,
        "last_list_age_s": 6.0,
        "watches": {
            "pods": {"age_s": 6.0, "last_event_age_s": None, "untold": 1, "stale": True},
            "services": {"age_s": 6.0, "last_event_age_s": None, "untold": 0, "stale": False},
        },
    }
    pods.told(A, 5, 7)
    assert health.troubles() == []


def test_what_is_not_proven_for_long_is_doubted_but_not_restarted() -> None:
    now = [0.0]
    health = a_health(now)
    health.watches["services"].listed({A}, {}, lost=(), now_s=0)
    health.watches["pods"].listed(set(), {}, lost={A}, now_s=0)
    for now[0] in (10.0, 20.0, 26.0):
        health.on_list()
        health.watches["services"].listed({A}, {}, lost=(), now_s=now[0])
    assert health.troubles() == []
    assert health.doubts() == ["the watch of pods was last proven current 26 s ago, and 25 s are allowed"]


async def test_health_and_metrics_are_served() -> None:
    now, leads = [0.0], [False]
    health, counted = a_health(now), Metrics()
    counted.on_write("Deployment", "apply")
    serving = serve(["127.0.0.1"], 0, health, counted, lambda: leads[0])
    async with serving as port, aiohttp.ClientSession() as session:

        async def read(path: str) -> tuple[int, str]:
            async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert (await read("/healthz"))[0] == (await read("/readyz"))[0] == 503
        health.on_list()
        now[0] = 20
        assert (await read("/healthz"))[0] == (await read("/readyz"))[0] == 200
        health.on_list()
        now[0] = 40
        assert (await read("/healthz"))[0] == 200
        status, text = await read("/readyz")
        assert status == 503
        assert "last proven current 40 s ago" in text
        health.watches["pods"].listed({A}, {}, lost=(), now_s=33)
        text = (await read(http.METRICS))[1]
        assert f'{metrics.OPERATOR_WRITES}_total{{kind="Deployment",verb="apply"}} 1.0' in text
        assert f"{metrics.OPERATOR_LEADER} 0.0" in text
        assert f'{metrics.OPERATOR_WATCH_AGE}{{resource="pods"}} 7.0' in text
        assert f'{metrics.OPERATOR_WATCH_AGE}{{resource="services"}} 40.0' in text
        leads[0] = True
        assert f"{metrics.OPERATOR_LEADER} 1.0" in (await read(http.METRICS))[1]
        assert '"leader": true' in (await read("/healthz"))[1]


@pytest.mark.parametrize(
    ("status", "header", "pause_s"),
    [
        (200, "7", 0),
        (404, None, 0),
        (500, None, 0),
        (503, None, 0),
        (503, "4", 4),
        (429, "7", 7),
        (429, None, DEFAULT_PAUSE_S),
        (429, "0", 0),
        (429, "soon", DEFAULT_PAUSE_S),
        (429, "86400", MAX_PAUSE_S),
    ],
)
def test_the_api_server_may_ask_for_patience(status: int, header: str | None, pause_s: float) -> None:
    throttle = Throttle(lambda: 0.0)
    throttle.heard(status, retry_after_s(header), 100)
    assert throttle.pause_s(100) == pause_s
    assert throttle.pause_s(100 + pause_s) == 0


def test_who_has_waited_does_not_return_at_the_same_moment() -> None:
    chances = iter([0.0, 0.5, 1.0])
    throttle = Throttle(lambda: next(chances))
    throttle.heard(429, 10, 0)
    assert [throttle.pause_s(4) for _ in range(3)] == [6, 6 + 5 * SPREAD, 6 + 10 * SPREAD]


def test_a_shorter_wish_does_not_end_a_longer_pause() -> None:
    throttle = Throttle(lambda: 0.0)
    throttle.heard(429, 10, 0)
    throttle.heard(429, 1, 2)
    assert throttle.pause_s(4) == 6
    throttle.heard(429, 10, 5)
    assert throttle.pause_s(5) == 10
