"""When each stage of a wake was reached, as a client and the API server saw it; pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Mark(StrEnum):
    """A moment of a wake, with the words that say what ended there."""

    SENT = "request sent"
    POD_MADE = "gateway scaled 0 -> 1, a pod was made"
    SCHEDULED = "scheduler chose a node"
    STARTED = "node started the process"
    READY = "engine ready"
    FIRST_TOKEN = "first token at the client"


@dataclass(slots=True)
class Timeline:
    """Moments in seconds on one clock; each is kept at its first sight."""

    marks_s: dict[Mark, float] = field(default_factory=dict)

    def mark(self, mark: Mark, now_s: float) -> None:
        """Notes a moment unless it was noted before."""
        self.marks_s.setdefault(mark, now_s)

    def see_pod(self, pod: dict[str, Any], now_s: float) -> None:
        """Notes what a pod's status shows."""
        self.mark(Mark.POD_MADE, now_s)
        status = pod.get("status", {})
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        if pod.get("spec", {}).get("nodeName"):
            self.mark(Mark.SCHEDULED, now_s)
        if any("running" in c.get("state", {}) for c in status.get("containerStatuses", ())):
            self.mark(Mark.STARTED, now_s)
        if conditions.get("Ready") == "True":
            self.mark(Mark.READY, now_s)

    def stages(self) -> list[tuple[Mark, float, float]]:
        """(moment, seconds it took since the one before, seconds since the start), in order; what was not seen is left out.

        A first token can come before the Ready of the pod is seen here: then that stage takes 0.
        """
        found: list[tuple[Mark, float, float]] = []
        start_s = last_s = self.marks_s.get(Mark.SENT, 0.0)
        for mark in list(Mark)[1:]:
            if mark in self.marks_s:
                at_s = max(self.marks_s[mark], last_s)
                found.append((mark, at_s - last_s, at_s - start_s))
                last_s = at_s
        return found
