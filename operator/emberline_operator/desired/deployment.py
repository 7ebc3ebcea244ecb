"""The Deployment of one endpoint in one region."""

from __future__ import annotations

import math
from typing import Final

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.desired.child import Child
from emberline_operator.desired.template import GRACE_BEYOND_DRAIN_S, START_DEADLINE_S
from emberline_operator.snapshot import Json

KEPT_REVISIONS: Final = 2


def make_deployment(
    child: Child, spec: InferenceEndpointSpec, template: Json, *, inputs: str, replicas: int | None
) -> Json:
    """The Deployment; `replicas` None leaves the field to whoever owns it (replica rule 1)."""
    body: Json = {
        "selector": {"matchLabels": child.selector},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _surge(spec)},
        # Covers a start after a drain; running over it is a message, not a failure.
        "progressDeadlineSeconds": START_DEADLINE_S + math.ceil(spec.rollout.drain_timeout_s) + GRACE_BEYOND_DRAIN_S,
        "revisionHistoryLimit": KEPT_REVISIONS,
        "template": template,
    }
    if replicas is not None:
        body["replicas"] = replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child.metadata(child.name, {names.ANNOTATION_TEMPLATE_INPUTS: inputs}),
        "spec": body,
    }


def _surge(spec: InferenceEndpointSpec) -> Json:
    if spec.accelerator.kind == "Nvidia":
        # A second pod would wait for a GPU that the first one holds; the gateway holds requests instead.
        return {"maxSurge": 0, "maxUnavailable": 1}
    return {"maxSurge": 1, "maxUnavailable": 0}
