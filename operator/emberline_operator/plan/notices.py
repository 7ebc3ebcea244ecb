"""What a user should notice of a change of status, as Events. Pure; how often one is written is `cluster.events`' business.

A notice speaks of a condition that has just become so: nothing is repeated while it stays so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.plan.actions import Notice
from emberline_operator.snapshot import Json

_WARNINGS: Final[Mapping[ConditionType, frozenset[str]]] = {
    ConditionType.ACCEPTED: frozenset({"False"}),
    ConditionType.ALIAS_READY: frozenset({"False"}),
    ConditionType.PLACED: frozenset({"False"}),
    ConditionType.WEIGHTS_READY: frozenset({"False"}),
    ConditionType.SCALING_ACTIVE: frozenset({"False"}),
    ConditionType.ROLLOUT_BLOCKED: frozenset({"True"}),
    ConditionType.DEGRADED: frozenset({"True"}),
}
"""The status of each condition that is worth a warning. `Ready` is not here: what keeps an endpoint from being ready is said by
one of these, and a start is no fault."""
_ALSO: Final = frozenset(
    {(ConditionType.PLACED, Reason.PARTLY_PLACED), (ConditionType.SCALING_ACTIVE, Reason.DEMAND_UNKNOWN)}
)
"""Warnings whatever the status."""
_ORDINARY: Final = frozenset({Reason.WAITING_FOR_DRAIN.value})
"""Reasons that are worth telling and no fault: every roll-out without a spare GPU goes through them."""
_SAID_ELSEWHERE: Final = (ConditionType.SCALING_ACTIVE, Reason.NOT_PLACED)
"""What the condition Placed tells of, with the same words."""


def notices_of(before: Json, after: Json) -> tuple[Notice, ...]:
    """Notices of the step from one status to the next; `before` is the live one, empty at first sight."""
    old = {condition["type"]: condition for condition in before.get("conditions", ())}
    new = {condition["type"]: condition for condition in after.get("conditions", ())}
    found = [
        Notice(
            "Normal" if condition["reason"] in _ORDINARY else "Warning",
            Reason(condition["reason"]),
            condition["message"],
        )
        for kind, condition in new.items()
        if _is_warning(kind, condition) and _sign(condition) != _sign(old.get(kind, {}))
    ]
    found += _decided(before, after) + _rolled_out(old, new)
    # The same reason may stand in two conditions: one Event tells of both.
    return tuple({notice.reason: notice for notice in reversed(found)}.values())[::-1]


def _is_warning(kind: str, condition: Json) -> bool:
    known = ConditionType(kind)
    if (known, condition["reason"]) == _SAID_ELSEWHERE:
        return False
    return condition["status"] in _WARNINGS.get(known, ()) or (known, condition["reason"]) in _ALSO


def _sign(condition: Json) -> tuple[str | None, str | None]:
    return condition.get("status"), condition.get("reason")


def _decided(before: Json, after: Json) -> list[Notice]:
    """GPUs and precision, when they are chosen or chosen anew."""
    chosen = after.get("precision", {})
    if not chosen or _hardware(before) == _hardware(after):
        return []
    return [_normal(Reason.DECIDED, f"precision {chosen['format']}: {chosen['reason']}")]


def _hardware(status: Json) -> tuple[object, ...]:
    classes = tuple((region["name"], region.get("gpuClass")) for region in status.get("regions", ()))
    return status.get("precision", {}).get("format"), classes


def _rolled_out(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[Notice]:
    was, ready = old.get(ConditionType.RECONCILING, {}), new.get(ConditionType.READY, {})
    is_over = was.get("status") == "True" and ConditionType.RECONCILING not in new
    # The first generation replaces nothing, nor does a roll-out of an endpoint that sleeps.
    if not is_over or ready.get("reason") != Reason.SERVING or ready["observedGeneration"] == 1:
        return []
    return [_normal(Reason.ROLLED_OUT, f"all engines are of generation {ready['observedGeneration']}")]


def _normal(reason: Reason, message: str) -> Notice:
    kind: Literal["Normal"] = "Normal"
    return Notice(kind, reason, message)
