"""Clients of endpoints that come and go: each request's end is told by kind, and each answer is compared with the only right one."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import aiohttp

from emberline_contract import http

PATIENCE_S = 90.0
"""Without an end after this, a request has met silence."""


class End(StrEnum):
    """How one attempt of a request ended."""

    COMPLETE = "complete"
    REFUSED = "429 or 503 with Retry-After"
    LOST = "502: the engine was lost while it answered"
    EVENT = "error event after the first byte"
    BROKEN = "connection broke"
    SILENT = "no end"
    WRONG = "wrong"
    """Another answer than the oracle's, a refusal without Retry-After, or an end that is none."""


@dataclass
class Attempt:
    """One request to one gateway."""

    endpoint: str
    gateway: str
    is_stream: bool
    begun_s: float
    ended_s: float = 0.0
    first_text_s: float | None = None
    """When the first token was read: from then on an engine was at work for it."""
    end: End = End.WRONG
    detail: str = ""


@dataclass
class Asking:
    """What all clients have in common."""

    session: aiohttp.ClientSession
    urls: Callable[[], dict[str, str]]
    """Name of each gateway and its URL."""
    expected: Callable[[str, str, int], str]
    chance: random.Random
    attempts: list[Attempt] = field(default_factory=list)
    num_retried: int = 0
    num_rescued: int = 0
    """Requests whose connection broke and that another attempt brought to a complete answer or an explicit refusal."""
    _count: int = 0

    async def call(self, endpoint: str, *, num_tokens: int, is_stream: bool) -> Attempt:
        """One request, tried again elsewhere while its connection breaks; its last attempt."""
        self._count += 1
        prompt = f"{endpoint} {self._count} {self.chance.random()}"
        urls = self.urls()
        gateway = self.chance.choice(sorted(urls))
        attempt = await self._attempt(
            urls[gateway], Attempt(endpoint, gateway, is_stream, time.time()), prompt, num_tokens
        )
        if attempt.end is not End.BROKEN:
            return attempt
        self.num_retried += 1
        for other in [name for name in sorted(urls) if name != gateway] * 20:
            attempt = Attempt(endpoint, other, is_stream, time.time())
            attempt = await self._attempt(self.urls()[other], attempt, prompt, num_tokens)
            if attempt.end is not End.BROKEN:
                self.num_rescued += 1
                break
            await asyncio.sleep(0.5)
        return attempt

    async def _attempt(self, url: str, attempt: Attempt, prompt: str, num_tokens: int) -> Attempt:
        self.attempts.append(attempt)
        body = {
            "model": f"default/{attempt.endpoint}",
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": attempt.is_stream,
        }
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                self.session.post(url + http.COMPLETIONS, json=body) as response,
            ):
                attempt.end, attempt.detail = await self._read(response, attempt, prompt, num_tokens)
        except TimeoutError:
            attempt.end = End.SILENT
        except (aiohttp.ClientError, ConnectionError) as error:
            attempt.end, attempt.detail = End.BROKEN, repr(error)
        attempt.ended_s = time.time()
        return attempt

    async def _read(
        self, response: aiohttp.ClientResponse, attempt: Attempt, prompt: str, num_tokens: int
    ) -> tuple[End, str]:
        right = self.expected(attempt.endpoint, prompt, num_tokens)
        if response.status in (429, 503) and http.HEADER_RETRY_AFTER in response.headers:
            return End.REFUSED, (await response.json())["error"]["message"]
        if response.status == 502:
            return End.LOST, (await response.json())["error"]["message"]
        if response.status != 200:
            return End.WRONG, f"{response.status} {await response.text()}"
        if attempt.is_stream:
            return await _read_stream(response, attempt, right)
        text = (await response.json())["choices"][0]["text"]
        return (End.COMPLETE, "") if text == right else (End.WRONG, f"{text!r} instead of {right!r}")


async def _read_stream(response: aiohttp.ClientResponse, attempt: Attempt, right: str) -> tuple[End, str]:
    text, failure, num_finishes, is_done = "", "", 0, False
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue  # a heartbeat, or the line between two events
        if is_done or failure:
            return End.WRONG, f"{line!r} after the end"
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            is_done = True
            continue
        event = json.loads(data)
        if "error" in event:
            failure = event["error"]["message"]
            continue
        for choice in event["choices"]:
            attempt.first_text_s = attempt.first_text_s or time.time()
            text += choice["text"]
            num_finishes += choice["finish_reason"] is not None
    if failure:
        return (End.EVENT, failure) if right.startswith(text) else (End.WRONG, f"{text!r} is no beginning of {right!r}")
    if not is_done:
        return End.BROKEN, "the stream ended without [DONE]"
    if text != right or num_finishes != 1:
        return End.WRONG, f"{num_finishes} ends, {text!r} instead of {right!r}"
    return End.COMPLETE, ""
