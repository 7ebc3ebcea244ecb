"""The engine as the loop sees it: starts and stops leave nothing behind, one bad listener harms nobody, prompts use workers."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emberline_runtime.core.admission import Refused
from emberline_runtime.core.request import Request, Update
from emberline_runtime.core.step import ExecutorLimits, SamplingSpec
from emberline_runtime.errors import RequestRefused
from emberline_runtime.executors.oracle import OracleExecutor
from emberline_runtime.server.prompts import LONG_TEXT_CHARACTERS, Prompts
from emberline_runtime.text.chat_template import PLAIN_TEMPLATE, ChatTemplate
from emberline_runtime.text.tokenizer import ByteTokenizer
from support.engine_server import completion, serving


async def test_starting_and_stopping_many_times_leaves_nothing(tmp_path: Path) -> None:
    async def once() -> None:
        async with serving(tmp_path) as server:
            assert (await server.post("/v1/completions", completion(max_tokens=3)))[0] == 200
            server.process.stop()
            assert await server.serving == 0
            assert server.process.is_stopped

    for _ in range(10):
        await once()
    assert "engine" not in {thread.name for thread in threading.enumerate()}


class Recorder:
    """A listener that may refuse to work."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.num_tokens = 0
        self.ended = asyncio.Event()
        self.lost: str | None = None

    def on_update(self, update: Update, time_s: float) -> None:
        if self.is_broken:
            raise RuntimeError("a bug")
        self.num_tokens += len(update.tokens)
        if update.finish is not None:
            self.ended.set()

    def on_refused(self, refused: Refused) -> None:
        raise AssertionError(refused.message)

    def on_lost(self, message: str) -> None:
        self.lost = message
        self.ended.set()


async def test_a_listener_with_a_bug_ends_its_request_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, OracleExecutor(step_s=0.001)) as server, asyncio.timeout(20):
        broken, fine = Recorder(is_broken=True), Recorder()
        for name, listener in (("broken", broken), ("fine", fine)):
            server.process.engine.submit(Request(name, (1, 2), SamplingSpec(), max_tokens=30), listener)
        await broken.ended.wait()
        await fine.ended.wait()
        assert (broken.lost, fine.num_tokens, fine.lost) == ("an internal error ended this request", 30, None)
        await server.until_idle()


class WatchedTokenizer(ByteTokenizer):
    """Says on which thread it encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.threads.append(threading.current_thread().name)
        return super().encode(text, add_special_tokens=add_special_tokens)


async def test_long_texts_are_encoded_by_a_worker() -> None:
    tokenizer = WatchedTokenizer()
    limits = ExecutorLimits(1000, 16, 64, 4, max_model_len=2 * LONG_TEXT_CHARACTERS, vocab=512)
    template = ChatTemplate(PLAIN_TEMPLATE, {}, lambda: (_ for _ in ()).throw(AssertionError("no date is needed")))
    with ThreadPoolExecutor(1, thread_name_prefix="worker") as workers:
        prompts = Prompts(tokenizer, template, limits, workers)
        for length in (10, LONG_TEXT_CHARACTERS + 1):
            await prompts.of_prompts(["x" * length])
            await prompts.of_messages([{"role": "user", "content": "x" * length}])
        with pytest.raises(RequestRefused, match=f"at least {2 * LONG_TEXT_CHARACTERS + 1} tokens"):
            await prompts.of_prompts(["x" * (2 * LONG_TEXT_CHARACTERS + 1)])
        assert [len(tokens) for tokens in await prompts.of_prompts(["x" * 3000, (1, 2), "x" * 3000])] == [3001, 2, 3001]
    here = threading.current_thread().name
    assert tokenizer.threads == [here] * 2 + ["worker_0"] * 4
