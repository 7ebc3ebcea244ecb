"""Whether an endpoint's spec can be acted on: what the API server's schema and CEL could not refuse is refused here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.quantities import duration_s
from emberline_contract.resources import InferenceEndpointSpec, ResidencySpec
from emberline_operator.schedules import wrong_schedules
from emberline_operator.snapshot import Json

_SOURCE = re.compile(r"pvc://(?P<claim>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(?:/(?P<folder>[A-Za-z0-9._/-]+))?")


@dataclass(frozen=True, slots=True)
class Rejection:
    """The spec cannot be acted on; `message` says what to change."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ClaimSource:
    """`pvc://claim/folder`."""

    claim: str
    folder: str
    """Relative, empty for the claim's root."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The parsed spec."""

    spec: InferenceEndpointSpec
    source: ClaimSource


def parse_source(text: str) -> ClaimSource | None:
    """The claim and folder of a `pvc://` source; None if it is none."""
    match = _SOURCE.fullmatch(text)
    if match is None or ".." in (match["folder"] or "").split("/"):
        return None
    return ClaimSource(match["claim"], match["folder"] or "")


def accept(endpoint: Json) -> Accepted | Rejection:
    """Parse an InferenceEndpoint's spec."""
    try:
        spec = InferenceEndpointSpec.model_validate(endpoint.get("spec", {}))
    except ValidationError as error:
        return Rejection(Reason.INVALID_SPEC, "; ".join(_complaints(error)))
    source = parse_source(spec.model.source)
    if source is None:
        return Rejection(
            Reason.INVALID_SPEC,
            f"model.source is {spec.model.source!r}; write pvc://<claim> or pvc://<claim>/<folder>",
        )
    wrong = [*_wrong_durations(spec), *_wrong_bounds(spec), *wrong_schedules(spec.scaling)]
    if wrong:
        return Rejection(Reason.INVALID_SPEC, "; ".join(wrong))
    return Accepted(spec, source)


def residency_of(endpoint: Json, regions: Iterable[str]) -> InferenceEndpointSpec:
    """A spec with the residency of one that cannot be acted on; `regions` has objects of the endpoint.

    Of a placement that cannot be read itself, the strictest is left: engines stay in the regions that they were placed in.
    """
    model = {"source": "pvc://unread"}
    given = endpoint.get("spec", {}).get("placement", {})
    try:
        spec = InferenceEndpointSpec.model_validate({"model": model, "placement": given})
    except ValidationError:
        named = [region for region in regions if region != names.DEFAULT_REGION]
        return InferenceEndpointSpec.model_validate({"model": model, "placement": {"regions": named}})
    if not _wrong_durations(spec):
        return spec
    # A grace that cannot be read is the default's; the rest of the residency counts.
    residency = spec.placement.residency.model_copy(update={"absence_grace": ResidencySpec().absence_grace})
    return spec.model_copy(update={"placement": spec.placement.model_copy(update={"residency": residency})})


def _complaints(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}; correct or remove the field"
        for detail in error.errors(include_url=False, include_input=False, include_context=False)
    ]


def _wrong_durations(spec: InferenceEndpointSpec) -> list[str]:
    """The API server also admits notations such as `1 day`, which Go's own durations do not know."""
    durations = (
        ("scaling.idleAfter", spec.scaling.idle_after),
        ("scaling.activationTimeout", spec.scaling.activation_timeout),
        ("scaling.unschedulableTimeout", spec.scaling.unschedulable_timeout),
        ("scaling.scaleDownStabilization", spec.scaling.scale_down_stabilization),
        *((f"scaling.schedules[{it.name}].duration", it.duration) for it in spec.scaling.schedules),
        ("placement.residency.absenceGrace", spec.placement.residency.absence_grace),
        ("serving.heartbeat", spec.serving.heartbeat),
        ("rollout.drainTimeout", spec.rollout.drain_timeout),
    )
    wrong = []
    for field, text in durations:
        try:
            duration_s(text)
        except ValueError as error:
            wrong.append(f"{field}: {error}")
    return wrong


def _wrong_bounds(spec: InferenceEndpointSpec) -> list[str]:
    """As the CRD's CEL rules, for objects that were stored before a rule came."""
    scaling = spec.scaling
    numbers = [("minReplicas", scaling.min_replicas), ("initialReplicas", scaling.initial_replicas)]
    numbers += [(f"schedules[{it.name}].minReplicas", it.min_replicas) for it in scaling.schedules]
    return [
        f"scaling.{field} is {value}, larger than scaling.maxReplicas {scaling.max_replicas}; lower it or raise maxReplicas"
        for field, value in numbers
        if value > scaling.max_replicas
    ]
