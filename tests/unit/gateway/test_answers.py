"""Bytes that no engine wrote, headers that cross, and what is read of a request."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline_contract.health import WaitPhase
from emberline_gateway import answers, headers
from emberline_gateway.answers import RefusalError, WholeEvents, carried_error, heartbeat
from emberline_gateway.holding import Wait
from emberline_gateway.question import Question, Route, match_route, read_question


@given(
    events=st.lists(st.binary(max_size=12).map(lambda b: b"d" + b.replace(b"\n", b"") + b"\n\n"), max_size=8),
    cuts=st.lists(st.integers(0, 120), max_size=10),
    rest=st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"")),
)
def test_events_come_whole_and_nothing_is_changed(events: list[bytes], cuts: list[int], rest: bytes) -> None:
    stream = b"".join(events) + rest
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    cutter, sent = WholeEvents(), b""
    for begin, end in itertools.pairwise(bounds):
        out = cutter.feed(stream[begin:end])
        assert not out or out.endswith(b"\n\n")
        sent += out
    assert sent == b"".join(events)
    assert cutter.finish() == rest


def test_an_endless_event_flows() -> None:
    cutter = WholeEvents(max_bytes=10)
    assert cutter.feed(b"123456") == b""
    assert cutter.feed(b"789012") == b"123456789012"
    assert cutter.feed(b"\n\nx") == b"\n\n"
    assert cutter.finish() == b"x"


def test_heartbeat_is_a_comment() -> None:
    beat = heartbeat(Wait(WaitPhase.LOADING, "secret\n\ndata: x"), 12.34)
    assert beat == b": waiting phase=loading waited=12.3s\n\n"
    beat = heartbeat(Wait(WaitPhase.STARTING, "CrashLoopBackOff back-off 10s: it wrote a secret"), 1.0)
    assert beat == b": waiting phase=starting reason=CrashLoopBackOff waited=1.0s\n\n"


def test_refusals() -> None:
    refusal = answers.queue_full("default/tiny", 100)
    assert json.loads(refusal.body())["error"] == {
        "message": str(refusal),
        "type": "RateLimitError",
        "param": None,
        "code": 429,
    }
    assert (b"retry-after", b"5") in refusal.headers()
    assert all(name != b"retry-after" for name, _ in answers.bad_gateway("x").headers())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "bad", "type": "BadRequestError", "param": "top_p", "code": 400}}', "bad"),
        (b'{"error": "text"}', "the engine answered 400 without an error body"),
        (b"\xff", "the engine answered 400 without an error body"),
        (b"[]", "the engine answered 400 without an error body"),
    ],
)
def test_an_engines_error_is_carried_into_a_stream(body: bytes, message: str) -> None:
    error = json.loads(carried_error(400, body))["error"]
    assert (error["message"], error["code"]) == (message, 400)


def test_headers_to_the_engine() -> None:
    given_headers = [
        (b"host", b"gateway"),
        (b"content-type", b"application/json"),
        (b"accept", b"*/*"),
        (b"traceparent", b"00-1"),
        (b"authorization", b"Bearer secret"),
        (b"cookie", b"secret"),
        (b"x-emberline-tenant", b"somebody-else"),
        (b"x-emberline-usage", b"1"),
        (b"connection", b"keep-alive, x-mine"),
        (b"keep-alive", b"5"),
        (b"x-mine", b"1"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"x-request-id", b"theirs"),
    ]
    assert headers.to_engine(given_headers, "ours") == [
        ("content-type", "application/json"),
        ("accept", "*/*"),
        ("traceparent", "00-1"),
        ("x-request-id", "ours"),
    ]


def test_headers_to_the_client() -> None:
    raw = [
        (b"Content-Type", b"text/event-stream"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close"),
        (b"Date", b"now"),
        (b"Server", b"engine"),
        (b"X-Request-Id", b"id"),
        (b"X-Emberline-Internal", b"1"),
        (b"Retry-After", b"3"),
    ]
    assert headers.to_client(raw, "id") == [
        (b"content-type", b"text/event-stream"),
        (b"retry-after", b"3"),
        (b"x-request-id", b"id"),
    ]


@pytest.mark.parametrize(
    ("value", "kept"),
    [(b"abc-1.2_3:4", True), (b"", False), (b"a" * 129, False), (b"a b", False), (b'x"y', False), (b"\xff", False)],
)
def test_request_ids_are_bounded(value: bytes, *, kept: bool) -> None:
    assert headers.request_id([(b"x-request-id", value)], lambda: "made") == (value.decode() if kept else "made")


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/chat/completions", Route("/v1/chat/completions")),
        ("/v1/completions", Route("/v1/completions")),
        ("/ns/name/v1/chat/completions", Route("/v1/chat/completions", ("ns", "name"))),
        ("/ns/name/v1/completions", Route("/v1/completions", ("ns", "name"))),
        ("/v1/models", None),
        ("/name/v1/completions", None),
        ("/a/b/c/v1/completions", None),
        ("//name/v1/completions", None),
        ("/ns//v1/completions", None),
        ("/v1/completions/", None),
        ("x/ns/name/v1/completions", None),
        ("/", None),
    ],
)
def test_routes(path: str, route: Route | None) -> None:
    assert match_route(path) == route


@pytest.mark.parametrize(
    ("body", "question"),
    [
        (b'{"model": "m", "stream": true}', Question("m", is_stream=True)),
        (b'{"model": "m", "stream": "true"}', Question("m", is_stream=False)),
        (b'{"messages": []}', Question(None, is_stream=False)),
    ],
)
def test_reads_two_fields(body: bytes, question: Question) -> None:
    assert read_question(body) == question


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff\xff", b'{"model": 3}', b'{"model": "%s"}' % (b"m" * 257), b"[" * 100_000, b"1" * 5_000],
)
def test_refuses_what_no_engine_could_read(body: bytes) -> None:
    with pytest.raises(RefusalError) as refused:
        read_question(body)
    assert refused.value.status == 400
