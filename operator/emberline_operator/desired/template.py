"""The pod template of an endpoint's engines. It conforms to Pod Security `restricted`.

Values are written as the API server writes them back (ports with a protocol, canonical quantities), so that what the
operator applied can be recognised in the live object.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Final

from emberline_contract import http, names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import ClaimSource
from emberline_operator.desired.child import Child
from emberline_operator.placement import Placement
from emberline_operator.snapshot import Json

PRE_STOP_S: Final = 5
"""Gateways need this long to see that a pod terminates; it serves meanwhile."""
GRACE_BEYOND_DRAIN_S: Final = 15
"""The preStop sleep, and time to end the streams that are left after the drain timeout."""
START_DEADLINE_S: Final = 3600
"""A start that takes longer is given up and begun anew by the kubelet."""
LIVE_PERIOD_S: Final = 5
LIVE_FAILURES: Final = 6
TMP_PATH: Final = "/tmp"  # noqa: S108 - a mount point in the pod, no file of this process
TMP_SIZE: Final = "1Gi"

_CONFIG_VOLUME: Final = "config"
_MODEL_VOLUME: Final = "model"
_TMP_VOLUME: Final = "tmp"


def template_inputs(spec: InferenceEndpointSpec, placement: Placement) -> str:
    """Hash of everything in the spec that a pod template may depend on.

    `serving`, `scaling` and `rollout` are not in it: a change of theirs never replaces a pod. What a template takes from
    `rollout` (the grace period) follows with the next change of a field that is.
    """
    inputs = {
        "model": spec.model.model_dump(mode="json"),
        "accelerator": spec.accelerator.model_dump(mode="json"),
        "precision": spec.precision.model_dump(mode="json"),
        "engine": spec.engine.model_dump(mode="json"),
        "region": [placement.region, dict(placement.node_labels)],
        "nodeSelector": dict(spec.placement.node_selector),
    }
    return digest(inputs)


def digest(value: object) -> str:
    """A short hash of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_template(
    child: Child,
    spec: InferenceEndpointSpec,
    source: ClaimSource,
    placement: Placement,
    *,
    image: str,
    configmap: str,
) -> Json:
    """The pod template; its annotation carries the hash of the rest."""
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": math.ceil(spec.rollout.drain_timeout_s) + GRACE_BEYOND_DRAIN_S,
        "containers": [_engine(spec, source, image)],
        "volumes": [
            {"name": _CONFIG_VOLUME, "configMap": {"name": configmap}},
            {"name": _MODEL_VOLUME, "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}},
            {"name": _TMP_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": TMP_SIZE}},
        ],
    }
    if placement.node_labels:
        pod["affinity"] = _node_affinity(placement)
    if spec.placement.node_selector:
        pod["nodeSelector"] = dict(spec.placement.node_selector)
    if spec.accelerator.kind == "Nvidia":
        pod["tolerations"] = [{"key": names.GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    return signed({"metadata": {"labels": child.labels}, "spec": pod})


def signed(template: Json) -> Json:
    """The template with its own hash as an annotation."""
    metadata = {key: value for key, value in template["metadata"].items() if key != "annotations"}
    bare = {"metadata": metadata, "spec": template["spec"]}
    annotations = {names.ANNOTATION_TEMPLATE_HASH: digest(bare)}
    return {"metadata": {**metadata, "annotations": annotations}, "spec": template["spec"]}


def signature(template: Json) -> str:
    """The hash that a template carries."""
    annotations: dict[str, str] = template.get("metadata", {}).get("annotations", {})
    return annotations.get(names.ANNOTATION_TEMPLATE_HASH, "")


def configmap_of(template: Json) -> str:
    """Name of the ConfigMap that a template mounts; empty if none."""
    for volume in template.get("spec", {}).get("volumes", ()):
        if volume["name"] == _CONFIG_VOLUME:
            return str(volume.get("configMap", {}).get("name", ""))
    return ""


def _engine(spec: InferenceEndpointSpec, source: ClaimSource, image: str) -> Json:
    model: Json = {"name": _MODEL_VOLUME, "mountPath": names.MODELS_PATH, "readOnly": True}
    if source.folder:
        model["subPath"] = source.folder
    container: Json = {
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "command": ["python", "-m", "emberline_runtime"],
        "args": ["--config", names.ENGINE_CONFIG_PATH],
        "env": [
            {
                "name": names.ENV_POD_IP,
                "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
            },
            # The root file system is read-only; libraries that cache below the home folder find one that is not.
            {"name": "HOME", "value": TMP_PATH},
        ],
        "ports": [{"name": names.PORT_NAME_HTTP, "containerPort": names.ENGINE_PORT, "protocol": "TCP"}],
        "startupProbe": _probe(http.READY, period_s=1, failures=START_DEADLINE_S),
        "readinessProbe": _probe(http.READY, period_s=1, failures=2),
        "livenessProbe": _probe(http.LIVE, period_s=LIVE_PERIOD_S, failures=LIVE_FAILURES),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": _CONFIG_VOLUME, "mountPath": names.ENGINE_CONFIG_DIR, "readOnly": True},
            model,
            {"name": _TMP_VOLUME, "mountPath": TMP_PATH},
        ],
    }
    if spec.accelerator.kind == "Nvidia":
        container["resources"] = {"limits": {names.GPU_RESOURCE: str(spec.accelerator.count)}}
    return container


def _probe(path: str, *, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": names.PORT_NAME_HTTP, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": max(2, period_s),
        "failureThreshold": failures,
    }


def _node_affinity(placement: Placement) -> Json:
    expressions = [
        {"key": key, "operator": "In", "values": [value]} for key, value in sorted(placement.node_labels.items())
    ]
    terms = [{"matchExpressions": expressions}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}
