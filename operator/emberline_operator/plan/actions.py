"""What a pass may do, as data. Each action carries a sentence that says why: it becomes the log line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from emberline_contract.conditions import Reason
from emberline_operator.snapshot import Json, Recommendation, Ref, Room


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child. A uid in the body's metadata makes it fail on an object that came in its place."""

    body: Json
    manager: str
    why: str
    force: bool = True

    @property
    def ref(self) -> Ref:
        """The object."""
        return Ref(self.body["kind"], self.body["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class Scale:
    """Write a Deployment's replicas through its scale subresource, if it is still what the decision saw."""

    ref: Ref
    replicas: int
    uid: str
    resource_version: str
    """Empty: whatever has happened to the Deployment since."""
    why: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Close the endpoint's region at every gateway; only when all answer closed, do `scale`; then reopen."""

    region: str
    scale: Scale
    retry_s: float
    """When to try again after a busy answer."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child, if it is still the object that the decision saw."""

    ref: Ref
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Delete a pod because of where it is, whatever budgets and drain times say (design 3: residency)."""

    pod: str
    uid: str
    grace_s: int
    why: str


@dataclass(frozen=True, slots=True)
class SetDeletionCost:
    """Tell the ReplicaSet controller how much a pod's end would cost."""

    pod: str
    uid: str
    cost: int
    at: datetime
    """Written beside it (ANNOTATION_DELETION_COST_TIME), so that it is not written too often."""
    why: str


@dataclass(frozen=True, slots=True)
class FillReplicas:
    """Write `spec.replicas` of the endpoint once, where `via: External` finds none (the scale subresource needs a number)."""

    replicas: int
    resource_version: str
    why: str


Action = Apply | Scale | Sleep | Delete | Evict | SetDeletionCost | FillReplicas


@dataclass(frozen=True, slots=True)
class Notice:
    """An Event that a user should see; at most one per endpoint and reason in ten minutes is written."""

    type: Literal["Normal", "Warning"]
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass's decision."""

    actions: tuple[Action, ...]
    status: Json
    requeue_after_s: float | None = None
    """When to look again although nothing happened; None: events will tell."""
    notices: tuple[Notice, ...] = ()
    recommendations: Mapping[str, tuple[Recommendation, ...]] = field(default_factory=dict)
    """What the next pass shall find in its snapshot."""
    rooms: Mapping[str, Room] = field(default_factory=dict)
    """Likewise."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The decision needs facts that only a question brings; decide again with them in the snapshot."""

    objects: frozenset[Ref] = frozenset()
    """Children that the caches do not hold; somebody else's object may have that name."""
    demand_of: str | None = None
    """Region whose demand the gateways know."""
    autoscaler_of: frozenset[str] = frozenset()
    """Pods for which a cluster autoscaler may be making nodes."""
