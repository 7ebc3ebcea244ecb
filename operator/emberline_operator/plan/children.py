"""Which child objects of one region to write, so that the live ones become the desired ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from emberline_contract import names
from emberline_operator.accept import Accepted
from emberline_operator.decision import Decision, RegionPlacement
from emberline_operator.desired.child import Child
from emberline_operator.desired.configmap import configmap_name, engine_config, make_configmap
from emberline_operator.desired.deployment import make_deployment
from emberline_operator.desired.pdb import make_pdb
from emberline_operator.desired.service import make_service
from emberline_operator.desired.template import configmap_of, make_template, signature, template_inputs
from emberline_operator.plan.actions import Action, Apply, Delete
from emberline_operator.plan.belonging import find, own
from emberline_operator.plan.ownership import is_outdated, owned_fields, owned_part
from emberline_operator.plan.replicas import (
    applied_replicas,
    created_with,
    hand_over_replicas,
    others_own_replicas,
    replicas_of,
)
from emberline_operator.plan.rollout import Rollout, judge_rollout
from emberline_operator.plan.template import choose_image, settle_template
from emberline_operator.pods import is_half_rolled_out
from emberline_operator.regions.record import to_text
from emberline_operator.settings import Install
from emberline_operator.snapshot import Json, Ref, Snapshot


@dataclass(frozen=True, slots=True)
class Desired:
    """The objects that an endpoint should have in one region."""

    child: Child
    objects: tuple[Json, ...]
    """In the order of writing: what a pod mounts comes before the pod."""
    deployment: Json | None = None
    """None: there is none and none may be made."""
    rollout: Rollout | None = None
    is_held_back: bool = False
    """Whether engines of the newest generation would be others, and none may be started."""
    first_replicas: int = 0
    """What a Deployment that is created now begins with."""

    @property
    def refs(self) -> tuple[Ref, ...]:
        """Names of the objects."""
        return tuple(Ref(body["kind"], body["metadata"]["name"]) for body in self.objects)

    @property
    def deployment_ref(self) -> Ref:
        """The Deployment, be it there or not."""
        return Ref("Deployment", self.child.name)


def make_desired(
    seen: Snapshot, accepted: Accepted, placement: RegionPlacement, install: Install, now: datetime, *, takes_over: bool
) -> Desired:
    """The desired objects of a region, given what lives.

    `takes_over`: engines of a region that the endpoint has left go on until one answers here, so one is started.
    """
    child = Child(seen.namespace, seen.name, seen.uid, placement.region)
    live = own(seen, Ref("Deployment", child.name))
    decision = placement.decision
    if decision is None or (live is None and not (placement.may_start and placement.is_wanted)):
        return Desired(child, ())
    if placement.keeps_template and live is not None:
        return keep_template(child, live, decision, accepted, seen)
    spec = accepted.spec
    content, inputs, template = _make_pods(child, seen, accepted, decision, live, install)
    rollout = judge_rollout(
        spec, seen, placement.region, live, template, decision, now, patience_s=install.surge_patience_s
    )
    first = max(created_with(spec, now), int(takes_over))
    deployment = make_deployment(
        child,
        template,
        inputs=inputs,
        placement=to_text(decision),
        strategy=rollout.strategy,
        drain_timeout_s=spec.rollout.drain_timeout_s,
        replicas=first if live is None else applied_replicas(live, spec, now),
    )
    is_made_from_it = configmap_of(template) == configmap_name(child, content)
    configmaps = (make_configmap(child, content),) if is_made_from_it else ()
    objects = (*configmaps, make_service(child), make_pdb(child), deployment)
    return Desired(child, objects, deployment, rollout, first_replicas=first)


def _make_pods(
    child: Child, seen: Snapshot, accepted: Accepted, decision: Decision, live: Json | None, install: Install
) -> tuple[str, str, Json]:
    """The engines' configuration, the hash of what their template is made from, and the template."""
    spec = accepted.spec

    def make() -> tuple[str, str, Json]:
        content = engine_config(child, spec, decision.choice).to_json()
        inputs = template_inputs(spec, decision)
        made = make_template(
            child,
            spec,
            accepted.source,
            decision,
            image=choose_image(spec, install, live),
            configmap=configmap_name(child, content),
            install=install,
        )
        return content, inputs, settle_template(made, inputs, live, seen, spec, install)

    configmaps = frozenset(ref for ref in seen.children if ref.kind == "ConfigMap")
    inputs = (seen.uid, seen.endpoint["spec"], decision, live, configmaps, install)
    return seen.memory.recall(("template", child.region), inputs, make)


