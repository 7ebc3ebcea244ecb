"""Whether the model's files are where pods will look for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from emberline_contract.conditions import Reason
from emberline_operator.accept import ClaimSource
from emberline_operator.snapshot import Json


@dataclass(frozen=True, slots=True)
class WeightsState:
    """The state of the source."""

    status: Literal["True", "False", "Unknown"]
    reason: Reason
    message: str


def is_awaited(weights: WeightsState, words: str) -> bool:
    """Whether a pod for which the scheduler finds no node, in its words, waits for the claim and not for a place."""
    return weights.status == "False" and "persistentvolumeclaim" in words.lower()


def judge_claim(source: ClaimSource, claim: Json | None) -> WeightsState:
    """The state of a PersistentVolumeClaim as a source of weights."""
    if claim is None:
        return WeightsState(
            "False",
            Reason.CLAIM_NOT_FOUND,
            f"there is no PersistentVolumeClaim {source.claim!r} in this namespace; create it or correct model.source",
        )
    phase = claim.get("status", {}).get("phase", "Pending")
    if phase != "Bound":
        return WeightsState(
            "False",
            Reason.CLAIM_NOT_BOUND,
            f"the PersistentVolumeClaim {source.claim!r} is {phase}, not Bound; see `kubectl describe pvc {source.claim}`"
            " (a claim whose StorageClass waits for the first consumer is bound when an engine starts)",
        )
    where = f"folder {source.folder!r} of " if source.folder else ""
    return WeightsState(
        "True", Reason.CLAIM_BOUND, f"{where}the PersistentVolumeClaim {source.claim!r}, which is Bound"
    )
