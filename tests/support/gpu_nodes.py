"""Nodes with GPUs as the operator sees them, and the choice that it makes among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from emberline_contract.region import GpuPool
from emberline_contract.resources import InferenceEndpointSpec
from emberline_local.node_options import GPUS
from emberline_operator.choice import Choice, NoChoice
from emberline_operator.hardware.choose import choose
from emberline_operator.hardware.gpu_table import GpuTable, make_table
from emberline_operator.hardware.inventory import Hardware, hardware_of
from emberline_operator.snapshot import NodeState, Taint

TABLE = make_table()
LLAMA_8B = "pvc://models/llama-3.1-8b"


def gpu_node(
    kind: str, name: str = "", *, count: int = 1, labels: dict[str, str] | None = None, **state: Any
) -> NodeState:
    """A node with pretended GPUs of a kind; `labels` are added."""
    gpus = GPUS[kind]
    resource = gpus.resource_name
    taint = Taint(resource, "present", "NoSchedule")
    return NodeState(
        name or f"{kind}-node",
        {**gpus.labels, **(labels or {})},
        {resource: count * gpus.replicas},
        **{"taints": (taint,), **state},
    )


def labelled_node(
    labels: dict[str, str], name: str = "node", resource: str = "nvidia.com/gpu", **state: Any
) -> NodeState:
    """A node with one GPU and just these labels."""
    return NodeState(name, labels, {resource: 1}, **state)


def spec_of(
    source: str = LLAMA_8B, *, max_replicas: int = 1, parts: dict[str, Any] | None = None
) -> InferenceEndpointSpec:
    """An endpoint's spec as the API server holds it."""
    spec = {"model": {"source": source}, "scaling": {"maxReplicas": max_replicas}, **(parts or {})}
    return InferenceEndpointSpec.model_validate(spec)


def decide(
    nodes: Iterable[NodeState],
    source: str = LLAMA_8B,
    *,
    pools: Sequence[GpuPool] = (),
    table: GpuTable = TABLE,
    max_replicas: int = 1,
    **parts: Any,
) -> Choice | NoChoice:
    """What is chosen; keyword arguments are parts of the spec."""
    return choose(spec_of(source, max_replicas=max_replicas, parts=parts), hardware_of(nodes, pools, table), table)


def chosen(nodes: Iterable[NodeState], source: str = LLAMA_8B, **parts: Any) -> Choice:
    """The choice, which there must be."""
    answer = decide(nodes, source, **parts)
    assert isinstance(answer, Choice), answer
    return answer


def refused(nodes: Iterable[NodeState], source: str = LLAMA_8B, **parts: Any) -> NoChoice:
    """The refusal, which there must be."""
    answer = decide(nodes, source, **parts)
    assert isinstance(answer, NoChoice), answer
    return answer


def hardware(*nodes: NodeState, pools: Sequence[GpuPool] = ()) -> tuple[Hardware, ...]:
    """The inventory."""
    return hardware_of(nodes, pools, TABLE)
