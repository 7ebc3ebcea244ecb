"""A cluster of the test's own with everything in it: control plane, operator, two gateways and process nodes.

As `emberline-local up` makes it, but in the test's loop, so that any part of it can be killed, stopped or started again.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from emberline_contract import names
from emberline_local import plane_flags, supervisor
from emberline_local.addresses import AddressPool
from emberline_local.children import MARK, sweep
from emberline_local.forward import bind_local
from emberline_local.node import ApiServerAddress, ProcessNode
from emberline_local.node_api import NodeApi
from emberline_local.node_spec import NodeSpec, PretendedGpus
from emberline_local.options import ClusterOptions
from emberline_local.plane import Plane
from emberline_local.plane_flags import NODE
from emberline_local.process_pod import ENV_POD_MARK
from emberline_local.record import ClusterFolder
from emberline_local.restarts import BackOffRule
from emberline_operator.cluster.api import Api
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, HPAS, PODS, Kind
from emberline_operator.errors import NotFoundError
from emberline_runtime.core.step import SamplingSpec
from emberline_runtime.executors.oracle import expected_tokens
from emberline_runtime.text.tokenizer import ByteTokenizer
from support.operator_rig import eventually

Raw = dict[str, Any]
NAMESPACE = "default"
API_SERVER = "kube-apiserver"
PROGRAMS = {"gateway": "emberline_gateway", "operator": "emberline_operator", "engine": "emberline_runtime"}
GATEWAY_ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.GATEWAY_NAME}"
OPERATOR_ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:{names.OPERATOR_NAME}"
FIRST_VOCAB = 600
"""Each model has a vocabulary of its own size, so that the oracle answers the same prompt with other tokens."""


class RestartedPlane(Plane):
    """A control plane whose API server can go and come back."""

    async def restart_api_server(self, grace_s: float) -> None:
        """Stop it, with SIGKILL after the grace, and start it at the same port; returns when it serves."""
        assert self.ports is not None
        await self._children.pop(API_SERVER).stop(grace_s)
        flags = plane_flags.api_server(self._dir, self.ports.etcd, self.ports.api, self.audit_file)
        await self._run(API_SERVER, flags)
        async with self._session() as session, asyncio.timeout(60):
            await self._wait_for(session, "/readyz")


class _Installer(supervisor.Supervisor):
    """Fills the cluster as the supervisor does; containers that end start again within two seconds."""

    def __init__(self, folder: ClusterFolder, options: ClusterOptions, gateway_url: str) -> None:
        super().__init__(folder, options)
        self._urls[names.GATEWAY_NAME] = gateway_url

    def nodes(self, stack: AsyncExitStack, api: Any, plane: Plane) -> dict[str, supervisor.Node]:
        assert plane.ports is not None
        addresses = AddressPool.claim()
        stack.callback(addresses.close)
        server = ApiServerAddress(host="127.0.0.1", port=plane.ports.api)
        return {
            spec.name: ProcessNode(
                supervisor._with_environment(spec, MARK, str(self._folder.path)),
                api,
                state_dir=self._folder.path,
                addresses=addresses,
                api_server=server,
                back_off=BackOffRule(base_s=0.5, most_s=2.0),
            )
            for spec in self._options.nodes
        }


@dataclass
class Pod:
    """A pod and its first program."""

    name: str
    uid: str
    address: str
    is_ready: bool
    labels: Raw
    node: str

    def pid(self, program: str) -> int | None:
        """Process id of its program now; None while none runs."""
        mark = f"{ENV_POD_MARK}={self.uid}/".encode()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environ = (folder / "environ").read_bytes()
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue  # ended meanwhile
                if mark in environ and PROGRAMS[program].encode() in words:
                    return int(folder.name)
        return None

    def signal(self, program: str, number: signal.Signals) -> bool:
        """Signal its program; False if none runs."""
        pid = self.pid(program)
        if pid is None:
            return False
        os.kill(pid, number)
        return True


@dataclass
class WholeCluster:
    """The running cluster."""

    plane: RestartedPlane
    admin: Api
    api: NodeApi
    folder: ClusterFolder
    url: str
    """The gateways' Service."""
    models: dict[str, int] = field(default_factory=dict)
    """Folder of a model -> size of its vocabulary."""

    def expected(self, model: str, prompt: str, num_tokens: int) -> str:
        """The one right answer of that model to a prompt."""
        tokenizer = ByteTokenizer()
        tokens = tokenizer.encode(prompt, add_special_tokens=True)
        answer = expected_tokens(tokens, num_tokens, SamplingSpec(temperature=0), range(self.models[model]))
        text = tokenizer.detokenizer()
        return "".join(text.push(token) for token in answer) + text.flush()

    async def endpoint(self, name: str, **spec: Any) -> None:
        """Create an endpoint of the model of that name on a pretended GPU."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.ENDPOINT_KIND,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "model": {"source": f"pvc://models/{name}"},
                "accelerator": {"kind": "Nvidia", "count": 1},
                "rollout": {"drainTimeout": "5s"},
                **spec,
            },
        }
        await self.admin.request("POST", ENDPOINTS.path(NAMESPACE), body=body)

    async def get(self, kind: Kind, name: str) -> Raw | None:
        try:
            return await self.admin.request("GET", kind.path(NAMESPACE if kind.is_namespaced else "", name))
        except NotFoundError:
            return None

    async def reason(self, name: str, condition: str = "Ready") -> str:
        """Reason of a condition of an endpoint; empty while it has none."""
        found = await self.get(ENDPOINTS, name) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return next((c["reason"] for c in conditions if c["type"] == condition), "")

    async def becomes(self, name: str, reason: str, timeout_s: float = 60.0, condition: str = "Ready") -> None:
        async def read() -> bool:
            return await self.reason(name, condition) == reason

        try:
            await eventually(read, f"{name} {condition} {reason}", timeout_s)
        except AssertionError as error:
            error.add_note(json.dumps((await self.get(ENDPOINTS, name) or {}).get("status"), indent=1))
            raise

    async def replicas(self, name: str, region: str = names.DEFAULT_REGION) -> int:
        live = await self.get(DEPLOYMENTS, names.child_name(name, region))
        return 0 if live is None else int(live["spec"]["replicas"])

    async def hpa(self, name: str, region: str = names.DEFAULT_REGION) -> Raw | None:
        return await self.get(HPAS, names.child_name(name, region))

    async def pods(self, namespace: str = NAMESPACE, **labels: str) -> list[Pod]:
        """Pods that are not being deleted."""
        keys = {"app": names.LABEL_APP, "endpoint": names.LABEL_ENDPOINT, "region": names.LABEL_REGION}
        selector = ",".join(f"{keys[key]}={value}" for key, value in labels.items())
        page = await self.admin.request("GET", PODS.path(namespace), query=[("labelSelector", selector)])
        return [_pod(item) for item in page["items"] if "deletionTimestamp" not in item["metadata"]]

    async def gateways(self) -> list[Pod]:
        return await self.pods(names.SYSTEM_NAMESPACE, app=names.GATEWAY_NAME)

    async def engines(self, endpoint: str) -> list[Pod]:
        return await self.pods(endpoint=endpoint)

    def scale_writes(self, account: str, child: str = "") -> list[tuple[float, str]]:
        """Wall-clock time and Deployment of each scale of a Deployment that the account was let make, from the audit log."""
        found = []
        with self.plane.audit_file.open() as lines:
            for line in lines:
                # Long logs: what cannot be one of these is not parsed. The last line may still be being written.
                if '"scale"' not in line or account not in line or not line.endswith("\n"):
                    continue
                event = json.loads(line)
                about = event.get("objectRef", {})
                is_write = event["verb"] in ("patch", "update") and about.get("subresource") == "scale"
                if not is_write or about.get("resource") != "deployments" or event["stage"] != "ResponseComplete":
                    continue
                if event["user"]["username"] == account and event["responseStatus"]["code"] == 200:
                    at_s = datetime.fromisoformat(event["stageTimestamp"]).timestamp()
                    if not child or about["name"] == child:
                        found.append((at_s, about["name"]))
        return found

    def num_wakes(self, name: str, region: str = names.DEFAULT_REGION) -> int:
        """Scale-ups of an endpoint's Deployment that the gateways were let make."""
        return len(self.scale_writes(GATEWAY_ACCOUNT, names.child_name(name, region)))


