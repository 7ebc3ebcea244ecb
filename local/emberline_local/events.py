"""What a starting supervisor tells its launcher: one JSON object a line, on a pipe."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum

KEEP = "keep\n"
"""What the launcher answers once it knows that the cluster is ready: from then on it may end."""


class EventKind(StrEnum):
    """What an event says."""

    STEP = "step"
    """A step has begun; the one before is done."""
    DETAIL = "detail"
    """What the step waits for."""
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Event:
    """One line."""

    kind: EventKind
    text: str = ""
    urls: dict[str, str] = field(default_factory=dict)


def write_event(event: Event) -> None:
    """Tells the launcher; one that is gone hears nothing."""
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(asdict(event)) + "\n")
        sys.stdout.flush()


def read_event(line: str) -> Event:
    """An event from its line."""
    raw = json.loads(line)
    return Event(EventKind(raw["kind"]), raw["text"], raw["urls"])
