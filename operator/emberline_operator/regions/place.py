"""What is so of each region that an endpoint names, and of those that it has left and that still have children."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import RegionPlacement
from emberline_operator.hardware.gpu_table import GpuTable
from emberline_operator.pods import staying_unknown
from emberline_operator.regions.record import record_of
from emberline_operator.regions.region import find_region
from emberline_operator.regions.residency import is_enforced, judge_pod, stamp, stand_of_region
from emberline_operator.regions.sticky import settle
from emberline_operator.snapshot import Json, PodState, Ref, Snapshot, time_text


def place(spec: InferenceEndpointSpec, seen: Snapshot, table: GpuTable, now: datetime) -> tuple[RegionPlacement, ...]:
    """The regions, those that the endpoint names first and in its order, then the left ones by name."""
    named = spec.placement.regions or (names.DEFAULT_REGION,)
    sites = [_Site(spec, seen, table, now, name) for name in named]
    found = {site.name: site.place() for site in sites if not site.is_fallback}
    if any(_can_serve(placement, seen) for placement in found.values()):
        found |= {site.name: site.stand_by() for site in sites if site.is_fallback}
    else:
        found |= {site.name: site.place() for site in sites if site.is_fallback}
    left = [_Site(spec, seen, table, now, name).leave() for name in _left(named, seen)]
    return (*(found[name] for name in named), *left)


def own_deployment(seen: Snapshot, region: str) -> Json | None:
    """The endpoint's own Deployment in a region, if it is there."""
    ref = Ref("Deployment", names.child_name(seen.name, region))
    live = seen.children.get(ref) or seen.looked_up.get(ref)
    return live if live is not None and seen.controls(live) else None


def lives(pod: PodState) -> bool:
    """Whether a pod has a place and is not about to lose it."""
    return bool(pod.node) and not pod.terminating and not pod.has_ended


