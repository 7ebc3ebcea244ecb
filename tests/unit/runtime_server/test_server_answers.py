"""Answers over HTTP by the real client: streamed and whole, their shapes, usage, stops and cut characters."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline_runtime.core.request import FinishReason, Request, Update
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.executors.oracle import OracleExecutor, expected_tokens
from emberline_runtime.server.choice import Choice
from emberline_runtime.text.tokenizer import ByteTokenizer
from support.engine_server import (
    ALIAS,
    MODEL,
    EngineServer,
    chat,
    completion,
    serving,
    sse_events,
)

PRINTABLE = range(32, 127)
EMOJI = list("😀é你a\xff".encode())
patient = settings(deadline=None, max_examples=60)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EngineServer]:
    async with serving(tmp_path) as server:
        yield server


def client(server: EngineServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def oracle_text(prompt: str, max_tokens: int, **sampling: Any) -> str:
    """What the oracle's definition demands for a completion over bytes."""
    tokens = [ByteTokenizer.BOS, *prompt.encode()]
    return bytes(expected_tokens(tokens, max_tokens, SamplingSpec(**sampling), PRINTABLE)).decode()


async def test_a_chat_answer(server: EngineServer) -> None:
    async with client(server) as api:
        answer = await api.chat.completions.create(
            model=ALIAS, messages=[{"role": "user", "content": "hi"}], max_tokens=12, temperature=0
        )
    text = bytes(expected_tokens(list(b"user: hi\nassistant: "), 12, SamplingSpec(temperature=0), PRINTABLE)).decode()
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", text, "length")
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (20, 12, 32)


async def test_a_stream_says_what_the_whole_answer_says(server: EngineServer) -> None:
    async with client(server) as api:
        stream = await api.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            max_completion_tokens=40,
            temperature=0.7,
            seed=11,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        whole = await api.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], max_tokens=40, temperature=0.7, seed=11
        )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-2].choices[0].delta.content is None
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 40


async def test_the_events_of_a_stream(server: EngineServer) -> None:
    body = chat(stream=True, max_tokens=5)
    async with server.http.post(server.url + "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = sse_events(await answer.text())
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert all("usage" not in chunk and len(chunk["choices"]) == 1 for chunk in chunks)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(delta["content"] for delta in deltas[1:-1]), "no empty deltas"
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("options", [{}, {"include_usage": False}])
async def test_no_usage_chunk_unless_asked_for(server: EngineServer, options: dict[str, bool]) -> None:
    body = completion(stream=True, stream_options=options, max_tokens=2)
    async with server.http.post(server.url + "/v1/completions", json=body) as answer:
        assert "usage" not in await answer.text()


async def test_a_usage_chunk_and_null_before_it(server: EngineServer) -> None:
    body = completion(stream=True, stream_options={"include_usage": True}, max_tokens=3)
    async with server.http.post(server.url + "/v1/completions", json=body) as answer:
        chunks = [json.loads(event) for event in sse_events(await answer.text())[:-1]]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 3 + 3


async def test_completions_of_several_prompts(server: EngineServer) -> None:
    async with client(server) as api:
        whole = await api.completions.create(model=MODEL, prompt=["abc", "x"], max_tokens=6, temperature=0)
        ids = await api.completions.create(
            model=MODEL, prompt=[[256, *b"abc"], [256, *b"x"]], max_tokens=6, temperature=0
        )
        stream = await api.completions.create(
            model=MODEL, prompt=["abc", "x"], max_tokens=6, temperature=0, stream=True
        )
        streamed = {0: "", 1: ""}
        async for chunk in stream:
            streamed[chunk.choices[0].index] += chunk.choices[0].text
    texts = [oracle_text("abc", 6, temperature=0), oracle_text("x", 6, temperature=0)]
    assert [choice.text for choice in whole.choices] == texts
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert [choice.text for choice in ids.choices] == texts
    assert list(streamed.values()) == texts
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6, 12)


