"""The Deployment of one endpoint in one region."""

from __future__ import annotations

import math
from typing import Final, Literal

from emberline_contract import names
from emberline_operator.desired.child import Child
from emberline_operator.desired.template import GRACE_BEYOND_DRAIN_S, START_DEADLINE_S
from emberline_operator.snapshot import Json

KEPT_REVISIONS: Final = 2
Strategy = Literal["Surge", "Drain"]

_LIMITS: Final[dict[Strategy, Json]] = {
    "Surge": {"maxSurge": 1, "maxUnavailable": 0},
    "Drain": {"maxSurge": 0, "maxUnavailable": 1},
}


def make_deployment(
    child: Child,
    template: Json,
    *,
    inputs: str,
    placement: str,
    strategy: Strategy,
    drain_timeout_s: float,
    replicas: int | None,
) -> Json:
    """The Deployment; `placement` is the record of where it was decided to be, `replicas` None leaves the field to its owner."""
    body: Json = {
        "selector": {"matchLabels": child.selector},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": dict(_LIMITS[strategy])},
        # Covers a start after a drain; running over it is a message, not a failure.
        "progressDeadlineSeconds": START_DEADLINE_S + math.ceil(drain_timeout_s) + GRACE_BEYOND_DRAIN_S,
        "revisionHistoryLimit": KEPT_REVISIONS,
        "template": template,
    }
    if replicas is not None:
        body["replicas"] = replicas
    annotations = {names.ANNOTATION_TEMPLATE_INPUTS: inputs, names.ANNOTATION_PLACEMENT: placement}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child.metadata(child.name, annotations),
        "spec": body,
    }


def strategy_of(live: Json) -> Strategy:
    """Which of the two a live Deployment rolls out by."""
    limits = live["spec"].get("strategy", {}).get("rollingUpdate", {})
    return "Drain" if limits.get("maxSurge") == 0 else "Surge"
