"""Logs as JSON lines, and one line a request where it was asked for. Never a prompt's or an answer's text."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from typing_extensions import override

from emberline_runtime.server.choice import Choice

logger = logging.getLogger("emberline")


@dataclass(slots=True)
class RequestRecord:
    """What a request's log line says."""

    path: str
    request_id: str
    arrival_s: float
    model: str = ""
    stream: bool = False
    status: int = 500
    """Stays so if an unexpected exception ends the request."""
    counts: dict[str, Any] = field(default_factory=dict)

    def note(self, choices: Sequence[Choice]) -> None:
        """Take the numbers down."""
        if not choices:
            return
        first = min((choice.first_token_s for choice in choices if choice.first_token_s is not None), default=None)
        waits = [choice.queue_s for choice in choices if choice.queue_s is not None]
        self.counts = {
            "prompt_tokens": sum(len(choice.request.prompt) for choice in choices),
            "completion_tokens": sum(choice.num_output for choice in choices),
            "cached_tokens": sum(choice.num_cached for choice in choices),
            "finish_reasons": [choice.ending.reason if choice.ending else "abort" for choice in choices],
            "queue_s": round(max(waits), 6) if waits else None,
            "first_token_s": None if first is None else round(first - self.arrival_s, 6),
        }


class RequestLog:
    """One line a request, if `enabled`; counts and times, no text."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    def write(self, record: RequestRecord, now_s: float) -> None:
        """The request is over."""
        if not self._enabled:
            return
        details = {
            "request_id": record.request_id,
            "path": record.path,
            "model": record.model,
            "stream": record.stream,
            "status": record.status,
            "duration_s": round(now_s - record.arrival_s, 6),
            **record.counts,
        }
        logger.info("request", extra={"details": details})


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        details = getattr(record, "details", None)
        if details is not None:
            line["details"] = details
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def set_up_logging(stream: TextIO) -> None:
    """Send every logger's lines to `stream` as JSON."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    # uvicorn tells about every start and stop; this process has its own lines for that.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
