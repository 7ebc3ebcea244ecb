"""The InferenceRegion: a place that endpoints can be bound to, and the hardware it has or may get."""

from __future__ import annotations

from pydantic import Field

from emberline_contract.model import ContractModel
from emberline_contract.names import GPU_RESOURCE
from emberline_contract.schema import (
    GpuType,
    Jurisdiction,
    LabelValue,
    Quantity,
    ResourceName,
    ShortString,
    key_rule,
    rules,
)


class GpuPool(ContractModel):
    """GPU nodes that a cluster autoscaler makes when they are wanted; there may be none yet."""

    name: ShortString
    """Its name, for status."""
    node_selector: dict[ShortString, LabelValue] = Field(
        min_length=1, max_length=16, json_schema_extra=rules(key_rule("gpuPools.nodeSelector"))
    )
    """Labels of the pool's nodes; engines that are placed there ask for exactly these."""
    type: GpuType | None = None
    """Short name of its GPUs, such as `h100`; unset: what compute capability and memory tell."""
    resource_name: ResourceName = GPU_RESOURCE
    """Resource that its nodes offer."""
    compute_capability: str = Field(max_length=16, pattern=r"^([0-9]+\.[0-9]+|gfx[0-9a-f]+)$")
    """Such as `9.0`; for AMD the architecture, such as `gfx942`."""
    memory: Quantity
    """Memory of one GPU, such as `80Gi`."""
    gpus_per_node: int = Field(default=1, ge=1, le=64)
    """GPUs of one node."""
    max_nodes: int = Field(default=1, ge=1, le=10_000)
    """Nodes that the autoscaler makes at most."""
    price_per_hour: str | None = Field(default=None, max_length=16, pattern=r"^[0-9]+(\.[0-9]+)?$")
    """Price of one node, in any currency; among pools that do equally well the cheapest is taken."""


class InferenceRegionSpec(ContractModel):
    """A place that endpoints can be bound to."""

    node_selector: dict[ShortString, LabelValue] = Field(
        default_factory=dict, max_length=16, json_schema_extra=rules(key_rule("nodeSelector"))
    )
    """Labels of the region's nodes; empty: `topology.kubernetes.io/region: <name>`."""
    jurisdictions: tuple[Jurisdiction, ...] = Field(default=(), max_length=16)
    """Jurisdictions that the region lies in, such as `DE` and `EU`."""
    gpu_pools: tuple[GpuPool, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Hardware that may have no node yet."""
