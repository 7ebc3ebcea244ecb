"""The hot path: raw ASGI in, aiohttp out. Reads a request once, finds or awaits a pod, and passes bytes through unchanged.

A request is tried again only while no byte of an answer has come: without bound where no connection was to be had (nothing
was done), a few times where the engine answered 503, once where it was lost on the way. What is out is never repeated.
"""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from emberline_contract.http import MAX_BODY_BYTES, ErrorType
from emberline_gateway import answers, headers
from emberline_gateway.answers import CLIENT_GONE, EVENT_STREAM, Headers, RefusalError, WholeEvents
from emberline_gateway.desk import Desk, Desks, DisplacedError, QueueFullError
from emberline_gateway.directory import Directory, UnknownModelError
from emberline_gateway.exchange import Cause, Exchange, Message, Receive, Send
from emberline_gateway.holding import timeout_message
from emberline_gateway.logs import log
from emberline_gateway.measures import Measures
from emberline_gateway.objects import Endpoint, Pod
from emberline_gateway.question import Question, Route, read_question

CONNECT_TIMEOUT_S: Final = 2.0
BODY_SILENCE_S: Final = 30.0
"""A client that sends nothing more of its body for so long is answered 408."""
MIN_BODY_BYTES_PER_S: Final = 4096
"""After that time a body must have come at this rate all in all: drops would keep a request open for ever."""
MAX_BUFFERED_BYTES: Final = 256 * 1024 * 1024
"""All request bodies together that are kept at a time, for engines that are to get them once more or later."""
MAX_WHOLE_BYTES: Final = 8 * 1024 * 1024
"""Answers that are no streams are gathered up to here, so that an engine that dies can still be answered 502."""
MAX_BUSY: Final = 5
"""Answers of 503 after which a request is not tried again."""
_SMALL_BODY_BYTES: Final = 1_000_000
_SKIPPED_AUTO_HEADERS: Final = ("accept", "accept-encoding", "content-type", "user-agent")


class _EngineRefusedError(Exception):
    """No connection: nothing was done, it may be tried again as often as one likes."""


class _EngineBusyError(Exception):
    """503: it drains, its queue is full, or it has just failed. The last may be the request's own doing."""


class _EngineLostError(Exception):
    """The connection broke, or the engine stalled, before the first byte."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """A request as it goes to an engine."""

    route: Route
    query: bytes
    question: Question
    headers: list[tuple[str, str]]
    body: bytes


def make_session() -> aiohttp.ClientSession:
    """The client side: no limits of its own, no total time-out, nothing decoded, no cookies.

    Idle connections go long before the engine (75 s) closes them: aiohttp never repeats a POST that met a closing one.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=30.0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=_SKIPPED_AUTO_HEADERS,
    )


