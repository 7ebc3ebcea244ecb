"""The commands of `emberline-local` but for the passing on of kubectl: words in, one call, words out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from emberline_local import launch, logs, program, status
from emberline_local.cli import DEFAULT_NAME, ENV_NAME, become_kubectl
from emberline_local.errors import ClusterStateError, OptionError
from emberline_local.folders import cache_dir, cluster_dir
from emberline_local.node_options import EXAMPLE, parse_node
from emberline_local.node_spec import NodeSpec
from emberline_local.options import ClusterOptions
from emberline_local.progress import Steps, show_build, show_conversion
from emberline_local.record import ClusterFolder

app = App(
    name="emberline-local",
    help="A Kubernetes cluster on this machine: a real control plane, nodes that run pods as processes, and Emberline in it.",
    version_flags=[],
)
_WIDTH_OF_A_FILE = 200
console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_A_FILE)
errors = Console(stderr=True)

Name = Annotated[str, Parameter(name="--name", env_var=ENV_NAME, help="Which cluster; several can be up at once.")]


def cluster_folder(name: str) -> ClusterFolder:
    """The state folder of a cluster of this user."""
    return ClusterFolder(cluster_dir(os.environ, name))


@app.command
def up(
    *,
    name: Name = DEFAULT_NAME,
    node: Annotated[
        list[str] | None,
        Parameter(help=f"A node, such as {EXAMPLE}; may be given again. Without any: one node without GPUs."),
    ] = None,
    status_only_nodes: Annotated[
        int, Parameter(help="Nodes that run nothing and say that their pods run, for tests at size.")
    ] = 0,
    gateway_port: Annotated[int, Parameter(help="Port of the gateway on 127.0.0.1; 0 takes a free one.")] = 8080,
    audit_log: Annotated[
        bool, Parameter(negative="", help="Let the API server write who asked for what into plane/audit.log.")
    ] = False,
    manifests: Annotated[
        Path | None, Parameter(help="Kustomize folder to install in place of the project's own local overlay.")
    ] = None,
    no_operator: Annotated[
        bool, Parameter(negative="", help="Control plane, nodes and CRDs only: no operator, gateway or model.")
    ] = False,
) -> None:
    """Start a cluster, and wait until it serves."""
    folder = cluster_folder(name)
    options = make_options(
        [parse_node(text) for text in node or ()],
        num_status_only_nodes=status_only_nodes,
        gateway_port=gateway_port,
        audit_log=audit_log,
        is_installed=not no_operator,
        manifests=manifests,
    )
    with Steps(console) as steps:
        record = launch.up(folder, options, os.environ, steps.show)
    for service, url in record.urls.items():
        console.print(f"[bold]{service}[/]  {url}")
    named = "" if name == os.environ.get(ENV_NAME, DEFAULT_NAME) else f" --name {name}"
    console.print(
        f"cluster [bold]{name}[/] is up; [bold]emberline-local kubectl{named} get nodes[/] looks into it",
        highlight=False,
    )


def make_options(
    nodes: list[NodeSpec],
    *,
    num_status_only_nodes: int = 0,
    gateway_port: int = 8080,
    audit_log: bool = False,
    is_installed: bool = True,
    manifests: Path | None = None,
) -> ClusterOptions:
    """What is asked for, with the control plane program built and the model converted if that has not been done yet."""
    if not 0 <= gateway_port <= 65535:
        raise OptionError(f"--gateway-port {gateway_port} is no port; use 1 to 65535, or 0 for a free one")
    if num_status_only_nodes < 0:
        raise OptionError(f"--status-only-nodes {num_status_only_nodes} is negative")
    with show_build(errors) as report:
        path = program.ensure_program(os.environ, report)
    return ClusterOptions(
        program=path,
        nodes=tuple(nodes) or (NodeSpec(name="local-1"),),
        status_only_nodes=tuple(NodeSpec(name=f"status-only-{i + 1}") for i in range(num_status_only_nodes)),
        audit_log=audit_log,
        is_installed=is_installed,
        models_dir=_models_dir() if is_installed else None,
        gateway_port=gateway_port,
        manifests=manifests.absolute() if manifests else None,
    )


def _models_dir() -> Path:
    from emberline_local.model import ensure_model

    with show_conversion(errors) as report:
        return ensure_model(cache_dir(os.environ), report)


@app.command
def down(*, name: Name = DEFAULT_NAME) -> None:
    """Stop a cluster and remove everything that belongs to it."""
    with console.status(f"stopping cluster {name}"):
        was_there = launch.down(cluster_folder(name))
    console.print(f"cluster [bold]{name}[/] is {'down' if was_there else 'not there'}", highlight=False)


@app.command(name="status")
def show_status(*, name: Name = DEFAULT_NAME) -> None:
    """Show nodes, pods, endpoints and URLs."""
    folder = cluster_folder(name)
    record = folder.running()
    objects = status.read_objects(Path(record.program), folder.kubeconfig)
    console.print(status.render(name, objects, record.urls))


@app.command(name="logs")
def show_logs(
    what: Annotated[
        str, Parameter(help="operator, gateway, POD, NAMESPACE/POD, supervisor or kube-apiserver and its like.")
    ],
    *,
    name: Name = DEFAULT_NAME,
    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"], help="Of POD; else default.")] = None,
    container: Annotated[str | None, Parameter(name=["--container", "-c"], help="Of POD; else all.")] = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Print what a pod's containers, or the cluster's own programs, have written."""
    folder = cluster_folder(name)
    if not folder.path.exists():
        raise ClusterStateError(f"no cluster {name!r} is up; start it with `emberline-local up --name {name}`")
    logs.find(folder, what, namespace, container)  # tells what there is if there is no such log
    logs.show(lambda: logs.find(folder, what, namespace, container), follow=follow)


@app.command
def kubectl(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Run kubectl against the cluster; everything after this word is kubectl's (but for a leading --name NAME)."""
    become_kubectl(list(words), os.environ)


@app.command
def demo(
    *,
    name: Name = "demo",
    gateway_port: Annotated[int, Parameter(help="Port of the gateway on 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Show a sleeping endpoint wake, answer and go back to sleep, on a cluster of its own that is taken down again."""
    from emberline_local.demo import run_demo

    run_demo(console, cluster_folder(name), make_options([], gateway_port=gateway_port), os.environ)


@app.command
def model() -> None:
    """Print the folder behind `pvc://models`, converting the model first if that has not been done yet."""
    console.print(str(_models_dir()), soft_wrap=True, highlight=False)


@app.command(name="program")
def show_program() -> None:
    """Print the path of the control plane program, building it first if that has not been done yet."""
    with show_build(errors) as report:
        path = program.ensure_program(os.environ, report)
    console.print(str(path), soft_wrap=True, highlight=False)
