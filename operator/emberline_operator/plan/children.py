"""Which child objects to write, so that the live ones become the desired ones and nobody else's object is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from emberline_contract import names
from emberline_operator.accept import Accepted
from emberline_operator.desired.child import Child
from emberline_operator.desired.configmap import configmap_name, engine_config, make_configmap
from emberline_operator.desired.deployment import make_deployment
from emberline_operator.desired.service import make_service
from emberline_operator.desired.template import configmap_of, make_template, signature, signed, template_inputs
from emberline_operator.placement import Placement
from emberline_operator.plan.actions import Action, Apply, Ask, Delete
from emberline_operator.plan.ownership import needs_write, owned_fields, owned_part
from emberline_operator.plan.replicas import (
    first_replicas,
    hand_over_replicas,
    others_own_replicas,
    replicas_of,
    replicas_to_apply,
)
from emberline_operator.precision import Precision
from emberline_operator.settings import Install
from emberline_operator.snapshot import Json, Ref, Snapshot


@dataclass(frozen=True, slots=True)
class Belonging:
    """Objects with a child's name that are not this endpoint's."""

    strangers: Mapping[Ref, str] = field(default_factory=dict)
    """Somebody else's, with the owner in words."""
    leftovers: frozenset[Ref] = frozenset()
    """Of an earlier endpoint of the same name; the garbage collector is about to delete them."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The objects that an endpoint should have in its region."""

    child: Child
    configmap: Json | None
    """None: the one that the template names is there and stays."""
    service: Json
    deployment: Json

    @property
    def configmap_name(self) -> str:
        """The ConfigMap that the template names."""
        return configmap_of(self.deployment["spec"]["template"])

    @property
    def objects(self) -> tuple[Json, ...]:
        """In the order of writing: what a pod mounts comes before the pod."""
        first = () if self.configmap is None else (self.configmap,)
        return (*first, self.service, self.deployment)


def make_desired(
    seen: Snapshot, accepted: Accepted, placement: Placement, precision: Precision, install: Install
) -> Desired:
    """The desired objects, given what lives."""
    spec = accepted.spec
    child = Child(seen.namespace, seen.name, seen.uid, placement.region)
    content = engine_config(child, spec, precision).to_json()
    inputs = template_inputs(spec, placement)
    made = make_template(
        child,
        spec,
        accepted.source,
        placement,
        image=spec.engine.image or install.runtime_image,
        configmap=configmap_name(child, content),
    )
    live = find(seen, Ref("Deployment", child.name))
    template = settle_template(made, inputs, live, seen)
    return Desired(
        child,
        make_configmap(child, content) if configmap_of(template) == configmap_name(child, content) else None,
        make_service(child),
        make_deployment(child, spec, template, inputs=inputs, replicas=replicas_to_apply(live, spec.scaling)),
    )


def settle_template(made: Json, inputs: str, live: Json | None, seen: Snapshot) -> Json:
    """The live template if it was made from the same inputs and is still as it was made, else `made`.

    So a new operator, another default image or a change of `rollout` replaces no pod, and an edit by hand is undone.
    """
    if live is None or live["metadata"].get("annotations", {}).get(names.ANNOTATION_TEMPLATE_INPUTS) != inputs:
        return made
    fields = owned_fields(live, names.OPERATOR_MANAGER).get("f:spec", {}).get("f:template", {})
    kept = owned_part(live["spec"]["template"], fields)
    if not signature(kept) or not kept.keys() >= {"metadata", "spec"} or signature(signed(kept)) != signature(kept):
        return made
    configmap = configmap_of(kept)
    is_there = configmap == configmap_of(made) or Ref("ConfigMap", configmap) in seen.children
    return kept if is_there else made


def find(seen: Snapshot, ref: Ref) -> Json | None:
    """The live object, whoever's it is; None if it is not there or not known."""
    return seen.children.get(ref) or seen.looked_up.get(ref)


def is_ours(live: Json, seen: Snapshot) -> bool:
    """Whether this very endpoint controls the object."""
    return _controller(live).get("uid") == seen.uid


def sort_out(refs: Sequence[Ref], seen: Snapshot) -> Ask | Belonging:
    """Whether anything stands where children shall be."""
    unknown = frozenset(ref for ref in refs if ref not in seen.children and ref not in seen.looked_up)
    if unknown:
        return Ask(objects=unknown)
    strangers: dict[Ref, str] = {}
    leftovers = set()
    for ref in refs:
        live = find(seen, ref)
        if live is None or is_ours(live, seen):
            continue
        owner = _controller(live)
        if owner.get("kind") == names.ENDPOINT_KIND and owner.get("name") == seen.name:
            leftovers.add(ref)
        else:
            strangers[ref] = f"{owner['kind']} {owner['name']}" if owner else "no controller"
    return Belonging(strangers, frozenset(leftovers))


def plan_children(desired: Desired, seen: Snapshot, accepted: Accepted) -> tuple[Action, ...]:
    """The writes. All objects are known to be absent or ours."""
    actions: list[Action] = []
    for body in desired.objects:
        ref = Ref(body["kind"], body["metadata"]["name"])
        live = find(seen, ref)
        if live is None:
            actions.append(Apply(body, names.OPERATOR_MANAGER, f"create {ref}"))
        elif needs_write(live, body, names.OPERATOR_MANAGER):
            metadata = {**body["metadata"], "uid": live["metadata"]["uid"]}
            actions.append(Apply({**body, "metadata": metadata}, names.OPERATOR_MANAGER, f"update {ref}"))
    live = find(seen, Ref("Deployment", desired.child.name))
    if live is None:
        actions.append(hand_over_replicas(desired.deployment, None, first_replicas(accepted.spec.scaling)))
    elif not others_own_replicas(live):
        actions.append(hand_over_replicas(desired.deployment, live, replicas_of(live)))
    return (*actions, *_removals(desired, seen))


def is_template_new(desired: Desired, live: Json | None) -> bool:
    """Whether the desired template is not the live one yet."""
    return live is None or signature(live["spec"]["template"]) != signature(desired.deployment["spec"]["template"])


def _removals(desired: Desired, seen: Snapshot) -> list[Action]:
    removals: list[Action] = []
    for ref, live in sorted(seen.children.items()):
        if not is_ours(live, seen) or "deletionTimestamp" in live["metadata"]:
            continue
        region = live["metadata"].get("labels", {}).get(names.LABEL_REGION)
        if region != desired.child.region:
            removals.append(Delete(ref, live["metadata"]["uid"], f"delete {ref}: the endpoint left region {region}"))
        elif ref.kind == "ConfigMap" and ref.name != desired.configmap_name and _is_unused(ref.name, desired, seen):
            removals.append(Delete(ref, live["metadata"]["uid"], f"delete {ref}: no pod uses it any more"))
    return removals


def _is_unused(configmap: str, desired: Desired, seen: Snapshot) -> bool:
    """Whether no pod mounts the ConfigMap and no ReplicaSet will make one that does: the rollout is over."""
    live = find(seen, Ref("Deployment", desired.child.name))
    if live is None or is_template_new(desired, live):
        return False
    status = live.get("status", {})
    is_over = status.get("observedGeneration") == live["metadata"].get("generation") and status.get(
        "replicas", 0
    ) == status.get("updatedReplicas", 0)
    return is_over and not any(configmap in pod.config_maps for pod in seen.pods)


def _controller(live: Json) -> Json:
    for owner in live["metadata"].get("ownerReferences", ()):
        if owner.get("controller"):
            reference: Json = owner
            return reference
    return {}
