"""Structured logs: one JSON object a line, one line a decision. Nothing of a prompt or a token ever goes in."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from typing_extensions import override

LOGGER = logging.getLogger("emberline.gateway")


class JsonLines(logging.Formatter):
    """Time, level, event and the details that `log` was given."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "details", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log(level: int, event: str, **details: object) -> None:
    """One decision with what it was made of."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, extra={"details": details})


def set_up(level: str) -> None:
    """Sends every logger of the process to standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(level)
