"""What an InferenceRegion says, and which nodes are its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import ValidationError

from emberline_contract import names
from emberline_contract.region import GpuPool
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.hardware.taints import keeping_out
from emberline_operator.snapshot import Json, NodeState


@dataclass(frozen=True)
class Region:
    """A region as it is now."""

    name: str
    node_labels: Mapping[str, str]
    """What its nodes carry; empty for the pseudo-region `default`."""
    jurisdictions: tuple[str, ...] = ()
    pool_bodies: tuple[Json, ...] = ()

    @cached_property
    def pools(self) -> tuple[GpuPool, ...]:
        """Hardware that may have no node yet. Read only where hardware is asked for: residency looks at regions pod by pod."""
        return tuple(_pools(self.pool_bodies))


def read_region(body: Json) -> Region:
    """An InferenceRegion. What a newer release has added to it is passed over; it is not ours to refuse."""
    name, spec = str(body["metadata"]["name"]), body.get("spec", {})
    return Region(
        name,
        spec.get("nodeSelector") or {names.LABEL_TOPOLOGY_REGION: name},
        tuple(spec.get("jurisdictions", ())),
        tuple(spec.get("gpuPools", ())),
    )


def _pools(bodies: Iterable[Json]) -> Iterable[GpuPool]:
    known = {field.alias or name for name, field in GpuPool.model_fields.items()}
    for body in bodies:
        try:
            yield GpuPool.model_validate({key: value for key, value in body.items() if key in known})
        except ValidationError:
            # The schema lets none through; hardware that cannot be read is hardware that is not there.
            continue


def find_region(regions: Mapping[str, Json], name: str) -> Region | None:
    """The region of that name as it is now; None if there is none. `default` is always there."""
    if name == names.DEFAULT_REGION:
        return Region(name, {})
    body = regions.get(name)
    return None if body is None else read_region(body)


def relation(node: NodeState, labels: Mapping[str, str]) -> Literal["Inside", "Unknown", "Outside"]:
    """How a node stands to a region's labels: `Unknown` if some are missing, `Outside` if one has another value."""
    if any(key in node.labels and node.labels[key] != value for key, value in labels.items()):
        return "Outside"
    return "Inside" if all(key in node.labels for key in labels) else "Unknown"


def is_node_of(node: NodeState, region: Region, spec: InferenceEndpointSpec) -> bool:
    """Whether a node is the region's and carries what `placement.nodeSelector` asks for."""
    asked = spec.placement.node_selector
    return relation(node, region.node_labels) == "Inside" and (not asked or relation(node, asked) == "Inside")


def nodes_of(region: Region, spec: InferenceEndpointSpec, nodes: Mapping[str, NodeState]) -> tuple[NodeState, ...]:
    """The region's nodes that an endpoint may use, by name."""
    return tuple(node for _, node in sorted(nodes.items()) if is_node_of(node, region, spec))


def can_take_pods(node: NodeState, spec: InferenceEndpointSpec) -> bool:
    """Whether the scheduler would consider the node now: Ready, not cordoned, no taint that the pods do not tolerate."""
    return node.is_ready and not node.is_cordoned and not keeping_out(node.taints, spec)
