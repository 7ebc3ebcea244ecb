"""The choice of a pod, as tables."""

from __future__ import annotations

import pytest

from emberline_gateway.objects import read_pod
from emberline_gateway.routing import MAX_LEAVE_OUT_S, Load, choose
from support.gateway import make_pod

PODS = tuple(read_pod(make_pod(uid=uid)) for uid in "abc")
A, B, C = PODS


def load_of(outstanding: str) -> Load:
    load = Load()
    for uid in outstanding:
        load.add(PODS["abc".index(uid)])
    return load


@pytest.mark.parametrize(
    ("outstanding", "left_out", "turn", "avoid", "expected"),
    [
        ("", "", 0, "", "a"),
        ("", "", 1, "", "b"),
        ("", "", 5, "", "c"),
        ("aab", "", 0, "", "c"),
        ("aabbc", "", 7, "", "c"),
        ("abbc", "", 0, "", "a"),
        ("abbc", "", 1, "", "c"),
        ("bc", "a", 0, "", "b"),
        ("bbc", "a", 0, "", "c"),
        ("", "abc", 0, "", None),
        ("", "", 0, "a", "b"),
        ("bbc", "", 0, "a", "c"),
        ("", "bc", 0, "a", "a"),  # the only one there is
    ],
)
def test_choose(outstanding: str, left_out: str, turn: int, avoid: str, expected: str | None) -> None:
    load = load_of(outstanding)
    for uid in left_out:
        load.leave_out(PODS["abc".index(uid)], 10.0)
    chosen = choose(PODS, load, 10.5, turn, avoid)
    assert (chosen.uid if chosen else None) == expected


def test_no_pods_no_choice() -> None:
    assert choose((), Load(), 0.0, 3) is None


def test_counts_come_back_to_nothing() -> None:
    load = load_of("aab")
    for pod in (A, A, B):
        load.remove(pod)
    assert [load.num_outstanding(pod) for pod in PODS] == [0, 0, 0]
    with pytest.raises(KeyError):
        load.remove(C)


def test_leaving_out_doubles_and_is_forgiven() -> None:
    load, now_s, pauses = Load(), 0.0, []
    for _ in range(6):
        pause_s = load.leave_out(A, now_s)
        pauses.append(pause_s)
        assert load.is_left_out(A, now_s + pause_s / 2)
        now_s += pause_s
        assert not load.is_left_out(A, now_s)
    assert pauses == [1.0, 2.0, 4.0, 8.0, MAX_LEAVE_OUT_S, MAX_LEAVE_OUT_S]
    load.forgive("a")
    assert load.leave_out(A, now_s) == 1.0


def test_many_requests_that_see_one_failure_count_once() -> None:
    load = Load()
    assert [load.leave_out(A, at) for at in (0.0, 0.25, 0.5)] == [1.0, 0.75, 0.5]
    assert load.leave_out(A, 1.0) == 2.0