def _pod(item: Raw) -> Pod:
    status = item.get("status", {})
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    metadata = item["metadata"]
    node = item["spec"].get("nodeName", "")
    return Pod(metadata["name"], metadata["uid"], status.get("podIP", ""), is_ready, metadata["labels"], node)


def make_models(folder: Path, model_names: Sequence[str]) -> dict[str, int]:
    """Model folders that hold just the size of a vocabulary, each another one."""
    sizes = {name: FIRST_VOCAB + 7 * number for number, name in enumerate(model_names)}
    for name, size in sizes.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps({"vocab_size": size}))
    return sizes


def gpu_node(name: str, *, count: int = 32, load_s: float = 0.2, step_s: float = 0.01, region: str = "") -> NodeSpec:
    """A node that pretends to have GPUs."""
    return NodeSpec(name=name, region=region or None, gpus=PretendedGpus(count=count, load_s=load_s, step_s=step_s))


@asynccontextmanager
async def whole_cluster(
    program: Path, model_names: Sequence[str], nodes: Sequence[NodeSpec]
) -> AsyncIterator[WholeCluster]:
    """The cluster, up; a node for operator and gateways is added. All of it is gone at the end."""
    path = Path(tempfile.mkdtemp(prefix="emberline-whole-"))
    folder, models_dir = ClusterFolder(path / "cluster"), path / "models"
    folder.path.mkdir(mode=0o700)
    try:
        models = make_models(models_dir, model_names)
        async with AsyncExitStack() as stack:
            held = stack.enter_context(bind_local(0, "the gateway"))
            url = f"http://127.0.0.1:{held.getsockname()[1]}"
            options = ClusterOptions(
                program=program,
                nodes=(NodeSpec(name="cpu-1"), *nodes),
                audit_log=True,
                models_dir=models_dir,
                manifests=Path(__file__).with_name("two_gateways"),
            )
            environ = {**os.environ, MARK: str(folder.path)}
            plane = RestartedPlane(program, folder.plane_dir, environ, audit_log=True)
            await stack.enter_async_context(plane)
            client = await stack.enter_async_context(await supervisor._client(plane.kubeconfig_of(NODE)))
            installer = _Installer(folder, options, url)
            failing = await stack.enter_async_context(supervisor._serving(installer.nodes(stack, client, plane)))
            api = NodeApi(client)
            await supervisor._unless(failing, installer._fill(stack, plane, api, held))
            admin = await Api.connect(plane.kubeconfig)
            stack.push_async_callback(admin.close)
            yield WholeCluster(plane, admin, api, folder, url, models)
    finally:
        sweep(folder.path)
        shutil.rmtree(path)
