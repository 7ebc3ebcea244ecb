"""Everything that a decision about one endpoint looks at, gathered once. Plain data; reads nothing by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from typing_extensions import override

from emberline_contract import names
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
    pods: Mapping[str, int] = field(default_factory=dict)
    """Name of an engine pod -> requests that it was given and has not finished."""


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


_STARTING_REASONS: Final = frozenset({"ContainerCreating", "PodInitializing"})
_GPU_PREFIXES: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/")


def is_gpu(resource: str) -> bool:
    """Whether a resource of a node or pod is GPUs: whole ones, shared ones or slices, also by a name of somebody's own."""
    domain, _, name = resource.rpartition("/")
    return resource.startswith(_GPU_PREFIXES) or (bool(domain) and "gpu" in name)


def _whole_gpus(resources: Mapping[str, str]) -> dict[str, int]:
    """How many of each; what is no plain number (such as a share of memory) is no count of GPUs."""
    return {name: int(count) for name, count in resources.items() if is_gpu(name) and str(count).isdecimal()}


def read_node(node: Json) -> NodeState:
    """What matters of a Node."""
    metadata, spec, status = node["metadata"], node.get("spec", {}), node.get("status", {})
    ready: Json = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    taints = spec.get("taints", ())
    return NodeState(
        name=metadata["name"],
        labels=metadata.get("labels", {}),
        gpus=_whole_gpus(status.get("allocatable", {})),
        taints=tuple(Taint(taint["key"], taint.get("value", ""), taint["effect"]) for taint in taints),
        is_ready=ready.get("status") == "True",
        is_cordoned=bool(spec.get("unschedulable")),
    )


def read_pod(pod: Json) -> PodState:
    """What matters of a Pod."""
    metadata, status = pod["metadata"], pod.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    ready = conditions.get("Ready", {})
    scheduled = conditions.get("PodScheduled", {})
    is_ready = ready.get("status") == "True"
    spec, annotations = pod.get("spec", {}), metadata.get("annotations", {})
    # The scheduler's last word may come after somebody else has bound the pod.
    is_waiting = not spec.get("nodeName") and scheduled.get("status") == "False"
    is_unschedulable = is_waiting and scheduled.get("reason") == "Unschedulable"
    return PodState(
        name=metadata["name"],
        template_hash=annotations.get(names.ANNOTATION_TEMPLATE_HASH, ""),
        region=metadata.get("labels", {}).get(names.LABEL_REGION, ""),
        created=time_of(metadata["creationTimestamp"]),
        ready_since=_since(ready, metadata) if is_ready else None,
        terminating="deletionTimestamp" in metadata,
        unschedulable=(scheduled.get("message") or "no node fits").rstrip(".") if is_unschedulable else "",
        failure="" if is_ready else _failure(status),
        unschedulable_since=_since(scheduled, metadata) if is_unschedulable else None,
        config_maps=frozenset(v["configMap"]["name"] for v in spec.get("volumes", ()) if "configMap" in v),
        uid=metadata.get("uid", ""),
        node=spec.get("nodeName", ""),
        gpus=_gpus(spec),
        deletion_cost=_cost(annotations.get(names.POD_DELETION_COST, "")),
        deletion_cost_written=_moment(annotations.get(names.ANNOTATION_DELETION_COST_TIME, "")),
        ends_by=_moment(metadata.get("deletionTimestamp", "")),
        has_ended=status.get("phase") in ("Succeeded", "Failed"),
    )


def holds_gpus(pod: Json) -> bool:
    """Whether a Pod keeps what it requests: it is bound to a node and has not ended."""
    has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return bool(pod.get("spec", {}).get("nodeName")) and not has_ended


def _since(condition: Json, metadata: Json) -> datetime:
    return time_of(condition.get("lastTransitionTime") or metadata["creationTimestamp"])


def _gpus(spec: Json) -> dict[str, int]:
    requested: Counter[str] = Counter()
    for container in spec.get("containers", ()):
        limits = container.get("resources", {}).get("limits", {})
        requested.update(_whole_gpus(limits))
    return dict(requested)


def _cost(text: str) -> int | None:
    """Whatever somebody wrote there that is no number counts as nothing, as with the ReplicaSet controller."""
    try:
        return int(text)
    except ValueError:
        return None


def _moment(text: str) -> datetime | None:
    """A time that may be missing, or that somebody has spoilt: anybody may write a pod's annotations."""
    try:
        return time_of(text)
    except (ValueError, OverflowError):
        return None


def _failure(status: Json) -> str:
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting", {})
        # A container between two of its crashes runs for a while; its last end still tells what is wrong.
        ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}
        failed = ended.get("exitCode", 0) != 0
        reason = waiting.get("reason", "")
        if (reason and reason not in _STARTING_REASONS) or failed:
            words = [reason, waiting.get("message", "")]
            if failed:
                how = f"exit code {ended['exitCode']}"
                words += [f"last end: {ended.get('reason', 'Error')}, {how}", ended.get("message", "")]
            return f"container {container['name']}: " + ": ".join(word.strip() for word in words if word.strip())
    if status.get("phase") == "Failed":
        return ": ".join(word for word in (status.get("reason", "Failed"), status.get("message", "")) if word)
    return ""
