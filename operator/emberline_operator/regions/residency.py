"""Residency: which pods are where they must not be, or where nobody knows that they may be.

A *contradiction* is known to be wrong: a node that carries another value of the region's label or another region's labels, a
region whose jurisdictions exclude it. Such a pod goes at once. An *absence* is not known to be right: the InferenceRegion, its
jurisdictions or a node's label are gone. Nothing new is placed there, and such a pod goes after `absenceGrace`. A node that is
gone itself says nothing; its pods are the pod collector's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import Decision, Eviction, RegionPlacement, ResidencyVerdict
from emberline_operator.regions.region import Region, find_region, read_region, relation
from emberline_operator.snapshot import NodeState, PodState, Snapshot

EVICTION_GRACE_S: Final = 10
"""Grace period of a pod that is evicted for residency, whatever drainTimeout says."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a region or a pod stands to where it must be."""

    kind: Literal["Inside", "Unknown", "Outside"]
    why: str = ""


INSIDE: Final = Standing("Inside")


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """What residency wants of one pod."""

    must_go: bool
    why: str = ""
    """Empty: nothing is wrong."""
    until: datetime | None = None
    """When its grace ends, if it must go only then."""


def is_enforced(spec: InferenceEndpointSpec) -> bool:
    """Whether pods are evicted for where they are. An endpoint that names no region may be anywhere."""
    return bool(spec.placement.regions) and spec.placement.residency.mode == "Enforce"


def stand_of_region(
    name: str, region: Region | None, record: Decision | None, wanted: Sequence[str], *, is_left: bool = False
) -> Standing:
    """How a region stands to the wanted jurisdictions, by what it says now or was last accepted with."""
    if name == names.DEFAULT_REGION:
        return INSIDE
    said = region.jurisdictions if region else ()
    remembered = record.jurisdictions if record else ()
    known = said or remembered
    if wanted and known and not set(known) & set(wanted):
        last = "" if said else ", as far as last known"
        return Standing("Outside", f"region {name} lies in {_list(known)}{last}, not in {_list(wanted)}")
    if region is None:
        # A left region is drained anyway; without jurisdictions it does not matter what it was.
        return INSIDE if is_left and not wanted else Standing("Unknown", f"InferenceRegion {name} is gone")
    if wanted and not said:
        return Standing("Unknown", f"InferenceRegion {name} names no jurisdictions")
    return INSIDE


def stamp(decision: Decision, spec: InferenceEndpointSpec, seen: Snapshot, now: datetime) -> Decision:
    """The decision with its memory of what is unknown brought up to date. A decision that has nothing to add comes back equal."""
    if not is_enforced(spec):
        return replace(decision, unknown_since=None, unknown_nodes={})
    moment = now.replace(microsecond=0)
    region = find_region(seen.regions, decision.region)
    stand = _stand(spec, decision.region, region, decision)
    nodes = {
        pod.node
        for pod in seen.pods
        if pod.region == decision.region and _stand_of_node(pod, spec, region, decision, seen).kind == "Unknown"
    }
    return replace(
        decision,
        # What is recorded as later than now was written by a clock that was ahead, or by somebody who wants no end of the grace.
        unknown_since=min(decision.unknown_since or moment, moment) if stand.kind == "Unknown" else None,
        unknown_nodes={node: min(decision.unknown_nodes.get(node, moment), moment) for node in sorted(nodes)},
    )


def judge_pod(
    pod: PodState, spec: InferenceEndpointSpec, seen: Snapshot, decision: Decision | None, now: datetime
) -> PodVerdict:
    """Whether a pod must go because of where it is, by the decision that is recorded for its region."""
    if not is_enforced(spec):
        return PodVerdict(must_go=False)
    region = find_region(seen.regions, pod.region)
    stand = _stand(spec, pod.region, region, decision)
    at_node = _stand_of_node(pod, spec, region, decision, seen)
    for found in (stand, at_node):
        if found.kind == "Outside":
            return PodVerdict(must_go=True, why=found.why)
    verdicts: list[PodVerdict] = []
    # Where nothing is recorded, nobody can tell since when; the pod's own age is what is left.
    if stand.kind == "Unknown" and pod.node:
        since = decision.unknown_since if decision and decision.unknown_since else pod.created
        if pod.created > since:
            return PodVerdict(must_go=True, why=f"{stand.why}, and the pod was started after that")
        verdicts.append(_after_grace(stand.why, since, spec, now))
    if at_node.kind == "Unknown":
        since = decision.unknown_nodes.get(pod.node, pod.created) if decision else pod.created
        verdicts.append(_after_grace(at_node.why, since, spec, now))
    overdue = (verdict for verdict in verdicts if verdict.must_go)
    first = min(verdicts, key=lambda verdict: verdict.until or now, default=PodVerdict(must_go=False))
    return next(overdue, first)


