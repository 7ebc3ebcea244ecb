"""What a client controls is bounded: heads, silent connections, unread text."""

import asyncio
import json
from pathlib import Path

import pytest

from emberline_runtime.core.request import FinishReason, Request, Update
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.executors.oracle import OracleExecutor
from emberline_runtime.server import protocol
from emberline_runtime.server.choice import Choice
from emberline_runtime.text.tokenizer import ByteTokenizer
from support.engine_server import completion, serving


async def exchange(url: str, *parts: bytes) -> bytes:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_a_large_head_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        head = b"GET /ready HTTP/1.1\r\nhost: x\r\n"
        answer = await exchange(server.url, head, *[b"x-%d: %b\r\n" % (n, b"y" * 4000) for n in range(20)])
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        answer = await exchange(server.url, head + b"x-endless: ", *[b"y" * 4000] * 20)
        assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
        answer = await exchange(server.url, head + b"x-fine: %b\r\nconnection: close\r\n\r\n" % (b"y" * 4000))
        assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_connection_that_says_too_little_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.1)
    async with serving(tmp_path) as server, asyncio.timeout(5):
        assert await exchange(server.url) == b""
        assert await exchange(server.url, b"GET /ready HTTP/1.1\r\nhost") == b""


async def test_requests_sent_ahead_of_answers_end_with_their_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(step_s=0.005)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(completion(max_tokens=8000)).encode()
        request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        writer.write(request * 2)
        await server.until(lambda: server.process.engine.num_active == 1)
        writer.close()
        await server.until_idle()


async def test_an_offer_of_another_protocol_is_passed_over(tmp_path: Path) -> None:
    """Java's HttpClient makes it with every request."""
    async with serving(tmp_path) as server, asyncio.timeout(5):
        body = json.dumps(completion(max_tokens=2)).encode()
        offer = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n" % (offer, len(body))
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for parts in ((head + b"\r\n" + body,), (head + b"\r\n", body)):  # also the second time on one connection
            for part in parts:
                writer.write(part)
                await asyncio.sleep(0.05)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["choices"]
        writer.close()


class Engine:
    def __init__(self) -> None:
        self.aborted: list[str] = []

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def finish(self, request_id: str, num_tokens: int) -> None:
        raise AssertionError("there is no stop string")


class Outcomes:
    def __init__(self) -> None:
        self.reasons: list[FinishReason] = []

    def on_tokens(self, choice: Choice, num_tokens: int, time_s: float) -> None:
        pass

    def on_end(self, choice: Choice, reason: FinishReason, time_s: float) -> None:
        self.reasons.append(reason)


LIMIT = 1000


def one_choice(engine: Engine, outcomes: Outcomes, limit: int | None) -> Choice:
    return Choice(
        0,
        Request("r", (1,), SamplingSpec(), max_tokens=10_000),
        ByteTokenizer().detokenizer(),
        (),
        engine,
        outcomes,
        lambda: None,
        prompt_param="prompt",
        max_unread_characters=limit,
    )


@pytest.mark.parametrize(("limit", "is_given_up"), [(LIMIT, True), (None, False)])
def test_too_much_unread_text_ends_a_stream_but_not_a_whole_answer(limit: int | None, is_given_up: bool) -> None:
    engine, outcomes = Engine(), Outcomes()
    choice = one_choice(engine, outcomes, limit)
    for step in range(12):
        choice.on_update(Update("r", (97,) * 100, num_output=(step + 1) * 100), 0.0)
    assert (choice.error is not None) == is_given_up
    assert engine.aborted == (["r"] if is_given_up else [])
    assert len(choice.take()) == (LIMIT + 1 if is_given_up else 1200)
    choice.on_update(Update("r", finish=FinishReason.ABORT), 0.0)
    assert outcomes.reasons == [FinishReason.ABORT]


def test_reading_in_time_keeps_a_stream() -> None:
    choice = one_choice(Engine(), Outcomes(), LIMIT)
    for step in range(12):
        choice.on_update(Update("r", (97,) * 100, num_output=(step + 1) * 100), 0.0)
        assert len(choice.take()) == 100
    assert choice.error is None
