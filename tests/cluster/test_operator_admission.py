"""What is wrong with an InferenceEndpoint is said before anything is made of it: by the API server, or in `Accepted`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
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
    "unknown field at the top": (endpoint(replicas=1), 'unknown field "spec.replicas"', endpoint()),
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
        'supported values: "Nvidia", "Cpu"',
        endpoint(accelerator={"kind": "Nvidia"}),
    ),
    "precision that is none": (
        endpoint(precision={"format": "fp12"}),
        'supported values: "Auto", "bf16", "fp16", "fp32"',
        endpoint(precision={"format": "fp16"}),
    ),
    "memory that is none": (
        endpoint(engine={"kvCache": "much"}),
        "spec.engine.kvCache",
        endpoint(engine={"kvCache": "2Gi"}),
    ),
    "two regions": (
        endpoint(placement={"regions": ["eu", "us"]}),
        "must have at most 1 item",
        endpoint(placement={"regions": ["eu"]}),
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
