"""Taints of GPU nodes: which ones engines tolerate by themselves, and which keep an endpoint's engines away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec, Toleration
from emberline_operator.snapshot import Taint

_STATE: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that say how a node is now, which other fields say too."""
_OWN: Final = {
    "Nvidia": (
        Toleration(key=names.GPU_RESOURCE, operator="Exists", effect="NoSchedule"),
        # Pools of Grace superchips carry it. No other GPU node does, so it opens nothing else.
        Toleration(key="kubernetes.io/arch", operator="Equal", value="arm64", effect="NoSchedule"),
    ),
    "Amd": (Toleration(key=names.AMD_GPU_RESOURCE, operator="Exists", effect="NoSchedule"),),
    "Cpu": (),
}


def own_tolerations(spec: InferenceEndpointSpec) -> tuple[Toleration, ...]:
    """Of the taints that keep other pods from such GPUs."""
    return _OWN[spec.accelerator.kind]


def keeping_out(taints: Iterable[Taint], spec: InferenceEndpointSpec) -> tuple[Taint, ...]:
    """The taints that keep the endpoint's engines away."""
    tolerations = (*own_tolerations(spec), *spec.placement.tolerations)
    return tuple(
        taint
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and not taint.key.startswith(_STATE)
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in (None, taint.effect) or toleration.key not in (None, taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key == taint.key and (toleration.value or "") == taint.value)
