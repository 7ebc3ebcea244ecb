"""What a pass may do, as data. Each action carries a sentence that says why: it becomes the log line."""

from __future__ import annotations

from dataclasses import dataclass

from emberline_operator.snapshot import Json, Ref


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


Action = Apply | Scale | Sleep | Delete


@dataclass(frozen=True, slots=True)
class Plan:
    """One pass's decision."""

    actions: tuple[Action, ...]
    status: Json
    requeue_after_s: float | None = None
    """When to look again although nothing happened; None: events will tell."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The decision needs facts that only a question brings; decide again with them in the snapshot."""

    objects: frozenset[Ref] = frozenset()
    """Children that the caches do not hold; somebody else's object may have that name."""
    demand_of: str | None = None
    """Region whose demand the gateways know."""
