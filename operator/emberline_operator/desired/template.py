"""The pod template of an endpoint's engines. It conforms to Pod Security `restricted`.

Values are written as the API server writes them back (ports with a protocol, canonical quantities), so that what the
operator applied can be recognised in the live object.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Final

from emberline_contract import http, names
from emberline_contract.pod_template import EnvVar, ResourcesSpec
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.accept import ClaimSource
from emberline_operator.decision import Decision
from emberline_operator.desired.child import Child
from emberline_operator.desired.quantity import canonical_quantity
from emberline_operator.desired.scheduling import node_affinity, spread_over_zones, tolerations
from emberline_operator.settings import Install
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
_CA_VOLUME: Final = "ca-bundle"
_SHM_VOLUME: Final = "shared-memory"
_KEYED_LISTS: Final = {"env": "name", "volumes": "name", "volumeMounts": "mountPath", "imagePullSecrets": "name"}
"""Lists that server-side apply merges by that key; the order in which the API server keeps them means nothing."""


def template_inputs(spec: InferenceEndpointSpec, decision: Decision) -> str:
    """Hash of everything in spec and decision that a pod depends on.

    `serving`, `scaling`, `replicas` and `rollout` are not in it, but for `restartAt`: a change of theirs never replaces a pod.
    What a template takes from `rollout` (the grace period) follows with the next change of a field that is. Of `accelerator`
    and `precision` only what they led to counts. Defaults are left out, so that a field that a later release adds changes no
    hash.
    """
    choice, placement = decision.choice, spec.placement
    inputs: dict[str, Any] = {
        "region": decision.region,
        "nodeLabels": dict(decision.node_labels),
        "terms": [[[e.key, e.operator, *e.values] for e in term] for term in choice.terms],
        "resource": [choice.resource_name, spec.accelerator.count] if choice.resource_name else [],
        "kind": spec.accelerator.kind,
        "dtype": choice.dtype,
        "quantization": choice.quantization,
        "kvCache": "" if choice.kv_cache == "auto" else choice.kv_cache,
        "model": {"source": spec.model.source, "servedName": spec.model.served_name},
        "engine": spec.engine.model_dump(mode="json", exclude_defaults=True),
        "nodeSelector": dict(placement.node_selector),
        "tolerations": [t.model_dump(mode="json", exclude_defaults=True) for t in placement.tolerations],
        "priorityClassName": placement.priority_class_name,
        "podTemplate": spec.pod_template.model_dump(mode="json", exclude_defaults=True),
        "restartAt": spec.rollout.restart_at,
    }
    return digest({name: value for name, value in inputs.items() if value})


def digest(value: object) -> str:
    """A short hash of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_template(
    child: Child,
    spec: InferenceEndpointSpec,
    source: ClaimSource,
    decision: Decision,
    *,
    image: str,
    configmap: str,
    install: Install,
) -> Json:
    """The pod template; its annotation carries the hash of the rest. What users add never overrides the operator's own."""
    extra = spec.pod_template
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": math.ceil(spec.rollout.drain_timeout_s) + GRACE_BEYOND_DRAIN_S,
        "containers": [_engine(spec, source, decision, image, install)],
        "volumes": _volumes(spec, source, configmap, install),
        "affinity": node_affinity(decision),
        "nodeSelector": dict(spec.placement.node_selector),
        "tolerations": tolerations(spec),
        "topologySpreadConstraints": spread_over_zones(child),
        "priorityClassName": spec.placement.priority_class_name,
        "serviceAccountName": extra.service_account_name,
        # Its older name, which the API server fills in: owned by nobody, it would bring the first one back when that is removed.
        "serviceAccount": extra.service_account_name,
        "imagePullSecrets": [{"name": secret.name} for secret in extra.image_pull_secrets],
        "runtimeClassName": extra.runtime_class_name,
        "schedulerName": extra.scheduler_name,
    }
    annotations = dict(extra.annotations)
    if spec.rollout.restart_at is not None:
        annotations[names.ANNOTATION_RESTARTED_AT] = spec.rollout.restart_at
    # The API server drops what is empty; so does the template.
    given = {name: value for name, value in pod.items() if value not in (None, [], {})}
    return signed({"metadata": {"labels": {**extra.labels, **child.labels}, "annotations": annotations}, "spec": given})


def signed(template: Json) -> Json:
    """The template with its own hash as an annotation."""
    metadata = {key: value for key, value in template["metadata"].items() if key != "annotations"}
    given = template["metadata"].get("annotations", {})
    annotations = {key: value for key, value in given.items() if key != names.ANNOTATION_TEMPLATE_HASH}
    bare = {"metadata": {**metadata, "annotations": annotations}, "spec": template["spec"]}
    annotations[names.ANNOTATION_TEMPLATE_HASH] = digest(_in_order(bare))
    return {"metadata": {**metadata, "annotations": annotations}, "spec": template["spec"]}


def signature(template: Json) -> str:
    """The hash that a template carries."""
    return annotation_of(template, names.ANNOTATION_TEMPLATE_HASH)


def annotation_of(template: Json, name: str) -> str:
    """One of a template's annotations; empty if it has none of that name."""
    annotations: dict[str, str] = template.get("metadata", {}).get("annotations", {})
    return annotations.get(name, "")


