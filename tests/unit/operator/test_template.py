"""When a pod template stays and when it is made anew: field by field, and whatever else may change around it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel

from emberline_contract import names
from emberline_contract.engine_config import EngineConfig
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import parse_source
from emberline_operator.choice import Choice, Expression, Skipped
from emberline_operator.decision import Decision
from emberline_operator.desired.child import Child
from emberline_operator.desired.configmap import configmap_name, engine_config, make_configmap
from emberline_operator.desired.deployment import make_deployment
from emberline_operator.desired.template import (
    configmap_of,
    image_of,
    make_template,
    signature,
    signed,
    template_inputs,
)
from emberline_operator.plan.template import choose_image, settle_template
from emberline_operator.settings import Install
from emberline_operator.snapshot import Ref, Snapshot
from support.decisions import CPU, H100, decision
from support.operator_objects import INSTALL, UID, Raw, live_of, make_endpoint

ME = Child("team", "tiny", UID, names.DEFAULT_REGION)


def spec_of(**spec: Any) -> InferenceEndpointSpec:
    return InferenceEndpointSpec.model_validate(make_endpoint(**spec)["spec"])


@dataclass
class Endpoint:
    """An endpoint's Deployment and ConfigMaps, passed over as the operator does."""

    spec: InferenceEndpointSpec
    decision: Decision
    install: Install = INSTALL
    live: Raw | None = None

    def __post_init__(self) -> None:
        self.configmaps: dict[Ref, Raw] = {}
        self.run()

    def run(self) -> Raw:
        """One pass; gives the template that the Deployment has afterwards."""
        content = engine_config(ME, self.spec, self.decision.choice).to_json()
        configmap = make_configmap(ME, content)
        inputs = template_inputs(self.spec, self.decision)
        source = parse_source(self.spec.model.source)
        assert source is not None
        made = make_template(
            ME,
            self.spec,
            source,
            self.decision,
            image=choose_image(self.spec, self.install, self.live),
            configmap=configmap_name(ME, content),
            install=self.install,
        )
        seen = Snapshot(endpoint=make_endpoint(), children=self.configmaps)
        template = settle_template(made, inputs, self.live, seen, self.spec, self.install)
        if configmap_of(template) == configmap_name(ME, content):
            self.configmaps[Ref("ConfigMap", configmap_name(ME, content))] = configmap
        deployment = make_deployment(
            ME, template, inputs=inputs, placement="", strategy="Drain", drain_timeout_s=600, replicas=1
        )
        self.live = live_of(deployment)
        return copy.deepcopy(template)

    def change(self, **spec: Any) -> Raw:
        """Another spec, and a pass."""
        self.spec = spec_of(**spec)
        return self.run()

    @property
    def config(self) -> EngineConfig:
        """What the engines of the live template are told."""
        assert self.live is not None
        configmap = self.configmaps[Ref("ConfigMap", configmap_of(self.live["spec"]["template"]))]
        return EngineConfig.model_validate_json(configmap["data"][names.ENGINE_CONFIG_FILE])


