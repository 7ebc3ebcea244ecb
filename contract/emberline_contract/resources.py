"""The custom resources. The CRD YAML and the reference page are generated from these models.

A field is here when it works. Defaults of a served version never change afterwards.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from emberline_contract.engine_config import EngineOptions
from emberline_contract.model import ContractModel
from emberline_contract.names import MAX_ENDPOINT_NAME, MAX_REGION_NAME, NAME_PATTERN
from emberline_contract.quantities import duration_s


def _rules(*rules: tuple[str, str]) -> dict[str, Any]:
    """CEL rules of a schema node: (expression, message) pairs."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def _duration(field: str, least: str, most: str) -> dict[str, Any]:
    return {
        "format": "duration",
        "maxLength": 20,
        **_rules(
            (
                f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')",
                f"{field} must be between {least} and {most}",
            )
        ),
    }


ShortString = Annotated[str, Field(min_length=1, max_length=253)]
LabelValue = Annotated[str, Field(max_length=63)]


class ModelSpec(ContractModel):
    """Which model."""

    source: str = Field(
        min_length=1,
        max_length=512,
        json_schema_extra=_rules(
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


class AcceleratorSpec(ContractModel):
    """What computes."""

    kind: Literal["Nvidia", "Cpu"] = "Nvidia"
    """`Nvidia` requests GPUs (`nvidia.com/gpu`), `Cpu` none."""
    count: int = Field(default=1, ge=1, le=16)
    """GPUs of one engine; without meaning for `Cpu`."""


class PrecisionSpec(ContractModel):
    """At which precision."""

    format: Literal["Auto", "bf16", "fp16", "fp32"] = "Auto"
    """Type of weights and KV cache; `Auto` is bf16."""


class PlacementSpec(ContractModel):
    """Where."""

    regions: tuple[Annotated[str, Field(max_length=MAX_REGION_NAME, pattern=NAME_PATTERN)], ...] = Field(
        default=(), max_length=1
    )
    """Name of the InferenceRegion whose nodes run the engines; empty: any node."""
    node_selector: dict[ShortString, LabelValue] = Field(default_factory=dict, max_length=16)
    """Labels that a node must carry besides."""


class ScalingSpec(ContractModel):
    """How many engines, and when none."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            (
                "self.minReplicas <= self.maxReplicas",
                "scaling.minReplicas must not be larger than scaling.maxReplicas",
            ),
            (
                "self.initialReplicas <= self.maxReplicas",
                "scaling.initialReplicas must not be larger than scaling.maxReplicas",
            ),
        )
    )
    min_replicas: int = Field(default=0, ge=0, le=1000)
    """Engines that always run; 0 lets the endpoint sleep when nobody calls."""
    max_replicas: int = Field(default=4, ge=1, le=1000)
    """Engines that run at most."""
    initial_replicas: int = Field(default=0, ge=0, le=1000)
    """Engines that are started when the endpoint is created, before any request."""
    idle_after: str = Field(default="5m", json_schema_extra=_duration("scaling.idleAfter", "1s", "24h"))
    """Time without any request after which the endpoint goes back to its floor."""
    activation_timeout: str = Field(default="10m", json_schema_extra=_duration("scaling.activationTimeout", "1s", "1h"))
    """How long a request to a sleeping endpoint is held at most; then it is answered 503."""

    @property
    def idle_after_s(self) -> float:
        """`idle_after` in seconds."""
        return duration_s(self.idle_after)

    @property
    def activation_timeout_s(self) -> float:
        """`activation_timeout` in seconds."""
        return duration_s(self.activation_timeout)


class ServingSpec(ContractModel):
    """How requests are treated."""

    max_queue: int = Field(default=100, ge=1, le=10_000)
    """Requests that one gateway holds for the endpoint while nothing is ready; more are answered 429 with Retry-After."""
    heartbeat: str = Field(default="10s", json_schema_extra=_duration("serving.heartbeat", "100ms", "5m"))
    """Time between the comments that a held stream gets."""

    @property
    def heartbeat_s(self) -> float:
        """`heartbeat` in seconds."""
        return duration_s(self.heartbeat)


class EngineSpec(EngineOptions):
    """The engine."""

    image: str | None = Field(default=None, min_length=1, max_length=512)
    """Image of the engine; unset: the one that the operator was installed with."""


class RolloutSpec(ContractModel):
    """How engines are replaced and stopped."""

    drain_timeout: str = Field(default="10m", json_schema_extra=_duration("rollout.drainTimeout", "0s", "1h"))
    """How long running streams may go on when their engine is stopped; then they end with an error event."""

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
    serving: ServingSpec = ServingSpec()
    engine: EngineSpec = EngineSpec()
    rollout: RolloutSpec = RolloutSpec()


class Condition(ContractModel):
    """metav1.Condition."""

    type: str = Field(min_length=1, max_length=64)
    """Which claim; see the page on conditions."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str = Field(min_length=1, max_length=64)
    """Why, in a word; see the page on conditions."""
    message: str = Field(default="", max_length=4096)
    """Why, in a sentence, and what to do."""
    last_transition_time: str = Field(max_length=64, json_schema_extra={"format": "date-time"})
    """When `status` last changed."""
    observed_generation: int = Field(default=0, ge=0)
    """The `metadata.generation` that this speaks of."""


class PrecisionStatus(ContractModel):
    """The precision in force."""

    format: str = Field(max_length=16)
    """Type of weights and KV cache."""
    reason: str = Field(max_length=1024)
    """Why this one."""


class RegionStatus(ContractModel):
    """One region's engines."""

    name: str = Field(max_length=63)
    """The InferenceRegion, `default` without one."""
    desired: int
    """Engines that should run."""
    ready: int
    """Engines that can answer."""


class ScalingStatus(ContractModel):
    """What scales the endpoint."""

    via: Literal["Operator"] = "Operator"
    """Who writes replicas."""
    last_active_time: str | None = Field(default=None, max_length=64, json_schema_extra={"format": "date-time"})
    """When a request was last seen, to the minute."""


class InferenceEndpointStatus(ContractModel):
    """Transitions, not gauges."""

    observed_generation: int | None = None
    """The `metadata.generation` that this status speaks of."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    """What is true of the endpoint, and why."""
    url: str | None = Field(default=None, max_length=2048)
    """Base URL for OpenAI clients."""
    replicas: int | None = None
    """Engines that should run, over all regions."""
    ready_replicas: int | None = None
    """Engines that can answer, over all regions."""
    selector: str | None = Field(default=None, max_length=1024)
    """Labels of the engines' pods, as a selector."""
    precision: PrecisionStatus | None = None
    """The precision in force."""
    regions: tuple[RegionStatus, ...] = Field(default=(), max_length=16)
    """Engines by region."""
    scaling: ScalingStatus | None = None
    """What scales the endpoint."""


class InferenceRegionSpec(ContractModel):
    """A place that endpoints can be bound to."""

    node_selector: dict[ShortString, LabelValue] = Field(default_factory=dict, max_length=16)
    """Labels of the region's nodes; empty: `topology.kubernetes.io/region: <name>`."""


ENDPOINT_RULES = _rules(
    (
        f"self.metadata.name.size() <= {MAX_ENDPOINT_NAME}",
        f"metadata.name must have at most {MAX_ENDPOINT_NAME} characters",
    ),
    (
        f"self.metadata.name.matches('{NAME_PATTERN}') && !self.metadata.name.contains('--')",
        "metadata.name must start with a letter, hold only a-z, 0-9 and single '-', and end with a letter or digit",
    ),
)
REGION_RULES = _rules(
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
