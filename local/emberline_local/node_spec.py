"""What a node of the local cluster says of itself: the Node object, made from a few choices. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emberline_contract import names

LABEL_ZONE = "topology.kubernetes.io/zone"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_NODE_KIND = f"{names.GROUP}/local-node"
"""On every node of a local cluster: `process` or `status-only`."""


@dataclass(frozen=True, kw_only=True)
class PretendedGpus:
    """GPUs that are not there: labels and capacity as NVIDIA's device plugin and GPU feature discovery publish them.

    A container that asks for them gets the oracle executor, which loads for `load_s` and streams a token each `step_s`.
    """

    product: str = "NVIDIA-H100-80GB-HBM3"
    count: int = 8
    memory_mib: int = 81559
    compute: tuple[int, int] = (9, 0)
    load_s: float = 1.0
    step_s: float = 0.02

    @property
    def labels(self) -> dict[str, str]:
        """Labels of GPU feature discovery."""
        return {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": self.product,
            "nvidia.com/gpu.count": str(self.count),
            "nvidia.com/gpu.memory": str(self.memory_mib),
            "nvidia.com/gpu.compute.major": str(self.compute[0]),
            "nvidia.com/gpu.compute.minor": str(self.compute[1]),
        }

    @property
    def environment(self) -> dict[str, str]:
        """What makes an engine of such a node pretend as well."""
        return {
            names.ENV_EXECUTOR: "oracle",
            names.ENV_ORACLE_LOAD_S: str(self.load_s),
            names.ENV_ORACLE_STEP_S: str(self.step_s),
        }


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node. Its CPUs and memory are what the scheduler counts with; nothing is enforced."""

    name: str
    region: str | None = None
    zone: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    cpus: int = 64
    memory: str = "256Gi"
    num_pods: int = 110
    gpus: PretendedGpus | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment of every container of the node; the container's own variables win."""

    def environment_of(self, container: Mapping[str, Any]) -> dict[str, str]:
        """What the node adds to a container's environment: to one that asks for GPUs, that they are pretended."""
        asks_for_gpus = names.GPU_RESOURCE in container.get("resources", {}).get("limits", {})
        return {**(self.gpus.environment if self.gpus and asks_for_gpus else {}), **self.environment}


def make_node(spec: NodeSpec, *, kind: str, address: str) -> dict[str, Any]:
    """The Node object without its conditions."""
    labels = {
        LABEL_HOSTNAME: spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        LABEL_NODE_KIND: kind,
        **(spec.gpus.labels if spec.gpus else {}),
        **({names.LABEL_TOPOLOGY_REGION: spec.region} if spec.region else {}),
        **({LABEL_ZONE: spec.zone} if spec.zone else {}),
        **spec.labels,
    }
    capacity = {
        "cpu": str(spec.cpus),
        "memory": spec.memory,
        "pods": str(spec.num_pods),
        "ephemeral-storage": "1Ti",
        **({names.GPU_RESOURCE: str(spec.gpus.count)} if spec.gpus else {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": spec.name}],
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "a process of this machine",
                "kernelVersion": "",
                "containerRuntimeVersion": "process://1",
                "kubeletVersion": "v1.37.2",
                "kubeProxyVersion": "",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        },
    }
