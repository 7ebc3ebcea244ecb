"""The record of a decision: JSON in an annotation of the child Deployment.

It is a cache of what was decided, not the truth: one that is missing or cannot be read is made again. Defaults are left
out, so that a field that a later release adds changes no record.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from emberline_contract import names
from emberline_operator.decision import Decision
from emberline_operator.snapshot import Json

VERSION: Final = 1
_KEY: Final = "version"
_YEARS: Final = (1970, 9000)
_DECISION: Final = TypeAdapter(Decision)


def to_text(decision: Decision) -> str:
    """The record's text; equal decisions have equal texts."""
    body: dict[str, Any] = _DECISION.dump_python(decision, mode="json", exclude_defaults=True)
    return json.dumps({_KEY: VERSION, **body}, sort_keys=True, separators=(",", ":"))


def from_text(text: str) -> Decision | None:
    """The decision of a record; None if it cannot be read or a newer release wrote it in a form of its own."""
    try:
        body = json.loads(text)
        if not isinstance(body, dict) or body.pop(_KEY, None) != VERSION:
            return None
        decision = _DECISION.validate_python(body)
    except (ValueError, ValidationError, RecursionError):
        return None
    times = (decision.unknown_since, decision.impossible_since, *decision.unknown_nodes.values())
    return decision if all(time is None or _is_plausible(time) for time in times) else None


def _is_plausible(time: datetime) -> bool:
    """Whether one can reckon with it: the operator writes no time without a zone, and none from which a day cannot be taken."""
    return time.tzinfo is not None and _YEARS[0] <= time.year <= _YEARS[1]


def record_of(deployment: Json | None, region: str) -> Decision | None:
    """What is recorded on a region's child Deployment."""
    if deployment is None:
        return None
    annotations = deployment["metadata"].get("annotations") or {}
    decision = from_text(annotations.get(names.ANNOTATION_PLACEMENT, ""))
    return decision if decision is not None and decision.region == region else None
