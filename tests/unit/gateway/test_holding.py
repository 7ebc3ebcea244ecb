"""The queue, the gate and the words for waiting; the queue against a plain model of itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_contract.health import WaitPhase
from emberline_gateway.holding import Gate, Held, HoldQueue, Wait, decide_wait, timeout_message
from emberline_gateway.objects import read_endpoint, read_pod
from support.gateway import make_endpoint, make_pod

STEPS = st.lists(
    st.one_of(
        st.just(("arrive", 0)),
        st.just(("release", 0)),
        st.tuples(st.just("leave"), st.integers(0, 30)),
        st.tuples(st.just("return"), st.integers(0, 30)),
    ),
    max_size=80,
)


@given(steps=STEPS, max_queue=st.integers(1, 5))
def test_first_in_first_out_bounded_and_nobody_lost(steps: list[tuple[str, int]], max_queue: int) -> None:
    queue: HoldQueue[str] = HoldQueue()
    arrived: list[Held[str]] = []
    waiting: list[Held[str]] = []  # the model: in order of arrival
    released: list[Held[str]] = []
    for step, which in steps:
        if step == "arrive":
            held = Held(len(arrived), "")
            arrived.append(held)
            assert queue.enter(held, max_queue) == (len(waiting) < max_queue)
            waiting += [held] if len(waiting) < max_queue else []
        elif step == "release" and waiting:
            first = waiting.pop(0)
            assert queue.first() is first
            assert queue.release() is first
            released.append(first)
        elif step == "leave" and arrived:
            held = arrived[which % len(arrived)]
            assert queue.leave(held) == (held in waiting)
            waiting = [other for other in waiting if other is not held]
        elif step == "return" and released:  # its engine refused: it takes its old place
            held = released.pop(which % len(released))
            assert queue.enter(held, max_queue) == (len(waiting) < max_queue)
            waiting = sorted([*waiting, held]) if len(waiting) < max_queue else waiting
        assert len(queue) == len(waiting) <= max_queue
    assert [queue.release() for _ in range(len(queue))] == waiting
    assert queue.first() is None


def test_gate() -> None:
    gate = Gate()
    assert not gate.is_closed(0.0)
    assert gate.close(3, 15.0, 0.0)
    assert gate.is_closed(14.9)
    assert not gate.close(2, 15.0, 1.0)  # older than the one in force
    assert not gate.reopen(2, 1.0)
    assert gate.is_closed(1.0)
    assert gate.close(3, 15.0, 10.0)  # repeated: extended
    assert gate.is_closed(24.9)
    assert not gate.is_closed(25.0)
    assert gate.close(1, 15.0, 30.0)  # epochs count only among closes in force: an operator may start anew
    assert gate.reopen(1, 31.0)
    assert not gate.is_closed(31.0)
    assert gate.reopen(0, 32.0)  # nothing to open


@pytest.mark.parametrize(
    ("states", "error", "phase", "text"),
    [
        ((), "", WaitPhase.SCALING, "scaling"),
        ((), "403 no", WaitPhase.SCALING, "scaling (403 no)"),
        (("pending",), "", WaitPhase.SCHEDULING, "scheduling (why)"),
        (("pending", "starting"), "", WaitPhase.STARTING, "starting (ContainerCreating why)"),
        (("starting", "loading", "pending"), "", WaitPhase.LOADING, "loading"),
    ],
)
def test_what_is_waited_for(states: tuple[str, ...], error: str, phase: WaitPhase, text: str) -> None:
    wait = decide_wait([read_pod(make_pod(state, message="why")) for state in states], error)
    assert (wait.phase, str(wait)) == (phase, text)


def test_timeout_says_how_long_what_and_where_to_look() -> None:
    said = timeout_message(read_endpoint(make_endpoint(activation_timeout="90s")), Wait(WaitPhase.LOADING))
    assert "default/tiny was not ready within 90 s" in said
    assert "still loading" in said
    assert "kubectl describe iep -n default tiny" in said
