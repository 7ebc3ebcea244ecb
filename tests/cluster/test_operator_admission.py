"""What is wrong with an InferenceEndpoint is said before anything is made of it: by the API server, or in `Accepted`."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_contract.crd import all_crds
from emberline_operator.cluster.api import Api
from emberline_operator.cluster.kinds import BY_KIND, DEPLOYMENTS, ENDPOINTS
from emberline_operator.errors import RefusedError
from support.operator_rig import condition, endpoint_yaml, operator_rig
from support.plane import TestPlane

pytestmark = pytest.mark.cluster
SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"


def endpoint(name: str = "tiny", **spec: Any) -> dict[str, Any]:
    return endpoint_yaml(name, "default", **spec)


def region(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": names.API_VERSION, "kind": names.REGION_KIND, "metadata": {"name": name}, "spec": spec}


SECRET_KEY = {"name": "keys", "key": "a"}
SCHEDULE = {"name": "day", "cron": "0 8 * * 1-5", "minReplicas": 1, "duration": "10h"}
POOL = {
    "name": "spot", "nodeSelector": {"pool": "h100"}, "computeCapability": "9.0", "memory": "80Gi", "maxNodes": 4
}  # fmt: skip

# What is refused, the words of the refusal, and the nearest valid one.
REFUSED = {
    "min above max": (
        endpoint(scaling={"minReplicas": 3, "maxReplicas": 2}),
        "scaling.minReplicas must not be larger than scaling.maxReplicas",
        endpoint(scaling={"minReplicas": 2, "maxReplicas": 2}),
    ),
    "initial above max": (
        endpoint(scaling={"initialReplicas": 5}),
        "scaling.initialReplicas must not be larger than scaling.maxReplicas",
        endpoint(scaling={"initialReplicas": 4}),
    ),
    "negative": (
        endpoint(scaling={"minReplicas": -1}),
        "should be greater than or equal to 0",
        endpoint(scaling={"minReplicas": 0}),
    ),
    "unknown field": (
        endpoint(scaling={"minReplica": 1}),
        'unknown field "spec.scaling.minReplica"',
        endpoint(scaling={"minReplicas": 1}),
    ),
    "unknown field at the top": (endpoint(replica=1), 'unknown field "spec.replica"', endpoint()),
    "replicas without External": (
        endpoint(replicas=1),
        "replicas is only for scaling.via External; remove it, or set scaling.via to External",
        endpoint(replicas=1, scaling={"via": "External"}),
    ),
    "External in two regions": (
        endpoint(scaling={"via": "External"}, placement={"regions": ["eu", "us"]}),
        "scaling.via External takes at most one of placement.regions: one number cannot speak of several regions",
        endpoint(scaling={"via": "External"}, placement={"regions": ["eu"]}),
    ),
    "hub source": (
        endpoint(model={"source": "hf://org/name@main"}),
        "other schemes are not supported by this version",
        endpoint(model={"source": "pvc://org/name"}),
    ),
    "path source": (
        endpoint(model={"source": "/models/tiny"}),
        "model.source must be pvc://<claim> or pvc://<claim>/<folder>",
        endpoint(model={"source": "pvc://models"}),
    ),
    "source out of the volume": (
        endpoint(model={"source": "pvc://models/../secret"}),
        "model.source must not contain '..'",
        endpoint(model={"source": "pvc://models/secret"}),
    ),
    "no source": (endpoint(model={}), "spec.model.source: Required value", endpoint()),
    "duration that is none": (
        endpoint(scaling={"idleAfter": "soon"}),
        "spec.scaling.idleAfter",
        endpoint(scaling={"idleAfter": "1h30m"}),
    ),
    "idleAfter too short": (
        endpoint(scaling={"idleAfter": "10ms"}),
        "scaling.idleAfter must be between 1s and 24h",
        endpoint(scaling={"idleAfter": "1s"}),
    ),
    "drain too long": (
        endpoint(rollout={"drainTimeout": "2h"}),
        "rollout.drainTimeout must be between 0s and 1h",
        endpoint(rollout={"drainTimeout": "1h"}),
    ),
    "accelerator that is none": (
        endpoint(accelerator={"kind": "Tpu"}),
        'supported values: "Nvidia", "Amd", "Cpu"',
        endpoint(accelerator={"kind": "Nvidia"}),
    ),
    "precision that is none": (
        endpoint(precision={"format": "fp12"}),
        'supported values: "Auto", "bf16", "fp16", "fp32", "fp8", "int8", "int4"',
        endpoint(precision={"format": "fp16"}),
    ),
    "memory that is none": (
        endpoint(engine={"kvCache": "much"}),
        "spec.engine.kvCache",
        endpoint(engine={"kvCache": "2Gi"}),
    ),
    "regions without end": (
        endpoint(placement={"regions": [f"r{n}" for n in range(9)]}),
        "must have at most 8 items",
        endpoint(placement={"regions": [f"r{n}" for n in range(8)]}),
    ),
    "a region twice": (
        endpoint(placement={"regions": ["eu", "us", "eu"]}),
        "placement.regions must not name a region twice",
        endpoint(placement={"regions": ["eu", "us"]}),
    ),
    "the pseudo-region": (
        endpoint(placement={"regions": ["default"]}),
        "placement.regions: 'default' stands for endpoints without a region; leave the list out",
        endpoint(placement={"regions": []}),
    ),
    "jurisdictions without regions": (
        endpoint(placement={"residency": {"jurisdictions": ["EU"]}}),
        "placement.residency.jurisdictions needs placement.regions: name the InferenceRegions that may be used",
        endpoint(placement={"regions": ["eu"], "residency": {"jurisdictions": ["EU"]}}),
    ),
    "absence that lasts for ever": (
        endpoint(placement={"regions": ["eu"], "residency": {"absenceGrace": "48h"}}),
        "placement.residency.absenceGrace must be between 1s and 24h",
        endpoint(placement={"regions": ["eu"], "residency": {"absenceGrace": "24h"}}),
    ),
    "GPU types of a CPU": (
        endpoint(accelerator={"kind": "Cpu", "types": ["h100"]}),
        "accelerator.types, minMemory and resourceName speak of GPUs; remove them or set accelerator.kind to Nvidia or Amd",
        endpoint(accelerator={"kind": "Nvidia", "types": ["h100"], "minMemory": "40Gi"}),
    ),
    "GPU type in capitals": (
        endpoint(accelerator={"types": ["H100"]}),
        "spec.accelerator.types[0]",
        endpoint(accelerator={"types": ["h100"]}),
    ),
    "parameters in words": (
        endpoint(model={"source": "pvc://models", "parameters": "8 billion"}),
        "spec.model.parameters",
        endpoint(model={"source": "pvc://models", "parameters": "8B"}),
    ),
    "heartbeat too slow": (
        endpoint(serving={"heartbeat": "10m"}),
        "serving.heartbeat must be between 100ms and 5m",
        endpoint(serving={"heartbeat": "5m"}),
    ),
    "activationTimeout too long": (
        endpoint(scaling={"activationTimeout": "2h"}),
        "scaling.activationTimeout must be between 1s and 1h",
        endpoint(scaling={"activationTimeout": "1h"}),
    ),
    "stabilization too long": (
        endpoint(scaling={"scaleDownStabilization": "2h"}),
        "scaling.scaleDownStabilization must be between 0s and 1h",
        endpoint(scaling={"scaleDownStabilization": "0s"}),
    ),
    "patience with the scheduler too long": (
        endpoint(scaling={"unschedulableTimeout": "2h"}),
        "scaling.unschedulableTimeout must be between 1s and 1h",
        endpoint(scaling={"unschedulableTimeout": "1h"}),
    ),
    "schedule beyond the most": (
        endpoint(scaling={"maxReplicas": 2, "schedules": [{**SCHEDULE, "minReplicas": 3}]}),
        "scaling.schedules: minReplicas must not be larger than scaling.maxReplicas",
        endpoint(scaling={"maxReplicas": 2, "schedules": [{**SCHEDULE, "minReplicas": 2}]}),
    ),
    "schedule of no length": (
        endpoint(scaling={"schedules": [{**SCHEDULE, "duration": "0s"}]}),
        "scaling.schedules: duration must be between 1m and 168h",
        endpoint(scaling={"schedules": [{**SCHEDULE, "duration": "1m"}]}),
    ),
    "schedule twice": (
        endpoint(scaling={"schedules": [SCHEDULE, SCHEDULE]}),
        "Duplicate value",
        endpoint(scaling={"schedules": [SCHEDULE, {**SCHEDULE, "name": "night"}]}),
    ),
    "labels of the operator": (
        endpoint(podTemplate={"labels": {"emberline.dev/endpoint": "other"}}),
        "podTemplate.labels: emberline.dev/ and app.kubernetes.io/ are the operator's own",
        endpoint(podTemplate={"labels": {"team": "search"}}),
    ),
    "annotations of the operator": (
        endpoint(podTemplate={"annotations": {"emberline.dev/template-hash": "0"}}),
        "podTemplate.annotations: emberline.dev/ is the operator's own",
        endpoint(podTemplate={"annotations": {"prometheus.io/scrape": "true"}}),
    ),
    "label that is no label's": (
        endpoint(podTemplate={"labels": {"the team": "search"}}),
        "podTemplate.labels: a key must be that of a Kubernetes label",
        endpoint(podTemplate={"labels": {"example.com/the-Team_1": "search"}}),
    ),
    "label with a long name": (
        endpoint(podTemplate={"labels": {"a" * 64: "search"}}),
        "podTemplate.labels: a key must be that of a Kubernetes label",
        endpoint(podTemplate={"labels": {"a" * 63: ""}}),
    ),
    "label's value with a blank": (
        endpoint(podTemplate={"labels": {"team": "search and find"}}),
        "spec.podTemplate.labels.team",
        endpoint(podTemplate={"labels": {"team": "Search_and.find-1"}}),
    ),
    "annotation that is none": (
        endpoint(podTemplate={"annotations": {"/owner": "search"}}),
        "podTemplate.annotations: a key must be that of a Kubernetes annotation",
        endpoint(podTemplate={"annotations": {"Example.com/owner": "search & find"}}),
    ),
    "selector that is none": (
        endpoint(placement={"nodeSelector": {"Example.com/pool": "a"}}),
        "placement.nodeSelector: a key must be that of a Kubernetes label",
        endpoint(placement={"nodeSelector": {"example.com/pool": "a"}}),
    ),
    "selector's value that is none": (
        endpoint(placement={"nodeSelector": {"pool": "-a"}}),
        "spec.placement.nodeSelector.pool",
        endpoint(placement={"nodeSelector": {"pool": "a"}}),
    ),
    "region's selector that is none": (
        region("eu", nodeSelector={"zone=a": "b"}),
        "nodeSelector: a key must be that of a Kubernetes label",
        region("eu", nodeSelector={"zone": "b"}),
    ),
    "region's selector's value that is none": (
        region("eu", nodeSelector={"zone": "a,b"}),
        "spec.nodeSelector.zone",
        region("eu", nodeSelector={"zone": "b"}),
    ),
    "pool's selector that is none": (
        region("eu", gpuPools=[{**POOL, "nodeSelector": {"pool/": "h100"}}]),
        "gpuPools.nodeSelector: a key must be that of a Kubernetes label",
        region("eu", gpuPools=[{**POOL, "nodeSelector": {"cloud.example.com/pool": "h100"}}]),
    ),
    "toleration of no taint": (
        endpoint(placement={"tolerations": [{"value": "a"}]}),
        "placement.tolerations: without a key operator must be Exists",
        endpoint(placement={"tolerations": [{"operator": "Exists"}]}),
    ),
    "toleration of a taint that is none": (
        endpoint(placement={"tolerations": [{"key": "a b", "operator": "Exists"}]}),
        "spec.placement.tolerations[0].key",
        endpoint(placement={"tolerations": [{"key": "example.com/a-b", "operator": "Exists"}]}),
    ),
    "toleration with a value of no use": (
        endpoint(placement={"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}),
        "placement.tolerations: operator Exists compares no value; remove value, or set operator to Equal",
        endpoint(placement={"tolerations": [{"key": "a", "operator": "Equal", "value": "b"}]}),
    ),
    "toleration for a time of what does not end pods": (
        endpoint(placement={"tolerations": [{"key": "a", "value": "b", "tolerationSeconds": 30}]}),
        "placement.tolerations: tolerationSeconds is for effect NoExecute alone",
        endpoint(
            placement={"tolerations": [{"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 30}]}
        ),
    ),
    "a variable with two values": (
        endpoint(podTemplate={"env": [{"name": "A", "value": "1", "valueFrom": {"secretKeyRef": SECRET_KEY}}]}),
        "podTemplate.env: a variable has value or valueFrom, not both",
        endpoint(podTemplate={"env": [{"name": "A", "value": "1"}]}),
    ),
    "a variable from nowhere": (
        endpoint(podTemplate={"env": [{"name": "A", "valueFrom": {}}]}),
        "podTemplate.env: valueFrom takes exactly one of secretKeyRef and configMapKeyRef",
        endpoint(podTemplate={"env": [{"name": "A", "valueFrom": {"secretKeyRef": SECRET_KEY}}]}),
    ),
    "a variable twice": (
        endpoint(podTemplate={"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}),
        "Duplicate value",
        endpoint(podTemplate={"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
    ),
    "restart that is no time": (
        endpoint(rollout={"restartAt": "now"}),
        "spec.rollout.restartAt",
        endpoint(rollout={"restartAt": "2026-12-01T12:00:00Z"}),
    ),
    "pool without labels": (
        region("eu", gpuPools=[{**POOL, "nodeSelector": {}}]),
        "spec.gpuPools[0].nodeSelector",
        region("eu", gpuPools=[POOL]),
    ),
    "pool twice": (region("eu", gpuPools=[POOL, POOL]), "Duplicate value", region("eu", gpuPools=[POOL])),
    "compute capability in words": (
        region("eu", gpuPools=[{**POOL, "computeCapability": "hopper"}]),
        "spec.gpuPools[0].computeCapability",
        region("eu", gpuPools=[{**POOL, "computeCapability": "gfx942"}]),
    ),
    "name with two dashes": (
        endpoint("a--b"),
        "single '-'",
        endpoint("a-b"),
    ),
    "name that begins with a digit": (endpoint("1a"), "must start with a letter", endpoint("a1")),
    "name that is too long": (
        endpoint("a" * 31),
        "metadata.name must have at most 30 characters",
        endpoint("a" * 30),
    ),
    "region that is too long": (
        region("r" * 26),
        "metadata.name must have at most 25 characters",
        region("r" * 25),
    ),
    "region named default": (
        region("default"),
        "'default' stands for endpoints without a region",
        region("default-1"),
    ),
    "region with two dashes": (region("eu--west"), "single '-'", region("eu-west", nodeSelector={"zone": "a"})),
}


async def refusal(admin: Api, document: dict[str, Any]) -> str:
    """The API server's words under strict validation, as `kubectl apply` asks for it; empty if it takes the object.

    Nothing is stored.
    """
    kind = BY_KIND[document["kind"]]
    query = [("dryRun", "All"), ("fieldValidation", "Strict")]
    try:
        await admin.request("POST", kind.path(document["metadata"].get("namespace", "")), body=document, query=query)
    except RefusedError as error:
        return error.message
    return ""


async def test_bad_objects_are_refused_with_words_and_their_valid_twins_are_not(plane: TestPlane) -> None:
    admin = await Api.connect(plane.kubeconfig)
    wrong = []
    try:
        for case, (bad, words, twin) in REFUSED.items():
            said, said_of_twin = await refusal(admin, bad), await refusal(admin, twin)
            if words not in said:
                wrong.append(f"{case}: expected {words!r} in {said!r}")
            if said_of_twin:
                wrong.append(f"{case}: the valid twin is refused: {said_of_twin!r}")
    finally:
        await admin.close()
    assert not wrong, "\n".join(wrong)


def test_every_rule_has_its_refusal() -> None:
    words = [words for _, words, _ in REFUSED.values()]
    unproven = [
        rule["message"]
        for crd in all_crds().values()
        for rule in _rules(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        if not any(said in rule["message"] for said in words)
    ]
    assert unproven == []


def _rules(node: Any) -> Iterator[dict[str, Any]]:
    """Every CEL rule below a schema node."""
    if isinstance(node, dict):
        yield from node.get("x-kubernetes-validations", ())
        for child in node.values():
            yield from _rules(child)
    elif isinstance(node, list):
        for child in node:
            yield from _rules(child)


def test_explain_reads_well(plane: TestPlane) -> None:
    deadline = time.monotonic() + 20
    while "InferenceEndpoint" not in plane.kubectl("api-resources", "--api-group", names.GROUP):
        assert time.monotonic() < deadline, "the CRDs never came into discovery"
    for path in (
        "iep.spec",
        "iep.spec.placement.residency",
        "iep.spec.podTemplate",
        "iep.status",
        "ireg.spec.gpuPools",
    ):
        lines = plane.kubectl("explain", path).splitlines()
        fields = [number for number, line in enumerate(lines) if re.match(r"  \w+\t<", line)]
        assert fields, path
        for number in fields:
            assert lines[number + 1].strip() not in ("", "<no description>"), (path, lines[number])


async def test_endpoints_are_found_by_field_and_scaled_by_kubectl(plane: TestPlane, namespace: str) -> None:
    external = endpoint_yaml("outer", namespace, scaling={"via": "External"}, replicas=2)
    named = endpoint_yaml("named", namespace, model={"source": "pvc://models/a", "servedName": "llama"})
    plane.apply(external, named)
    found = plane.kubectl(
        "-n", namespace, "get", "iep", "-o", "name", "--field-selector", "spec.model.servedName=llama"
    )
    assert found.split() == ["inferenceendpoint.emberline.dev/named"]
    found = plane.kubectl("-n", namespace, "get", "iep", "-o", "name", "--field-selector", "spec.scaling.via=External")
    assert found.split() == ["inferenceendpoint.emberline.dev/outer"]
    plane.kubectl("-n", namespace, "scale", "iep/outer", "--replicas=5")
    replicas = plane.kubectl("-n", namespace, "get", "iep/outer", "-o", "jsonpath={.spec.replicas}")
    assert replicas == "5"


async def test_the_samples_are_valid(plane: TestPlane) -> None:
    admin = await Api.connect(plane.kubeconfig)
    try:
        for path in sorted(SAMPLES.glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                assert await refusal(admin, document) == "", path.name
    finally:
        await admin.close()


async def test_what_the_api_server_cannot_refuse_is_shown_and_mended(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    async with operator_rig(plane, namespace, tmp_path) as rig, rig.operator():
        await rig.claim()
        # `format: duration` also admits this notation, which Go's own durations do not know.
        await rig.endpoint("tiny", scaling={"idleAfter": "5 minutes"})
        endpoint = await rig.settled("tiny", "NotAccepted")
        accepted = condition(endpoint, "Accepted")
        assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
        assert accepted["message"] == ("scaling.idleAfter: '5 minutes' is no duration; write it like 30s, 5m or 1h30m")
        assert condition(endpoint, "Stalled")["status"] == "True"
        assert await rig.children() == []
        await rig.patch(ENDPOINTS, "tiny", {"spec": {"scaling": {"idleAfter": "5m"}}})
        endpoint = await rig.settled("tiny", "ScaledToZero")
        assert condition(endpoint, "Stalled") == {}
        assert await rig.get(DEPLOYMENTS, "tiny--default") is not None
