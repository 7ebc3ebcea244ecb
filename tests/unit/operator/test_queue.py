"""When which key is worked on, and what failures do."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_operator.errors import ConflictError, LostLeadershipError, UnavailableError
from emberline_operator.reconcile.queue import MAX_BUSY_PASSES, Outcome, Queue
from emberline_operator.reconcile.schedule import FIRST_RETRY_S, LAST_RETRY_S, MAX_VOID, Schedule, retry_delay_s


def test_the_earliest_wish_counts() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 10)
    schedule.add("a", 5)
    schedule.add("a", 7)
    assert schedule.next_due_s() == 5
    assert schedule.take(4) is None
    assert schedule.take(5) == "a"
    assert schedule.take(100) is None, "once for all wishes"


def test_a_key_is_never_worked_on_twice_at_once() -> None:
    schedule: Schedule[str] = Schedule()
    schedule.add("a", 0)
    assert schedule.take(0) == "a"
    schedule.add("a", 0)
    assert schedule.take(0) is None
    assert schedule.next_due_s() is None
    schedule.done("a")
    assert schedule.take(0) == "a", "what came meanwhile is not lost"
    schedule.done("a")
    assert schedule.take(0) is None
    assert len(schedule) == 0


def test_first_due_first_served() -> None:
    schedule: Schedule[str] = Schedule()
    for key, due in (("a", 3), ("b", 1), ("c", 1), ("d", 2)):
        schedule.add(key, due)
    assert [schedule.take(10) for _ in range(5)] == ["b", "c", "d", "a", None]
    assert schedule.num_running == 4


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "done"]), st.sampled_from("abc"), st.integers(0, 5)), max_size=60
    )
)
def test_nothing_is_lost_and_nothing_runs_twice(steps: list[tuple[str, str, int]]) -> None:
    schedule: Schedule[str] = Schedule()
    now, running, wished = 0, set(), set()
    for what, key, number in steps:
        if what == "add":
            schedule.add(key, now + number)
            wished.add(key)
        elif what == "take":
            now += number
            taken = schedule.take(now)
            if taken is not None:
                assert taken not in running
                assert taken in wished
                running.add(taken)
                wished.discard(taken)
        elif key in running:
            running.discard(key)
            schedule.done(key)
    for key in running:
        schedule.done(key)
    left = set()
    while (taken := schedule.take(now + 100)) is not None:
        left.add(taken)
    assert left == wished


def test_overtaken_wishes_are_forgotten() -> None:
    schedule: Schedule[str] = Schedule()
    for now in range(20 * MAX_VOID):
        schedule.add("a", now + 3600)
        schedule.add("a", now)
        assert schedule.take(now) == "a"
        schedule.done("a")
    schedule.add("b", 5.0)
    schedule.add("c", 5.0)
    assert len(schedule._heap) <= MAX_VOID + 10
    assert [schedule.take(1e9) for _ in range(3)] == ["b", "c", None]


def test_retries_back_off() -> None:
    delays = [retry_delay_s(n) for n in range(1, 12)]
    assert delays[0] == FIRST_RETRY_S
    assert all(later >= sooner for sooner, later in itertools.pairwise(delays))
    assert delays[-1] == retry_delay_s(10_000) == LAST_RETRY_S


class Clock:
    """Time that moves when the test says so; what waits for it is told by an enqueue."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


KEY = ("team", "tiny")


async def passes(
    work: Callable[[int], Outcome], *, num: int, clock: Clock, queue_of: list[Queue] | None = None
) -> list[float]:
    """Times of the first `num` passes over one key, when time jumps to whatever the queue waits for."""
    times: list[float] = []
    enough = asyncio.Event()

    async def timed(key: tuple[str, str]) -> Outcome:
        assert key == KEY
        times.append(clock.now_s)
        if len(times) >= num:
            enough.set()
            await asyncio.Event().wait()
        return work(len(times))

    queue = Queue(timed, clock)
    if queue_of is not None:
        queue_of.append(queue)
    queue.enqueue(KEY)
    running = asyncio.create_task(queue.run(4))
    async with asyncio.timeout(5):
        while not enough.is_set():
            for _ in range(6):
                await asyncio.sleep(0)
            due = queue._schedule.next_due_s()
            if due is not None and due > clock.now_s:
                clock.now_s = due
                queue._wake.set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return times


