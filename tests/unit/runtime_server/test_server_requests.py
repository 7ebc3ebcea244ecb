"""What happens around answers: refusals, leaving clients, batching, queues, faults, loss, drain."""

import asyncio
import io
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from emberline_contract.http import MAX_BODY_BYTES
from emberline_runtime.executors.oracle import OracleExecutor
from emberline_runtime.server import streaming
from support.engine_server import (
    MODEL,
    EngineServer,
    GatedOracle,
    LosingOracle,
    chat,
    completion,
    serving,
    sse_events,
)

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EngineServer]:
    async with serving(tmp_path) as server:
        yield server


async def test_errors_are_openais_to_the_real_client(server: EngineServer) -> None:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as api:
        with pytest.raises(openai.NotFoundError) as missing:
            await api.completions.create(model="other", prompt="x")
        assert missing.value.param == "model"
        with pytest.raises(openai.BadRequestError) as wrong:
            await api.completions.create(model=MODEL, prompt="x", temperature=9)
        assert (wrong.value.param, wrong.value.type) == ("temperature", "BadRequestError")
        names = [model.id async for model in api.models.list()]
        assert names == ["tests/model", "model"]
        assert (await api.models.retrieve(MODEL)).id == MODEL


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, chat(n=2), 400, "n"),
        (CHAT, chat() | {"messages": []}, 400, "messages"),
        (COMPLETIONS, completion([]), 400, "prompt"),
        (COMPLETIONS, completion([[]]), 400, "prompt"),
        (COMPLETIONS, completion([600]), 400, "prompt"),
        (COMPLETIONS, completion("x", stop_token_ids=[512]), 400, "stop_token_ids"),
        (COMPLETIONS, completion("x", min_tokens=5, max_tokens=4), 400, "min_tokens"),
        (COMPLETIONS, completion("x", max_tokens=10**6), 400, "max_tokens"),
        (COMPLETIONS, completion("x" * 9000, max_tokens=1), 400, "prompt"),
        (COMPLETIONS, completion(["x", "x" * 9000]), 400, "prompt"),
        (COMPLETIONS, completion() | {"model": "x"}, 404, "model"),
    ],
)
async def test_refusals(server: EngineServer, path: str, body: dict[str, Any], status: int, param: str) -> None:
    for stream in (False, True):
        got, answer = await server.post(path, body | {"stream": stream})
        assert (got, answer["error"]["param"], answer["error"]["code"]) == (status, param, status)
    await server.until_idle()


async def test_paths_and_methods_in_openais_shape(server: EngineServer) -> None:
    for path, status in (("/v1/nothing", 404), ("/v1/models/none", 404), (CHAT, 405)):
        got, answer = await server.get(path)
        assert (got, answer["error"]["code"]) == (status, status)


async def test_a_large_body_is_refused_with_or_without_its_length(server: EngineServer) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65536 + 2):
            yield b" " * 65536

    for data in (io.BytesIO(b" " * (MAX_BODY_BYTES + 1)), endless()):
        try:
            async with server.http.post(server.url + CHAT, data=data) as answer:
                assert answer.status == 413
                assert (await answer.json())["error"]["type"] == "RequestEntityTooLargeError"
        except aiohttp.ClientOSError:
            # The refusal closed the connection while the rest of the body was on its way; the engine did not read it.
            continue
    status, _ = await server.post(COMPLETIONS, completion(max_tokens=1))
    assert status == 200


async def test_a_model_without_chat_template(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    library = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300}))
    async with serving(tmp_path) as server:
        status, answer = await server.post(CHAT, chat())
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "chat_template.jinja" in answer["error"]["message"]
        status, _ = await server.post(COMPLETIONS, completion("a", max_tokens=2))
        assert status == 200
        status, answer = await server.post(COMPLETIONS, completion("", max_tokens=2))
        assert (status, answer["error"]["param"]) == (400, "prompt")


async def test_what_a_template_refuses(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300}))
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    async with serving(tmp_path) as server:
        status, answer = await server.post(CHAT, chat())
        assert (status, answer["error"]["param"]) == (400, "messages")
        assert "roles must alternate" in answer["error"]["message"]


async def test_an_empty_prompt_is_the_beginning_mark_where_there_is_one(server: EngineServer) -> None:
    status, answer = await server.post(COMPLETIONS, completion("", max_tokens=2))
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 1)