class _Site:
    """One region, looked at for one endpoint."""

    def __init__(self, spec: InferenceEndpointSpec, seen: Snapshot, table: GpuTable, now: datetime, name: str) -> None:
        self.name, self._spec, self._seen, self._table, self._now = name, spec, seen, table, now
        self._live = own_deployment(seen, name)
        record = record_of(self._live, name)
        self._record = None if record is None else stamp(record, spec, seen, now)
        self._region = find_region(seen.regions, name)
        self._standing = stand_of_region(name, self._region, record, spec.placement.residency.jurisdictions)
        pods = [pod for pod in seen.pods if pod.region == name]
        self._verdicts = [(pod, judge_pod(pod, spec, seen, self._record, now)) for pod in pods]

    @property
    def is_fallback(self) -> bool:
        """Whether it is used only while no region inside the jurisdictions can serve."""
        is_known = self._region is not None
        return self._spec.placement.residency.mode == "Prefer" and is_known and self._standing.kind != "Inside"

    def place(self) -> RegionPlacement:
        """A region that the endpoint names and may want."""
        if self._region is None and self._standing.kind == "Unknown":
            return self._gone()
        if self._region is None or (self._standing.kind != "Inside" and not self.is_fallback):
            return self._closed()
        wrong = next((v.why for pod, v in self._verdicts if v.must_go and not pod.terminating), "")
        if wrong and self._has_moved:
            # The ReplicaSet of the older template would make an evicted pod anew in the wrong place.
            message = (
                f"region {self.name} has another nodeSelector than its pods were placed by, and some are outside now:"
                f" {wrong}. They are stopped first, then engines are placed anew"
            )
            return self._still(Reason.RESIDENCY_VIOLATION, message, most=0)
        outcome = settle(self._spec, self._region, self._seen, self._live, self._record, self._table, self._now)
        message = "; ".join((outcome.message, *self._warnings()))
        if self.is_fallback:
            message = f"{message}; {self._standing.why}, and no region inside can serve (residency.mode Prefer)"
        if not outcome.is_current:
            message = f"{message}. Nothing new is placed meanwhile"
            # Residency has nothing against engines that still wait: to have fewer replicas would make a roll-out that is under
            # way stop the one that serves.
            there = sum(not (pod.terminating or pod.has_ended or verdict.must_go) for pod, verdict in self._verdicts)
            return self._still(outcome.reason, message, most=there)
        return RegionPlacement(
            self.name, outcome.decision, may_start=True, is_wanted=True, reason=outcome.reason, message=message,
            check_in_s=outcome.check_in_s,
        )  # fmt: skip

    @property
    def _has_moved(self) -> bool:
        """Whether pods may live that were placed by other labels than the region's own of now."""
        if self._record is None or self._region is None:
            return False
        return self._record.has_moved or dict(self._record.node_labels) != dict(self._region.node_labels)

    def stand_by(self) -> RegionPlacement:
        """A region outside the jurisdictions that is not needed."""
        message = f"{self._standing.why}; it is used only while no region inside can serve (residency.mode Prefer)"
        return replace(self._still(Reason.OUTSIDE_JURISDICTION, message), is_wanted=False)

    def leave(self) -> RegionPlacement:
        """A region that the endpoint names no longer."""
        message = f"the endpoint no longer names region {self.name}; it is drained when another region answers"
        return replace(self._still(Reason.IN_REGION, "; ".join((message, *self._warnings()))), is_wanted=False)

    def _gone(self) -> RegionPlacement:
        known = ", ".join(sorted(self._seen.regions)) or "none"
        if self._record is None or not is_enforced(self._spec):
            message = (
                f"placement.regions names {self.name!r} and there is no InferenceRegion of that name (there are:"
                f" {known}); create it or name another. Nothing new is placed meanwhile"
            )
            return self._still(Reason.UNKNOWN_REGION, message)
        return self._unknown(f"put it back, or name another region (there are: {known})")

    def _closed(self) -> RegionPlacement:
        """A region that is there and lies outside, or nobody knows where."""
        wanted = ", ".join(self._spec.placement.residency.jurisdictions)
        if self._standing.kind == "Unknown" and self._record is not None:
            return self._unknown(f"let it name one of {wanted}")
        message = (
            f"{self._standing.why}; name a region that lies in one of {wanted}, or correct the region's jurisdictions"
            " or placement.residency.jurisdictions. Nothing is placed there"
        )
        return self._still(Reason.OUTSIDE_JURISDICTION, message)

    def _unknown(self, remedy: str) -> RegionPlacement:
        residency = self._spec.placement.residency
        assert self._record is not None
        assert self._record.unknown_since is not None
        until = self._record.unknown_since + timedelta(seconds=residency.absence_grace_s)
        grace = f"placement.residency.absenceGrace {residency.absence_grace}"
        if self._now < until:
            then = f", and what runs is stopped at {time_text(until)}, after {grace}"
        else:
            then = f", and nothing may run there any longer, since {grace} has passed"
        message = f"{self._standing.why}, so nothing new is placed there{then}; {remedy}"
        if self._now >= until:
            return self._still(Reason.RESIDENCY_UNKNOWN, message)
        staying = staying_unknown((pod for pod, it in self._verdicts if not it.must_go), self._record.unknown_since)
        return self._still(Reason.RESIDENCY_UNKNOWN, message, most=len(staying))

    def _warnings(self) -> list[str]:
        """What pods of the region are about to be stopped for."""
        ends = {verdict.why: verdict.until for _, verdict in self._verdicts if verdict.until is not None}
        return [
            f"{why}: its pods are stopped at {time_text(until)} unless that changes"
            for why, until in sorted(ends.items())
        ]

    def _still(self, reason: Reason, message: str, *, most: int | None = None) -> RegionPlacement:
        """A region in which no pod may come to be."""
        staying = sum(lives(pod) and not verdict.must_go for pod, verdict in self._verdicts)
        limit = staying if most is None else most
        return RegionPlacement(
            self.name, self._record, may_start=False, is_wanted=True, reason=reason, message=message, most=limit
        )


def _can_serve(placement: RegionPlacement, seen: Snapshot) -> bool:
    answers = any(pod.region == placement.region and pod.is_routable for pod in seen.pods)
    return placement.is_placed or answers


def _left(named: Iterable[str], seen: Snapshot) -> list[str]:
    regions = {ref.region for ref, live in seen.children.items() if seen.controls(live)}
    return sorted(regions - {*named, ""})
