"""The makers: golden files of whole objects, and which field changes what."""

from __future__ import annotations

import copy
import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_contract.engine_config import EngineConfig
from emberline_operator.desired.template import configmap_of, digest, signature, signed
from emberline_operator.settings import Install
from emberline_operator.snapshot import Ref
from support.operator_objects import CHILD, INSTALL, Raw, Store, make_endpoint, make_pod_state

GOLDEN = Path(__file__).parents[2] / "golden"
REGION: Raw = {"eu": {"metadata": {"name": "eu"}, "spec": {"nodeSelector": {"example.com/pool": "eu-1"}}}}
CASES = {
    "operator_cpu": make_endpoint(),
    "operator_gpu_region": make_endpoint(
        model={"source": "pvc://weights/llama/8b"},
        accelerator={"kind": "Nvidia", "count": 2},
        placement={"regions": ["eu"], "nodeSelector": {"disk": "fast"}},
        precision={"format": "fp16"},
        scaling={"minReplicas": 1, "initialReplicas": 2},
        engine={"image": "example.com/engine:7", "maxModelLen": 4096, "kvCache": "8Gi", "prefixCaching": False},
        rollout={"drainTimeout": "1m30s"},
    ),
}


def objects(endpoint: Raw, install: Install = INSTALL) -> list[Raw]:
    plan = Store(endpoint, regions=REGION).decide(install)
    return [action.body for action in plan.actions if action.manager == names.OPERATOR_MANAGER]


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    """To renew after a wanted change: write the text below to the file, and look at the difference."""
    path = GOLDEN / "output" / f"{case}.yaml"
    text = yaml.safe_dump_all(objects(CASES[case]), sort_keys=True, width=120)
    golden = path.read_text()
    assert text == golden, "\n".join(difflib.unified_diff(golden.splitlines(), text.splitlines(), lineterm=""))


def test_templates_conform_to_pod_security_restricted() -> None:
    for case in CASES.values():
        pod = objects(case)[-1]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        allowed = {"configMap", "persistentVolumeClaim", "emptyDir"}
        assert all(set(volume) - {"name"} <= allowed for volume in pod["volumes"])
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert all("hostPort" not in port for port in container["ports"])


def test_the_configuration_reads_back() -> None:
    (config, *_) = objects(CASES["operator_gpu_region"])
    parsed = EngineConfig.model_validate_json(config["data"][names.ENGINE_CONFIG_FILE])
    assert parsed.device == "cuda"
    assert parsed.dtype == "fp16"
    assert parsed.model_path == names.MODELS_PATH
    assert parsed.drain_timeout_s == 90
    assert parsed.kv_cache_bytes == 8 * 2**30
    assert not parsed.prefix_caching


def test_a_template_signs_itself() -> None:
    template = objects(CASES["operator_cpu"])[-1]["spec"]["template"]
    assert signature(template) == signature(signed(template)) != ""
    other = copy.deepcopy(template)
    other["spec"]["enableServiceLinks"] = True
    assert signature(signed(other)) != signature(template)
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"b": [2, 1], "a": 1})
    assert configmap_of({"spec": {"volumes": [{"name": "other"}]}}) == ""


# Every field of the spec, a change of it, and whether pods are replaced by that. A new field of the contract that is not here
# fails the test below.
EFFECTS: dict[str, tuple[Any, bool]] = {
    "model.source": ("pvc://models/other", True),
    "accelerator.kind": ("Nvidia", True),
    "accelerator.count": (2, True),
    "precision.format": ("fp32", True),
    "placement.regions": (["eu"], True),
    "placement.nodeSelector": ({"disk": "fast"}, True),
    "scaling.minReplicas": (1, False),
    "scaling.maxReplicas": (7, False),
    "scaling.initialReplicas": (2, False),
    "scaling.idleAfter": ("7m", False),
    "scaling.activationTimeout": ("7m", False),
    "serving.maxQueue": (7, False),
    "serving.heartbeat": ("7s", False),
    "engine.maxModelLen": (512, True),
    "engine.maxBatchTokens": (512, True),
    "engine.maxSequences": (7, True),
    "engine.maxQueuedRequests": (7, True),
    "engine.kvCache": ("1Gi", True),
    "engine.prefixCaching": (False, True),
    "engine.image": ("other", True),
    "rollout.drainTimeout": ("7m", False),
}


def spec_fields() -> set[str]:
    spec = copy.deepcopy(make_endpoint(engine={"maxModelLen": 16, "kvCache": "1Gi", "image": "i"})["spec"])
    return {f"{part}.{name}" for part, fields in spec.items() for name in fields}


def test_the_table_knows_every_field() -> None:
    assert spec_fields() == set(EFFECTS)


