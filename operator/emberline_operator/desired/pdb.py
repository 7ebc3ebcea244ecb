"""The PodDisruptionBudget of one endpoint in one region: drains of nodes take one engine at a time."""

from __future__ import annotations

from emberline_operator.desired.child import Child
from emberline_operator.snapshot import Json


def make_pdb(child: Child) -> Json:
    """One engine may be evicted at a time, and one that never became ready always: it must not keep a node from being drained."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child.metadata(child.name),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": child.selector},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
