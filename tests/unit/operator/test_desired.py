"""The makers: golden files of whole objects, Pod Security, and what users and the installation add."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_contract.engine_config import EngineConfig
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import parse_source
from emberline_operator.choice import Choice, Expression
from emberline_operator.decision import Decision
from emberline_operator.desired.child import Child
from emberline_operator.desired.configmap import configmap_name, engine_config, make_configmap
from emberline_operator.desired.deployment import make_deployment
from emberline_operator.desired.image import from_registry, is_same_image
from emberline_operator.desired.pdb import make_pdb
from emberline_operator.desired.quantity import canonical_quantity
from emberline_operator.desired.scheduling import node_affinity, tolerations
from emberline_operator.desired.service import make_service
from emberline_operator.desired.template import (
    configmap_of,
    digest,
    image_of,
    make_template,
    signature,
    template_inputs,
)
from emberline_operator.plan.template import choose_image
from emberline_operator.regions.record import to_text
from emberline_operator.settings import Install
from support.decisions import CPU, H100, decision
from support.operator_objects import INSTALL, UID, Raw, make_endpoint

GOLDEN = Path(__file__).parents[2] / "golden"
FULL_INSTALL = replace(
    INSTALL,
    image_registry="mirror.example:5000/x",
    http_proxy="http://proxy.example:3128",
    no_proxy=".svc,10.0.0.0/8",
    ca_bundle_configmap="corporate-ca",
    hf_endpoint="https://hub.example",
)
POD_TEMPLATE: Raw = {
    "labels": {"team": "a", names.LABEL_ENDPOINT: "stolen"},
    "annotations": {"example.com/note": "x"},
    "serviceAccountName": "robot",
    "imagePullSecrets": [{"name": "pull"}],
    "runtimeClassName": "nvidia",
    "schedulerName": "gang",
    "env": [
        {"name": "HOME", "value": "/stolen"},
        {"name": "HTTP_PROXY", "value": "http://mine:1"},
        {"name": "EMPTY", "value": ""},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
        {"name": "SETTING", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ],
    "resources": {
        "requests": {"cpu": "1500m", "memory": "1.5Gi", "nvidia.com/gpu": "8"},
        "limits": {"cpu": "2000m", "nvidia.com/gpu": "8"},
    },
    "sharedMemory": "1024Mi",
}
Case = tuple[Raw, Decision, Install]
CASES: dict[str, Case] = {
    "operator_cpu": (make_endpoint(), decision(), INSTALL),
    "operator_gpu_region": (
        make_endpoint(
            model={"source": "pvc://weights/llama/8b"},
            accelerator={"kind": "Nvidia", "count": 2},
            placement={"regions": ["eu"], "nodeSelector": {"disk": "fast"}},
            scaling={"minReplicas": 1, "initialReplicas": 2},
            engine={"image": "example.com/engine:7", "maxModelLen": 4096, "kvCache": "8Gi", "prefixCaching": False},
            rollout={"drainTimeout": "1m30s"},
        ),
        decision(H100, "eu"),
        INSTALL,
    ),
    "operator_pod_template": (
        make_endpoint(
            model={"source": "pvc://weights", "servedName": "llama"},
            accelerator={"kind": "Nvidia"},
            placement={
                "priorityClassName": "high",
                "tolerations": [
                    {"key": "team", "value": "a", "effect": "NoSchedule"},
                    {
                        "key": "node.kubernetes.io/not-ready",
                        "operator": "Exists",
                        "tolerationSeconds": 600,
                        "effect": "NoExecute",
                    },
                ],
            },
            rollout={"restartAt": "2026-12-01T12:00:00Z"},
            podTemplate=POD_TEMPLATE,
        ),
        decision(H100),
        FULL_INSTALL,
    ),
}


def objects(case: str) -> list[Raw]:
    endpoint, decided, install = CASES[case]
    child = Child("team", "tiny", UID, decided.region)
    spec = InferenceEndpointSpec.model_validate(endpoint["spec"])
    content = engine_config(child, spec, decided.choice).to_json()
    source = parse_source(spec.model.source)
    assert source is not None
    template = make_template(
        child,
        spec,
        source,
        decided,
        image=choose_image(spec, install, None),
        configmap=configmap_name(child, content),
        install=install,
    )
    deployment = make_deployment(
        child,
        template,
        inputs=template_inputs(spec, decided),
        placement=to_text(decided),
        strategy="Drain",
        drain_timeout_s=spec.rollout.drain_timeout_s,
        replicas=2,
    )
    return [make_configmap(child, content), make_service(child), make_pdb(child), deployment]


def pod_of(case: str) -> Raw:
    pod: Raw = objects(case)[-1]["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    """To renew after a wanted change: write the text below to the file, and look at the difference."""
    path = GOLDEN / "output" / f"{case}.yaml"
    text = yaml.safe_dump_all(objects(case), sort_keys=True, width=120)
    golden = path.read_text()
    assert text == golden, "\n".join(difflib.unified_diff(golden.splitlines(), text.splitlines(), lineterm=""))


@pytest.mark.parametrize("case", CASES)
def test_templates_conform_to_pod_security_restricted(case: str) -> None:
    pod = pod_of(case)
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
    (config, *_) = objects("operator_gpu_region")
    parsed = EngineConfig.model_validate_json(config["data"][names.ENGINE_CONFIG_FILE])
    assert (parsed.device, parsed.dtype, parsed.quantization, parsed.kv_cache_dtype) == ("cuda", "bf16", "fp8", "fp8")
    assert parsed.model_path == names.MODELS_PATH
    assert parsed.drain_timeout_s == 90
    assert parsed.kv_cache_bytes == 8 * 2**30
    assert not parsed.prefix_caching
    (config, *_) = objects("operator_pod_template")
    named = EngineConfig.model_validate_json(config["data"][names.ENGINE_CONFIG_FILE])
    assert named.served_names == ("team/tiny", "tiny", "llama")


@pytest.mark.parametrize(("kind", "device"), [("Nvidia", "cuda"), ("Amd", "cuda"), ("Cpu", "cpu")])
def test_the_device(kind: str, device: str) -> None:
    spec = InferenceEndpointSpec.model_validate(make_endpoint(accelerator={"kind": kind})["spec"])
    assert engine_config(Child("team", "tiny", UID, "default"), spec, CPU).device == device


def test_what_users_add_lies_under_the_operators_own() -> None:
    template = objects("operator_pod_template")[-1]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert (labels["team"], labels[names.LABEL_ENDPOINT]) == ("a", "tiny")
    assert template["metadata"]["annotations"]["example.com/note"] == "x"
    env = {variable["name"]: variable for variable in template["spec"]["containers"][0]["env"]}
    assert env["HOME"]["value"] == "/tmp"
    assert env["HTTP_PROXY"]["value"] == "http://mine:1", "the installation's defaults lie under the user's"
    assert env["NO_PROXY"]["value"] == ".svc,10.0.0.0/8"
    assert "HTTPS_PROXY" not in env
    assert env["SSL_CERT_FILE"]["value"] == "/etc/emberline-ca/ca.crt"
    assert env["EMPTY"] == {"name": "EMPTY"}, "as the API server writes it back"
    resources = template["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "2", "nvidia.com/gpu": "1"}
    assert resources["requests"] == {"cpu": "1500m", "memory": "1536Mi"}
    assert image_of(template) == "mirror.example:5000/x/emberline/runtime:1"


def test_the_resource_is_the_chosen_one() -> None:
    def resources(choice: Choice, **accelerator: Any) -> Any:
        spec = InferenceEndpointSpec.model_validate(make_endpoint(accelerator=accelerator)["spec"])
        source = parse_source("pvc://models")
        assert source is not None
        child, decided = Child("team", "tiny", UID, "default"), decision(choice)
        made = make_template(child, spec, source, decided, image="i", configmap="c", install=INSTALL)
        return made["spec"]["containers"][0].get("resources")

    mig = replace(H100, resource_name="nvidia.com/mig-3g.40gb")
    assert resources(mig, kind="Nvidia", count=2) == {"limits": {"nvidia.com/mig-3g.40gb": "2"}}
    assert resources(replace(H100, resource_name="amd.com/gpu"), kind="Amd") == {"limits": {"amd.com/gpu": "1"}}
    assert resources(CPU, kind="Cpu") is None


def test_a_node_needs_the_regions_labels_and_one_of_the_choices_terms() -> None:
    def terms(decided: Decision) -> Any:
        affinity = node_affinity(decided)
        if affinity is None:
            return None
        required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return [term["matchExpressions"] for term in required["nodeSelectorTerms"]]

    region = {"key": names.LABEL_TOPOLOGY_REGION, "operator": "In", "values": ["eu"]}
    major = {"key": "nvidia.com/gpu.compute.major", "operator": "Gt", "values": ["8"]}
    memory = {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["70000"]}
    pool = {"key": "example.com/pool", "operator": "In", "values": ["h100"]}
    assert terms(decision(H100, "eu")) == [[region, major, memory], [region, pool]]
    assert terms(decision(H100)) == [[major, memory], [pool]]
    assert terms(decision(CPU, "eu")) == [[region]]
    assert terms(decision(CPU)) is None
    present = replace(CPU, terms=((Expression("gpu", "Exists"),),))
    assert terms(decision(present)) == [[{"key": "gpu", "operator": "Exists"}]]


def test_taints_that_are_tolerated() -> None:
    def keys(kind: str, *asked: Raw) -> list[tuple[Any, ...]]:
        endpoint = make_endpoint(accelerator={"kind": kind}, placement={"tolerations": list(asked)})
        made = tolerations(InferenceEndpointSpec.model_validate(endpoint["spec"]))
        return [(t.get("key"), t.get("tolerationSeconds")) for t in made]

    lost = [("node.kubernetes.io/not-ready", 45), ("node.kubernetes.io/unreachable", 45)]
    assert keys("Cpu") == lost
    assert keys("Amd") == [("amd.com/gpu", None), *lost]
    assert keys("Nvidia") == [("nvidia.com/gpu", None), ("kubernetes.io/arch", None), *lost]
    everything = {"operator": "Exists"}
    assert keys("Cpu", everything) == [(None, None)]
    unreachable = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 900}
    assert keys("Cpu", unreachable) == [lost[0], ("node.kubernetes.io/unreachable", 900)]
    assert keys("Cpu", {**everything, "effect": "NoSchedule"}) == [*lost, (None, None)]


@pytest.mark.parametrize(
    ("image", "registry", "expected"),
    [
        ("emberline/runtime:1", "", "emberline/runtime:1"),
        ("emberline/runtime:1", "mirror.example/x", "mirror.example/x/emberline/runtime:1"),
        ("runtime:1", "mirror.example", "mirror.example/runtime:1"),
        ("docker.io/emberline/runtime:1", "mirror.example", "mirror.example/emberline/runtime:1"),
        ("localhost/runtime", "mirror.example", "mirror.example/runtime"),
        ("host:5000/a/b@sha256:0", "mirror.example", "mirror.example/a/b@sha256:0"),
    ],
)
def test_registries(image: str, registry: str, expected: str) -> None:
    assert from_registry(image, registry) == expected
    assert is_same_image(expected, image)
    assert not is_same_image(expected, image + "1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", "0"), ("1", "1"), ("1000m", "1"), ("1500m", "1500m"), ("0.5", "500m"), ("2000", "2k"), ("1024", "1024"),
        ("1.5Gi", "1536Mi"), ("1024Ki", "1Mi"), ("0.5Gi", "512Mi"), ("1025Mi", "1025Mi"), ("0.5Ki", "512"), ("0.0Gi", "0"),
        ("0.1Gi", "107374182400m"), ("1.0G", "1G"), ("1500M", "1500M"), ("100000k", "100M"), ("0.0001m", "100n"),
        ("1Pi", "1Pi"), ("nonsense", "nonsense"), ("9" * 31, "9" * 31), ("9" * 31 + "m", "9" * 31 + "m"),
        ("8191Pi", "8191Pi"), ("8192Pi", "9223372036854775807"), ("99999999999Pi", "9223372036854775807"),
        ("9" * 20 + ".99999999", "99999999999999999999999999990n"), ("0.0000000001", "1n"),
    ],
)  # fmt: skip
def test_quantities_as_the_api_server_writes_them_back(text: str, expected: str) -> None:
    assert canonical_quantity(text) == expected
    assert canonical_quantity(expected) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("1.0000000001Gi", "1073741824108m"), ("0.0000000001", "1m"), ("1Gi", "1Gi")]
)
def test_of_resources_the_api_server_keeps_no_less_than_thousandths(text: str, expected: str) -> None:
    assert canonical_quantity(text, is_resource=True) == expected
    endpoint = make_endpoint(podTemplate={"resources": {"limits": {"memory": text}}})
    spec, source = InferenceEndpointSpec.model_validate(endpoint["spec"]), parse_source("pvc://models")
    assert source is not None
    child = Child("team", "tiny", UID, "eu")
    template = make_template(child, spec, source, decision(CPU), image="i", configmap="c", install=INSTALL)
    assert template["spec"]["containers"][0]["resources"]["limits"] == {"memory": expected}


def test_a_template_carries_its_own_hash() -> None:
    template = objects("operator_cpu")[-1]["spec"]["template"]
    assert signature(template)
    assert signature({"metadata": {}}) == ""
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1}) != digest({"b": [2, 1], "a": 1})
    assert configmap_of({"spec": {"volumes": [{"name": "other"}]}}) == ""
    assert image_of({"spec": {"containers": [{"name": "other", "image": "x"}]}}) == ""
