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
    """GPUs that are not there: labels and capacity as the vendors' device plugins and labellers publish them.

    A container that asks for them gets the oracle executor, which loads for `load_s` and streams a token each `step_s`.
    """

    product: str = "NVIDIA-H100-80GB-HBM3"
    """As the vendor's label says it, with the suffixes of MIG slices (`-MIG-1g.10gb`) and shared GPUs (`-SHARED`)."""
    count: int = 8
    """GPUs of the node, or slices."""
    memory_mib: int = 81559
    """Of one of them."""
    compute: tuple[int, int] | None = (9, 0)
    """CUDA compute capability; None for AMD, whose labels do not tell an architecture."""
    replicas: int = 1
    """Pods that share one GPU by time-slicing."""
    load_s: float = 1.0
    step_s: float = 0.02

    @property
    def resource_name(self) -> str:
        """What containers request."""
        return names.GPU_RESOURCE if self.compute else names.AMD_GPU_RESOURCE

    @property
    def labels(self) -> dict[str, str]:
        """Labels of NVIDIA's GPU feature discovery, or of AMD's node labeller."""
        if self.compute is None:
            return {"amd.com/gpu.product-name": self.product, "amd.com/gpu.vram": f"{round(self.memory_mib / 1024)}G"}
        slices = self.product.partition("-MIG-")[2].partition("g.")[0]
        return {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": self.product,
            "nvidia.com/gpu.count": str(self.count),
            "nvidia.com/gpu.memory": str(self.memory_mib),
            "nvidia.com/gpu.compute.major": str(self.compute[0]),
            "nvidia.com/gpu.compute.minor": str(self.compute[1]),
            "nvidia.com/gpu.replicas": str(self.replicas),
            "nvidia.com/gpu.sharing-strategy": "time-slicing" if self.replicas > 1 else "none",
            **({"nvidia.com/gpu.slices.gi": slices, "nvidia.com/mig.strategy": "single"} if slices else {}),
        }

    @property
    def capacity(self) -> dict[str, str]:
        """What the node offers."""
        return {self.resource_name: str(self.count * self.replicas)}

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
        limits = container.get("resources", {}).get("limits", {})
        pretends = self.gpus is not None and self.gpus.resource_name in limits
        return {**(self.gpus.environment if self.gpus and pretends else {}), **self.environment}


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
        **(spec.gpus.capacity if spec.gpus else {}),
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
