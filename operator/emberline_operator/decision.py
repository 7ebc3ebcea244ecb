"""A placement that has been decided, and what a pass makes of each region that an endpoint names or has left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    """Since when it has been unknown where the region lies (it is gone, or names no jurisdictions); None while that is known."""
    unknown_nodes: Mapping[str, datetime] = field(default_factory=dict)
    """Nodes with pods of the region that have lost the region's labels, and since when."""
    impossible_since: datetime | None = None
    """Since when no node or pool could hold the choice; None while one can."""
    has_moved: bool = False
    """Whether pods may live that were made for other node labels: the region's selector has changed under them."""


@dataclass(frozen=True, slots=True)
class RegionPlacement:
    """What is so of one region now.

    Where `may_start` is False, no pod may come to be: there is no HPA, replicas are lowered to `most` at once (before any pod is
    evicted, whose ReplicaSet would make it anew), and never raised. Where `keeps_template` is True, the live Deployment is written
    with its own template; only the record may change.
    """

    region: str
    decision: Decision | None
    """To be recorded; None: nothing can be placed there, and nothing has been."""
    may_start: bool
    """Whether new pods may be placed there now."""
    is_wanted: bool
    """Whether engines shall run there. Not in a region that the endpoint has left, nor, with `residency.mode: Prefer`, outside the
    jurisdictions while a region inside can serve: what is there is drained and deleted when a wanted region answers, at once if
    none of its pods lives."""
    reason: Reason
    message: str
    """For the condition Placed and for status.regions[].message."""
    most: int | None = None
    """Replicas at most while `may_start` is False: pods that live there and may stay. None: no limit."""
    check_in_s: float | None = None
    """When to look again although nothing happened."""

    @property
    def is_placed(self) -> bool:
        """Whether pods have a place there, as far as the condition Placed says."""
        return self.may_start and self.reason in (Reason.ANYWHERE, Reason.IN_REGION)

    @property
    def keeps_template(self) -> bool:
        """Whether the live pod template stays, whatever the spec says."""
        return not (self.may_start and self.is_wanted)


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
    violations: tuple[Eviction, ...] = ()
    """Pods that are where they must not be, those included that are ending already."""
    check_in_s: float | None = None
