"""The InferenceEndpoint's spec. The CRD YAML and the reference page are generated from these models.

A field is here when it works. Defaults of a served version never change afterwards.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from emberline_contract.engine_config import EngineOptions
from emberline_contract.model import ContractModel
from emberline_contract.names import MAX_ENDPOINT_NAME, MAX_REGION_NAME, NAME_PATTERN
from emberline_contract.pod_template import PodTemplateSpec
from emberline_contract.quantities import duration_s
from emberline_contract.schema import (
    QUALIFIED_NAME,
    GpuType,
    Jurisdiction,
    LabelMap,
    LabelValue,
    Quantity,
    RegionName,
    ResourceName,
    ShortString,
    duration_schema,
    key_rule,
    rules,
)


class ModelSpec(ContractModel):
    """Which model."""

    source: str = Field(
        min_length=1,
        max_length=512,
        json_schema_extra=rules(
            (
                "self.matches('^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9._-]+)*$')",
                (
                    "model.source must be pvc://<claim> or pvc://<claim>/<folder>: a PersistentVolumeClaim in this namespace"
                    " and the folder of the model in it; other schemes are not supported by this version"
                ),
            ),
            ("!self.contains('/..')", "model.source must not contain '..'"),
        ),
    )
    """`pvc://claim/folder`: a PersistentVolumeClaim of the endpoint's namespace and the model's folder in it."""
    served_name: str | None = Field(
        default=None, min_length=1, max_length=200, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.:/]*[A-Za-z0-9])?$"
    )
    """Another name that clients may put in `model`, besides `<namespace>/<name>`. Of two endpoints that want the same one the older
    has it."""
    parameters: str | None = Field(default=None, max_length=16, pattern=r"^[0-9]+(\.[0-9]+)?[MBT]$")
    """Number of parameters, such as `8B`; unset: what the name of the model tells. Decides which GPUs can hold it."""
    quantization: Literal["None", "FP8", "INT8", "AWQ", "GPTQ"] | None = None
    """How the files store the weights already; unset: what the name of the model tells."""


class AcceleratorSpec(ContractModel):
    """What computes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.kind != 'Cpu' || !(has(self.types) || has(self.minMemory) || has(self.resourceName))",
                "accelerator.types, minMemory and resourceName speak of GPUs; remove them or set accelerator.kind to Nvidia or Amd",
            ),
        )
    )
    kind: Literal["Nvidia", "Amd", "Cpu"] = "Nvidia"
    """`Nvidia` and `Amd` request GPUs, `Cpu` none."""
    count: int = Field(default=1, ge=1, le=16)
    """GPUs of one engine; without meaning for `Cpu`."""
    types: tuple[GpuType, ...] = Field(default=(), max_length=8)
    """Short names of GPUs that may be used, the preferred first, such as `h100` or `l40s`; empty: any that the model fits."""
    min_memory: Quantity | None = None
    """Memory that one GPU must have at least, such as `40Gi`."""
    resource_name: ResourceName | None = None
    """Resource that is requested; unset: `nvidia.com/gpu` or `amd.com/gpu`, or what the chosen GPUs are published as."""


class PrecisionSpec(ContractModel):
    """At which precision."""

    format: Literal["Auto", "bf16", "fp16", "fp32", "fp8", "int8", "int4"] = "Auto"
    """Type of the weights; `Auto` is chosen by the GPU: fp8 where it computes in it and the model has 2 B parameters or more."""
    kv_cache: Literal["Auto", "bf16", "fp8"] = "Auto"
    """Type of the KV cache; `Auto` is the type that is computed in."""


class ResidencySpec(ContractModel):
    """Where data may be."""

    mode: Literal["Enforce", "Prefer"] = "Enforce"
    """`Enforce`: what is outside is evicted, and nothing is placed where that is unknown. `Prefer`: regions outside the
    jurisdictions are used while none inside can serve."""
    jurisdictions: tuple[Jurisdiction, ...] = Field(default=(), max_length=16)
    """A region must carry one of these; empty: any region that `placement.regions` names."""
    absence_grace: str = Field(
        default="10m", json_schema_extra=duration_schema("placement.residency.absenceGrace", "1s", "24h")
    )
    """How long pods go on running when it has become unknown where they are: the InferenceRegion or the node's label is gone."""

    @property
    def absence_grace_s(self) -> float:
        """`absence_grace` in seconds."""
        return duration_s(self.absence_grace)


class Toleration(ContractModel):
    """A taint that is tolerated, as in a pod."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "(has(self.key) && self.key != '') || self.operator == 'Exists'",
                "placement.tolerations: without a key operator must be Exists, which tolerates every taint; name the taint's key",
            ),
            (
                "self.operator != 'Exists' || !has(self.value) || self.value == ''",
                "placement.tolerations: operator Exists compares no value; remove value, or set operator to Equal",
            ),
            (
                "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
                "placement.tolerations: tolerationSeconds is for effect NoExecute alone; set that effect, or remove it",
            ),
        )
    )
    key: str | None = Field(default=None, max_length=317, pattern=f"^({QUALIFIED_NAME})?$")
    """Taint's key; unset with operator Exists: every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How `value` is compared."""
    value: LabelValue | None = None
    """Taint's value, for Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint's effect; unset: any."""
    toleration_seconds: int | None = Field(default=None, ge=0, le=31_536_000)
    """For NoExecute: how long."""


