"""From a request's messages or prompts to tokens. Long texts are encoded on one worker thread, so that the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Workers
from typing import Final, TypeVar

from emberline_runtime.core.step import ExecutorLimits
from emberline_runtime.errors import RequestRefused
from emberline_runtime.text.chat_template import ChatTemplate, Message
from emberline_runtime.text.tokenizer import Tokenizer, trim_double_bos

LONG_TEXT_CHARACTERS: Final = 4096
"""Longer texts go to the worker thread: encoding them would hold up every stream."""
T = TypeVar("T")


class Prompts:
    """Makes prompts for one model."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, limits: ExecutorLimits, workers: Workers
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._limits = limits
        self._workers = workers

    async def of_messages(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """A chat's prompt: what the template writes, with its own beginning mark and no second one."""
        template = self._template
        if template is None:
            raise RequestRefused(
                "this model has no chat template; add chat_template.jinja to the model folder, or use /v1/completions",
                param="messages",
            )
        num_characters = sum(len(message["content"]) for message in messages)
        self._refuse_hopeless(num_characters, "messages")
        is_long = num_characters > LONG_TEXT_CHARACTERS
        text = await self.in_worker(lambda: template.render(messages)) if is_long else template.render(messages)
        encoded = await self._encode([text], len(text), add_special_tokens=False)
        return self._not_empty(trim_double_bos(encoded[0], self.tokenizer.bos_id), "messages")

    async def of_prompts(self, prompts: Sequence[str | tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Completions' prompts, with the marks that the tokenizer puts around a text; token ids are taken as they are."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        for text in texts:
            self._refuse_hopeless(len(text), "prompt")
        num_characters = sum(map(len, texts))
        encoded = iter(await self._encode(texts, num_characters, add_special_tokens=True))
        return [self._not_empty(next(encoded), "prompt") if isinstance(prompt, str) else prompt for prompt in prompts]

    async def idle(self) -> None:
        """Do what the first request would have to wait for otherwise."""
        if self._template is not None:
            await self.in_worker(self._template.compile)
        await self.in_worker(lambda: self.tokenizer.longest_token_bytes)

    def decide_max_tokens(self, num_prompt: int, asked: int | None, default: int | None, param: str) -> int:
        """The answer's limit: what was asked, else the default as far as there is room. The core refuses what is too much."""
        if asked is not None:
            return asked
        limits = self._limits
        # The last token of an answer needs no KV.
        room = min(limits.max_model_len, limits.num_blocks * limits.block_tokens + 1)
        left = room - num_prompt
        if left < 1:
            raise RequestRefused(
                f"the prompt has {num_prompt} tokens, which leaves none for the answer: this engine's limit is {room}"
                " for both together; shorten the prompt",
                param=param,
            )
        return left if default is None else min(left, default)

    async def _encode(self, texts: Sequence[str], num_characters: int, *, add_special_tokens: bool) -> list[list[int]]:
        tokenizer = self.tokenizer
        if num_characters <= LONG_TEXT_CHARACTERS:
            return [tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]
        return await self.in_worker(
            lambda: [tokenizer.encode_long(text, add_special_tokens=add_special_tokens) for text in texts]
        )

    async def in_worker(self, work: Callable[[], T]) -> T:
        """The result of `work`, done on the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def _refuse_hopeless(self, num_characters: int, param: str) -> None:
        """Refuse without encoding what is too long however well it is encoded."""
        if num_characters <= LONG_TEXT_CHARACTERS:
            return
        least_tokens = num_characters // self.tokenizer.longest_token_bytes
        if least_tokens > self._limits.max_model_len:
            raise RequestRefused(
                f"the prompt has {num_characters} characters, at least {least_tokens} tokens;"
                f" this engine's limit is {self._limits.max_model_len}; shorten the prompt",
                param=param,
            )

    @staticmethod
    def _not_empty(tokens: Sequence[int], param: str) -> tuple[int, ...]:
        if not tokens:
            raise RequestRefused(f"{param}: the prompt has 0 tokens; give at least one", param=param)
        return tuple(tokens)
