"""The hot path over real sockets: the real openai client in front, engines that misbehave on order behind."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from typing import Any

import aiohttp
import openai
import pytest
from yarl import URL

from emberline_contract import http
from emberline_gateway import patrol, proxy, routing
from emberline_gateway.objects import Target
from support.gateway import (
    ANSWER,
    FakeCluster,
    FakeEngine,
    Raw,
    Running,
    eventually,
    make_endpoint,
    make_pod,
    running_engine,
    running_gateway,
    stream_chunks,
)

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TINY = Target("default", "tiny", "default")


class Rig:
    """Gateway, engines, clients."""

    def __init__(self, cluster: FakeCluster, engines: list[FakeEngine], running: Running) -> None:
        self.cluster = cluster
        self.engines = engines
        self.engine = engines[0]
        self.running = running
        self.url = running.url + http.CHAT_COMPLETIONS
        self.http: aiohttp.ClientSession

    @cached_property
    def api(self) -> openai.AsyncOpenAI:
        """Made when asked for: each one reads all certificates there are."""
        return openai.AsyncOpenAI(base_url=self.running.url + "/v1", api_key="none", max_retries=0)

    async def ask(self, **fields: Any) -> str:
        answer = await self.api.chat.completions.create(**{**CHAT, **fields})
        return str(answer.choices[0].message.content)

    async def stream(self, **fields: Any) -> str:
        chunks = await self.api.chat.completions.create(**{**CHAT, **fields}, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def raw(self, **fields: Any) -> tuple[int, bytes]:
        body = io.BytesIO(json.dumps({**CHAT, **fields}).encode())
        async with self.http.post(self.url, data=body) as response:
            return response.status, await response.read()

    def open(self) -> int:
        return len(self.running.gateway.exchanges)

    def held(self) -> int:
        return sum(desk.held for desk in self.running.gateway.demand.answer().endpoints)

    async def metric(self, line: str) -> float:
        async with self.http.get(self.running.url + http.METRICS) as response:
            for shown in (await response.text()).splitlines():
                if shown.startswith(line):
                    return float(shown.rsplit(" ", 1)[1])
        return 0.0


@asynccontextmanager
async def rig(
    *engines: dict[str, Any], endpoint: Raw | None = None, asleep: bool = False, grace_s: float = 5.0
) -> AsyncIterator[Rig]:
    """One pod per engine, ready unless `asleep`."""
    cluster = FakeCluster(endpoint or make_endpoint())
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(running_engine(**options)) for options in engines or ({},)]
        if not asleep:
            cluster.num_replicas[TINY] = len(started)
            for engine in started:
                cluster.put_pod(make_pod(url=engine.url))
        running = await stack.enter_async_context(running_gateway(cluster, grace_s))
        await eventually(lambda: running.gateway.directory.is_complete)
        made = Rig(cluster, started, running)
        made.http = await stack.enter_async_context(aiohttp.ClientSession())
        try:
            yield made
        finally:
            if "api" in made.__dict__:
                await made.api.close()


# Passing through


async def test_the_openai_client_gets_both_kinds_of_answer() -> None:
    async with rig() as at:
        assert await at.ask() == "Hello, world"
        assert await at.stream(model="default/tiny") == "Hello, world"
        assert await at.metric('emberline_gateway_requests_total{code="200",name="tiny",namespace="default"}') == 2


async def test_bodies_and_streams_pass_byte_for_byte() -> None:
    body = b'{ "stream": true,\n "model":"tiny", "messages": [], "big": 1e400, "u": "\\ud83d\xc3\xa9" }'
    async with rig() as at:
        # Cut in the middle of events, and of the blank line between them.
        stream = b"".join(stream_chunks()) + b": a comment\n\n" + b"data: {}\r\n\r\n"
        at.engine.chunks = [stream[:7], stream[7:100], stream[100:101], stream[101:]]
        at.engine.pace_s = 0.005
        async with at.http.post(
            URL(at.url + "?a=1&b=%2F", encoded=True), data=body, headers={"x-emberline-tenant": "me"}
        ) as response:
            assert await response.read() == stream
            assert response.headers["x-engine"] == "1"
            assert "x-emberline-tenant" not in at.engine.calls[0].headers
        assert at.engine.calls[0].body == body
        assert at.engine.calls[0].path == http.CHAT_COMPLETIONS + "?a=1&b=%2F"
        async with at.http.post(at.url, json=CHAT) as response:
            assert json.loads(await response.read()) == ANSWER


async def test_a_large_body_passes_and_a_larger_one_does_not() -> None:
    async with rig() as at:
        frame = len(json.dumps({**CHAT, "pad": ""}))
        assert (await at.raw(pad="x" * (http.MAX_BODY_BYTES - frame)))[0] == 200
        assert len(at.engine.calls[0].body) == http.MAX_BODY_BYTES
        status, body = await at.raw(pad="x" * (http.MAX_BODY_BYTES - frame + 1))
        assert (status, json.loads(body)["error"]["type"]) == (413, "RequestEntityTooLargeError")

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(http.MAX_BODY_BYTES // 65_536 + 2):
                yield b" " * 65_536

        async with at.http.post(at.url, data=endless()) as response:
            assert response.status == 413
        assert len(at.engine.calls) == 1


async def test_bodies_are_bounded_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_BUFFERED_BYTES", 150_000)
    async with rig(asleep=True) as at:
        held = asyncio.create_task(at.raw(pad="x" * 100_000))
        await eventually(lambda: at.held() == 1)
        status, body = await at.raw(pad="x" * 100_000)
        assert (status, json.loads(body)["error"]["type"]) == (503, "ServiceUnavailableError")
        at.cluster.put_pod(make_pod(url=at.engine.url))
        assert (await held)[0] == 200
        for _ in range(3):  # what has ended counts no more
            assert (await at.raw(pad="x" * 100_000))[0] == 200


async def test_request_ids_are_kept_or_made_and_echoed() -> None:
    async with rig() as at:
        async with at.http.post(at.url, json=CHAT, headers={"x-request-id": "mine-1"}) as response:
            assert response.headers.getall("x-request-id") == ["mine-1"]
        async with at.http.post(at.url, json=CHAT, headers={"x-request-id": "no good " * 9}) as response:
            assert response.headers["x-request-id"] == at.engine.calls[1].headers["x-request-id"]
            assert len(response.headers["x-request-id"]) == 32
        async with at.http.post(at.url, json={"model": "nope"}, headers={"x-request-id": "mine-2"}) as response:
            assert (response.status, response.headers["x-request-id"]) == (404, "mine-2")


async def test_the_path_form_leaves_an_absent_model_to_the_engine() -> None:
    async with rig(endpoint=make_endpoint()) as at:
        url = f"{at.running.url}/default/tiny{http.CHAT_COMPLETIONS}"
        for model in ({}, {"model": "tiny"}, {"model": "default/tiny"}):
            async with at.http.post(url, json={"messages": [], **model}) as response:
                assert response.status == 200
        async with at.http.post(url, json={"model": "other"}) as response:
            assert response.status == 404
        assert [json.loads(call.body).get("model") for call in at.engine.calls] == [None, "tiny", "default/tiny"]
        assert {call.path for call in at.engine.calls} == {http.CHAT_COMPLETIONS}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b'{"model": "nope"}', 404, "NotFoundError"),
        (b"{", 400, "BadRequestError"),
        (b'{"messages": []}', 400, "BadRequestError"),
        (b'{"model": 1}', 400, "BadRequestError"),
        (b'{"model": "tiny", "temperature": NaN}', 400, "BadRequestError"),
        (b'{"model": "tiny", "temperature": -Infinity}', 400, "BadRequestError"),
        (b'\xef\xbb\xbf{"model": "tiny"}', 400, "BadRequestError"),
        ('{"model": "tiny"}'.encode("utf-16"), 400, "BadRequestError"),
    ],
)
async def test_what_cannot_be_routed_wakes_nothing(body: bytes, status: int, kind: str) -> None:
    async with rig(asleep=True) as at, at.http.post(at.url, data=body) as response:
        error = json.loads(await response.read())["error"]
        assert (response.status, error["type"], error["code"]) == (status, kind, status)
        assert at.cluster.num_attempts == 0


async def test_only_post() -> None:
    async with rig() as at, at.http.get(at.url) as response:
        assert response.status == 405


async def test_engine_errors_pass_as_they_are() -> None:
    async with rig({"status": 400}) as at:
        for stream in (False, True):
            status, body = await at.raw(stream=stream)
            assert (status, json.loads(body)["error"]["message"]) == (400, "the engine says no")


# Zero


async def test_a_burst_at_zero_wakes_once_and_all_are_answered() -> None:
    async with rig(asleep=True) as at:
        answers = [asyncio.create_task(at.stream() if n % 2 else at.ask()) for n in range(20)]
        await eventually(lambda: at.held() == 20 and at.cluster.wakes)
        at.cluster.put_pod(make_pod(url=at.engine.url))
        assert await asyncio.gather(*answers) == ["Hello, world"] * 20
        assert len(at.cluster.wakes) == at.cluster.num_attempts == 1
        assert await at.metric('emberline_gateway_wakes_total{name="tiny",namespace="default"}') == 1
        assert await at.metric('emberline_gateway_hold_seconds_count{name="tiny",namespace="default"}') == 20
        assert await at.metric('emberline_gateway_held_requests{name="tiny",namespace="default"}') == 0


async def test_held_requests_go_in_order_of_arrival() -> None:
    async with rig(asleep=True) as at:
        answers = []
        for number in range(8):
            answers.append(asyncio.create_task(at.raw(number=number)))
            await eventually(lambda number=number: at.held() == number + 1)  # type: ignore[misc]
        at.cluster.put_pod(make_pod(url=at.engine.url))
        await asyncio.gather(*answers)
        assert [json.loads(call.body)["number"] for call in at.engine.calls] == list(range(8))


async def test_more_than_the_queue_holds_is_429() -> None:
    async with rig(endpoint=make_endpoint(max_queue=2), asleep=True) as at:
        answers = [asyncio.create_task(at.ask()) for _ in range(2)]
        await eventually(lambda: at.held() == 2)
        with pytest.raises(openai.RateLimitError) as refused:
            await at.ask()
        assert refused.value.response.headers["retry-after"] == "5"
        assert "2 requests wait for default/tiny already" in str(refused.value)
        at.cluster.put_pod(make_pod(url=at.engine.url))
        assert await asyncio.gather(*answers) == ["Hello, world"] * 2


async def test_held_for_too_long_is_503_with_the_phase() -> None:
    async with rig(endpoint=make_endpoint(activation_timeout="1s"), asleep=True) as at:
        at.cluster.put_pod(make_pod("pending", message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu"))
        with pytest.raises(openai.InternalServerError) as refused:
            await at.ask()
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["retry-after"] == "5"
        assert "still scheduling (0/1 nodes are available: 1 Insufficient nvidia.com/gpu)" in str(refused.value)


async def test_a_wake_that_fails_is_told_when_the_time_is_over() -> None:
    async with rig(endpoint=make_endpoint(activation_timeout="1s"), asleep=True) as at:
        at.cluster.failure = "scale-up of Deployment default/tiny--default: 403 forbidden"
        with pytest.raises(openai.InternalServerError, match=r"scaling .*403 forbidden"):
            await at.stream()
        assert at.cluster.num_attempts >= 2


async def test_an_endpoint_that_is_not_accepted_is_refused_at_once() -> None:
    async with rig(endpoint=make_endpoint(refusal="no such claim"), asleep=True) as at:
        with pytest.raises(openai.InternalServerError, match="cannot start: InvalidSpec: no such claim"):
            await at.ask()
        assert at.cluster.num_attempts == 0


async def test_heartbeats_name_the_phase_and_only_streams_get_them() -> None:
    async with rig(endpoint=make_endpoint(heartbeat="100ms"), asleep=True) as at:
        plain = asyncio.create_task(at.ask())
        async with at.http.post(at.url, json={**CHAT, "stream": True}) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            assert (await response.content.readuntil(b"\n\n")).startswith(b": waiting phase=scaling waited=0.1")
            at.cluster.put_pod(make_pod("loading", uid="a", url=at.engine.url))
            beats = [await response.content.readuntil(b"\n\n") for _ in range(2)]
            assert beats[1].startswith(b": waiting phase=loading waited=0.3")
            at.cluster.put_pod(make_pod("ready", uid="a", url=at.engine.url))
            rest = await response.content.read()
        assert rest[rest.index(b"data:") :] == b"".join(stream_chunks())
        assert await plain == "Hello, world"


async def test_the_openai_client_reads_over_heartbeats() -> None:
    async with rig(endpoint=make_endpoint(heartbeat="100ms"), asleep=True) as at:
        answer = asyncio.create_task(at.stream())
        await asyncio.sleep(0.35)
        at.cluster.put_pod(make_pod(url=at.engine.url))
        assert await answer == "Hello, world"


async def test_after_the_first_heartbeat_failures_are_events() -> None:
    endpoint = make_endpoint(heartbeat="100ms", activation_timeout="1s")
    async with rig(endpoint=endpoint, asleep=True) as at:
        status, body = await at.raw(stream=True)
        event = body.split(b"\n\n")[-2]
        assert (status, event[:6]) == (200, b"data: ")
        assert json.loads(event[6:])["error"]["code"] == 503
        with pytest.raises(openai.APIError, match="was not ready within 1 s"):
            await at.stream()
        assert await at.metric('emberline_gateway_requests_total{code="503",name="tiny",namespace="default"}') == 2


async def test_after_the_first_heartbeat_an_engines_error_is_an_event() -> None:
    async with rig({"status": 400}, endpoint=make_endpoint(heartbeat="100ms"), asleep=True) as at:
        answer = asyncio.create_task(at.raw(stream=True))
        await asyncio.sleep(0.15)
        at.cluster.put_pod(make_pod(url=at.engine.url))
        status, body = await answer
        error = json.loads(body.split(b"\n\n")[-2][6:])["error"]
        assert (status, error["code"], error["message"]) == (200, 400, "the engine says no")


async def test_who_leaves_while_held_leaves_the_queue_and_the_wake_goes_on() -> None:
    async with rig(asleep=True) as at:
        leaver = asyncio.create_task(at.ask())
        stayer = asyncio.create_task(at.ask())
        await eventually(lambda: at.held() == 2)
        leaver.cancel()
        await eventually(lambda: at.held() == 1)
        at.cluster.put_pod(make_pod(url=at.engine.url))
        assert await stayer == "Hello, world"
        assert (len(at.engine.calls), len(at.cluster.wakes)) == (1, 1)
        assert await at.metric('emberline_gateway_requests_total{code="499",name="tiny",namespace="default"}') == 1


async def test_a_deleted_endpoint_sends_held_requests_away() -> None:
    async with rig(asleep=True) as at:
        answer = asyncio.create_task(at.ask())
        await eventually(lambda: at.held() == 1)
        at.cluster.drop_endpoint(make_endpoint())
        with pytest.raises(openai.NotFoundError):
            await answer


# Engines that fail


async def test_least_outstanding_first() -> None:
    async with rig({}, {}) as at:
        for engine in at.engines:
            engine.gate = asyncio.Event()
        streams = [asyncio.create_task(at.stream()) for _ in range(10)]
        await eventually(lambda: sum(len(engine.calls) for engine in at.engines) == 10)
        assert [len(engine.calls) for engine in at.engines] == [5, 5]
        for engine in at.engines:
            assert engine.gate is not None
            engine.gate.set()
        await asyncio.gather(*streams)


async def test_a_refused_connection_is_tried_elsewhere() -> None:
    async with rig({}, {}) as at:
        await at.engines[0].stop()
        assert [await at.ask() for _ in range(6)] == ["Hello, world"] * 6
        assert len(at.engines[1].calls) == 6


async def test_a_draining_engine_is_left_out_and_the_request_held_again() -> None:
    async with rig({"status": 503}) as at:
        answer = asyncio.create_task(at.stream())
        await eventually(lambda: len(at.engine.calls) >= 1)
        async with running_engine() as fresh:
            at.cluster.put_pod(make_pod(url=fresh.url))
            assert await answer == "Hello, world"
        assert len(at.engine.calls) == 1


async def test_a_request_that_no_engine_can_take_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "LEAVE_OUT_S", 0.01)
    async with rig({"status": 503}, {"status": 503}) as at:
        with pytest.raises(openai.InternalServerError, match="5 times that they cannot take it"):
            await at.ask()
        assert sum(len(engine.calls) for engine in at.engines) == proxy.MAX_BUSY


async def test_a_request_that_is_lost_before_the_first_byte_is_tried_once_more() -> None:
    async with rig({"cut_before_answer": 1}, {"cut_before_answer": 1}) as at:
        with pytest.raises(openai.InternalServerError) as refused:
            await at.ask()
        assert refused.value.response.status_code == 502
        assert [len(engine.calls) for engine in at.engines] == [1, 1]
        at.engines[0].cut_before_answer = 1
        at.engines[1].cut_before_answer = 0
        assert [await at.ask() for _ in range(4)] == ["Hello, world"] * 4


async def test_a_stream_that_breaks_ends_with_an_error_event_after_whole_events() -> None:
    async with rig({"break_after": 2}) as at:
        chunks = stream_chunks()
        at.engine.chunks = [chunks[0], chunks[1] + chunks[2][:20], *chunks[3:]]
        status, body = await at.raw(stream=True)
        assert status == 200
        assert body.startswith(chunks[0] + chunks[1] + b'data: {"error"')
        assert json.loads(body[len(chunks[0] + chunks[1]) + 6 :])["error"]["code"] == 502
        with pytest.raises(openai.APIError, match="lost while it answered"):
            await at.stream()
        assert [len(call.body) > 0 for call in at.engine.calls] == [True] * 2  # never tried again


async def test_a_stuck_engine_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patrol, "ENGINE_SILENCE_S", 0.3)
    monkeypatch.setattr(patrol, "LIVE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(patrol, "ROUND_S", 0.1)
    async with rig({"is_stuck": True}, {}) as at:
        assert await asyncio.gather(*(at.ask() for _ in range(4))) == ["Hello, world"] * 4
        assert len(at.engines[1].calls) == 4
        assert all(call.was_cancelled for call in at.engines[0].calls)


async def test_an_engine_that_fell_silent_after_it_refused_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patrol, "ENGINE_SILENCE_S", 0.1)
    monkeypatch.setattr(patrol, "LIVE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(patrol, "ROUND_S", 0.05)
    monkeypatch.setattr(routing, "LEAVE_OUT_S", 60.0)
    async with rig({"status": 503}, {}) as at:
        at.cluster.drop_pod(at.cluster.pod_of(at.engines[1].url))
        answer = asyncio.create_task(at.ask())
        await eventually(lambda: at.held() == 1 and at.engine.calls)
        at.engine.is_stuck = True
        await asyncio.sleep(0.5)
        at.cluster.put_pod(make_pod(url=at.engines[1].url))
        assert await answer == "Hello, world"


async def test_a_slow_engine_that_lives_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patrol, "ENGINE_SILENCE_S", 0.1)
    monkeypatch.setattr(patrol, "ROUND_S", 0.05)
    async with rig() as at:
        at.engine.gate = asyncio.Event()
        answer, stream = asyncio.create_task(at.ask()), asyncio.create_task(at.stream())
        await asyncio.sleep(0.5)
        at.engine.gate.set()
        assert (await answer, await stream) == ("Hello, world", "Hello, world")
        assert len(at.engine.calls) == 2


async def test_an_engine_that_gets_stuck_in_mid_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patrol, "ENGINE_SILENCE_S", 0.2)
    monkeypatch.setattr(patrol, "LIVE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(patrol, "ROUND_S", 0.05)
    async with rig() as at:
        at.engine.gate = asyncio.Event()
        answer = asyncio.create_task(at.raw(stream=True))
        await eventually(lambda: at.engine.calls)
        at.engine.is_stuck = True
        _, body = await answer
        assert b"the engine was lost while it answered" in body


# Clients that leave


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_engines_work(*, stream: bool) -> None:
    async with rig() as at:
        at.engine.gate = asyncio.Event()
        answer = asyncio.create_task(at.raw(stream=stream))
        await eventually(lambda: at.engine.calls)
        answer.cancel()
        await eventually(lambda: at.engine.calls[0].was_cancelled)
        await eventually(lambda: at.open() == 0)
        assert await at.metric('emberline_gateway_dispatched_requests{name="tiny",namespace="default"}') == 0


async def test_a_client_that_leaves_while_it_sends_its_body() -> None:
    async with rig() as at:
        host, port = at.running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        await eventually(lambda: at.open() == 1)
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: at.open() == 0)


async def test_requests_sent_ahead_of_answers_end_with_their_connection() -> None:
    async with rig() as at:
        at.engine.gate = asyncio.Event()
        host, port = at.running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(CHAT).encode()
        request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        writer.write(request * 2)
        await eventually(lambda: at.engine.calls)
        writer.close()
        await eventually(lambda: at.engine.calls[0].was_cancelled)
        await eventually(lambda: at.open() == 0)


async def test_an_offer_of_another_protocol_is_passed_over() -> None:
    """Java's HttpClient makes it with every request."""
    async with rig() as at:
        host, port = at.running.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(CHAT).encode()
        offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (offer, len(body))
        for parts in ((head + body,), (head, body)):  # also the second time on one connection
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.05)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length)) == ANSWER
        assert [json.loads(call.body) for call in at.engine.calls] == [CHAT, CHAT]
        writer.close()