class PlacementSpec(ContractModel):
    """Where."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                (
                    "!has(self.residency) || !has(self.residency.jurisdictions) || size(self.residency.jurisdictions) == 0"
                    " || (has(self.regions) && size(self.regions) > 0)"
                ),
                "placement.residency.jurisdictions needs placement.regions: name the InferenceRegions that may be used",
            ),
        )
    )
    regions: tuple[RegionName, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra=rules(
            ("self.all(r, self.exists_one(other, other == r))", "placement.regions must not name a region twice"),
            (
                "!('default' in self)",
                "placement.regions: 'default' stands for endpoints without a region; leave the list out",
            ),
        ),
    )
    """Names of the InferenceRegions whose nodes run the engines, the preferred first; empty: any node."""
    residency: ResidencySpec = ResidencySpec()
    """What is done about engines outside the regions."""
    node_selector: LabelMap = Field(default_factory=dict, json_schema_extra=rules(key_rule("placement.nodeSelector")))
    """Labels that a node must carry besides."""
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=16)
    """Taints that are tolerated besides those of GPU nodes."""
    priority_class_name: ShortString | None = None
    """PriorityClass of the engines' pods."""


class Schedule(ContractModel):
    """A recurring time in which more engines always run."""

    name: ShortString
    """Its name."""
    cron: str = Field(min_length=9, max_length=128)
    """When it begins: minute, hour, day of month, month, day of week, such as `0 8 * * 1-5`."""
    time_zone: str = Field(default="Etc/UTC", min_length=1, max_length=64)
    """IANA name of the time zone that `cron` is read in, such as `Europe/Berlin`."""
    min_replicas: int = Field(ge=1, le=1000)
    """Engines that run at least meanwhile, in each region; the largest of several counts."""
    duration: str = Field(json_schema_extra=duration_schema("scaling.schedules: duration", "1m", "168h"))
    """How long it lasts."""

    @property
    def duration_s(self) -> float:
        """`duration` in seconds."""
        return duration_s(self.duration)


class ScalingSpec(ContractModel):
    """How many engines, and when none."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.minReplicas <= self.maxReplicas",
                "scaling.minReplicas must not be larger than scaling.maxReplicas",
            ),
            (
                "self.initialReplicas <= self.maxReplicas",
                "scaling.initialReplicas must not be larger than scaling.maxReplicas",
            ),
            (
                "!has(self.schedules) || self.schedules.all(s, s.minReplicas <= self.maxReplicas)",
                "scaling.schedules: minReplicas must not be larger than scaling.maxReplicas",
            ),
        )
    )
    min_replicas: int = Field(default=0, ge=0, le=1000)
    """Engines that always run, in each region; 0 lets the endpoint sleep when nobody calls."""
    max_replicas: int = Field(default=4, ge=1, le=1000)
    """Engines that run at most, in each region."""
    initial_replicas: int = Field(default=0, ge=0, le=1000)
    """Engines that are started when the endpoint is created, before any request, in each region."""
    queue_depth_per_replica: int = Field(default=4, ge=1, le=10_000)
    """Each so many requests that wait add one engine."""
    requests_per_replica: int | None = Field(default=None, ge=1, le=10_000)
    """Unfinished requests that one engine is meant to have; unset: `engine.maxSequences`."""
    idle_after: str = Field(default="5m", json_schema_extra=duration_schema("scaling.idleAfter", "1s", "24h"))
    """Time without any request after which the endpoint goes back to its floor."""
    activation_timeout: str = Field(
        default="10m", json_schema_extra=duration_schema("scaling.activationTimeout", "1s", "1h")
    )
    """How long a request to a sleeping endpoint is held at most; then it is answered 503."""
    unschedulable_timeout: str = Field(
        default="30s", json_schema_extra=duration_schema("scaling.unschedulableTimeout", "1s", "1h")
    )
    """How long no node may have room for an engine before the start has failed; `scaling.activationTimeout` where a cluster
    autoscaler may make a node."""
    scale_down_stabilization: str = Field(
        default="5m", json_schema_extra=duration_schema("scaling.scaleDownStabilization", "0s", "1h")
    )
    """How long fewer engines must have been enough before one is stopped."""
    via: Literal["Auto", "HPA", "Operator", "External"] = "Auto"
    """Who decides how many engines run: `HPA` a HorizontalPodAutoscaler of ours, which needs Emberline's metrics API; `Operator` the
    operator by the same formula; `Auto` the first of these that can work; `External` whoever writes `spec.replicas` (`kubectl scale`,
    KEDA, an HPA of yours)."""

    schedules: tuple[Schedule, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Times in which more engines always run than `minReplicas`."""

    @property
    def idle_after_s(self) -> float:
        """`idle_after` in seconds."""
        return duration_s(self.idle_after)

    @property
    def activation_timeout_s(self) -> float:
        """`activation_timeout` in seconds."""
        return duration_s(self.activation_timeout)

    @property
    def unschedulable_timeout_s(self) -> float:
        """`unschedulable_timeout` in seconds."""
        return duration_s(self.unschedulable_timeout)

    @property
    def scale_down_stabilization_s(self) -> float:
        """`scale_down_stabilization` in seconds."""
        return duration_s(self.scale_down_stabilization)


