"""Every kind of child with something in every kind of place that FieldsV1 knows, and a table of changes to them."""

from __future__ import annotations

import copy
from typing import Any, Final

from emberline_contract import names
from emberline_operator.plan.actions import Apply
from emberline_operator.snapshot import MetricsApi
from support.gpu_nodes import gpu_node
from support.operator_objects import EU, EU_LABELS, Raw, Store, make_endpoint

EVERYTHING: Final[Raw] = {
    "accelerator": {"kind": "Nvidia"},
    "model": {"source": "pvc://models/tiny", "servedName": "tiny-alias", "parameters": "1B"},
    "placement": {
        "regions": ["eu"],
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "llm", "effect": "NoSchedule"}],
        "priorityClassName": "high",
    },
    "scaling": {"via": "HPA", "initialReplicas": 0},
    "rollout": {"restartAt": "2026-11-30T12:00:00Z"},
    "podTemplate": {
        "labels": {"team": "a"},
        "annotations": {"note": "x"},
        "serviceAccountName": "engines",
        "imagePullSecrets": [{"name": "pull"}, {"name": "other"}],
        "runtimeClassName": "nvidia",
        "schedulerName": "other",
        "env": [
            {"name": "LOG", "value": "1"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "1024Mi"}},
        "sharedMemory": "2Gi",
    },
}
"""A spec with all that a child takes from one."""


def bodies() -> dict[str, Raw]:
    """Every kind of child, made by the makers: on GPUs in a region with an autoscaler, so that all lists and maps occur."""
    node = gpu_node("h100", labels={**EU_LABELS, "pool": "a"})
    store = Store(
        make_endpoint(**EVERYTHING), regions=EU, nodes={node.name: node}, metrics_api=MetricsApi(is_ours=True)
    )
    found: dict[str, Raw] = {}
    for _ in range(3):
        actions = store.decide().actions
        store.act(actions)
        made = [a.body for a in actions if isinstance(a, Apply) and a.manager == names.OPERATOR_MANAGER]
        found = {**{body["kind"]: body for body in made}, **found}
    return found


BODIES: Final = bodies()
CONTAINER: Final = "spec/template/spec/containers/0"
CHANGES: Final = [
    ("ConfigMap", "data/engine.json", "{}"),
    ("ConfigMap", "metadata/labels/app.kubernetes.io~name", "other"),
    ("Service", "spec/type", "NodePort"),
    ("Service", "spec/selector/emberline.dev~region", "us"),
    ("Service", "spec/ports/0/targetPort", "other"),
    ("Service", "spec/ports/0/port", 81),
    ("Service", "metadata/ownerReferences/0/uid", "22222222-0000-4000-8000-000000000002"),
    ("PodDisruptionBudget", "spec/maxUnavailable", 2),
    ("PodDisruptionBudget", "spec/unhealthyPodEvictionPolicy", "IfHealthyBudget"),
    ("PodDisruptionBudget", "spec/selector/matchLabels/emberline.dev~region", "us"),
    ("HorizontalPodAutoscaler", "spec/maxReplicas", 9),
    ("HorizontalPodAutoscaler", "spec/minReplicas", 2),
    ("HorizontalPodAutoscaler", "spec/metrics/0/object/target/averageValue", "9"),
    ("HorizontalPodAutoscaler", "spec/metrics/1/object/metric/selector/matchLabels/emberline.dev~region", "us"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/stabilizationWindowSeconds", 1),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleDown/policies/0/periodSeconds", 30),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleUp/tolerance", "50m"),
    ("Deployment", "spec/replicas", 3),
    ("Deployment", "spec/strategy/rollingUpdate/maxSurge", 2),
    ("Deployment", "metadata/annotations/emberline.dev~template-inputs", "x"),
    ("Deployment", "metadata/annotations/emberline.dev~placement", "x"),
    ("Deployment", f"{CONTAINER}/image", "other"),
    ("Deployment", f"{CONTAINER}/args/0", "--other"),
    ("Deployment", f"{CONTAINER}/env/1/value", "/home"),
    ("Deployment", f"{CONTAINER}/env/2/value", "2"),
    ("Deployment", f"{CONTAINER}/env/3/valueFrom/secretKeyRef/key", "other"),
    ("Deployment", f"{CONTAINER}/resources/limits/nvidia.com~gpu", "4"),
    ("Deployment", f"{CONTAINER}/resources/limits/memory", "3Gi"),
    ("Deployment", f"{CONTAINER}/resources/requests/cpu", "2"),
    ("Deployment", f"{CONTAINER}/ports/0/containerPort", 9000),
    ("Deployment", f"{CONTAINER}/volumeMounts/1/subPath", "other"),
    ("Deployment", f"{CONTAINER}/lifecycle/preStop/sleep/seconds", 6),
    ("Deployment", f"{CONTAINER}/securityContext/capabilities/drop/0", "NONE"),
    ("Deployment", f"{CONTAINER}/readinessProbe/httpGet/path", "/other"),
    ("Deployment", "spec/template/metadata/labels/team", "b"),
    ("Deployment", "spec/template/metadata/annotations/note", "y"),
    ("Deployment", "spec/template/metadata/annotations/emberline.dev~restarted-at", "2026-11-30T13:00:00Z"),
    ("Deployment", "spec/template/spec/tolerations/0/effect", "NoExecute"),
    ("Deployment", "spec/template/spec/nodeSelector/pool", "b"),
    ("Deployment", "spec/template/spec/priorityClassName", "low"),
    ("Deployment", "spec/template/spec/runtimeClassName", "other"),
    ("Deployment", "spec/template/spec/schedulerName", "another"),
    ("Deployment", "spec/template/spec/topologySpreadConstraints/0/maxSkew", 2),
    ("Deployment", "spec/template/spec/volumes/2/emptyDir/sizeLimit", "3Gi"),
    ("Deployment", "spec/template/spec/volumes/1/persistentVolumeClaim/claimName", "other"),
    ("Deployment", "spec/template/spec/terminationGracePeriodSeconds", 30),
]  # fmt: skip
"""Kind, path and another value. `~` stands for a slash in a key."""

