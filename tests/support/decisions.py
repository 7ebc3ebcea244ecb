"""Decisions and nodes for tests of templates and roll-outs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from emberline_contract import names
from emberline_operator.choice import Choice, Expression
from emberline_operator.decision import Decision
from emberline_operator.snapshot import NodeState

CPU: Final = Choice("", "bf16", "bf16", None, "auto", "", (), None, "for CPUs")
H100: Final = Choice(
    "h100", "fp8", "bf16", "fp8", "fp8", names.GPU_RESOURCE,
    ((Expression("nvidia.com/gpu.compute.major", "Gt", ("8",)), Expression("nvidia.com/gpu.memory", "Gt", ("70000",))),
     (Expression("example.com/pool", "In", ("h100",)),)),
    8_000_000_000, "computes in fp8",
)  # fmt: skip
H100_LABELS: Final = {"nvidia.com/gpu.compute.major": "9", "nvidia.com/gpu.memory": "81559"}


def decision(choice: Choice = CPU, region: str = names.DEFAULT_REGION, **changes: Any) -> Decision:
    """A decision for a region whose nodes carry a label of its name; none for the pseudo-region."""
    labels = {} if region == names.DEFAULT_REGION else {names.LABEL_TOPOLOGY_REGION: region}
    return replace(Decision(region, "inputs", labels, (), choice), **changes)


def gpu_node(name: str = "node-1", gpus: int = 1, **changes: Any) -> NodeState:
    """A node of the class H100."""
    return replace(NodeState(name, dict(H100_LABELS), {names.GPU_RESOURCE: gpus}), **changes)