# Every field of the spec, a change of it, and whether pods are replaced by that. `by choice`: only where another GPU class or
# precision is chosen; the field itself counts for nothing. A field of the contract that is not here fails the test below.
YES, NO, BY_CHOICE = "yes", "no", "by choice"
EFFECTS: dict[str, tuple[Any, str]] = {
    "model.source": ("pvc://models/other", YES),
    "model.servedName": ("llama", YES),
    "model.parameters": ("8B", BY_CHOICE),
    "model.quantization": ("FP8", BY_CHOICE),
    "accelerator.kind": ("Amd", YES),
    "accelerator.count": (2, YES),
    "accelerator.types": (["h100"], BY_CHOICE),
    "accelerator.minMemory": ("40Gi", BY_CHOICE),
    "accelerator.resourceName": ("example.com/gpu", BY_CHOICE),
    "precision.format": ("fp16", BY_CHOICE),
    "precision.kvCache": ("fp8", BY_CHOICE),
    "placement.regions": (["eu"], NO),
    "placement.residency.mode": ("Prefer", NO),
    "placement.residency.jurisdictions": (["EU"], NO),
    "placement.residency.absenceGrace": ("7m", NO),
    "placement.nodeSelector": ({"disk": "fast"}, YES),
    "placement.tolerations": ([{"key": "team", "operator": "Exists"}], YES),
    "placement.priorityClassName": ("high", YES),
    "scaling.minReplicas": (1, NO),
    "scaling.maxReplicas": (7, NO),
    "scaling.initialReplicas": (2, NO),
    "scaling.queueDepthPerReplica": (7, NO),
    "scaling.requestsPerReplica": (7, NO),
    "scaling.idleAfter": ("7m", NO),
    "scaling.activationTimeout": ("7m", NO),
    "scaling.unschedulableTimeout": ("7s", NO),
    "scaling.scaleDownStabilization": ("7m", NO),
    "scaling.schedules": (
        [{"name": "day", "cron": "0 8 * * *", "minReplicas": 1, "duration": "8h"}],
        NO,
    ),
    "scaling.via": ("External", NO),
    "replicas": (3, NO),
    "serving.maxQueue": (7, NO),
    "serving.heartbeat": ("7s", NO),
    "engine.maxModelLen": (512, YES),
    "engine.maxBatchTokens": (512, YES),
    "engine.maxSequences": (7, YES),
    "engine.maxQueuedRequests": (7, YES),
    "engine.kvCache": ("1Gi", YES),
    "engine.prefixCaching": (False, YES),
    "engine.image": ("other", YES),
    "rollout.strategy": ("Surge", NO),
    "rollout.drainTimeout": ("7m", NO),
    "rollout.engineUpdates": ("Auto", NO),
    "rollout.restartAt": ("2026-12-01T12:00:00Z", YES),
    "podTemplate.labels": ({"team": "a"}, YES),
    "podTemplate.annotations": ({"example.com/a": "b"}, YES),
    "podTemplate.serviceAccountName": ("robot", YES),
    "podTemplate.imagePullSecrets": ([{"name": "pull"}], YES),
    "podTemplate.runtimeClassName": ("nvidia", YES),
    "podTemplate.schedulerName": ("other", YES),
    "podTemplate.env": ([{"name": "A", "value": "b"}], YES),
    "podTemplate.resources.requests": ({"cpu": "2"}, YES),
    "podTemplate.resources.limits": ({"memory": "2Gi"}, YES),
    "podTemplate.sharedMemory": ("1Gi", YES),
}


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Paths of all fields, as users write them; lists and maps count as one."""
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from fields_of(inner, f"{path}.")
        else:
            yield path


def test_the_table_knows_every_field() -> None:
    assert set(fields_of(InferenceEndpointSpec)) == set(EFFECTS)


def changed_spec(field: str, value: Any) -> Raw:
    spec: Raw = copy.deepcopy(make_endpoint(accelerator={"kind": "Nvidia"})["spec"])
    *parents, name = field.split(".")
    part = spec
    for parent in parents:
        part = part.setdefault(parent, {})
    assert part.get(name) != value, "that would be no change"
    part[name] = value
    return spec


@pytest.mark.parametrize("field", EFFECTS)
def test_field_and_effect(field: str) -> None:
    value, effect = EFFECTS[field]
    at = Endpoint(spec_of(accelerator={"kind": "Nvidia"}), decision(H100))
    assert at.live is not None
    before = copy.deepcopy(at.live)
    at.change(**changed_spec(field, value))
    template = at.live["spec"]["template"]
    assert (signature(template) != signature(before["spec"]["template"])) == (effect == YES)
    assert (template != before["spec"]["template"]) == (effect == YES)
    if effect == BY_CHOICE:
        at.decision = decision(replace(H100, dtype="fp16"))
        assert at.run() != template


@pytest.mark.parametrize("field", sorted(EFFECTS.keys() - {"rollout.restartAt"}))
def test_back_again_is_what_it_was(field: str) -> None:
    """T24, A -> B -> A: the ReplicaSet of A is found again, whose pods may still run."""
    value, _ = EFFECTS[field]
    at = Endpoint(spec_of(accelerator={"kind": "Nvidia"}), decision(H100))
    assert at.live is not None
    before = copy.deepcopy(at.live["spec"]["template"])
    at.change(**changed_spec(field, value))
    at.change(accelerator={"kind": "Nvidia"})
    assert at.live["spec"]["template"] == before


@pytest.mark.parametrize(
    ("change", "replaces_pods"),
    [
        ({"dtype": "fp16"}, True),
        ({"quantization": "int8"}, True),
        ({"kv_cache": "bf16"}, True),
        ({"resource_name": "nvidia.com/mig-1g.5gb"}, True),
        ({"terms": ((Expression("k", "Exists"),),)}, True),
        ({"gpu_class": "other"}, False),
        ({"format": "bf16"}, False),
        ({"weight_bytes": 1}, False),
        ({"reason": "other words"}, False),
        ({"skipped": (Skipped("a100", "no fp8"),)}, False),
    ],
)
def test_what_of_a_choice_pods_depend_on(change: Raw, replaces_pods: bool) -> None:
    assert set(Choice.__dataclass_fields__) == {
        "dtype", "quantization", "kv_cache", "resource_name", "terms", "gpu_class", "format", "weight_bytes", "reason", "skipped",
    }  # fmt: skip
    at = Endpoint(spec_of(accelerator={"kind": "Nvidia"}), decision(H100))
    before = copy.deepcopy(at.live)
    at.decision = replace(at.decision, choice=replace(H100, **change))
    at.run()
    assert (at.live != before) is replaces_pods


def test_a_default_written_out_is_no_change() -> None:
    bare = InferenceEndpointSpec.model_validate(
        {"model": {"source": "pvc://models/tiny"}, "accelerator": {"kind": "Cpu"}}
    )
    full = spec_of(engine={"prefixCaching": True, "maxSequences": 32}, podTemplate={"labels": {}})
    assert template_inputs(bare, decision()) == template_inputs(full, decision())
    bare_config, full_config = (engine_config(ME, spec, CPU).to_json() for spec in (bare, full))
    assert bare_config == full_config
    assert "maxSequences" not in full_config


NEWER = Install("emberline/runtime:2", INSTALL.public_url)
SETTINGS = (
    NEWER,
    replace(INSTALL, image_registry="mirror.example:5000/x"),
    replace(INSTALL, http_proxy="http://proxy:3128", https_proxy="http://proxy:3128", no_proxy=".svc"),
    replace(INSTALL, ca_bundle_configmap="corporate"),
    replace(INSTALL, hf_endpoint="https://hub.example"),
)


@pytest.mark.parametrize("install", SETTINGS)
@pytest.mark.parametrize("updates", ["OnSpecChange", "Manual"])
def test_another_installation_replaces_no_pod_by_itself(install: Install, updates: str) -> None:
    rollout = {"engineUpdates": updates}
    at = Endpoint(spec_of(rollout=rollout), decision())
    before = copy.deepcopy(at.live)
    at.install = install
    at.run()
    assert at.live == before
    at.change(rollout=rollout, serving={"maxQueue": 5})
    assert at.live == before
    # With the next change that replaces pods anyway it comes along.
    fresh = Endpoint(spec_of(rollout=rollout, engine={"maxSequences": 7}), decision(), install).live
    template = at.change(rollout=rollout, engine={"maxSequences": 7})
    assert fresh is not None
    if updates == "Manual":
        assert image_of(template) == INSTALL.runtime_image
    else:
        assert template == fresh["spec"]["template"]


def test_auto_takes_the_operators_engine_at_once_and_nothing_else_of_it() -> None:
    rollout = {"engineUpdates": "Auto"}
    at = Endpoint(spec_of(rollout=rollout), decision())
    before = copy.deepcopy(at.live)
    for install in SETTINGS[1:]:
        at.install = install
        at.run()
        assert at.live == before, install
    at.install = NEWER
    assert image_of(at.run()) == "emberline/runtime:2"
    own = Endpoint(spec_of(rollout=rollout, engine={"image": "mine:1"}), decision())
    own.install = NEWER
    assert image_of(own.run()) == "mine:1"


def test_manual_keeps_the_engine_through_every_change_until_it_is_named() -> None:
    at = Endpoint(spec_of(rollout={"engineUpdates": "Manual"}), decision())
    at.install = NEWER
    assert image_of(at.change(rollout={"engineUpdates": "Manual"}, engine={"maxSequences": 7})) == "emberline/runtime:1"
    named = at.change(rollout={"engineUpdates": "Manual"}, engine={"image": "emberline/runtime:2"})
    assert image_of(named) == "emberline/runtime:2"
    at.install = replace(NEWER, image_registry="mirror.example/x")
    mirrored = at.change(rollout={"engineUpdates": "Manual"}, engine={"image": "example.com/emberline/runtime:2"})
    assert image_of(mirrored) == "mirror.example/x/emberline/runtime:2"
    again = at.change(rollout={"engineUpdates": "Manual"}, engine={"maxSequences": 10})
    assert image_of(again) == "mirror.example/x/emberline/runtime:2", "the registry is not put before itself"


def test_restart_at_restarts_each_time_it_is_another_and_not_when_it_goes() -> None:
    at = Endpoint(spec_of(), decision())
    plain = copy.deepcopy(at.live)
    first = at.change(rollout={"restartAt": "2026-12-01T12:00:00Z"})
    assert first["metadata"]["annotations"][names.ANNOTATION_RESTARTED_AT] == "2026-12-01T12:00:00Z"
    assert plain is not None
    assert signature(first) != signature(plain["spec"]["template"])
    second = at.change(rollout={"restartAt": "2026-12-01T13:00:00Z"})
    assert signature(second) != signature(first)
    assert at.change() == second, "taking it away is no restart"
    assert at.change() == second
    assert at.change(engine={"maxSequences": 7}) != second


def test_a_drain_timeout_comes_with_the_next_change_that_replaces_pods() -> None:
    at = Endpoint(spec_of(), decision())
    before = copy.deepcopy(at.live)
    assert at.change(rollout={"drainTimeout": "30s"})["spec"]["terminationGracePeriodSeconds"] == 600 + 15
    assert at.live == before
    template = at.change(rollout={"drainTimeout": "30s"}, engine={"maxSequences": 7})
    assert template["spec"]["terminationGracePeriodSeconds"] == 45
    assert at.config.drain_timeout_s == 30


def test_an_operator_that_makes_templates_otherwise_replaces_no_pod() -> None:
    """As a newer version of the operator would: what is live was made and signed by the older one."""
    at = Endpoint(spec_of(), decision())
    assert at.live is not None
    older = copy.deepcopy(at.live["spec"]["template"])
    older["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = 9
    at.live["spec"]["template"] = signed(older)
    assert at.run() == signed(older)


@pytest.mark.parametrize("edit", ["image", "ownership", "signature", "annotation"])
def test_an_edit_of_the_template_by_hand_is_undone(edit: str) -> None:
    at = Endpoint(spec_of(podTemplate={"annotations": {"a": "b"}}), decision())
    assert at.live is not None
    before = copy.deepcopy(at.live["spec"]["template"])
    template = at.live["spec"]["template"]
    fields = at.live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]
    match edit:
        case "image":
            template["spec"]["containers"][0]["image"] = "edited"
        case "ownership":
            template["spec"]["containers"][0]["image"] = "edited"
            del fields["f:spec"]["f:containers"]
        case "signature":
            del template["metadata"]["annotations"][names.ANNOTATION_TEMPLATE_HASH]
        case "annotation":
            template["metadata"]["annotations"]["a"] = "edited"
    assert at.run() == before


def test_the_order_of_keyed_lists_means_nothing() -> None:
    """The API server may keep them in another order than they were applied in."""
    at = Endpoint(spec_of(podTemplate={"env": [{"name": "A", "value": "1"}]}), decision())
    assert at.live is not None
    pod = at.live["spec"]["template"]["spec"]
    pod["volumes"].reverse()
    pod["containers"][0]["env"].reverse()
    pod["containers"][0]["volumeMounts"].reverse()
    before = copy.deepcopy(at.live["spec"]["template"])
    at.install = NEWER
    assert at.run() == before, "it has been recognised: another operator's image changes nothing"


def test_a_configmap_that_was_deleted_comes_back() -> None:
    at = Endpoint(spec_of(), decision())
    assert at.live is not None
    name = Ref("ConfigMap", configmap_of(at.live["spec"]["template"]))
    gone = at.configmaps.pop(name)
    at.run()
    assert at.configmaps[name] == gone
    # One that this operator would make otherwise cannot come back; the endpoint gets the one of today.
    at.change(rollout={"drainTimeout": "30s"})
    at.configmaps.pop(name)
    at.run()
    assert configmap_of(at.live["spec"]["template"]) != name.name
    assert at.config.drain_timeout_s == 30
