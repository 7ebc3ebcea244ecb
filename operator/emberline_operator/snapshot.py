"""Everything that a decision about one endpoint looks at, gathered once. Plain data; reads nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from typing_extensions import override

from emberline_contract.http import EngineQueue
from emberline_operator.memory import Memory

Json = dict[str, Any]
"""A Kubernetes object, or a part of one, as the API server writes it."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """An object of the endpoint's namespace."""

    kind: str
    name: str

    @property
    def region(self) -> str:
        """The region of an endpoint's child; empty for other objects. Its name tells, since labels can be edited."""
        child = self.name.rpartition("-")[0] if self.kind == "ConfigMap" else self.name
        return child.partition("--")[2]

    @override
    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class NodeState:
    """What matters of a node."""

    name: str
    labels: Mapping[str, str]
    gpus: Mapping[str, int] = field(default_factory=dict)
    """Allocatable GPUs by resource name; a resource counts as GPUs when a GPU vendor's plugin publishes it."""
    taints: tuple[Taint, ...] = ()
    is_ready: bool = True
    is_cordoned: bool = False


@dataclass(frozen=True, slots=True)
class PodState:
    """What matters of one engine pod."""

    name: str
    template_hash: str
    """Hash of the template that it was made from."""
    region: str
    created: datetime
    ready_since: datetime | None
    """When it became Ready; None while it is not."""
    terminating: bool = False
    unschedulable: str = ""
    """The scheduler's message, if no node can take the pod."""
    failure: str = ""
    """The container's own words, if it failed and is not Ready again."""
    unschedulable_since: datetime | None = None
    """Since when the scheduler has said so."""
    config_maps: frozenset[str] = frozenset()
    uid: str = ""
    node: str = ""
    """The node that it is bound to; empty while it is bound to none."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs that it requests, by resource name."""
    deletion_cost: int | None = None
    """What its annotation tells the ReplicaSet controller; None if there is none."""
    deletion_cost_written: datetime | None = None
    """When the operator last wrote it."""
    ends_by: datetime | None = None
    """If it is terminating: when the kubelet kills it at the latest."""
    has_ended: bool = False
    """Whether it will never run again: its node threw it out, or lost it. Its ReplicaSet has made another one."""
    not_ready_since: datetime | None = None
    """When its node said first, or said again, that it is not Ready."""
    lacks_image: bool = False
    """Whether `failure` is that an image cannot be had."""
    is_trying: bool = False
    """Whether the container of `failure` runs once more."""
    loading_s: float | None = None
    """How long the container of `failure` ran the last time without the pod becoming Ready; None: it did become Ready, or never ran."""

    @property
    def is_routable(self) -> bool:
        """Whether a gateway may send it requests."""
        return self.ready_since is not None and not self.terminating


@dataclass(frozen=True, slots=True)
class GatewayView:
    """What one gateway says of one endpoint and region."""

    gateway: str
    unfinished: int
    """Requests held or dispatched there."""
    idle_s: float
    """Seconds since a request last arrived or ended there."""
    ever_active: bool
    """False: it has seen no request since its own start, and `idle_s` counts from there."""
    held: int = 0
    """Those of the unfinished that wait for an engine."""
    held_s: float = 0.0
    """Seconds that the one which has waited longest has waited."""
    pods: Mapping[str, int] = field(default_factory=dict)
    """Name of an engine pod -> requests that it was given and has not finished."""
    engines: Mapping[str, EngineQueue] = field(default_factory=dict)
    """Name of an engine pod -> what its engine said when this gateway asked it last."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the gateways say of one endpoint and region."""

    views: tuple[GatewayView, ...] = ()
    silent: tuple[str, ...] = ()
    """Gateways that run and could not be asked, each with the reason."""


@dataclass(frozen=True, slots=True)
class MetricsApi:
    """Whether HorizontalPodAutoscalers can read Emberline's metrics."""

    is_ours: bool = False
    """The APIServices of custom.metrics.k8s.io point at our gateway's Service and are Available."""
    owner: str = ""
    """`namespace/service` that they point at when they are somebody else's; empty if there are none."""
    message: str = ""
    """Why ours is not Available, in the API server's words."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Until that moment a region shall not have fewer engines; kept in memory for scaling down late and step by step."""

    until: datetime
    replicas: int


@dataclass(frozen=True, slots=True)
class Room:
    """Whether an engine that ends holds the place that another one waits for; kept in memory."""

    is_held: bool
    since: datetime
    """When a pass saw that last, if it is so, or first, if it is so no longer."""


@dataclass(frozen=True, slots=True, order=True)
class Rival:
    """Another endpoint that asks for the same `model.servedName`."""

    created: datetime
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Waiter:
    """An engine pod for which the scheduler has found no node."""

    pod: str
    gpus: Mapping[str, int]
    """GPUs that it requests, by resource name."""
    spec: Json
    """Where it may go: the pod's nodeSelector, affinity and tolerations."""
    words: str
    """The scheduler's."""


