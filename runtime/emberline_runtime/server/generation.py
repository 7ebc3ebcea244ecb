"""The two endpoints that generate: body in, engine requests, answer out. Whatever goes wrong becomes an OpenAI error."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from emberline_contract.engine_config import EngineConfig
from emberline_contract.http import HEADER_TENANT, HEADER_USAGE, MAX_BODY_BYTES, ErrorType
from emberline_runtime.core.request import Request
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.engine.lifecycle import Engine
from emberline_runtime.errors import RequestRefused, unavailable
from emberline_runtime.server.bodies import Bodies, ChatBodies, CompletionBodies, Identity
from emberline_runtime.server.choice import STREAM_UNREAD_CHARACTERS, Choice, RequestObserver
from emberline_runtime.server.prompts import Prompts
from emberline_runtime.server.request_log import RequestLog, RequestRecord
from emberline_runtime.server.schema import (
    ChatRequest,
    CompletionRequest,
    GenerationParameters,
    parse_chat,
    parse_completion,
)
from emberline_runtime.server.streaming import Answer, ClientGone, read_body, send_error, too_large

BODY_TIMEOUT_S: Final = 30.0
"""A client has this long to send its body."""
LONG_BODY_BYTES: Final = 64 * 1024
"""Longer bodies are parsed on the worker thread: a million token ids would hold up every stream."""
MAX_TENANT_CHARACTERS: Final = 256
DEFAULT_COMPLETION_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` for /v1/completions."""


@dataclass(slots=True)
class Service:
    """What the endpoints work with. `prompts` is there once the engine is ready."""

    config: EngineConfig
    engine: Engine
    observer: RequestObserver
    log: RequestLog
    clock: Callable[[], float]
    """The engine's clock."""
    wall_clock: Callable[[], float]
    draw_seed: Callable[[], int]
    """64 random bits, for requests that bring no seed."""
    draw_id: Callable[[], str]
    prompts: Prompts | None = None

    def require_prompts(self) -> Prompts:
        """What makes prompts; RequestRefused (503) while the engine does not take requests."""
        if self.prompts is None or not self.engine.is_ready:
            raise unavailable(f"the engine takes no requests now, it is {self.engine.phase.value}; try again")
        return self.prompts


@dataclass(frozen=True, slots=True)
class Caller:
    """What the headers say."""

    request_id: str
    salt: bytes
    wants_usage: bool


