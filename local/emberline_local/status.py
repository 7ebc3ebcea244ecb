"""What `emberline-local status` shows: nodes, pods, endpoints and URLs. The tables are made from plain objects."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from emberline_contract import names
from emberline_local.errors import ClusterError
from emberline_local.node_spec import LABEL_NODE_KIND

Object = Mapping[str, Any]


def read_objects(program: Path, kubeconfig: Path) -> list[dict[str, Any]]:
    """Nodes, pods and endpoints. Raises ClusterError with kubectl's words."""
    done = subprocess.run(
        [
            str(program),
            "kubectl",
            "--kubeconfig",
            str(kubeconfig),
            "get",
            f"nodes,pods,{names.ENDPOINT_PLURAL}.{names.GROUP}",
            "--all-namespaces",
            "-o",
            "json",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterError(f"the control plane does not answer:\n{done.stderr.strip()}")
    return list(json.loads(done.stdout)["items"])


def render(name: str, objects: Iterable[Object], urls: Mapping[str, str]) -> RenderableType:
    """All tables."""
    objects = list(objects)
    parts: list[RenderableType] = [
        Text(f"cluster {name}", style="bold"),
        _table(("node", "kind", "region", "GPUs", "ready"), (_node(o) for o in objects if o["kind"] == "Node")),
        _table(
            ("pod", "node", "phase", "ready", "restarts", "address"), (_pod(o) for o in objects if o["kind"] == "Pod")
        ),
        _table(
            ("endpoint", "model", "ready", "reason", "replicas", "url"),
            (_endpoint(o) for o in objects if o["kind"] == names.ENDPOINT_KIND),
        ),
    ]
    parts = [part for table in parts for part in (table, Text())]
    parts += [Text.assemble((f"{service}  ", "bold"), url) for service, url in urls.items()]
    return Group(*parts)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if not table.row_count:
        table.add_row("none")
    return table


def _key(o: Object) -> str:
    return f"{o['metadata']['namespace']}/{o['metadata']['name']}"


def _condition(o: Object, kind: str) -> Mapping[str, str]:
    conditions = o.get("status", {}).get("conditions", ())
    return next((c for c in conditions if c["type"] == kind), {})


def _node(o: Object) -> tuple[str, ...]:
    labels = o["metadata"].get("labels", {})
    allocatable = o.get("status", {}).get("allocatable", {})
    gpus = allocatable.get(names.GPU_RESOURCE) or allocatable.get(names.AMD_GPU_RESOURCE, "")
    product = labels.get("nvidia.com/gpu.product") or labels.get("amd.com/gpu.product-name", "")
    return (
        o["metadata"]["name"],
        labels.get(LABEL_NODE_KIND, ""),
        labels.get(names.LABEL_TOPOLOGY_REGION, "-"),
        f"{gpus} {product} (pretended)" if gpus else "-",
        _condition(o, "Ready").get("status", "Unknown"),
    )


def _pod(o: Object) -> tuple[str, ...]:
    status = o.get("status", {})
    containers = status.get("containerStatuses", ())
    waiting = [c["state"]["waiting"].get("reason", "") for c in containers if "waiting" in c.get("state", {})]
    phase = "Terminating" if "deletionTimestamp" in o["metadata"] else (waiting or [status.get("phase", "")])[0]
    return (
        _key(o),
        o["spec"].get("nodeName", "-"),
        phase,
        f"{sum(c.get('ready', False) for c in containers)}/{len(o['spec']['containers'])}",
        str(sum(c.get("restartCount", 0) for c in containers)),
        status.get("podIP", "-"),
    )


def _endpoint(o: Object) -> tuple[str, ...]:
    status, ready = o.get("status", {}), _condition(o, "Ready")
    return (
        _key(o),
        o["spec"]["model"]["source"],
        ready.get("status", "Unknown"),
        ready.get("reason", "-"),
        f"{status.get('readyReplicas', 0)}/{status.get('replicas', 0)}",
        status.get("url", "-"),
    )
