"""Where an endpoint's pods may run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import PlacementSpec
from emberline_operator.snapshot import Json


@dataclass(frozen=True, slots=True)
class Placement:
    """The region of the endpoint's child objects and what its nodes must carry."""

    region: str
    node_labels: Mapping[str, str]
    """Required labels of the region's nodes; empty: any node."""
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """There is no place."""

    reason: Reason
    message: str


def place(spec: PlacementSpec, regions: Mapping[str, Json]) -> Placement | Unplaced:
    """The place of an endpoint, given the InferenceRegions by name."""
    if not spec.regions:
        return Placement(names.DEFAULT_REGION, {}, Reason.ANYWHERE, "no region was asked for; any node will do")
    name = spec.regions[0]
    region = regions.get(name)
    if region is None:
        known = ", ".join(sorted(regions)) or "none"
        return Unplaced(
            Reason.UNKNOWN_REGION,
            f"placement.regions names {name!r} and there is no InferenceRegion of that name (there are: {known});"
            " create it or name another. Nothing new is placed meanwhile",
        )
    labels = region.get("spec", {}).get("nodeSelector") or {names.LABEL_TOPOLOGY_REGION: name}
    wanted = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return Placement(name, labels, Reason.IN_REGION, f"pods go to nodes with {wanted}")
