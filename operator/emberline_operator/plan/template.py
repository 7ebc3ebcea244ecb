"""Which pod template a Deployment gets: the live one for as long as nothing that it was made from has changed."""

from __future__ import annotations

import copy

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.desired.image import from_registry, is_same_image
from emberline_operator.desired.template import annotation_of, configmap_of, image_of, signature, signed
from emberline_operator.plan.ownership import owned_fields, owned_part
from emberline_operator.plan.upgrade import is_signed_by_first_release
from emberline_operator.settings import Install
from emberline_operator.snapshot import Json, Ref, Snapshot


def choose_image(spec: InferenceEndpointSpec, install: Install, live: Json | None) -> str:
    """The image of a template that is made now: the user's, else with `engineUpdates: Manual` the live one, else ours."""
    if spec.engine.image is None and spec.rollout.engine_updates == "Manual" and live is not None:
        return image_of(live["spec"]["template"])
    return from_registry(spec.engine.image or install.runtime_image, install.image_registry)


def settle_template(
    made: Json,
    inputs: str,
    live: Json | None,
    seen: Snapshot,
    spec: InferenceEndpointSpec,
    install: Install,
) -> Json:
    """The live template if it was made from the same inputs and is still as it was made, else `made`.

    So a new operator, another default of the installation or a change of `rollout` replaces no pod, and an edit by hand is
    undone.
    """
    if live is None:
        return made
    fields = owned_fields(live, names.OPERATOR_MANAGER).get("f:spec", {}).get("f:template", {})
    kept = owned_part(live["spec"]["template"], fields)
    made = _restarted_as(kept, made, spec)
    recorded = live["metadata"].get("annotations", {}).get(names.ANNOTATION_TEMPLATE_INPUTS)
    if recorded != inputs or _is_engine_update(kept, spec, install) or not _is_intact(kept):
        return made
    configmap = configmap_of(kept)
    is_there = configmap == configmap_of(made) or Ref("ConfigMap", configmap) in seen.children
    return kept if is_there else made


def _restarted_as(kept: Json, made: Json, spec: InferenceEndpointSpec) -> Json:
    """To take `restartAt` away is no restart: what it wrote stays."""
    before = annotation_of(kept, names.ANNOTATION_RESTARTED_AT)
    if spec.rollout.restart_at is not None or not before:
        return made
    made = copy.deepcopy(made)
    made["metadata"].setdefault("annotations", {})[names.ANNOTATION_RESTARTED_AT] = before
    return signed(made)


def _is_engine_update(kept: Json, spec: InferenceEndpointSpec, install: Install) -> bool:
    if spec.rollout.engine_updates != "Auto" or spec.engine.image is not None:
        return False
    return not is_same_image(image_of(kept), install.runtime_image)


def _is_intact(kept: Json) -> bool:
    """Whether the operator's part of the live template is as it was made."""
    if not kept or not kept.keys() >= {"metadata", "spec"}:
        return False
    if not signature(kept):
        return False
    return signature(signed(kept)) == signature(kept) or is_signed_by_first_release(kept)