class ServingSpec(ContractModel):
    """How requests are treated."""

    max_queue: int = Field(default=100, ge=1, le=10_000)
    """Requests that one gateway holds for the endpoint while nothing is ready; more are answered 429 with Retry-After."""
    heartbeat: str = Field(default="10s", json_schema_extra=duration_schema("serving.heartbeat", "100ms", "5m"))
    """Time between the comments that a held stream gets."""

    @property
    def heartbeat_s(self) -> float:
        """`heartbeat` in seconds."""
        return duration_s(self.heartbeat)


class EngineSpec(EngineOptions):
    """The engine."""

    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of the engine; unset: the one that the operator was installed with, see `rollout.engineUpdates`."""


class RolloutSpec(ContractModel):
    """How engines are replaced and stopped."""

    strategy: Literal["Auto", "Surge", "Drain"] = "Auto"
    """`Surge` starts a new engine before an old one is stopped, `Drain` stops an old one first; `Auto` surges where a GPU is free and
    drains where none is."""
    drain_timeout: str = Field(default="10m", json_schema_extra=duration_schema("rollout.drainTimeout", "0s", "1h"))
    """How long running streams may go on when their engine is stopped; then they end with an error event."""
    engine_updates: Literal["Manual", "OnSpecChange", "Auto"] = "OnSpecChange"
    """When engines get the image of a newly installed operator: `OnSpecChange` with the next change that replaces them anyway, `Auto`
    at once, `Manual` never (set `engine.image`). Without meaning where `engine.image` is set."""
    restart_at: str | None = Field(default=None, max_length=64, json_schema_extra={"format": "date-time"})
    """Any new time here replaces all engines, by the roll-out's rules."""

    @property
    def drain_timeout_s(self) -> float:
        """`drain_timeout` in seconds."""
        return duration_s(self.drain_timeout)


class InferenceEndpointSpec(ContractModel):
    """An OpenAI-compatible endpoint that serves one model."""

    model: ModelSpec
    accelerator: AcceleratorSpec = AcceleratorSpec()
    precision: PrecisionSpec = PrecisionSpec()
    placement: PlacementSpec = PlacementSpec()
    scaling: ScalingSpec = ScalingSpec()
    replicas: int | None = Field(default=None, ge=0, le=1000)
    """Only with `scaling.via: External`: how many engines run; 0 stops the endpoint. The scale subresource reads and writes it;
    where it is absent, the operator fills in once what runs. One that stays from an earlier External is ignored."""
    serving: ServingSpec = ServingSpec()
    engine: EngineSpec = EngineSpec()
    rollout: RolloutSpec = RolloutSpec()
    pod_template: PodTemplateSpec = PodTemplateSpec()


SPEC_RULES = rules(
    (
        # What the operator or an autoscaler filled in must not keep a manifest from leaving External.
        (
            "!has(self.replicas) || self.scaling.via == 'External'"
            " || (oldSelf.hasValue() && has(oldSelf.value().replicas) && oldSelf.value().replicas == self.replicas)"
        ),
        "replicas is only for scaling.via External; remove it, or set scaling.via to External",
    ),
    (
        "self.scaling.via != 'External' || !has(self.placement.regions) || size(self.placement.regions) <= 1",
        "scaling.via External takes at most one of placement.regions: one number cannot speak of several regions",
    ),
)


ENDPOINT_RULES = rules(
    (
        f"self.metadata.name.size() <= {MAX_ENDPOINT_NAME}",
        f"metadata.name must have at most {MAX_ENDPOINT_NAME} characters",
    ),
    (
        f"self.metadata.name.matches('{NAME_PATTERN}') && !self.metadata.name.contains('--')",
        "metadata.name must start with a letter, hold only a-z, 0-9 and single '-', and end with a letter or digit",
    ),
)
REGION_RULES = rules(
    (
        f"self.metadata.name.size() <= {MAX_REGION_NAME}",
        f"metadata.name must have at most {MAX_REGION_NAME} characters",
    ),
    (
        f"self.metadata.name.matches('{NAME_PATTERN}') && !self.metadata.name.contains('--')",
        "metadata.name must start with a letter, hold only a-z, 0-9 and single '-', and end with a letter or digit",
    ),
    ("self.metadata.name != 'default'", "metadata.name 'default' stands for endpoints without a region"),
)