class GenerationEndpoint(ABC):
    """An ASGI app for one path."""

    id_prefix: str
    prompt_param: str

    def __init__(self, service: Service) -> None:
        self._service = service

    @abstractmethod
    def parse(self, body: bytes) -> GenerationParameters:
        """The body as a request of this endpoint."""

    @abstractmethod
    async def prompts(self, prompts: Prompts, parameters: GenerationParameters) -> list[tuple[tuple[int, ...], int]]:
        """Tokens and the limit of the answer, of each prompt."""

    @abstractmethod
    def bodies(self, identity: Identity, *, include_usage: bool) -> Bodies:
        """The shapes of this endpoint's answers."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        service = self._service
        record = RequestRecord(scope["path"], scope["state"]["request_id"], service.clock())
        try:
            await self._serve(scope, receive, send, record)
            record.status = 200
        except RequestRefused as error:
            record.status = error.status
            closes = [(b"connection", b"close")] if error.status in (408, 413, 503) else []
            await send_error(send, error, closes)
        except ClientGone:
            record.status = 499
        finally:
            service.log.write(record, service.clock())

    async def _serve(self, scope: Scope, receive: Receive, send: Send, record: RequestRecord) -> None:
        headers = Headers(scope=scope)
        prompts = self._service.require_prompts()
        body = await self._body(headers, receive)
        is_long = len(body) > LONG_BODY_BYTES
        parameters = await prompts.in_worker(lambda: self.parse(body)) if is_long else self.parse(body)
        self._check_model(parameters.model)
        record.model, record.stream = parameters.model, parameters.stream
        caller = _caller(headers, record.request_id)
        task = asyncio.current_task()
        assert task is not None
        watcher = _Watcher(receive, task)
        answer = self._answer(parameters, caller)
        try:
            await self._submit(answer, parameters, caller)
            await (answer.send_stream(send) if parameters.stream else answer.send_whole(send))
        except asyncio.CancelledError:
            if not watcher.is_gone:
                raise
            task.uncancel()
            raise ClientGone from None
        finally:
            watcher.stop()
            answer.abandon()
            record.note(answer.choices)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY_BYTES:
            raise too_large(int(length), MAX_BODY_BYTES)
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                return await read_body(receive, MAX_BODY_BYTES)
        except TimeoutError as error:
            raise RequestRefused(
                f"the body was not complete after {BODY_TIMEOUT_S:.0f} s", status=408, kind=ErrorType.TIMEOUT
            ) from error

    def _check_model(self, model: str) -> None:
        names = self._service.config.served_names
        if model not in names:
            raise RequestRefused(
                f"the model {model!r} does not exist here; this engine serves {', '.join(names)}",
                param="model",
                status=404,
                kind=ErrorType.NOT_FOUND,
            )

    def _answer(self, parameters: GenerationParameters, caller: Caller) -> Answer:
        service = self._service
        identity = Identity(
            f"{self.id_prefix}-{service.draw_id()}", service.config.served_names[0], int(service.wall_clock())
        )
        bodies = self.bodies(identity, include_usage=parameters.include_usage)
        return Answer(bodies, include_usage=parameters.include_usage, usage_comment=caller.wants_usage)

    async def _submit(self, answer: Answer, parameters: GenerationParameters, caller: Caller) -> None:
        service = self._service
        arrival_s = service.clock()
        prompts = service.require_prompts()
        made = await self.prompts(prompts, parameters)
        seed = service.draw_seed() if parameters.seed is None else parameters.seed
        tokenizer = prompts.tokenizer
        for index, (tokens, max_tokens) in enumerate(made):
            request = Request(
                id=service.draw_id(),
                prompt=tokens,
                sampling=SamplingSpec(
                    seed=(seed + index) % 2**64 if parameters.seed is None else seed % 2**64,
                    temperature=parameters.temperature,
                    top_k=parameters.top_k,
                    top_p=parameters.top_p,
                    min_tokens=parameters.min_tokens,
                    stop_token_ids=tuple(parameters.stop_token_ids),
                ),
                max_tokens=max_tokens,
                eos=frozenset() if parameters.ignore_eos else tokenizer.eos_ids,
                salt=caller.salt,
                arrival_s=arrival_s,
            )
            choice = Choice(
                index,
                request,
                tokenizer.detokenizer(),
                parameters.stop,
                service.engine,
                service.observer,
                answer.wake,
                prompt_param=self.prompt_param,
                max_unread_characters=STREAM_UNREAD_CHARACTERS if parameters.stream else None,
            )
            answer.choices.append(choice)
        # Only when nothing can fail any more: all are submitted or none.
        for choice in answer.choices:
            service.engine.submit(choice.request, choice)


class ChatEndpoint(GenerationEndpoint):
    """POST /v1/chat/completions."""

    id_prefix = "chatcmpl"
    prompt_param = "messages"

    @override
    def parse(self, body: bytes) -> ChatRequest:
        """The body as a chat request."""
        return parse_chat(body)

    @override
    async def prompts(self, prompts: Prompts, parameters: GenerationParameters) -> list[tuple[tuple[int, ...], int]]:
        """One prompt; its answer may take what the model's length leaves."""
        assert isinstance(parameters, ChatRequest)
        tokens = await prompts.of_messages(parameters.messages)
        limit = prompts.decide_max_tokens(len(tokens), parameters.max_output_tokens, None, self.prompt_param)
        return [(tokens, limit)]

    @override
    def bodies(self, identity: Identity, *, include_usage: bool) -> Bodies:
        """Chat shapes."""
        return ChatBodies(identity, include_usage=include_usage)


class CompletionEndpoint(GenerationEndpoint):
    """POST /v1/completions."""

    id_prefix = "cmpl"
    prompt_param = "prompt"

    @override
    def parse(self, body: bytes) -> CompletionRequest:
        """The body as a completion request."""
        return parse_completion(body)

    @override
    async def prompts(self, prompts: Prompts, parameters: GenerationParameters) -> list[tuple[tuple[int, ...], int]]:
        """One for each of `prompt`."""
        assert isinstance(parameters, CompletionRequest)
        limit, default, param = parameters.max_tokens, DEFAULT_COMPLETION_TOKENS, self.prompt_param
        return [
            (tokens, prompts.decide_max_tokens(len(tokens), limit, default, param))
            for tokens in await prompts.of_prompts(parameters.prompt)
        ]

    @override
    def bodies(self, identity: Identity, *, include_usage: bool) -> Bodies:
        """Completion shapes."""
        return CompletionBodies(identity, include_usage=include_usage)


class _Watcher:
    """Waits for the client's leaving and then cancels the request's task."""

    def __init__(self, receive: Receive, task: asyncio.Task[object]) -> None:
        self.is_gone = False
        self._receive = receive
        self._request_task = task
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.is_gone = True
        self._request_task.cancel()

    def stop(self) -> None:
        """The answer is out."""
        self._task.cancel()


def _caller(headers: Headers, request_id: str) -> Caller:
    tenant = headers.get(HEADER_TENANT, "")
    if len(tenant) > MAX_TENANT_CHARACTERS:
        raise RequestRefused(f"{HEADER_TENANT} has {len(tenant)} characters; at most {MAX_TENANT_CHARACTERS} are taken")
    return Caller(request_id, tenant.encode("latin-1"), headers.get(HEADER_USAGE) == "1")