REMOVALS: Final = [
    ("Service", "spec/ports/0/name"),
    ("PodDisruptionBudget", "spec/unhealthyPodEvictionPolicy"),
    ("HorizontalPodAutoscaler", "spec/behavior/scaleUp/tolerance"),
    ("HorizontalPodAutoscaler", "spec/metrics/1"),
    ("Deployment", "spec/template/metadata/labels/team"),
    ("Deployment", "spec/template/metadata/annotations/note"),
    ("Deployment", "spec/template/metadata/annotations/emberline.dev~restarted-at"),
    ("Deployment", "spec/template/spec/tolerations"),
    ("Deployment", "spec/template/spec/affinity"),
    ("Deployment", "spec/template/spec/nodeSelector"),
    ("Deployment", "spec/template/spec/priorityClassName"),
    ("Deployment", "spec/template/spec/serviceAccountName"),
    ("Deployment", "spec/template/spec/imagePullSecrets/1"),
    ("Deployment", "spec/template/spec/imagePullSecrets"),
    ("Deployment", "spec/template/spec/runtimeClassName"),
    ("Deployment", "spec/template/spec/schedulerName"),
    ("Deployment", "spec/template/spec/topologySpreadConstraints"),
    ("Deployment", f"{CONTAINER}/resources"),
    ("Deployment", f"{CONTAINER}/resources/limits/memory"),
    ("Deployment", f"{CONTAINER}/resources/requests"),
    ("Deployment", f"{CONTAINER}/env/2"),
    ("Deployment", f"{CONTAINER}/env/3"),
    ("Deployment", f"{CONTAINER}/volumeMounts/2"),
    ("Deployment", "metadata/annotations/emberline.dev~placement"),
]  # fmt: skip
"""Kind and path of what an object may do without."""


def parent_of(body: Raw, path: str) -> tuple[Any, Any]:
    """The part that holds a path's last step, and that step; steps into lists are indices."""
    *steps, last = path.split("/")
    node: Any = body
    for step in steps:
        node = node[int(step)] if isinstance(node, list) else node[step.replace("~", "/")]
    return node, int(last) if isinstance(node, list) else last.replace("~", "/")


def changed(body: Raw, path: str, value: Any) -> Raw:
    """A copy with another value."""
    copied = copy.deepcopy(body)
    node, last = parent_of(copied, path)
    assert node[last] != value
    node[last] = value
    return copied


def without(body: Raw, path: str) -> Raw:
    """A copy that lacks it."""
    copied = copy.deepcopy(body)
    node, last = parent_of(copied, path)
    del node[last]
    return copied
