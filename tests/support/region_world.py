"""Regions, nodes and pods for tests of placement, and what is recorded from pass to pass."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.decision import Decision, RegionPlacement, ResidencyVerdict
from emberline_operator.hardware.gpu_table import make_table
from emberline_operator.regions.place import place
from emberline_operator.regions.record import from_text, to_text
from emberline_operator.regions.residency import judge
from emberline_operator.snapshot import NodeState, PodState, Ref, Snapshot

Raw = dict[str, Any]
NOW = datetime.fromisoformat("2026-07-01T12:00:00+00:00")
UID = "u-1"
TABLE = make_table()
H100 = ("NVIDIA-H100-80GB-HBM3", 81559, (9, 0))
L4 = ("NVIDIA-L4", 23034, (8, 9))
T4 = ("Tesla-T4", 15360, (7, 5))
EU, US = {names.LABEL_TOPOLOGY_REGION: "eu"}, {names.LABEL_TOPOLOGY_REGION: "us"}


def node(
    name: str, labels: Raw | None = None, gpu: tuple[str, int, tuple[int, int]] | None = H100, **state: Any
) -> NodeState:
    """A node of region `eu` with eight H100, unless told otherwise."""
    found = dict(EU if labels is None else labels)
    if gpu is None:
        return NodeState(name, found, **state)
    product, memory_mib, (major, minor) = gpu
    found |= {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.compute.major": str(major),
        "nvidia.com/gpu.compute.minor": str(minor),
    }
    return NodeState(name, found, gpus={names.GPU_RESOURCE: 8}, **state)


def region(name: str, *jurisdictions: str, selector: Raw | None = None, pools: tuple[Raw, ...] = ()) -> Raw:
    """An InferenceRegion."""
    spec: Raw = {"nodeSelector": selector or {}, "jurisdictions": list(jurisdictions), "gpuPools": list(pools)}
    return {"metadata": {"name": name}, "spec": spec}


def make_spec(
    *regions: str, kind: str = "Nvidia", jurisdictions: tuple[str, ...] = (), **parts: Any
) -> InferenceEndpointSpec:
    """An endpoint of an 8B model."""
    residency: Raw = {"jurisdictions": list(jurisdictions), **parts.pop("residency", {})}
    given = {
        "model": {"source": "pvc://models/tiny", "parameters": "8B"},
        "accelerator": {"kind": kind},
        "placement": {"regions": list(regions), "residency": residency, **parts.pop("placement", {})},
    }
    return InferenceEndpointSpec.model_validate({**given, **parts})


@dataclass
class World:
    """A cluster as one endpoint sees it. `look` is a pass: what it decides is recorded, as the operator does."""

    spec: InferenceEndpointSpec
    regions: dict[str, Raw] = field(default_factory=dict)
    nodes: dict[str, NodeState] = field(default_factory=dict)
    pods: list[PodState] = field(default_factory=list)
    deployments: dict[str, Raw] = field(default_factory=dict)
    """Own Deployments by region."""
    now: datetime = NOW

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def put(self, *nodes: NodeState) -> None:
        self.nodes |= {one.name: one for one in nodes}

    def know(self, *regions: Raw) -> None:
        self.regions |= {one["metadata"]["name"]: one for one in regions}

    def pod(self, name: str, on: str = "", *, region: str = "eu", age_s: float = 600, **state: Any) -> PodState:
        """A pod that is there from now on; bound if `on` names a node."""
        created = self.now - timedelta(seconds=age_s)
        state.setdefault("template_hash", self.template_hash(region))
        pod = PodState(name=name, region=region, created=created, ready_since=None, node=on, uid=name, **state)
        self.pods.append(pod)
        return pod

    def template_hash(self, region: str) -> str:
        live = self.deployments.get(region, {"spec": {"template": {"metadata": {"annotations": {}}}}})
        annotations: Raw = live["spec"]["template"]["metadata"]["annotations"]
        return str(annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""))

    @property
    def seen(self) -> Snapshot:
        children = {Ref("Deployment", live["metadata"]["name"]): live for live in self.deployments.values()}
        endpoint = {"metadata": {"namespace": "ns", "name": "tiny", "uid": UID, "generation": 1}, "spec": {}}
        return Snapshot(endpoint, regions=self.regions, nodes=self.nodes, pods=tuple(self.pods), children=children)

    def look(self) -> dict[str, RegionPlacement]:
        """One pass; what it decides is recorded."""
        placements = place(self.spec, self.seen, TABLE, self.now)
        for placement in placements:
            if placement.decision is not None:
                self.record(placement.decision, keeps_template=placement.keeps_template)
        return {placement.region: placement for placement in placements}

    def record(self, decision: Decision, *, keeps_template: bool = False) -> None:
        known = self.deployments.get(decision.region)
        template = known["spec"]["template"] if known and keeps_template else make_template(decision)
        self.deployments[decision.region] = make_deployment(decision.region, to_text(decision), template)

    def recorded(self, region: str = "eu") -> Decision:
        found = from_text(self.deployments[region]["metadata"]["annotations"][names.ANNOTATION_PLACEMENT])
        assert found is not None
        return found

    def forget(self, region: str = "eu", text: str | None = None) -> None:
        """The record is lost, or replaced by another text."""
        live = copy.deepcopy(self.deployments[region])
        live["metadata"]["annotations"] = {} if text is None else {names.ANNOTATION_PLACEMENT: text}
        self.deployments[region] = live

    def judge(self) -> ResidencyVerdict:
        """Who must go, by a pass of now."""
        placements = place(self.spec, self.seen, TABLE, self.now)
        return judge(self.spec, self.seen, placements, self.now)

    def evicted(self) -> list[str]:
        return sorted(eviction.pod for eviction in self.judge().evictions)


def make_deployment(region: str, record: str, template: Raw) -> Raw:
    """A child Deployment as far as placement looks at it."""
    return {
        "kind": "Deployment",
        "metadata": {
            "name": names.child_name("tiny", region),
            "labels": {names.LABEL_REGION: region},
            "annotations": {names.ANNOTATION_PLACEMENT: record},
            "ownerReferences": [{"kind": names.ENDPOINT_KIND, "name": "tiny", "uid": UID, "controller": True}],
        },
        "spec": {"template": template},
    }


def make_template(decision: Decision) -> Raw:
    """A pod template as far as placement looks at it."""
    regional = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(decision.node_labels.items())
    ]
    terms = [
        {
            "matchExpressions": [
                *regional,
                *({"key": e.key, "operator": e.operator, "values": list(e.values)} for e in term),
            ]
        }
        for term in decision.choice.terms or ((),)
    ]
    container: Raw = {"name": names.ENGINE_CONTAINER}
    if decision.choice.resource_name:
        container["resources"] = {"limits": {decision.choice.resource_name: "1"}}
    pod: Raw = {"containers": [container]}
    if any(term["matchExpressions"] for term in terms):
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["affinity"] = {"nodeAffinity": required}
    choice = decision.choice
    signature = f"{sorted(decision.node_labels.items())}-{choice.gpu_class}-{choice.format}"
    return {"metadata": {"annotations": {names.ANNOTATION_TEMPLATE_HASH: signature}}, "spec": pod}
