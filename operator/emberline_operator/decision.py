"""A placement that has been decided, and what a pass makes of each region that an endpoint names or has left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from emberline_contract.conditions import Reason
from emberline_operator.choice import Choice


@dataclass(frozen=True, slots=True)
class Decision:
    """One region's placement; recorded as JSON in ANNOTATION_PLACEMENT of the child Deployment, so that it stays decided."""

    region: str
    inputs: str
    """Hash of the spec's fields that it was made from; while they are the same it is not made again."""
    node_labels: Mapping[str, str]
    """Labels that a node of the region carries; empty for the pseudo-region `default`."""
    jurisdictions: tuple[str, ...]
    """The region's jurisdictions when it was last accepted."""
    choice: Choice
    unknown_since: datetime | None = None
    """Since when it has been unknown where the region or one of its pods' nodes is; None while all is known."""


@dataclass(frozen=True, slots=True)
class RegionPlacement:
    """What is so of one region now."""

    region: str
    decision: Decision | None
    """None: nothing can be placed there, and nothing has been."""
    may_start: bool
    """Whether new pods may be placed there now."""
    is_wanted: bool
    """Whether the endpoint still names the region; one that it has left is drained when another one answers."""
    reason: Reason
    message: str
    """For the condition Placed and for status.regions[].message."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A pod that must go because of where it is."""

    pod: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ResidencyVerdict:
    """Which pods must go now, and when to look again."""

    evictions: tuple[Eviction, ...] = ()
    unknown: tuple[str, ...] = ()
    """Sentences about pods whose place has become unknown and whose grace still runs."""
    check_in_s: float | None = None