def keep_template(child: Child, live: Json, decision: Decision, accepted: Accepted, seen: Snapshot) -> Desired:
    """A region where no engine of another template may be started: its Deployment stays as it is, but for the record of the
    decision. Where it is unknown where the region lies, a roll-out that is half done stands still, since it would stop engines
    that answer and start others.
    """
    fields = owned_fields(live, names.OPERATOR_MANAGER)
    body: Json = owned_part({key: live[key] for key in ("metadata", "spec")}, fields)
    if not body.get("spec") or not body.get("metadata"):
        return Desired(child, (), live)
    recorded = live["metadata"].get("annotations", {}).get(names.ANNOTATION_TEMPLATE_INPUTS)
    is_held_back = recorded != template_inputs(accepted.spec, decision)
    metadata = {**body["metadata"], "name": child.name, "namespace": child.namespace}
    metadata["annotations"] = {**metadata.get("annotations", {}), names.ANNOTATION_PLACEMENT: to_text(decision)}
    spec = {key: value for key, value in body["spec"].items() if key != "paused"}
    if decision.unknown_since is not None and is_half_rolled_out(p for p in seen.pods if p.region == child.region):
        spec["paused"] = True
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    objects = (make_service(child), make_pdb(child), deployment)
    return Desired(child, objects, deployment, is_held_back=is_held_back)


def plan_children(desired: Desired, seen: Snapshot) -> tuple[Action, ...]:
    """The writes. All objects are known to be absent or ours."""
    actions: list[Action] = []
    for body in desired.objects:
        ref = Ref(body["kind"], body["metadata"]["name"])
        live = find(seen, ref)
        if live is None:
            actions.append(Apply(body, names.OPERATOR_MANAGER, f"create {ref}"))
        elif is_outdated(live, body, seen.memory):
            metadata = {**body["metadata"], "uid": live["metadata"]["uid"]}
            actions.append(Apply({**body, "metadata": metadata}, names.OPERATOR_MANAGER, f"update {ref}"))
    if desired.deployment is not None and desired.objects:
        live = find(seen, desired.deployment_ref)
        if live is None:
            actions.append(hand_over_replicas(desired.deployment, None, desired.first_replicas))
        elif not others_own_replicas(live):
            actions.append(hand_over_replicas(desired.deployment, live, replicas_of(live)))
    return (*actions, *_unused_configmaps(desired, seen))


def is_template_new(desired: Desired, live: Json | None) -> bool:
    """Whether the desired template is not the live one yet."""
    if desired.deployment is None:
        return False
    return live is None or signature(live["spec"]["template"]) != signature(desired.deployment["spec"]["template"])


def remove_region(region: str, seen: Snapshot) -> tuple[Action, ...]:
    """Delete all that the endpoint has in a region; what would start engines anew comes first."""
    order = {"HorizontalPodAutoscaler": 0, "Deployment": 1}
    own_there = [
        (ref, live)
        for ref, live in sorted(seen.children.items(), key=lambda item: (order.get(item[0].kind, 2), item[0]))
        if seen.controls(live) and ref.region == region and "deletionTimestamp" not in live["metadata"]
    ]
    why = f"the endpoint left region {region}"
    return tuple(Delete(ref, live["metadata"]["uid"], f"delete {ref}: {why}") for ref, live in own_there)


def _unused_configmaps(desired: Desired, seen: Snapshot) -> list[Action]:
    """ConfigMaps of earlier generations that no pod mounts and no ReplicaSet will need: the roll-out is over."""
    live = find(seen, desired.deployment_ref)
    if live is None or desired.deployment is None or is_template_new(desired, live) or not _is_rolled_out(live):
        return []
    newest = configmap_of(desired.deployment["spec"]["template"])
    used = {newest, *(name for pod in seen.pods for name in pod.config_maps)}
    return [
        Delete(ref, old["metadata"]["uid"], f"delete {ref}: no pod uses it any more")
        for ref, old in sorted(seen.children.items())
        if ref.kind == "ConfigMap"
        and ref.name not in used
        and ref.region == desired.child.region
        and seen.controls(old)
        and "deletionTimestamp" not in old["metadata"]
    ]


def _is_rolled_out(live: Json) -> bool:
    status = live.get("status", {})
    is_seen = status.get("observedGeneration") == live["metadata"].get("generation")
    return bool(is_seen and status.get("replicas", 0) == status.get("updatedReplicas", 0))
