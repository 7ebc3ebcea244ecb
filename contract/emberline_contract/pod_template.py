"""What users add to the engines' pods: `spec.podTemplate`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from emberline_contract.model import ContractModel
from emberline_contract.names import GROUP
from emberline_contract.schema import RESERVED_KEYS, LabelMap, Quantity, ShortString, key_rule, rules


class KeyRef(ContractModel):
    """One key of a Secret or ConfigMap of the endpoint's namespace."""

    name: ShortString
    """The object."""
    key: ShortString
    """The key in it."""
    optional: bool = False
    """Whether a pod may start without it."""


class EnvSource(ContractModel):
    """Where a variable's value comes from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.secretKeyRef) != has(self.configMapKeyRef)",
                "podTemplate.env: valueFrom takes exactly one of secretKeyRef and configMapKeyRef",
            ),
        )
    )
    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""


class EnvVar(ContractModel):
    """An environment variable of the engine."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "!(has(self.value) && has(self.valueFrom))",
                "podTemplate.env: a variable has value or valueFrom, not both",
            ),
        )
    )
    name: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")
    """Its name; those that the operator sets itself are not overridden."""
    value: str | None = Field(default=None, max_length=4096)
    """Its value."""
    value_from: EnvSource | None = None
    """Where its value comes from."""


class ResourcesSpec(ContractModel):
    """CPU and memory of the engine's container, besides its GPUs."""

    requests: dict[ShortString, Quantity] = Field(default_factory=dict, max_length=16)
    """What a node must have free."""
    limits: dict[ShortString, Quantity] = Field(default_factory=dict, max_length=16)
    """What it may use at most."""


class LocalObjectReference(ContractModel):
    """An object of the endpoint's namespace."""

    name: ShortString
    """Its name."""


class PodTemplateSpec(ContractModel):
    """What users add to the engines' pods; the operator's own fields win."""

    labels: LabelMap = Field(
        default_factory=dict,
        json_schema_extra=rules(
            (
                f"self.all(k, {RESERVED_KEYS})",
                "podTemplate.labels: emberline.dev/ and app.kubernetes.io/ are the operator's own",
            ),
            key_rule("podTemplate.labels"),
        ),
    )
    """Labels of the pods."""
    annotations: dict[ShortString, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict,
        max_length=16,
        json_schema_extra=rules(
            (
                f"self.all(k, !k.startsWith('{GROUP}/'))",
                "podTemplate.annotations: emberline.dev/ is the operator's own",
            ),
            key_rule("podTemplate.annotations", "annotation"),
        ),
    )
    """Annotations of the pods."""
    service_account_name: ShortString | None = None
    """ServiceAccount of the pods; its token is not mounted."""
    image_pull_secrets: tuple[LocalObjectReference, ...] = Field(
        default=(),
        max_length=8,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Secrets to pull the engine's image with."""
    runtime_class_name: ShortString | None = None
    """RuntimeClass of the pods, such as `nvidia`."""
    scheduler_name: ShortString | None = None
    """Scheduler of the pods."""
    env: tuple[EnvVar, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    """Environment of the engine."""
    resources: ResourcesSpec = ResourcesSpec()
    """CPU and memory of the engine."""
    shared_memory: Quantity | None = None
    """Size of `/dev/shm`; unset: the container runtime's own, 64 MiB."""
