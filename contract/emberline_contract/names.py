"""One home for every name, label and path that the cluster or another process sees."""

from __future__ import annotations

from typing import Final

GROUP: Final = "emberline.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

ENDPOINT_KIND: Final = "InferenceEndpoint"
ENDPOINT_PLURAL: Final = "inferenceendpoints"
ENDPOINT_SHORT: Final = "iep"
REGION_KIND: Final = "InferenceRegion"
REGION_PLURAL: Final = "inferenceregions"
REGION_SHORT: Final = "ireg"
CATEGORY: Final = "inference"

SYSTEM_NAMESPACE: Final = "emberline-system"
OPERATOR_NAME: Final = "emberline-operator"
"""Name of the operator's Deployment and ServiceAccount."""
GATEWAY_NAME: Final = "emberline-gateway"
"""Name of the gateway's Deployment, Service and ServiceAccount; the value of its pods' `app.kubernetes.io/name`."""
RUNTIME_NAME: Final = "emberline-runtime"
WEIGHTS_NAMESPACE: Final = "emberline-weights"
NODE_AGENT_NAME: Final = "emberline-node"
"""ServiceAccount of the node agent, in WEIGHTS_NAMESPACE; an admission policy binds it to `emberline.dev/*` labels."""

# Field managers of server-side apply.
OPERATOR_MANAGER: Final = "emberline-operator"
"""Owns every field of the children except `spec.replicas`, and the status of the endpoint."""
SCALE_MANAGER: Final = "emberline-scale"
"""Owns `spec.replicas` of a child Deployment from its creation on (replica rule 1)."""
GATEWAY_MANAGER: Final = "emberline-gateway"
"""Writes replicas 0 -> 1 through the scale subresource."""

# Labels.
LABEL_APP: Final = "app.kubernetes.io/name"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "emberline"
LABEL_ENDPOINT: Final = f"{GROUP}/endpoint"
"""On every child and pod of an endpoint: the endpoint's name (same namespace)."""
LABEL_REGION: Final = f"{GROUP}/region"
"""On every child and pod of an endpoint: the region's name, `default` without regions."""
LABEL_TOPOLOGY_REGION: Final = "topology.kubernetes.io/region"