class Proxy:
    """Serves the paths that go to engines."""

    def __init__(
        self,
        directory: Directory,
        desks: Desks,
        session: aiohttp.ClientSession,
        measures: Measures,
        clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._desks = desks
        self._session = session
        self._measures = measures
        self._clock = clock
        self._num_arrived = 0
        self._num_buffered_bytes = 0
        self.exchanges: set[Exchange] = set()
        """Those that are not over."""

    async def __call__(self, route: Route, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        self._num_arrived += 1
        request_id = headers.request_id(scope["headers"], _new_id)
        exchange = Exchange(send, request_id, self._num_arrived, self._clock())
        self.exchanges.add(exchange)
        try:
            await self._answer(exchange, route, scope, receive)
        except _ClientGoneError:
            exchange.code = CLIENT_GONE
        except asyncio.CancelledError:
            await self._interrupted(exchange)
        finally:
            self._num_buffered_bytes -= exchange.num_body_bytes
            self.exchanges.discard(exchange)
            self._account(exchange)

    async def _answer(self, exchange: Exchange, route: Route, scope: Message, receive: Receive) -> None:
        given: Headers = scope["headers"]
        watcher: asyncio.Task[None] | None = None
        try:
            if scope["method"] != "POST":
                raise RefusalError(405, ErrorType.BAD_REQUEST, f"{route.path} takes POST, not {scope['method']}")
            body = await self._read_body(exchange, given, receive)
            watcher = asyncio.get_running_loop().create_task(_watch(receive, exchange))
            question = read_question(body)
            exchange.is_stream = question.is_stream
            ask = _Ask(route, scope["query_string"], question, headers.to_engine(given, exchange.request_id), body)
            await self._serve(exchange, ask)
        except RefusalError as refusal:
            await exchange.refuse(refusal, self._clock())
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _read_body(self, exchange: Exchange, given: Headers, receive: Receive) -> bytes:
        """Raises RefusalError for a body that is too long, before it has been read if the client says so."""
        length = headers.header(given, b"content-length")
        if length is not None and int(length) > MAX_BODY_BYTES:
            raise answers.too_large(int(length))
        parts: list[bytes] = []
        began_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(BODY_SILENCE_S) as silence:
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _ClientGoneError
                    part: bytes = message.get("body", b"")
                    exchange.num_body_bytes += len(part)
                    self._num_buffered_bytes += len(part)
                    if exchange.num_body_bytes > MAX_BODY_BYTES:
                        raise answers.too_large(None)
                    if self._num_buffered_bytes > MAX_BUFFERED_BYTES:
                        raise answers.unavailable("the gateway keeps as many request bodies as it can; try again later")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
                    now_s = asyncio.get_running_loop().time()
                    slowest_s = began_s + BODY_SILENCE_S + exchange.num_body_bytes / MIN_BODY_BYTES_PER_S
                    silence.reschedule(min(now_s + BODY_SILENCE_S, slowest_s))
        except TimeoutError as error:
            message_text = (
                f"the body stopped for {BODY_SILENCE_S:g} s, or came slower than {MIN_BODY_BYTES_PER_S} bytes/s"
            )
            raise RefusalError(408, ErrorType.TIMEOUT, message_text) from error

    async def _interrupted(self, exchange: Exchange) -> None:
        cause = exchange.cause
        if cause is None:
            raise asyncio.CancelledError
        exchange.acknowledge()
        if cause is Cause.SHUTDOWN:
            refusal = answers.unavailable("the gateway stops and cannot wait any longer for this request; try again")
            await exchange.refuse(refusal, self._clock())
        else:
            exchange.code = CLIENT_GONE

    def _account(self, exchange: Exchange) -> None:
        endpoint = exchange.endpoint
        labels = (endpoint.namespace, endpoint.name) if endpoint else ("", "")
        self._measures.requests.labels(*labels, str(exchange.code)).inc()
        log(
            logging.INFO,
            "request",
            request_id=exchange.request_id,
            endpoint=endpoint.qualified if endpoint else None,
            pod=exchange.pod_name,
            code=exchange.code,
            stream=exchange.is_stream,
            held_s=round(exchange.held_s, 3),
            total_s=round(self._clock() - exchange.arrived_s, 3),
        )

    # Finding a pod

    def _resolve(self, ask: _Ask) -> Endpoint:
        try:
            return self._directory.resolve(ask.question.model, ask.route.endpoint)
        except UnknownModelError as error:
            if ask.question.model is None and ask.route.endpoint is None:
                raise answers.bad_request(str(error), param="model") from error
            if not self._directory.is_complete:
                # A gateway that has been killed is called again before it has read what there is.
                raise answers.unavailable("this gateway has just started and does not know all models yet") from error
            raise answers.not_found(str(error)) from error

    async def _serve(self, exchange: Exchange, ask: _Ask) -> None:
        lost_at, num_busy = "", 0
        while True:
            endpoint = exchange.endpoint = self._resolve(ask)
            desk = self._desks.at(self._directory.assign(endpoint))
            pod = desk.take(lost_at)
            if pod is None:
                if endpoint.refusal and not desk.pods():
                    raise answers.unavailable(f"{endpoint.qualified} cannot start: {endpoint.refusal}")
                self._refuse_failed_start(endpoint, desk)
                try:
                    pod = await self._hold(exchange, endpoint, desk)
                except DisplacedError:
                    continue
            exchange.pod, exchange.pod_name = pod, pod.name
            try:
                await self._forward(exchange, desk, pod, ask)
            except (_EngineRefusedError, _EngineBusyError) as error:
                log(logging.WARNING, "engine refused", request_id=exchange.request_id, pod=pod.name, why=str(error))
                desk.leave_out(pod)
                num_busy += isinstance(error, _EngineBusyError)
                if num_busy == MAX_BUSY:
                    raise answers.unavailable(f"engines answered {num_busy} times that they cannot take it") from error
            except _EngineLostError as error:
                log(logging.WARNING, "engine lost", request_id=exchange.request_id, pod=pod.name, why=str(error))
                if lost_at:
                    raise answers.bad_gateway("two engines were lost before they answered this request") from error
                lost_at = pod.uid
            else:
                return
            finally:
                exchange.pod = None
                desk.give_back(pod)

    def _refuse_failed_start(self, endpoint: Endpoint, desk: Desk) -> None:
        """Raises RefusalError while the start of the region that the request would wait for has failed."""
        failed = self._directory.failed_start(desk.target)
        if failed is not None:
            left_s = self._directory.seconds_until(failed.retry_unix_s)
            said = (
                f"{endpoint.qualified} did not start: {failed.message}; it is tried again in {left_s} s at the earliest"
            )
            raise answers.unavailable(said, left_s)

    async def _hold(self, exchange: Exchange, endpoint: Endpoint, desk: Desk) -> Pod:
        """Waits for a pod, with heartbeats if the client wants a stream."""
        began_s = now_s = self._clock()
        deadline_s = exchange.arrived_s + endpoint.activation_timeout_s
        beat_s = now_s + endpoint.heartbeat_s if exchange.is_stream else deadline_s
        try:
            held = desk.hold(exchange.arrival, endpoint.max_queue)
        except QueueFullError as error:
            raise answers.queue_full(endpoint.qualified, endpoint.max_queue) from error
        try:
            while not held.waiter.done():
                if now_s >= deadline_s:
                    raise answers.unavailable(timeout_message(endpoint, desk.wait()))
                if now_s >= beat_s:
                    await exchange.beat(desk.wait(), now_s)
                    beat_s = self._clock() + endpoint.heartbeat_s
                await asyncio.wait((held.waiter,), timeout=max(0.0, min(beat_s, deadline_s) - self._clock()))
                now_s = self._clock()
            pod = held.waiter.result()
        except BaseException:
            desk.withdraw(held)
            raise
        held_s = now_s - began_s
        exchange.held_s += held_s
        self._measures.hold_seconds.labels(endpoint.namespace, endpoint.name).observe(held_s)
        return pod

    # Passing on

    async def _forward(self, exchange: Exchange, desk: Desk, pod: Pod, ask: _Ask) -> None:
        exchange.heard_s = self._clock()
        url = pod.url + ask.route.path
        body = ask.body if len(ask.body) < _SMALL_BODY_BYTES else io.BytesIO(ask.body)
        try:
            response = await self._session.post(
                URL(f"{url}?{ask.query.decode('latin-1')}", encoded=True) if ask.query else url,
                data=body,
                headers=ask.headers,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _EngineRefusedError(type(error).__name__) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _EngineLostError(type(error).__name__) from error
        except asyncio.CancelledError as error:
            if exchange.cause is not Cause.BACKEND_STALLED:
                raise
            exchange.acknowledge()
            desk.leave_out(pod)
            raise _EngineLostError(Cause.BACKEND_STALLED.value) from error
        try:
            if response.status == 503:
                raise _EngineBusyError("503")
            desk.answered(pod)
            if response.content_type == EVENT_STREAM.decode() and response.status == 200:
                await self._pass_stream(exchange, response)
            else:
                await self._pass_whole(exchange, response)
        except (aiohttp.ClientError, OSError) as error:
            await self._broken(exchange, type(error).__name__)
        except asyncio.CancelledError:
            if exchange.cause is not Cause.BACKEND_STALLED:
                raise
            exchange.acknowledge()
            await self._broken(exchange, Cause.BACKEND_STALLED.value)
        finally:
            response.close()  # a no-op once the answer has been read to its end; else it ends the engine's work

    async def _pass_stream(self, exchange: Exchange, response: aiohttp.ClientResponse) -> None:
        clock, content, events = self._clock, response.content, WholeEvents()
        if not exchange.has_started:
            kept = headers.to_client(response.raw_headers, exchange.request_id)
            await exchange.start(response.status, kept, clock())
        while chunk := await content.readany():
            exchange.heard_s = now_s = clock()
            whole = events.feed(chunk)
            if whole:
                await exchange.body(whole, now_s)
        await exchange.finish(events.finish(), clock())

    async def _pass_whole(self, exchange: Exchange, response: aiohttp.ClientResponse) -> None:
        clock, parts, num_bytes = self._clock, list[bytes](), 0
        kept = headers.to_client(response.raw_headers, exchange.request_id)
        while chunk := await response.content.readany():
            exchange.heard_s = now_s = clock()
            parts.append(chunk)
            num_bytes += len(chunk)
            if num_bytes > MAX_WHOLE_BYTES:
                if exchange.has_started and exchange.code == 200 and exchange.is_stream:
                    raise answers.bad_gateway("the engine answered a stream's request with something else")
                if not exchange.has_started:
                    await exchange.start(response.status, kept, now_s)
                await exchange.body(b"".join(parts), now_s)
                parts.clear()
                num_bytes = 0
        body = b"".join(parts)
        if not exchange.has_started:
            length = (b"content-length", str(len(body)).encode())
            await exchange.start(response.status, [*kept, length], clock())
            await exchange.finish(body, clock())
        elif exchange.is_stream:
            await exchange.fail(response.status, answers.carried_error(response.status, body), clock())
        else:
            await exchange.finish(body, clock())

    async def _broken(self, exchange: Exchange, why: str) -> None:
        """The engine was lost after its first byte."""
        log(logging.WARNING, "answer broke off", request_id=exchange.request_id, why=why)
        if exchange.has_started and not exchange.is_stream:
            exchange.code = 502
            return  # the connection is closed before the announced end: the only sign that is left
        raise answers.bad_gateway("the engine was lost while it answered")


class _ClientGoneError(Exception):
    """The client went away while it sent its request."""


def _new_id() -> str:
    return secrets.token_hex(16)


async def _watch(receive: Receive, exchange: Exchange) -> None:
    """`send` never says that the client is gone; only a pending `receive` does."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.interrupt(Cause.CLIENT_GONE)
