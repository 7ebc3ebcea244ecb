"""The HorizontalPodAutoscaler of one endpoint in one region. It never starts a region and never stops one (replica rule 2).

Values are written as the API server writes them back, so that what the operator applied can be recognised in the live object.
"""

from __future__ import annotations

import math
from typing import Final

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.demand_formula import targets_of
from emberline_operator.desired.child import Child
from emberline_operator.snapshot import Json

UP_PERIOD_S: Final = 15
"""The API server wants a policy for scaling up; by this one any step is allowed at each look of the autoscaler."""
DOWN_PERIOD_S: Final = 60
"""One engine is stopped in so long at most, so that those that are left show whether they are enough."""


def make_hpa(child: Child, spec: InferenceEndpointSpec, *, floor: int, has_tolerance: bool) -> Json:
    """The autoscaler, which keeps to the floor; `has_tolerance`: the API server keeps `behavior.scaleUp.tolerance`."""
    scaling, targets = spec.scaling, targets_of(spec)
    up: Json = {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": scaling.max_replicas, "periodSeconds": UP_PERIOD_S}],
    }
    if has_tolerance:
        # The default of 10 % would swallow the one engine that a short queue asks for besides ten that serve.
        up["tolerance"] = "0"
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": child.metadata(child.name),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": child.name},
            "minReplicas": max(1, floor),
            "maxReplicas": scaling.max_replicas,
            "metrics": [
                _metric(child, names.METRIC_QUEUE_LOAD, targets.queue_depth),
                _metric(child, names.METRIC_REQUESTS, targets.requests),
            ],
            "behavior": {
                "scaleUp": up,
                "scaleDown": {
                    "stabilizationWindowSeconds": math.ceil(scaling.scale_down_stabilization_s),
                    "selectPolicy": "Max",
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": DOWN_PERIOD_S}],
                },
            },
        },
    }


def _metric(child: Child, name: str, target: int) -> Json:
    """A metric of the endpoint itself in the child's region: it goes on existing when no pod is there to be measured."""
    return {
        "type": "Object",
        "object": {
            "describedObject": {"apiVersion": names.API_VERSION, "kind": names.ENDPOINT_KIND, "name": child.endpoint},
            "metric": {"name": name, "selector": {"matchLabels": {names.LABEL_REGION: child.region}}},
            "target": {"type": "AverageValue", "averageValue": _quantity(target)},
        },
    }


def _quantity(number: int) -> str:
    """A whole number as a canonical quantity: thousands get their suffix."""
    return f"{number // 1000}k" if number % 1000 == 0 else str(number)
