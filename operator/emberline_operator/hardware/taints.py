"""Which nodes' taints an engine's pod tolerates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from emberline_contract import names
from emberline_contract.resources import Toleration
from emberline_operator.snapshot import Taint

GPU_TAINTS: Final = frozenset({names.GPU_RESOURCE, names.AMD_GPU_RESOURCE})
"""Keys of the taints that keep other pods from GPU nodes; every engine that asks for GPUs tolerates them."""
_STATE: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that say how a node is now, which other fields say too."""


def keeping_out(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> tuple[Taint, ...]:
    """The taints that keep an engine's pod away."""
    tolerations = tuple(tolerations)
    return tuple(
        taint
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
        and not taint.key.startswith(_STATE)
        and not (taint.key in GPU_TAINTS and taint.effect == "NoSchedule")
        and not any(_tolerates(toleration, taint) for toleration in tolerations)
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in (None, taint.effect) or toleration.key not in (None, taint.key):
        return False
    return toleration.operator == "Exists" or (toleration.key == taint.key and (toleration.value or "") == taint.value)