@pytest.mark.parametrize("field", EFFECTS)
def test_field_and_effect(field: str) -> None:
    value, replaces_pods = EFFECTS[field]
    # The number of GPUs means something only where there are any.
    base = {"accelerator": {"kind": "Nvidia"}} if field == "accelerator.count" else {}
    store = Store(make_endpoint(**base), regions=REGION)
    store.settle()
    before = store.deployment["spec"]["template"]
    part, name = field.split(".")
    changed = make_endpoint(generation=2, **base)
    changed["spec"][part] = {**changed["spec"][part], name: value}
    store.endpoint = {**changed, "status": store.endpoint["status"]}
    store.settle()
    (live,) = [child for ref, child in store.children.items() if ref.kind == "Deployment"]
    assert (live["spec"]["template"] != before) is replaces_pods


def settled_store() -> Store:
    store = Store(make_endpoint())
    store.settle()
    return store


def test_another_default_image_replaces_no_pod_and_comes_with_the_next_change() -> None:
    store, newer = settled_store(), Install("emberline/runtime:2", INSTALL.public_url)
    assert store.decide(newer).actions == ()
    store.endpoint = make_endpoint(engine={"maxSequences": 7}, generation=2)
    store.settle(newer)
    (container,) = store.deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "emberline/runtime:2"


def test_a_drain_timeout_comes_with_the_next_change_that_replaces_pods() -> None:
    store = settled_store()
    grace = store.deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace == 600 + 15
    store.endpoint = make_endpoint(rollout={"drainTimeout": "30s"}, generation=2)
    store.settle()
    assert store.deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == grace
    store.endpoint = make_endpoint(rollout={"drainTimeout": "30s"}, engine={"maxSequences": 7}, generation=3)
    store.settle()
    assert store.deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 45
    config = store.children[Ref("ConfigMap", configmap_of(store.deployment["spec"]["template"]))]
    assert EngineConfig.model_validate_json(config["data"][names.ENGINE_CONFIG_FILE]).drain_timeout_s == 30


def test_an_operator_that_makes_templates_otherwise_replaces_no_pod() -> None:
    """As a newer version of the operator would: what is live was made and signed by the older one."""
    store = settled_store()
    live = store.deployment
    older = copy.deepcopy(live["spec"]["template"])
    older["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] = 9
    live["spec"]["template"] = signed(older)
    assert store.decide().actions == ()


def test_an_edit_of_the_template_by_hand_is_undone() -> None:
    store = settled_store()
    before = copy.deepcopy(store.deployment["spec"]["template"])
    store.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "edited"
    del store.deployment["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]["f:spec"]["f:containers"]
    store.settle()
    assert store.deployment["spec"]["template"] == before


def test_a_configmap_that_was_deleted_comes_back() -> None:
    store = settled_store()
    name = configmap_of(store.deployment["spec"]["template"])
    gone = store.children.pop(Ref("ConfigMap", name))
    store.settle()
    assert store.children[Ref("ConfigMap", name)]["data"] == gone["data"]
    # One that this operator would make otherwise cannot come back; the endpoint gets the one of today.
    store.endpoint = make_endpoint(rollout={"drainTimeout": "30s"}, generation=2)
    store.settle()
    store.children.pop(Ref("ConfigMap", name))
    store.settle()
    assert configmap_of(store.deployment["spec"]["template"]) != name
    assert Ref("ConfigMap", configmap_of(store.deployment["spec"]["template"])) in store.children


def test_old_configmaps_go_when_no_pod_uses_them_and_the_rollout_is_over() -> None:
    store = settled_store()
    old = configmap_of(store.deployment["spec"]["template"])
    store.endpoint = make_endpoint(engine={"maxSequences": 7}, generation=2)
    store.settle()
    assert Ref("ConfigMap", old) in store.children, "the Deployment controller has not looked yet"
    store.deployment["metadata"]["generation"] = 2
    store.deployment["status"] = {"observedGeneration": 1, "replicas": 0, "updatedReplicas": 0}
    store.settle()
    assert Ref("ConfigMap", old) in store.children, "it has looked at the template before"
    store.deployment["status"] = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 0}
    store.settle()
    assert Ref("ConfigMap", old) in store.children, "a pod of the old template may come yet"
    store.deployment["status"] = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1}
    store.pods = (make_pod_state(ready_s=1, terminating=True, config_maps=frozenset({old})),)
    store.settle()
    assert Ref("ConfigMap", old) in store.children, "a pod that drains still has it"
    store.pods = ()
    store.settle()
    assert Ref("ConfigMap", old) not in store.children
    assert CHILD in store.children
