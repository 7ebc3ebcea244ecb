"""Status-only nodes, against a real API server."""

from __future__ import annotations

import asyncio
import time

import pytest

from emberline_local.node_api import NodeApi
from emberline_local.node_spec import NodeSpec, PretendedGpus
from emberline_local.status_only import Delays, StatusOnlyNodes
from support.plane import TestPlane

pytestmark = pytest.mark.cluster

_NUM_PODS = 200


async def available(api: NodeApi, path: str) -> int:
    found = await api.request("GET", path)
    return int(found["status"].get("availableReplicas", 0))


async def test_200_pods_of_a_real_deployment_run_and_go(plane: TestPlane, namespace: str) -> None:
    pool = f"pool-{namespace}"
    specs = [
        NodeSpec(name=f"{pool}-{n}", region="eu", labels={"pool": pool}, gpus=PretendedGpus(count=8)) for n in range(30)
    ]
    deployment = {
        "metadata": {"name": "many"},
        "spec": {
            "replicas": _NUM_PODS,
            "selector": {"matchLabels": {"app": "many"}},
            "template": {
                "metadata": {"labels": {"app": "many"}},
                "spec": {
                    "nodeSelector": {"pool": pool},
                    "containers": [
                        {"name": "main", "image": "any/thing:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
                    ],
                },
            },
        },
    }
    stop = asyncio.Event()
    async with plane.client() as client:
        api = NodeApi(client)
        nodes = StatusOnlyNodes(specs, client, delays=Delays(ready_s=0.2, gone_s=0.3))
        serving = asyncio.ensure_future(nodes.run(stop))
        try:
            await asyncio.wait_for(nodes.ready.wait(), 20)
            began_s = time.monotonic()
            deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
            await api.request("POST", deployments, body=deployment)
            async with asyncio.timeout(60):
                while await available(api, f"{deployments}/many") < _NUM_PODS:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            print(f"{_NUM_PODS} pods available after {time.monotonic() - began_s:.1f} s")
            pods = f"/api/v1/namespaces/{namespace}/pods"
            running = (await api.request("GET", pods))["items"]
            assert len(running) == _NUM_PODS
            assert {pod["spec"]["nodeName"] for pod in running} <= {spec.name for spec in specs}
            assert {pod["status"]["phase"] for pod in running} == {"Running"}
            assert len({pod["status"]["podIP"] for pod in running}) == _NUM_PODS
            began_s = time.monotonic()
            await api.request("DELETE", f"{deployments}/many", query={"propagationPolicy": "Background"})
            async with asyncio.timeout(60):
                while (await api.request("GET", pods, query={"limit": "1"}))["items"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            print(f"gone after {time.monotonic() - began_s:.1f} s")
        finally:
            stop.set()
            await asyncio.wait_for(serving, 10)
            for spec in specs:
                await api.request("DELETE", f"/api/v1/nodes/{spec.name}")
