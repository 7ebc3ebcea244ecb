"""The status of an InferenceEndpoint: transitions, not gauges."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from emberline_contract.model import ContractModel


class Condition(ContractModel):
    """One claim about the endpoint, as metav1.Condition: whether it holds, why, and what to do."""

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
    """Type of the weights."""
    kv_cache: str | None = Field(default=None, max_length=16)
    """Type of the KV cache."""
    reason: str = Field(max_length=1024)
    """Why this one."""
    weight_bytes: int | None = None
    """Memory that the weights take at this precision, as far as it can be told."""


class SkippedStatus(ContractModel):
    """Hardware that is not used."""

    name: str = Field(max_length=128)
    """The GPU class."""
    reason: str = Field(max_length=512)
    """Why not."""


StartPhase = Literal["Scheduling", "Image", "Container", "Loading"]
"""How far a start comes."""


class FailedStart(ContractModel):
    """The last attempt to start an engine, which failed."""

    phase: StartPhase
    """How far it came."""
    message: str = Field(default="", max_length=1024)
    """What failed, in the words of who saw it."""
    count: int = Field(ge=1)
    """Failed starts in a row."""
    retry_time: str = Field(max_length=64, json_schema_extra={"format": "date-time"})
    """Until then nothing is started for a request, and requests are answered 503."""


class RegionStatus(ContractModel):
    """One region's engines."""

    name: str = Field(max_length=63)
    """The InferenceRegion, `default` without one."""
    gpu_class: str | None = Field(default=None, max_length=128)
    """The GPUs that its engines run on."""
    desired: int
    """Engines that should run."""
    ready: int
    """Engines that can answer."""
    message: str | None = Field(default=None, max_length=1024)
    """What is wrong with the region, if something is."""
    failed_start: FailedStart | None = None
    """The last start, if it failed; gone with the next engine that becomes ready."""
    skipped: tuple[SkippedStatus, ...] = Field(default=(), max_length=16)
    """GPUs of the region that are not used."""


class ScalingStatus(ContractModel):
    """What scales the endpoint."""

    via: Literal["HPA", "Operator", "External"] = "Operator"
    """Who decides how many engines run."""
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
    ready_of_desired: str | None = Field(default=None, max_length=32)
    """Both as one text for the table of `kubectl get`, such as `1/2`: engines that can answer, of those that should run."""
    region_names: str | None = Field(default=None, max_length=1100)
    """Names of `regions` as one text for the table of `kubectl get`, such as `eu,us`."""
    selector: str | None = Field(default=None, max_length=1024)
    """Labels of the engines' pods, as a selector."""
    precision: PrecisionStatus | None = None
    """The precision in force."""
    regions: tuple[RegionStatus, ...] = Field(default=(), max_length=16)
    """Engines by region."""
    scaling: ScalingStatus | None = None
    """What scales the endpoint."""
