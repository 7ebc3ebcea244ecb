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
ANNOTATION_CONFIG_HASH: Final = f"{GROUP}/config-hash"
ANNOTATION_TEMPLATE_INPUTS: Final = f"{GROUP}/template-inputs"
"""On a child Deployment: hash of the spec fields that its pod template was made from. While it fits, the template stays."""
ANNOTATION_TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""On the pod template and its pods: hash of the template as the operator made it; tells current pods from older ones."""

DEFAULT_REGION: Final = "default"
"""The pseudo-region of an endpoint that names no regions; it brings no node affinity."""
MAX_ENDPOINT_NAME: Final = 30
MAX_REGION_NAME: Final = 25
NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

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
ENV_POD_NAMESPACE: Final = "POD_NAMESPACE"
ENV_EXECUTOR: Final = "EMBERLINE_EXECUTOR"
"""Overrides EngineConfig.executor; nodes that only pretend to have a GPU set it to `oracle`."""
ENV_ORACLE_LOAD_S: Final = "EMBERLINE_ORACLE_LOAD_S"
ENV_ORACLE_STEP_S: Final = "EMBERLINE_ORACLE_STEP_S"
ENV_RUNTIME_IMAGE: Final = "EMBERLINE_RUNTIME_IMAGE"
"""Operator: the engine image of endpoints that name none."""
ENV_PUBLIC_URL: Final = "EMBERLINE_PUBLIC_URL"
"""Operator: the base of status.url; unset means the gateway's in-cluster Service."""

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


def child_name(endpoint: str, region: str) -> str:
    """Name of the Deployment, Service and config prefix of one endpoint in one region."""
    return f"{endpoint}--{region}"


def qualified_name(namespace: str, name: str) -> str:
    """The model name that always reaches the endpoint, whatever else is installed."""
    return f"{namespace}/{name}"
