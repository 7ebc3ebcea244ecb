"""kstatus's rules for custom resources as code: what Flux's `wait: true` and `kpt live` make of an object.

After sigs.k8s.io/cli-utils/pkg/kstatus/status, `Compute`, without its rules for built-in kinds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Kstatus(StrEnum):
    """What kstatus answers."""

    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    CURRENT = "Current"
    TERMINATING = "Terminating"


def compute(obj: dict[str, Any]) -> Kstatus:
    """The status of a custom resource."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return Kstatus.TERMINATING
    # An object that tells no observedGeneration is believed.
    if status.get("observedGeneration", metadata.get("generation")) != metadata.get("generation"):
        return Kstatus.IN_PROGRESS
    conditions = status.get("conditions") or []
    for condition in conditions:
        if condition["type"] == "Reconciling" and condition["status"] == "True":
            return Kstatus.IN_PROGRESS
        if condition["type"] == "Stalled" and condition["status"] == "True":
            return Kstatus.FAILED
    for condition in conditions:
        if condition["type"] == "Ready":
            return Kstatus.CURRENT if condition["status"] == "True" else Kstatus.IN_PROGRESS
    # Nothing known speaks against it.
    return Kstatus.CURRENT
