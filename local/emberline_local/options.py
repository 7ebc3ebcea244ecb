"""What a cluster is made of, as `up` is asked for it; the supervisor reads the same from the state folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from emberline_local.node_spec import NodeSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterOptions:
    """Everything that `up` decides; two equal ones make the same cluster."""

    program: Path
    """The control plane program."""
    nodes: tuple[NodeSpec, ...]
    """Nodes that run pods as processes."""
    status_only_nodes: tuple[NodeSpec, ...] = ()
    """Nodes that run nothing and say that their pods run."""
    audit_log: bool = False
    is_installed: bool = True
    """Whether operator, gateway and model are put into the cluster; else it has the CRDs alone."""
    models_dir: Path | None = None
    """Folder behind the PersistentVolumeClaim `models`."""
    gateway_port: int = 8080
    """Port on 127.0.0.1 of the gateway's Service; 0 takes a free one."""
    manifests: Path | None = None
    """Kustomize folder of operator and gateway; None is the project's local overlay."""


_ADAPTER = TypeAdapter(ClusterOptions)


def write_options(options: ClusterOptions) -> bytes:
    """As JSON."""
    return _ADAPTER.dump_json(options, indent=1)


def read_options(data: bytes) -> ClusterOptions:
    """From JSON."""
    return _ADAPTER.validate_json(data)
