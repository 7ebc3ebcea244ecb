"""Holding and dispatching together: under any order of events nobody is lost, counted twice or overtaken."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_gateway.desk import Desk, Desks, DisplacedError, QueueFullError, Tools, Waiter
from emberline_gateway.directory import Directory
from emberline_gateway.holding import Held
from emberline_gateway.measures import Measures
from emberline_gateway.objects import Pod, Target, read_pod
from emberline_gateway.routing import Load
from support.gateway import make_endpoint, make_pod

TINY = Target("default", "tiny", "default")
MAX_QUEUE = 4


class Rig:
    """One desk with a clock and timers that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.directory = Directory()
        self.directory.endpoint_sink.replace([make_endpoint(max_queue=MAX_QUEUE)])
        self.load = Load()
        self.measures = Measures()
        self.held_at: list[Desk] = []
        tools = Tools(
            self.directory,
            self.load,
            self.measures,
            lambda: self.now_s,
            lambda after_s, call: self.timers.append((self.now_s + after_s, call)),
            self.held_at.append,
        )
        self.desks = Desks(tools)
        self.desk = self.desks.at(TINY)

    def put(self, uid: str, state: str) -> None:
        self.directory.pod_sink.put(make_pod(state, uid=uid))

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer[0] <= end_s]:
            timer = min(due, key=lambda t: t[0])
            self.timers.remove(timer)
            self.now_s = timer[0]
            timer[1]()
        self.now_s = end_s


