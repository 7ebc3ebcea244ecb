"""A node whose process is killed: its pods end with it, and the next node clears up what is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from emberline_local.node_api import NodeApi
from emberline_local.process_pod import kill_strays
from support.local_node import RunningNode, container, is_ready, running_node
from support.plane import TestPlane

pytestmark = pytest.mark.cluster

NODE = """
import asyncio, sys
from pathlib import Path
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from emberline_local.addresses import AddressPool
from emberline_local.node import ApiServerAddress, ProcessNode
from emberline_local.node_spec import NodeSpec

async def main(kubeconfig, port, name, state_dir):
    configuration = Configuration()
    await config.load_kube_config(kubeconfig, client_configuration=configuration)
    async with ApiClient(configuration) as api:
        address = ApiServerAddress(host="127.0.0.1", port=int(port))
        pool = AddressPool.claim()
        node = ProcessNode(NodeSpec(name=name), api, state_dir=Path(state_dir), addresses=pool, api_server=address)
        await node.run(asyncio.Event())

asyncio.run(main(*sys.argv[1:]))
"""


async def test_killed_node_leaves_only_what_the_next_one_clears_up(
    plane: TestPlane, namespace: str, tmp_path: Path
) -> None:
    name = f"node-{namespace}"
    arguments = [str(plane.kubeconfig), str(plane.api_port), name, str(tmp_path)]
    # The child leaves its parent's session, so nothing but a sweep can find it.
    # In a pod's command, `$$` stands for one `$`.
    text = "setsid sleep 1000 & echo $! > /shared/child; echo $$$$ > /shared/parent; exec sleep 1000"
    volume = {"name": "shared", "hostPath": {"path": str(tmp_path)}}
    main = {
        "command": ["sh", "-c", text],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
        "readinessProbe": {"exec": {"command": ["test", "-s", "/shared/parent"]}, "periodSeconds": 1},
    }
    marks: list[str] = []
    try:
        with subprocess.Popen([sys.executable, "-c", NODE, *arguments]) as first:  # noqa: ASYNC220 - starting is quick
            try:
                async with plane.client() as client:
                    node = RunningNode(name, NodeApi(client), tmp_path, namespace)
                    pod = await node.create(node.pod("lives", main, volumes=[volume]))
                    marks.append(pod["metadata"]["uid"])
                    await node.wait(pod, is_ready)
                parent, child = (int((tmp_path / file).read_text()) for file in ("parent", "child"))
            finally:
                first.kill()
        async with asyncio.timeout(10):
            while runs(parent):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert runs(child), "this is what the next node is for"
        async with running_node(plane, namespace, tmp_path, name=name) as node:
            async with asyncio.timeout(10):
                while runs(child):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            again = await node.wait(pod, lambda now: is_ready(now) and container(now)["restartCount"] == 1)
            assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    finally:
        kill_strays(marks)


def runs(pid: int) -> bool:
    """There is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