async def test_request_ids(server: EngineServer) -> None:
    async def echoed(path: str, given: str) -> str:
        async with server.http.post(
            server.url + path, json=completion(max_tokens=1), headers={"x-request-id": given}
        ) as r:
            return r.headers["x-request-id"]

    assert await echoed(COMPLETIONS, "my-id.1") == "my-id.1"
    assert await echoed("/v1/nothing", "my-id.1") == "my-id.1"
    assert len(await echoed(COMPLETIONS, "x" * 129)) == 32
    assert len(await echoed(COMPLETIONS, "a b")) == 32


async def test_the_log_has_counts_and_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "emberline")
    async with serving(tmp_path, log_requests=True) as server:
        await server.post(COMPLETIONS, completion("secret", max_tokens=2), {"x-request-id": "my-id"})
        await server.post(COMPLETIONS, completion("secret", max_tokens=0))
    lines = [record.details for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
    assert [line["status"] for line in lines] == [200, 400]
    assert (lines[0]["request_id"], lines[0]["prompt_tokens"], lines[0]["completion_tokens"]) == ("my-id", 7, 2)
    assert "secret" not in caplog.text + str(lines)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_place(tmp_path: Path, stream: bool) -> None:
    gate = GatedOracle()
    async with serving(tmp_path, gate, max_sequences=1) as server:
        tasks = [
            asyncio.create_task(server.post(COMPLETIONS, completion("d" * 40, max_tokens=500, stream=stream)))
            for _ in range(2)
        ]
        await server.until(lambda: server.process.engine.num_active == 2)
        gate.allow(3)
        await server.until(lambda: server.process.metrics.num_steps == 3)
        assert await server.gauge("vllm:num_requests_running") == 1
        assert await server.gauge("vllm:num_requests_waiting") == 1
        # One decodes, one is queued: both leave, and at most the step under way passes until all is free.
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await server.until(lambda: len(server.aborted) == 2)
        gate.allow(1)
        await server.until_idle()
        gate.open()
        status, _ = await server.post(COMPLETIONS, completion(max_tokens=2))
        assert status == 200


async def test_a_client_that_leaves_in_mid_prefill(tmp_path: Path) -> None:
    gate = GatedOracle()
    async with serving(tmp_path, gate, max_batch_tokens=16) as server:
        task = asyncio.create_task(server.post(COMPLETIONS, completion("p" * 200, max_tokens=5)))
        gate.allow(2)
        await server.until(lambda: server.process.metrics.num_steps == 2)
        task.cancel()
        await asyncio.wait({task})
        await server.until(lambda: len(server.aborted) == 1)
        gate.allow(1)
        await server.until_idle()


async def test_outcomes_add_up(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(step_s=0.002)) as server:
        task = asyncio.create_task(server.post(COMPLETIONS, completion(max_tokens=4000)))
        await server.post(COMPLETIONS, completion(max_tokens=2))
        task.cancel()
        await server.until_idle()
        text = await (await server.http.get(server.url + "/metrics")).text()
    counts = {
        reason: float(line.rsplit(" ", 1)[1])
        for reason in ("stop", "length", "abort", "error")
        for line in text.splitlines()
        if line.startswith("vllm:request_success_total{") and f'finished_reason="{reason}"' in line
    }
    assert counts == {"stop": 0, "length": 1, "abort": 1, "error": 0}


async def test_a_late_request_gets_its_first_token_while_others_decode(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(step_s=0.002)) as server:
        first = [asyncio.create_task(server.post(COMPLETIONS, completion(str(i), max_tokens=2000))) for i in range(3)]
        await server.until(lambda: server.process.metrics.num_steps > 5)
        body = completion("late", max_tokens=5, stream=True)
        async with server.http.post(server.url + COMPLETIONS, json=body) as answer:
            assert (await answer.content.readline()).startswith(b"data: ")
            assert not any(task.done() for task in first)
            assert await server.gauge("vllm:num_requests_running") == 4
            await answer.read()
        assert not any(task.done() for task in first)
        for task in first:
            task.cancel()
        await server.until_idle()


async def test_a_full_queue_is_503_with_retry_after(tmp_path: Path) -> None:
    gate = GatedOracle()
    async with serving(tmp_path, gate, max_sequences=1, max_queued_requests=1) as server:

        async def post(max_tokens: int) -> tuple[int, str | None]:
            async with server.http.post(server.url + COMPLETIONS, json=completion(max_tokens=max_tokens)) as answer:
                return answer.status, answer.headers.get("retry-after")

        running = asyncio.create_task(post(5))
        gate.allow(1)
        await server.until(lambda: server.process.metrics.num_steps == 1)
        others = [asyncio.create_task(post(1)) for _ in range(3)]
        await server.until(lambda: server.process.engine.num_active == 4)
        gate.allow(1)
        await server.until(lambda: server.process.engine.num_active == 2)
        gate.open()
        assert (await running)[0] == 200
        assert sorted([await other for other in others], key=str) == [(200, None), (503, "1"), (503, "1")]


async def test_a_faulty_request_fails_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(poison_token=ord("!"), alphabet=[97], step_s=0.001)) as server:
        neighbour = asyncio.create_task(server.post(COMPLETIONS, completion("fine", max_tokens=300)))
        status, answer = await server.post(COMPLETIONS, completion("bad!", max_tokens=5))
        assert (status, answer["error"]["type"]) == (500, "InternalServerError")
        assert "not finite" in answer["error"]["message"]
        status, answer = await server.post(COMPLETIONS, completion("bad!", max_tokens=5, stream=True))
        assert status == 500, "nothing was sent yet, so it is a status"
        assert (await neighbour)[0] == 200
        await server.until_idle()


