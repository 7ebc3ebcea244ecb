"""Conditions of an endpoint's status: when they flip, and when a status is worth a write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.plan.ownership import needs_write
from emberline_operator.snapshot import Json, time_text

Truth = Literal["True", "False", "Unknown"]
MAX_MESSAGE: Final = 1024
STATUS_PERIOD_S: Final = 5.0
"""Between two writes of one endpoint's status, unless a condition flips or a new generation is seen."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition as it is now."""

    type: ConditionType
    status: Truth
    reason: Reason
    message: str


def truth(value: bool) -> Truth:
    """A condition's status."""
    return "True" if value else "False"


def engines(count: int) -> str:
    """The beginning of a sentence about so many."""
    return "1 engine is" if count == 1 else f"{count} engines are"


def stamp(verdicts: Iterable[Verdict], before: Json, generation: int, now: datetime) -> list[Json]:
    """Conditions as status holds them; `lastTransitionTime` moves only when a status flips."""
    old = {condition["type"]: condition for condition in before.get("conditions", ())}
    stamped = []
    for verdict in verdicts:
        same = old.get(verdict.type.value, {})
        kept = same.get("lastTransitionTime") if same.get("status") == verdict.status else None
        stamped.append(
            {
                "type": verdict.type.value,
                "status": verdict.status,
                "reason": verdict.reason.value,
                "message": _cut(verdict.message, MAX_MESSAGE),
                "lastTransitionTime": kept or time_text(now),
                "observedGeneration": generation,
            }
        )
    return stamped


def with_failure(status: Json, before: Json, message: str, now: datetime, *, is_invalid: bool = False) -> Json:
    """The status of a pass whose writes failed: as planned, but Degraded says so. `before` is the live status.

    `is_invalid`: what the spec asks for makes no valid object, so nothing changes until the spec does, and nothing is on its way.
    """
    then = "correct what it comes from, in the spec or in its InferenceRegion" if is_invalid else "it is tried again"
    message = f"{_cut(message, MAX_MESSAGE - len(then) - 2)}; {then}"
    verdicts = [Verdict(ConditionType.DEGRADED, "True", Reason.APPLY_FAILED, message)]
    planned = {condition["type"]: condition for condition in status.get("conditions", ())}
    if planned.get(ConditionType.READY.value, {}).get("status") == "Unknown":
        verdicts.append(Verdict(ConditionType.READY, "False", Reason.APPLY_FAILED, message))
    if is_invalid:
        planned.pop(ConditionType.RECONCILING.value, None)
        verdicts.append(Verdict(ConditionType.STALLED, "True", Reason.APPLY_FAILED, message))
    told = stamp(verdicts, before, int(status.get("observedGeneration", 0)), now)
    return {**status, "conditions": list((planned | {condition["type"]: condition for condition in told}).values())}


def status_delay_s(endpoint: Json, status: Json, written: datetime | None, now: datetime) -> float | None:
    """Seconds until the status may be written, 0 for now; None if there is nothing to write."""
    desired = status_object(endpoint, status)
    if not needs_write(endpoint, desired, names.OPERATOR_MANAGER, "status"):
        return None
    before = endpoint.get("status", {})
    # That a new generation has been seen is awaited by whoever applied it, as a flip is.
    is_flip = _signs(before) != _signs(status) or before.get("observedGeneration") != status.get("observedGeneration")
    if written is None or is_flip:
        return 0.0
    # Not longer than the period, also after the clock has been set back.
    return min(STATUS_PERIOD_S, max(0.0, STATUS_PERIOD_S - (now - written).total_seconds()))


def status_object(endpoint: Json, status: Json) -> Json:
    """The body of a status apply; the uid keeps it from an endpoint that came in this one's place."""
    metadata = {key: endpoint["metadata"][key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": names.API_VERSION, "kind": names.ENDPOINT_KIND, "metadata": metadata, "status": status}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _signs(status: Json) -> set[tuple[str, str, str]]:
    return {(c["type"], c["status"], c["reason"]) for c in status.get("conditions", ())}