EVENT = st.one_of(
    st.just(("arrive", 0)),
    st.just(("arrive", 0)),
    st.tuples(st.sampled_from(["cancel", "end", "refused"]), st.integers(0, 50)),
    st.tuples(st.sampled_from(["ready", "loading", "leaving", "gone"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["close", "reopen"]), st.integers(0, 3)),
    st.tuples(st.just("advance"), st.integers(1, 20)),
)


@given(events=st.lists(EVENT, max_size=60))
def test_nobody_is_lost_counted_twice_or_overtaken(events: list[tuple[str, int]]) -> None:
    with asyncio.Runner() as runner:  # futures need a loop; nothing runs on it
        runner.run(_replay(events))


async def _replay(events: list[tuple[str, int]]) -> None:
    rig = Rig()
    desk = rig.desk
    held: dict[int, Held[Waiter]] = {}
    at_pod: dict[int, Pod] = {}
    num_arrived = 0

    def collect() -> None:
        released = sorted(number for number, place in held.items() if place.waiter.done())
        waiting = [number for number in held if number not in released]
        assert not released or not waiting or max(released) < min(waiting)  # nobody is overtaken
        for number in released:
            at_pod[number] = held.pop(number).waiter.result()

    def go(number: int) -> None:
        pod = desk.take()
        if pod is not None:
            assert not held
            at_pod[number] = pod
            return
        try:
            held[number] = desk.hold(number, MAX_QUEUE)
        except QueueFullError:
            assert len(held) == MAX_QUEUE

    for what, which in events:
        if what == "arrive":
            go(num_arrived)
            num_arrived += 1
        elif what == "cancel" and held:
            desk.withdraw(held.pop(sorted(held)[which % len(held)]))
        elif what in ("end", "refused") and at_pod:
            number = sorted(at_pod)[which % len(at_pod)]
            pod = at_pod.pop(number)
            if what == "refused":
                desk.leave_out(pod)
            desk.give_back(pod)
            if what == "refused":
                go(number)
        elif what in ("ready", "loading", "leaving"):
            rig.put(f"pod-{which}", what)
        elif what == "gone":
            rig.directory.pod_sink.drop(make_pod(uid=f"pod-{which}"))
        elif what == "close":
            desk.close(which, 15.0)
        elif what == "reopen":
            desk.reopen(which)
        elif what == "advance":
            rig.advance(which)
        collect()
        assert desk.num_held == len(held)
        assert desk.num_dispatched == len(at_pod)
        assert desk.outstanding() == Counter(pod.name for pod in at_pod.values())
        assert sum(rig.load.num_outstanding(pod) for pod in set(at_pod.values())) == len(at_pod)
        assert (desk.idle_s() == 0) or not (held or at_pod)
        assert desk.drained.is_set() == (not held)
        can_go = [
            pod for pod in rig.directory.ready_pods(TINY) if not rig.load.is_left_out(pod, rig.now_s)
        ] and not desk.is_closed
        assert not (held and can_go), "somebody waits although a pod could take it"
    # Whatever happened, a ready pod and time bring everybody to an engine.
    rig.put("last", "ready")
    rig.advance(60)
    collect()
    assert not held
    for pod in at_pod.values():
        desk.give_back(pod)
    assert desk.num_dispatched == 0


async def test_a_client_that_leaves_in_the_moment_of_release_gives_its_pod_back() -> None:
    rig = Rig()
    held = rig.desk.hold(1, MAX_QUEUE)
    rig.put("a", "ready")
    assert held.waiter.done()
    assert rig.desk.num_dispatched == 1
    rig.desk.withdraw(held)
    assert rig.desk.num_dispatched == 0


async def test_a_burst_is_spread_over_the_pods() -> None:
    rig = Rig()
    held = [rig.desk.hold(number, 100) for number in range(8)]
    rig.directory.pod_sink.replace([make_pod(uid="a"), make_pod(uid="b")])
    assert sorted(place.waiter.result().uid for place in held) == ["a"] * 4 + ["b"] * 4


async def test_a_deleted_endpoint_sends_its_waiters_away() -> None:
    rig = Rig()
    held = rig.desk.hold(1, MAX_QUEUE)
    rig.directory.endpoint_sink.drop(make_endpoint())
    with pytest.raises(DisplacedError):
        held.waiter.result()
    rig.desk.withdraw(held)
    assert rig.desk.num_held == rig.desk.num_dispatched == 0
    assert rig.desks.known() == []


async def test_a_moved_endpoint_is_waited_for_elsewhere() -> None:
    rig = Rig()
    held = rig.desk.hold(1, MAX_QUEUE)
    rig.directory.endpoint_sink.put(make_endpoint(regions=("eu",)))
    assert isinstance(held.waiter.exception(), DisplacedError)
    assert [desk.target.region for desk in rig.desks.known()] == ["eu"]


async def test_what_is_held_goes_where_an_engine_is_ready() -> None:
    rig = Rig()
    rig.directory.endpoint_sink.put(make_endpoint(regions=("eu", "us")))
    desk = rig.desks.at(Target("default", "tiny", "eu"))
    held = desk.hold(1, MAX_QUEUE)
    rig.directory.pod_sink.put(make_pod("loading", uid="u", region="us"))
    assert not held.waiter.done()
    rig.directory.pod_sink.put(make_pod("ready", uid="u", region="us"))
    assert isinstance(held.waiter.exception(), DisplacedError)
    assert desk.num_held == 0
    assert sorted(desk.target.region for desk in rig.desks.known()) == ["eu", "us"]


async def test_each_hold_is_told_until_it_is_refused() -> None:
    rig = Rig()
    for number in range(MAX_QUEUE):
        rig.desk.hold(number, MAX_QUEUE)
    with pytest.raises(QueueFullError):
        rig.desk.hold(MAX_QUEUE, MAX_QUEUE)
    assert rig.held_at == [rig.desk] * MAX_QUEUE


async def test_a_restarted_pod_is_tried_at_once() -> None:
    rig = Rig()
    rig.put("a", "ready")
    pod = rig.desk.take()
    assert pod is not None
    rig.desk.leave_out(pod)
    rig.desk.give_back(pod)
    held = rig.desk.hold(1, MAX_QUEUE)
    rig.put("a", "loading")
    assert not held.waiter.done()
    rig.put("a", "ready")
    assert held.waiter.done()
    assert read_pod(make_pod(uid="a")) == held.waiter.result()


async def test_idle_counts_from_the_last_end() -> None:
    rig = Rig()
    rig.advance(3)
    assert rig.desk.idle_s() == 3
    rig.put("a", "ready")
    pod = rig.desk.take()
    assert pod is not None
    rig.advance(4)
    assert rig.desk.idle_s() == 0
    rig.desk.give_back(pod)
    rig.advance(5)
    assert rig.desk.idle_s() == 5


async def test_nobody_overtakes_in_the_moment_before_the_timer() -> None:
    rig = Rig()
    rig.put("a", "ready")
    pod = rig.desk.take()
    assert pod is not None
    rig.desk.leave_out(pod)
    rig.desk.give_back(pod)
    first = rig.desk.hold(1, MAX_QUEUE)
    rig.now_s += 1.5  # the pod is to be had again, and its timer has not run yet
    assert rig.desk.take() is None
    rig.advance(0)
    assert first.waiter.done()