async def test_defaults_of_the_limit(tmp_path: Path) -> None:
    async with serving(tmp_path, max_model_len=64) as server:
        _, whole = await server.post("/v1/completions", completion("abc"))
        assert whole["usage"]["completion_tokens"] == 16
        _, whole = await server.post("/v1/completions", completion("x" * 60))
        assert whole["usage"]["completion_tokens"] == 3
        _, whole = await server.post("/v1/chat/completions", chat("hi"))
        assert whole["usage"]["total_tokens"] == 64
        assert whole["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_that_fits_exactly_and_one_that_does_not(tmp_path: Path) -> None:
    async with serving(tmp_path, max_model_len=64) as server:
        status, _ = await server.post("/v1/completions", completion("x" * 59, max_tokens=4))
        assert status == 200
        status, body = await server.post("/v1/completions", completion("x" * 60, max_tokens=4))
        assert status == 400
        assert "65" in body["error"]["message"]
        assert "64" in body["error"]["message"]
        status, body = await server.post("/v1/completions", completion("x" * 64))
        assert (status, body["error"]["param"]) == (400, "prompt")
        status, body = await server.post("/v1/chat/completions", chat("x" * 5000))
        assert (status, body["error"]["param"]) == (400, "messages")
        await server.until_idle()


async def test_cached_tokens_are_counted_and_salted_by_tenant(server: EngineServer) -> None:
    async def cached(tenant: str) -> int:
        headers = {"x-emberline-tenant": tenant}
        _, body = await server.post("/v1/completions", completion("y" * 50, max_tokens=1), headers)
        return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [await cached("a"), await cached("a"), await cached("b"), await cached("b")] == [0, 48, 0, 48]


async def test_temperature_zero_ignores_the_filters_and_top_k_one_is_greedy(server: EngineServer) -> None:
    async def text(**parameters: Any) -> str:
        _, body = await server.post("/v1/completions", completion("q", max_tokens=8, **parameters))
        return str(body["choices"][0]["text"])

    assert (
        await text(temperature=0) == await text(temperature=0, top_p=0.5, top_k=3) == oracle_text("q", 8, temperature=0)
    )
    assert await text(seed=3) == oracle_text("q", 8, seed=3) == await text(seed=3, top_k=-1)
    assert await text(seed=-1) == oracle_text("q", 8, seed=2**64 - 1)


async def test_stop_strings_token_ids_and_their_reasons(server: EngineServer) -> None:
    text = oracle_text("s", 30, temperature=0)
    cut = 10
    stop = text[cut : cut + 3]
    for stream in (False, True):
        body = completion("s", max_tokens=30, temperature=0, stop=[stop, "never there"], stream=stream)
        async with server.http.post(server.url + "/v1/completions", json=body) as answer:
            content = await answer.text()
        if stream:
            choices = [json.loads(event)["choices"][0] for event in sse_events(content)[:-1]]
            shown = "".join(choice["text"] for choice in choices)
            last = choices[-1]
        else:
            last = json.loads(content)["choices"][0]
            shown = last["text"]
            assert json.loads(content)["usage"]["completion_tokens"] == text.find(stop) + 3
        assert shown == text[: text.find(stop)]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    token = ord(text[5])
    _, whole = await server.post(
        "/v1/completions", completion("s", max_tokens=30, temperature=0, stop_token_ids=[token])
    )
    choice = whole["choices"][0]
    assert choice["text"] == text[: text.index(chr(token))]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", token)
    assert whole["usage"]["completion_tokens"] == text.index(chr(token)) + 1
    await server.until_idle()


async def test_min_tokens_puts_stops_off(server: EngineServer) -> None:
    text = oracle_text("m", 30, temperature=0)
    body = completion("m", max_tokens=30, temperature=0, stop=text[2], min_tokens=10)
    _, whole = await server.post("/v1/completions", body)
    position = text.find(text[2], 10)
    assert whole["choices"][0]["text"] == (text if position < 0 else text[:position])


@pytest.mark.parametrize("ignored", [False, True])
async def test_eos_ends_an_answer_and_is_not_shown(tmp_path: Path, ignored: bool) -> None:
    executor = OracleExecutor(alphabet=[97, ByteTokenizer.EOS])
    async with serving(tmp_path, executor) as server:
        _, whole = await server.post("/v1/completions", completion("e", max_tokens=60, ignore_eos=ignored, seed=1))
    choice = whole["choices"][0]
    assert set(choice["text"]) <= {"a"}
    assert choice["finish_reason"] == ("length" if ignored else "stop")
    assert choice["stop_reason"] is None
    assert (whole["usage"]["completion_tokens"] == 60) == ignored


async def test_cut_characters_never_show_in_a_stream(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(alphabet=EMOJI, step_s=0.002)) as server:
        for seed in range(3):
            request = completion("u", max_tokens=60, seed=seed)
            _, whole = await server.post("/v1/completions", request)
            async with server.http.post(server.url + "/v1/completions", json=request | {"stream": True}) as answer:
                pieces = [json.loads(event)["choices"][0]["text"] for event in sse_events(await answer.text())[:-1]]
            tokens = expected_tokens([256, *b"u"], 60, SamplingSpec(seed=seed), EMOJI)
            assert "".join(pieces) == bytes(tokens).decode("utf-8", "replace") == whole["choices"][0]["text"]
            assert len(pieces) > 5


class Engine:
    """Records what a choice asks of the engine."""

    def __init__(self) -> None:
        self.finished: int | None = None

    def abort(self, request_id: str) -> None:
        raise AssertionError("nothing is to be aborted")

    def finish(self, request_id: str, num_tokens: int) -> None:
        self.finished = num_tokens


class Nobody:
    def on_tokens(self, choice: Choice, num_tokens: int, time_s: float) -> None:
        pass

    def on_end(self, choice: Choice, reason: FinishReason, time_s: float) -> None:
        pass


@patient
@given(
    st.lists(st.sampled_from(EMOJI), min_size=1, max_size=40),
    st.lists(st.sampled_from(["a", "aa", "é", "😀a", "你é", "\ufffd"]), max_size=3, unique=True).map(tuple),
    st.lists(st.integers(1, 5), min_size=40, max_size=40),
)
def test_text_does_not_depend_on_how_tokens_are_batched(
    tokens: list[int], stops: tuple[str, ...], sizes: list[int]
) -> None:
    """Streamed in any chunks, or whole: the same text, ending and number of tokens."""

    def run(batches: list[list[int]]) -> tuple[str, object, int, int | None]:
        engine = Engine()
        request = Request("r", (1,), SamplingSpec(), max_tokens=len(tokens))
        choice = Choice(
            0, request, ByteTokenizer().detokenizer(), stops, engine, Nobody(), lambda: None,
            prompt_param="prompt", max_unread_characters=None,
        )  # fmt: skip
        text, num = "", 0
        for batch in batches:
            num += len(batch)
            finish = FinishReason.LENGTH if num == len(tokens) else None
            choice.on_update(Update("r", tuple(batch), finish, num_prompt=1, num_output=num), 0.0)
            text += choice.take()
        return text, choice.ending, choice.num_output, engine.finished

    batches, rest = [], tokens
    for size in sizes:
        if rest:
            batches.append(rest[:size])
            rest = rest[size:]
    assert run(batches) == run([[token] for token in tokens]) == run([tokens])