def image_of(template: Json) -> str:
    """The engine's image; empty if the template has no engine."""
    for container in template.get("spec", {}).get("containers", ()):
        if container.get("name") == names.ENGINE_CONTAINER:
            return str(container.get("image", ""))
    return ""


def configmap_of(template: Json) -> str:
    """Name of the ConfigMap that a template mounts; empty if none."""
    for volume in template.get("spec", {}).get("volumes", ()):
        if volume["name"] == _CONFIG_VOLUME:
            return str(volume.get("configMap", {}).get("name", ""))
    return ""


def _in_order(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _in_order(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        items = [_in_order(inner) for inner in value]
        return sorted(items, key=lambda item: str(item[_KEYED_LISTS[key]])) if key in _KEYED_LISTS else items
    return value


def _volumes(spec: InferenceEndpointSpec, source: ClaimSource, configmap: str, install: Install) -> list[Json]:
    volumes: list[Json] = [
        {"name": _CONFIG_VOLUME, "configMap": {"name": configmap}},
        {"name": _MODEL_VOLUME, "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True}},
        {"name": _TMP_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": TMP_SIZE}},
    ]
    if install.ca_bundle_configmap:
        item = {"key": names.CA_BUNDLE_KEY, "path": names.CA_BUNDLE_KEY}
        bundle = {"name": install.ca_bundle_configmap, "items": [item]}
        volumes.append({"name": _CA_VOLUME, "configMap": bundle})
    if spec.pod_template.shared_memory is not None:
        size = canonical_quantity(spec.pod_template.shared_memory)
        volumes.append({"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return volumes


def _engine(spec: InferenceEndpointSpec, source: ClaimSource, decision: Decision, image: str, install: Install) -> Json:
    container: Json = {
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "command": ["python", "-m", "emberline_runtime"],
        "args": ["--config", names.ENGINE_CONFIG_PATH],
        "env": _env(spec, install),
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
        "volumeMounts": _mounts(spec, source, install),
    }
    resources = _resources(spec.pod_template.resources, decision.choice.resource_name, spec.accelerator.count)
    if resources:
        container["resources"] = resources
    return container


def _mounts(spec: InferenceEndpointSpec, source: ClaimSource, install: Install) -> list[Json]:
    model: Json = {"name": _MODEL_VOLUME, "mountPath": names.MODELS_PATH, "readOnly": True}
    if source.folder:
        model["subPath"] = source.folder
    mounts: list[Json] = [
        {"name": _CONFIG_VOLUME, "mountPath": names.ENGINE_CONFIG_DIR, "readOnly": True},
        model,
        {"name": _TMP_VOLUME, "mountPath": TMP_PATH},
    ]
    if install.ca_bundle_configmap:
        mounts.append({"name": _CA_VOLUME, "mountPath": names.CA_BUNDLE_DIR, "readOnly": True})
    if spec.pod_template.shared_memory is not None:
        mounts.append({"name": _SHM_VOLUME, "mountPath": names.SHARED_MEMORY_PATH})
    return mounts


def _env(spec: InferenceEndpointSpec, install: Install) -> list[Json]:
    """The operator's own, the user's, and of the installation's defaults those that the user has not set."""
    own: list[Json] = [
        {
            "name": names.ENV_POD_IP,
            "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}},
        },
        # The root file system is read-only; libraries that cache below the home folder find one that is not.
        {"name": "HOME", "value": TMP_PATH},
    ]
    bundle = f"{names.CA_BUNDLE_DIR}/{names.CA_BUNDLE_KEY}" if install.ca_bundle_configmap else ""
    defaults = {
        "HTTP_PROXY": install.http_proxy,
        "HTTPS_PROXY": install.https_proxy,
        "NO_PROXY": install.no_proxy,
        "HF_ENDPOINT": install.hf_endpoint,
        # OpenSSL's own variable, and that of the library `requests`, which has a bundle of its own.
        "SSL_CERT_FILE": bundle,
        "REQUESTS_CA_BUNDLE": bundle,
    }
    chosen = {variable["name"]: variable for variable in own}
    for variable in map(_variable, spec.pod_template.env):
        chosen.setdefault(variable["name"], variable)
    for name, value in defaults.items():
        if value:
            chosen.setdefault(name, {"name": name, "value": value})
    return list(chosen.values())


def _variable(variable: EnvVar) -> Json:
    made: Json = {"name": variable.name}
    if variable.value:
        made["value"] = variable.value
    source = variable.value_from
    if source is not None:
        refs = {"secretKeyRef": source.secret_key_ref, "configMapKeyRef": source.config_map_key_ref}
        made["valueFrom"] = {
            kind: {"name": ref.name, "key": ref.key, **({"optional": True} if ref.optional else {})}
            for kind, ref in refs.items()
            if ref is not None
        }
    return made


def _resources(asked: ResourcesSpec, gpu_resource: str, num_gpus: int) -> Json:
    """GPUs stand under limits alone: the API server takes their requests from there."""
    limits = {name: canonical_quantity(size, is_resource=True) for name, size in asked.limits.items()}
    requests = {name: canonical_quantity(size, is_resource=True) for name, size in asked.requests.items()}
    if gpu_resource:
        limits[gpu_resource] = str(num_gpus)
        requests.pop(gpu_resource, None)
    return {part: sizes for part, sizes in (("limits", limits), ("requests", requests)) if sizes}


def _probe(path: str, *, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": names.PORT_NAME_HTTP, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": max(2, period_s),
        "failureThreshold": failures,
    }