def judge(
    spec: InferenceEndpointSpec, seen: Snapshot, placements: Iterable[RegionPlacement], now: datetime
) -> ResidencyVerdict:
    """Which pods must go now. Every pod of the endpoint is looked at, whatever region and template it is of."""
    decisions = {placement.region: placement.decision for placement in placements}
    violations, evictions, ends = list[Eviction](), list[Eviction](), list[datetime]()
    for pod in seen.pods:
        verdict = judge_pod(pod, spec, seen, decisions.get(pod.region), now)
        if verdict.must_go:
            eviction = Eviction(pod.name, pod.uid, f"residency: {verdict.why}")
            if not pod.has_ended:
                violations.append(eviction)
            if not _ends_soon(pod, now):
                evictions.append(eviction)
        elif verdict.until is not None:
            ends.append(verdict.until)
    check_in_s = max(0.0, (min(ends) - now).total_seconds()) if ends else None
    return ResidencyVerdict(tuple(evictions), tuple(violations), check_in_s)


def _stand(spec: InferenceEndpointSpec, name: str, region: Region | None, decision: Decision | None) -> Standing:
    is_left = name not in spec.placement.regions
    return stand_of_region(name, region, decision, spec.placement.residency.jurisdictions, is_left=is_left)


def _stand_of_node(
    pod: PodState, spec: InferenceEndpointSpec, region: Region | None, decision: Decision | None, seen: Snapshot
) -> Standing:
    node = seen.nodes.get(pod.node)
    if node is None:
        return INSIDE
    if pod.region == names.DEFAULT_REGION:
        return _stand_anywhere(node, spec, seen)
    labels = region.node_labels if region else decision.node_labels if decision else {}
    wrong = [f"{key}={node.labels[key]}" for key in sorted(labels) if node.labels.get(key, labels[key]) != labels[key]]
    if wrong:
        return Standing("Outside", f"node {node.name} carries {', '.join(wrong)}, which is not region {pod.region}")
    missing = sorted(labels.keys() - node.labels.keys())
    if not missing:
        return INSIDE
    for other in _regions_of(node, seen):
        if other.name != pod.region and not other.node_labels.items() <= labels.items():
            return Standing("Outside", f"node {node.name} is one of region {other.name}, no longer of {pod.region}")
    return Standing("Unknown", f"node {node.name} lacks the label {', '.join(missing)} of region {pod.region}")


def _stand_anywhere(node: NodeState, spec: InferenceEndpointSpec, seen: Snapshot) -> Standing:
    """A pod of the time before the endpoint named regions: its node's own regions tell where it is."""
    wanted = spec.placement.residency.jurisdictions
    if not wanted:
        return INSIDE
    said = {place for region in _regions_of(node, seen) for place in region.jurisdictions}
    if said & set(wanted):
        return INSIDE
    if said:
        return Standing("Outside", f"node {node.name} lies in {_list(sorted(said))}, not in {_list(wanted)}")
    return Standing("Unknown", f"node {node.name} is in no region that names jurisdictions")


def _regions_of(node: NodeState, seen: Snapshot) -> list[Region]:
    regions = [read_region(body) for _, body in sorted(seen.regions.items())]
    return [region for region in regions if relation(node, region.node_labels) == "Inside"]


def _after_grace(why: str, since: datetime, spec: InferenceEndpointSpec, now: datetime) -> PodVerdict:
    residency = spec.placement.residency
    until = since + timedelta(seconds=residency.absence_grace_s)
    if now < until:
        return PodVerdict(must_go=False, why=why, until=until)
    return PodVerdict(must_go=True, why=f"{why}, for longer than absenceGrace {residency.absence_grace}")


def _ends_soon(pod: PodState, now: datetime) -> bool:
    """Whether it is ending anyway as fast as an eviction would end it."""
    return pod.terminating and (pod.ends_by is None or pod.ends_by <= now + timedelta(seconds=EVICTION_GRACE_S))


def _list(places: Iterable[str]) -> str:
    return ", ".join(places)