# The end


async def test_stopping_finishes_what_runs_and_ends_the_rest_with_an_event() -> None:
    async with rig(grace_s=5.0) as at:
        at.engine.gate = asyncio.Event()
        first, second = asyncio.create_task(at.raw(stream=True)), asyncio.create_task(at.raw(stream=True))
        await eventually(lambda: len(at.engine.calls) == 2)
        stopping = asyncio.create_task(at.running.gateway.stop(0.2, 0.5))
        await asyncio.sleep(0.05)
        async with at.http.get(at.running.url + http.READY) as response:
            assert response.status == 503
        await stopping
        for _, body in await asyncio.gather(first, second):
            assert body.startswith(stream_chunks()[0])
            assert json.loads(body[len(stream_chunks()[0]) + 6 :])["error"]["code"] == 503


async def test_stopping_waits_for_streams() -> None:
    async with rig(grace_s=5.0) as at:
        at.engine.gate = asyncio.Event()
        answer = asyncio.create_task(at.raw(stream=True))
        held = asyncio.create_task(at.raw())
        await eventually(lambda: len(at.engine.calls) == 2)
        stopping = asyncio.create_task(at.running.gateway.stop(0.0, 5.0))
        await asyncio.sleep(0.3)
        assert not stopping.done()
        at.engine.gate.set()
        assert (await answer)[1] == b"".join(stream_chunks())
        assert (await held)[0] == 200
        await stopping