async def test_usage_comment_for_the_gateway(server: EngineServer) -> None:
    headers = {"x-emberline-usage": "1"}
    async with server.http.post(
        server.url + COMPLETIONS, json=completion(max_tokens=3, stream=True), headers=headers
    ) as answer:
        last = (await answer.text()).split("\n\n")[-2]
    assert json.loads(last.removeprefix(": usage ")) == {
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "total_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_a_lost_executor_ends_streams_with_an_error_event_and_the_process_with_one(tmp_path: Path) -> None:
    executor = LosingOracle(step_s=0.002)
    async with serving(tmp_path, executor) as server:
        whole = asyncio.create_task(server.post(COMPLETIONS, completion(max_tokens=8000)))
        body = completion(max_tokens=8000, stream=True)
        async with server.http.post(server.url + COMPLETIONS, json=body, headers={"x-emberline-usage": "1"}) as answer:
            await answer.content.readuntil(b"\n\n")
            executor.is_lost = True
            text = await answer.text()
        events = sse_events(text)
        assert json.loads(events[-1])["error"]["code"] == 503
        assert "[DONE]" not in events
        assert text.split("\n\n")[-2].startswith(": usage ")
        assert (await whole)[0] == 503
        assert await server.serving == 1


async def test_an_executor_that_cannot_load_ends_the_process(tmp_path: Path) -> None:
    class Broken(OracleExecutor):
        def load(self, *arguments: Any) -> None:
            raise MemoryError("no room for the weights")

    async with serving(tmp_path, Broken()) as server:
        assert await server.serving == 1


async def test_drain_finishes_what_runs_and_refuses_the_rest(tmp_path: Path) -> None:
    gate = GatedOracle()
    async with serving(tmp_path, gate, drain_timeout_s=30) as server:
        running = asyncio.create_task(server.post(COMPLETIONS, completion(max_tokens=50)))
        gate.allow(1)
        await server.until(lambda: server.process.metrics.num_steps == 1)
        server.process.stop()
        await server.until(lambda: not server.process.engine.is_ready)
        assert (await server.get("/ready")) == (503, {"phase": "draining"})
        assert (await server.get("/live"))[0] == 200
        assert await server.gauge("emberline_draining") == 1
        async with server.http.post(server.url + COMPLETIONS, json=completion()) as answer:
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
        gate.open()
        status, answer_body = await running
        assert (status, answer_body["usage"]["completion_tokens"]) == (200, 50)
        assert await server.serving == 0


async def test_drain_ends_streams_with_an_error_event_at_its_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(step_s=0.005), drain_timeout_s=0.1) as server:
        body = completion(max_tokens=8000, stream=True)
        async with server.http.post(server.url + COMPLETIONS, json=body) as answer:
            await answer.content.readuntil(b"\n\n")
            server.process.stop()
            events = sse_events((await answer.read()).decode())
        assert json.loads(events[-1])["error"]["code"] == 503
        assert await server.serving == 0


async def test_a_reader_that_never_reads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "UNREAD_TIMEOUT_S", 0.3)
    async with serving(tmp_path, max_model_len=100_000) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((host, int(port)))
            body = json.dumps(completion("r", max_tokens=90_000, stream=True)).encode()
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
            )
            await server.until(lambda: server.process.engine.num_active == 1)
            await server.until(lambda: server.process.engine.num_active == 0, timeout_s=20)
        await server.until_idle()
        assert await server.gauge("vllm:generation_tokens_total") < 90_000
