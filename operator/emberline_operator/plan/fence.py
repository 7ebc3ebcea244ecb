"""Where no engine may come to be although nothing else is done about the endpoint: its spec cannot be acted on.

Residency evicts such pods all the same, and the ReplicaSet of one that is evicted makes another one, in the same place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import Decision, RegionPlacement, ResidencyVerdict
from emberline_operator.plan.actions import Action, Delete
from emberline_operator.plan.belonging import own, own_deployments
from emberline_operator.plan.replicas import replicas_of, scale_to
from emberline_operator.plan.via import HPA_KIND
from emberline_operator.regions.region import find_region
from emberline_operator.regions.residency import is_enforced, stand_of_region
from emberline_operator.snapshot import Ref, Snapshot


def most_of(
    spec: InferenceEndpointSpec, seen: Snapshot, region: str, decision: Decision | None, residency: ResidencyVerdict
) -> int | None:
    """Engines that a region may have at most, by residency alone; None: no limit. `spec` is one with the residency that counts."""
    if not is_enforced(spec):
        return None
    here = [pod for pod in seen.pods if pod.region == region]
    leaving = {eviction.pod for eviction in residency.evictions}
    # Pods without a region may be made anew on any node, also on the one that they are evicted from.
    is_open = region == names.DEFAULT_REGION and any(pod.name in leaving for pod in here)
    is_left = region not in spec.placement.regions
    wanted = spec.placement.residency.jurisdictions
    stand = stand_of_region(region, find_region(seen.regions, region), decision, wanted, is_left=is_left)
    if stand.kind == "Inside" and not is_open:
        return None
    return sum(bool(pod.node) and not pod.terminating and pod.name not in leaving for pod in here)


def fence(placements: Iterable[RegionPlacement], seen: Snapshot) -> tuple[Action, ...]:
    """No more replicas than may stay, and no autoscaler that adds one."""
    live, actions = own_deployments(seen), list[Action]()
    for placement in placements:
        deployment = live.get(placement.region)
        if placement.most is None or deployment is None:
            continue
        ref = Ref(HPA_KIND, str(deployment["metadata"]["name"]))
        hpa = own(seen, ref)
        if hpa is not None and "deletionTimestamp" not in hpa["metadata"]:
            actions.append(
                Delete(ref, str(hpa["metadata"]["uid"]), f"delete {ref}: no engine may be started in the region now")
            )
        if replicas_of(deployment) > placement.most:
            scale = scale_to(deployment, placement.most, "no engine may be started in the region now")
            # Engines that come and go there change the Deployment faster than it can be read.
            actions.append(replace(scale, resource_version=""))
    return tuple(actions)
