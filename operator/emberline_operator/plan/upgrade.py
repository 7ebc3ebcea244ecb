"""Endpoints that the first release made: its Deployments carry no record, and hashes by other rules. None of their pods restarts.

Such a Deployment is looked at as if it carried what this release would have recorded for it; the next write records it. A spec
that has changed meanwhile is a spec change, and decided and rolled out as one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.choice import Choice
from emberline_operator.decision import Decision
from emberline_operator.desired.template import digest, signature, template_inputs
from emberline_operator.plan.belonging import own_deployments
from emberline_operator.regions.record import to_text
from emberline_operator.regions.region import Region, find_region
from emberline_operator.regions.sticky import placement_inputs
from emberline_operator.snapshot import Json, Ref, Snapshot

_MODEL: Final = frozenset({"source"})
_ACCELERATOR: Final = frozenset({"kind", "count"})
_PRECISION: Final = frozenset({"format"})
_ENGINE: Final = frozenset(
    {
        "max_model_len",
        "max_batch_tokens",
        "max_sequences",
        "max_queued_requests",
        "kv_cache",
        "prefix_caching",
        "image",
    }
)
"""Fields of the first release's spec that its pod templates were made from."""


def adopt(seen: Snapshot, spec: InferenceEndpointSpec) -> Snapshot:
    """The snapshot in which Deployments of the first release carry their records; the same one if there are none."""
    adopted: dict[Ref, Json] = {}
    for name, live in own_deployments(seen).items():
        annotations = live["metadata"].get("annotations", {})
        region = find_region(seen.regions, name)
        if names.ANNOTATION_PLACEMENT in annotations or region is None:
            continue
        inputs = annotations.get(names.ANNOTATION_TEMPLATE_INPUTS)
        if inputs is None or inputs != first_inputs(spec, region):
            continue
        decision = _decision(spec, region)
        recorded = {
            **annotations,
            names.ANNOTATION_PLACEMENT: to_text(decision),
            names.ANNOTATION_TEMPLATE_INPUTS: template_inputs(spec, decision),
        }
        metadata = {**live["metadata"], "annotations": recorded}
        adopted[Ref("Deployment", live["metadata"]["name"])] = {**live, "metadata": metadata}
    return replace(seen, children={**seen.children, **adopted}) if adopted else seen


def first_inputs(spec: InferenceEndpointSpec, region: Region) -> str | None:
    """The first release's hash of what a template was made from; None if the spec asks for what that release did not know."""
    if not _is_of_first_release(spec):
        return None
    return digest(
        {
            "model": spec.model.model_dump(mode="json", include=set(_MODEL)),
            "accelerator": spec.accelerator.model_dump(mode="json", include=set(_ACCELERATOR)),
            "precision": spec.precision.model_dump(mode="json", include=set(_PRECISION)),
            "engine": spec.engine.model_dump(mode="json", include=set(_ENGINE)),
            "region": [region.name, dict(region.node_labels)],
            "nodeSelector": dict(spec.placement.node_selector),
        }
    )


def is_signed_by_first_release(template: Json) -> bool:
    """Whether a template carries the hash that the first release gave it, and is still as it was."""
    metadata = {key: value for key, value in template["metadata"].items() if key != "annotations"}
    return signature(template) == digest({"metadata": metadata, "spec": template["spec"]})


def _is_of_first_release(spec: InferenceEndpointSpec) -> bool:
    def asked(part: Any) -> set[str]:
        return set(part.model_dump(exclude_defaults=True))

    placement = spec.placement
    return (
        asked(spec.model) <= _MODEL
        and asked(spec.accelerator) <= _ACCELERATOR
        and asked(spec.precision) <= _PRECISION
        and asked(spec.engine) <= _ENGINE
        and not asked(spec.pod_template)
        and not placement.tolerations
        and placement.priority_class_name is None
        and spec.rollout.restart_at is None
    )


def _decision(spec: InferenceEndpointSpec, region: Region) -> Decision:
    """What the first release decided: 16 bits unless asked otherwise, on any GPU of the region."""
    asked = spec.precision.format
    dtype: Any = "bf16" if asked == "Auto" else asked
    choice = Choice(
        gpu_class="",
        format=dtype,
        dtype=dtype,
        quantization=None,
        kv_cache="auto",
        resource_name="" if spec.accelerator.kind == "Cpu" else names.GPU_RESOURCE,
        terms=(),
        weight_bytes=None,
        reason=f"{dtype} on any GPU: decided by an earlier release, and kept until the spec changes"
        if spec.accelerator.kind != "Cpu"
        else f"{dtype}: decided by an earlier release, and kept until the spec changes",
    )
    return Decision(region.name, placement_inputs(spec), dict(region.node_labels), region.jurisdictions, choice)
