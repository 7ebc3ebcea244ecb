"""The status of an endpoint, from what a pass found."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from emberline_contract import names
from emberline_operator.choice import Choice
from emberline_operator.desired.child import Child
from emberline_operator.plan.conditions import stamp
from emberline_operator.plan.findings import Findings, RegionFindings
from emberline_operator.plan.verdicts import all_verdicts
from emberline_operator.snapshot import Json, time_of, time_text

MAX_SKIPPED: Final = 16
MAX_REASON: Final = 512
MAX_MESSAGE: Final = 1024
MAX_NAME: Final = 128
MAX_REGIONS: Final = 16
"""An endpoint names fewer; it may have left more than are drained yet."""
MAX_INTEGER: Final = 2**63 - 1
"""What the API server takes for an integer; `model.parameters` may say more."""


def make_status(found: Findings, now: datetime) -> Json:
    """The whole status. What is not in it is removed."""
    seen = found.seen
    before = seen.endpoint.get("status", {})
    status: Json = {
        "observedGeneration": seen.generation,
        "conditions": stamp(all_verdicts(found, before), before, seen.generation, now),
        "replicas": sum(region.num_alive for region in found.regions),
        "readyReplicas": found.num_ready,
        "readyOfDesired": f"{found.num_ready}/{found.desired}",
    }
    if found.rejection is None:
        status["url"] = found.url
    precision = _precision(found.regions)
    if precision is not None:
        status["precision"] = precision
    if found.is_there:
        status["selector"] = _selector(found)
    if found.regions:
        status["regions"] = [_region(region) for region in found.regions[:MAX_REGIONS]]
        status["regionNames"] = ",".join(region["name"] for region in status["regions"])
    active = _last_active(before, found)
    via = found.via.mode if found.via else before.get("scaling", {}).get("via", "Operator")
    status["scaling"] = {"via": via, **({"lastActiveTime": active} if active else {})}
    return status


def placed_in_words(region: RegionFindings) -> str:
    """What is wrong with a region; empty if nothing is."""
    place = region.placement
    if place is None or (place.is_wanted and place.is_placed):
        return ""
    return place.message


def _precision(regions: Sequence[RegionFindings]) -> Json | None:
    """Of the first region that has one; the reason tells where it is another one."""
    chosen = [(region.name, choice) for region in regions if region.is_wanted and (choice := region.choice)]
    if not chosen:
        return None
    _, first = chosen[0]
    others = [
        f"{name}: {choice.format}, KV cache {_kv_type(choice)}"
        for name, choice in chosen[1:]
        if (choice.format, _kv_type(choice)) != (first.format, _kv_type(first))
    ]
    reason = f"{first.reason} (elsewhere {'; '.join(others)})" if others else first.reason
    precision: Json = {"format": first.format, "kvCache": _kv_type(first), "reason": _cut(reason, MAX_MESSAGE)}
    if first.weight_bytes is not None and first.weight_bytes <= MAX_INTEGER:
        precision["weightBytes"] = first.weight_bytes
    return precision


def _kv_type(choice: Choice) -> str:
    """The KV cache's type, with `auto` put into words."""
    return choice.dtype if choice.kv_cache == "auto" else choice.kv_cache


def _region(region: RegionFindings) -> Json:
    shown: Json = {"name": region.name, "desired": region.desired, "ready": region.num_ready}
    choice, message = region.choice, placed_in_words(region)
    if choice is not None and choice.gpu_class:
        shown["gpuClass"] = _cut(choice.gpu_class, MAX_NAME)
    if message:
        shown["message"] = _cut(message, MAX_MESSAGE)
    failed = region.failed_start
    if failed is not None:
        shown["failedStart"] = {
            "phase": failed.phase,
            "message": _cut(failed.message, MAX_MESSAGE),
            "count": failed.count,
            "retryTime": time_text(failed.retry_time),
        }
    if choice is not None and choice.skipped:
        shown["skipped"] = [
            {"name": _cut(skipped.name, MAX_NAME), "reason": _cut(skipped.reason, MAX_REASON)}
            for skipped in choice.skipped[:MAX_SKIPPED]
        ]
    return shown


def _selector(found: Findings) -> str:
    """Labels of the engines' pods; of all regions, if there are several."""
    seen = found.seen
    regions = [region.name for region in found.regions if region.deployment is not None]
    labels = Child(seen.namespace, seen.name, seen.uid, regions[0]).selector
    if len(regions) > 1:
        del labels[names.LABEL_REGION]
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _last_active(before: Json, found: Findings) -> str | None:
    """To the minute, and never back: a gateway that restarted has forgotten what it saw."""
    moments = [time_of(text) for text in (before.get("scaling", {}).get("lastActiveTime"),) if text]
    scaled = [region.scale.last_active for region in found.regions if region.scale is not None]
    moments += [moment for moment in scaled if moment is not None]
    return time_text(max(moments).replace(second=0, microsecond=0)) if moments else None


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