# Annotations.
ANNOTATION_TEMPLATE_INPUTS: Final = f"{GROUP}/template-inputs"
"""On a child Deployment: hash of the spec fields that its pod template was made from. While it fits, the template stays."""
ANNOTATION_TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""On the pod template and its pods: hash of the template as the operator made it; tells current pods from older ones."""

DEFAULT_REGION: Final = "default"
"""The pseudo-region of an endpoint that names no regions; it brings no node affinity."""
MAX_ENDPOINT_NAME: Final = 30
MAX_REGION_NAME: Final = 25
NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

ANNOTATION_PLACEMENT: Final = f"{GROUP}/placement"
"""On a child Deployment: the region, GPU class and precision that were decided for it, as JSON. It stays decided."""
ANNOTATION_RESTARTED_AT: Final = f"{GROUP}/restarted-at"
"""On the pod template: `rollout.restartAt`."""

# Inside an engine pod.
ENGINE_CONTAINER: Final = "engine"
MODELS_PATH: Final = "/models"
"""Where an engine pod sees its model folder (config.json, tokenizer.json, *.safetensors), always read-only."""
ENGINE_CONFIG_DIR: Final = "/etc/emberline"
ENGINE_CONFIG_FILE: Final = "engine.json"
ENGINE_CONFIG_PATH: Final = f"{ENGINE_CONFIG_DIR}/{ENGINE_CONFIG_FILE}"
ENV_POD_IP: Final = "POD_IP"
"""Downward API: the address that servers bind. Unset means 127.0.0.1."""
ENV_POD_NAME: Final = "POD_NAME"
ENV_EXECUTOR: Final = "EMBERLINE_EXECUTOR"
"""Overrides EngineConfig.executor; nodes that only pretend to have a GPU set it to `oracle`."""
ENV_ORACLE_LOAD_S: Final = "EMBERLINE_ORACLE_LOAD_S"
ENV_ORACLE_STEP_S: Final = "EMBERLINE_ORACLE_STEP_S"
ENV_RUNTIME_IMAGE: Final = "EMBERLINE_RUNTIME_IMAGE"
"""Operator: the engine image of endpoints that name none."""
ENV_PUBLIC_URL: Final = "EMBERLINE_PUBLIC_URL"
"""Operator: the base of status.url; unset means the gateway's in-cluster Service."""
ENV_WATCH_NAMESPACES: Final = "EMBERLINE_WATCH_NAMESPACES"
"""Operator: namespaces to look after, separated by commas; unset means all."""
ENV_IMAGE_REGISTRY: Final = "EMBERLINE_IMAGE_REGISTRY"
"""Operator: registry (with a path, if need be) that engine images come from instead of their own."""
ENV_HTTP_PROXY: Final = "EMBERLINE_HTTP_PROXY"
"""Operator: HTTP_PROXY of engine pods; likewise the next two."""
ENV_HTTPS_PROXY: Final = "EMBERLINE_HTTPS_PROXY"
ENV_NO_PROXY: Final = "EMBERLINE_NO_PROXY"
ENV_CA_BUNDLE_CONFIGMAP: Final = "EMBERLINE_CA_BUNDLE_CONFIGMAP"
"""Operator: ConfigMap of each endpoint's namespace whose key `ca.crt` engine pods trust."""
ENV_HF_ENDPOINT: Final = "EMBERLINE_HF_ENDPOINT"
"""Operator: HF_ENDPOINT of engine pods, the base URL of a mirror of the Hugging Face hub."""
ENV_GPU_TABLE: Final = "EMBERLINE_GPU_TABLE"
"""Operator: a JSON file with GPUs and node labels that the built-in table does not know (docs/gpus.md)."""
CA_BUNDLE_KEY: Final = "ca.crt"
CA_BUNDLE_DIR: Final = "/etc/emberline-ca"
"""Where an engine pod sees the CA bundle."""
SHARED_MEMORY_PATH: Final = "/dev/shm"  # noqa: S108 - a mount point in the pod

# Service and container ports.
PORT_NAME_HTTP: Final = "http"
PORT_NAME_ADMIN: Final = "admin"
ENGINE_PORT: Final = 8000
GATEWAY_PORT: Final = 8080
GATEWAY_ADMIN_PORT: Final = 8081
OPERATOR_HEALTH_PORT: Final = 8082

# Trust between the operator and the gateways' admin port.
ADMIN_AUDIENCE: Final = "emberline-gateway-admin"
"""Audience of the ServiceAccount token that callers of the admin port present."""
ADMIN_TOKEN_PATH: Final = "/var/run/secrets/emberline.dev/admin/token"
"""Where the operator finds that token (a projected volume)."""

GPU_RESOURCE: Final = "nvidia.com/gpu"
AMD_GPU_RESOURCE: Final = "amd.com/gpu"

ENV_REGION: Final = "EMBERLINE_REGION"
"""Gateway: the InferenceRegion that it runs in; unset: it is in none, and serves all."""

# Scaling.
METRICS_GROUP: Final = "custom.metrics.k8s.io"
METRICS_VERSIONS: Final = ("v1beta2", "v1beta1")
METRIC_QUEUE_LOAD: Final = "emberline_queue_load"
"""What a HorizontalPodAutoscaler divides by `scaling.queueDepthPerReplica` (design 4: demand)."""
METRIC_REQUESTS: Final = "emberline_requests"
"""Unfinished requests; a HorizontalPodAutoscaler divides it by `scaling.requestsPerReplica`."""
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
DEPLOYMENT_REVISION: Final = "deployment.kubernetes.io/revision"
"""On a Deployment: which of its pod templates, counted from 1, is the present one."""
ANNOTATION_DELETION_COST_TIME: Final = f"{GROUP}/deletion-cost-time"
"""On an engine pod: when the operator last wrote its deletion cost."""


def child_name(endpoint: str, region: str) -> str:
    """Name of the Deployment, Service and config prefix of one endpoint in one region."""
    return f"{endpoint}--{region}"


def qualified_name(namespace: str, name: str) -> str:
    """The model name that always reaches the endpoint, whatever else is installed."""
    return f"{namespace}/{name}"