async def test_failures_back_off_and_a_success_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    def work(number: int) -> Outcome:
        if number <= 3:
            raise UnavailableError("GET /x", 503, "not now")
        if number == 4:
            return Outcome(again_s=10)
        raise ConflictError("PUT /x", 409, "changed")

    with caplog.at_level(logging.INFO):
        times = await passes(work, num=6, clock=Clock())
    gaps = [later - sooner for sooner, later in itertools.pairwise(times)]
    assert gaps == pytest.approx([0.2, 0.4, 0.8, 10, 0.2])
    assert "GET /x: not now" in caplog.text


async def test_a_pass_that_has_written_is_followed_at_once_but_not_for_ever() -> None:
    times = await passes(lambda _: Outcome(has_written=True), num=MAX_BUSY_PASSES + 4, clock=Clock())
    assert times[: MAX_BUSY_PASSES + 1] == [0.0] * (MAX_BUSY_PASSES + 1)
    assert times[MAX_BUSY_PASSES + 1] == pytest.approx(0.2)
    assert times[MAX_BUSY_PASSES + 3] == pytest.approx(0.2 + 0.4 + 0.8)


async def test_an_unforeseen_failure_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def work(number: int) -> Outcome:
        raise ZeroDivisionError(f"pass {number}")

    times = await passes(work, num=3, clock=Clock())
    assert times == pytest.approx([0, 0.2, 0.6])
    assert "ZeroDivisionError" in caplog.text


async def test_who_is_waited_for_goes_before_all_that_is_overdue() -> None:
    served: list[tuple[str, str]] = []

    async def work(key: tuple[str, str]) -> Outcome:
        served.append(key)
        return Outcome()

    queue = Queue(work, lambda: 0.0)
    for number in range(5):
        queue.enqueue(("n", f"look-{number}"), -10.0)
    queue.enqueue_first(("n", "changed"))
    running = asyncio.create_task(queue.run(1))
    for _ in range(50):
        await asyncio.sleep(0)
    assert served[0] == ("n", "changed")
    assert len(served) == 6
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_keys_run_side_by_side_up_to_the_number_of_workers() -> None:
    running: set[tuple[str, str]] = set()
    most = 0
    release = asyncio.Event()

    async def work(key: tuple[str, str]) -> Outcome:
        nonlocal most
        running.add(key)
        most = max(most, len(running))
        await release.wait()
        running.discard(key)
        return Outcome()

    queue = Queue(work, lambda: 0.0)
    for number in range(10):
        queue.enqueue(("team", str(number)))
    task = asyncio.create_task(queue.run(3))
    for _ in range(10):
        await asyncio.sleep(0)
    assert most == 3
    assert len(queue) == 10
    release.set()
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(queue) == 0
    assert most == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_queue_begins_nothing_and_waits_for_what_runs() -> None:
    begun: list[tuple[str, str]] = []
    release = asyncio.Event()

    async def work(key: tuple[str, str]) -> Outcome:
        begun.append(key)
        await release.wait()
        return Outcome(has_written=True)

    queue = Queue(work, lambda: 0.0)
    for number in range(5):
        queue.enqueue(("team", str(number)))
    task = asyncio.create_task(queue.run(2))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(begun) == 2
    assert not await queue.close(0.0), "two run"
    closing = asyncio.create_task(queue.close(60))
    await asyncio.sleep(0)
    assert not closing.done()
    release.set()
    assert await closing
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(begun) == 2, "neither the rest, nor again what has written"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_queue_that_never_ran_closes_at_once() -> None:
    queue = Queue(lambda _: asyncio.sleep(0, Outcome()), lambda: 0.0)
    queue.enqueue(KEY)
    assert await queue.close(0.0)


async def test_a_lost_leadership_ends_the_queue_with_all_that_runs() -> None:
    cut: list[str] = []

    async def work(key: tuple[str, str]) -> Outcome:
        if key == KEY:
            raise LostLeadershipError("gone")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cut.append(key[1])
            raise
        raise AssertionError

    queue = Queue(work, lambda: 0.0)
    queue.enqueue(("team", "other"))
    queue.enqueue(KEY)
    with pytest.raises(ExceptionGroup) as raised:
        await queue.run(4)
    assert raised.group_contains(LostLeadershipError)
    assert cut == ["other"]