@dataclass(frozen=True, slots=True)
class Features:
    """What the API server can do that older ones cannot. A field that it does not know would be dropped and written for ever."""

    hpa_tolerance: bool = True
    """`spec.behavior.scaleUp.tolerance` of a HorizontalPodAutoscaler."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One endpoint and all that belongs to it."""

    endpoint: Json
    regions: Mapping[str, Json] = field(default_factory=dict)
    """InferenceRegions by name."""
    claims: Mapping[str, Json] = field(default_factory=dict)
    """PersistentVolumeClaims of the namespace that the endpoint names."""
    children: Mapping[Ref, Json] = field(default_factory=dict)
    """Objects labelled as this endpoint's."""
    looked_up: Mapping[Ref, Json | None] = field(default_factory=dict)
    """Answers of the API server about objects that are not among `children`; None: not there."""
    pods: tuple[PodState, ...] = ()
    status_written: datetime | None = None
    """When this process last wrote the endpoint's status."""
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    """All nodes of the cluster by name."""
    gpus_in_use: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Node -> resource -> GPUs that engines of any endpoint hold there. Other workloads' GPUs are not known: a free one is a hope."""
    surging: Mapping[tuple[str, str], tuple[Json, ...]] = field(default_factory=dict)
    """Other endpoints (namespace, name) whose roll-out may take a spare GPU now, with the pod templates that want one."""
    waiters: Mapping[tuple[str, str], tuple[Waiter, ...]] = field(default_factory=dict)
    """Endpoints (namespace, name) with engines that find no node for want of GPUs, maybe; this endpoint may be among them."""
    demands: Mapping[str, Demand] = field(default_factory=dict)
    """By region; a region that is not in it has not been asked about yet."""
    metrics_api: MetricsApi = MetricsApi()
    recommendations: Mapping[str, tuple[Recommendation, ...]] = field(default_factory=dict)
    """By region, as the last pass has left them; a region is missing until the first pass that looked at its demand."""
    rooms: Mapping[str, Room] = field(default_factory=dict)
    """By region, as the last pass has left them; a region is missing while no engine of it has ended lately."""
    taken_up: Mapping[str, bool] = field(default_factory=dict)
    """Name of a pod -> whether a cluster autoscaler makes a node for it; a pod that is not in it has not been asked about yet."""
    rivals: tuple[Rival, ...] = ()
    """Other endpoints with the same `model.servedName`, the oldest first."""
    is_shadowed: bool = False
    """Whether `model.servedName` is `<namespace>/<name>` of another endpoint, which has it then."""
    features: Features = Features()
    foreign_hpas: tuple[Json, ...] = ()
    """HorizontalPodAutoscalers of others whose target is a Deployment of the endpoint."""
    memory: Memory = field(default_factory=Memory, compare=False)
    """What earlier passes over the endpoint worked out."""

    @property
    def namespace(self) -> str:
        """The endpoint's namespace."""
        return str(self.endpoint["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return str(self.endpoint["metadata"]["name"])

    @property
    def uid(self) -> str:
        """The endpoint's uid."""
        return str(self.endpoint["metadata"]["uid"])

    @property
    def generation(self) -> int:
        """The endpoint's generation."""
        return int(self.endpoint["metadata"].get("generation", 0))

    def controls(self, live: Json) -> bool:
        """Whether this very endpoint is the object's controller; one of the same name that came before it is another."""
        owners = live["metadata"].get("ownerReferences", ())
        return any(owner.get("controller") and owner.get("uid") == self.uid for owner in owners)


def time_of(text: str) -> datetime:
    """A metav1.Time or MicroTime."""
    return datetime.fromisoformat(text).astimezone(UTC)


def time_text(moment: datetime) -> str:
    """A metav1.Time, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_GPU_PREFIXES: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/")


def is_gpu(resource: str) -> bool:
    """Whether a resource of a node or pod is GPUs: whole ones, shared ones or slices, also by a name of somebody's own."""
    domain, _, name = resource.rpartition("/")
    return resource.startswith(_GPU_PREFIXES) or (bool(domain) and "gpu" in name)


def whole_gpus(resources: Mapping[str, str]) -> dict[str, int]:
    """How many GPUs of each resource; what is no plain number (such as a share of memory) is no count of GPUs."""
    return {name: int(count) for name, count in resources.items() if is_gpu(name) and str(count).isdecimal()}


def read_node(node: Json) -> NodeState:
    """What matters of a Node."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready: Json = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    taints = spec.get("taints", ())
    return NodeState(
        name=metadata["name"],
        labels=metadata.get("labels", {}),
        gpus=whole_gpus(status.get("allocatable", {})),
        taints=tuple(Taint(taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints),
        is_ready=ready.get("status") == "True",
        is_cordoned=bool(spec.get("unschedulable")),
    )


def holds_gpus(pod: Json) -> bool:
    """Whether a Pod keeps what it requests: it is bound to a node and has not ended."""
    has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return bool(pod.get("spec", {}).get("nodeName")) and not has_ended
