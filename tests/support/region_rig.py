"""Regions with status-only nodes on the API server, and a record of where every pod has been."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from emberline_contract import names
from emberline_local.node_api import STRATEGIC_MERGE, NodeApi
from emberline_local.node_spec import NodeSpec
from emberline_local.status_only import Delays, StatusOnlyNodes
from emberline_operator.cluster.kinds import NODES, PODS, REGIONS
from support.operator_rig import MERGE, OperatorRig
from support.plane import TestPlane

Raw = dict[str, Any]


@dataclass
class Sighting:
    """What was last seen of a pod."""

    region: str
    node: str = ""
    bound_s: float = 0.0
    """When it was first seen there."""
    gone_s: float | None = None
    leaving_s: float | None = None
    grace_s: int | None = None
    is_ready: bool = False


@dataclass
class RegionRig:
    """One test's regions, whose names end with the test's own word, and its nodes."""

    rig: OperatorRig
    word: str
    api: NodeApi
    pods: dict[str, Sighting] = field(default_factory=dict)
    num_ready: list[int] = field(default_factory=list)
    """Ready pods that were not being deleted, after each change."""

    def name(self, short: str) -> str:
        """A name of this test's own."""
        return f"{short}-{self.word}"

    async def region(self, short: str, *jurisdictions: str, **spec: Any) -> None:
        """An InferenceRegion; its nodes carry `topology.kubernetes.io/region` with its name."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.REGION_KIND,
            "metadata": {"name": self.name(short)},
            "spec": {"jurisdictions": list(jurisdictions), **spec},
        }
        await self.rig.admin.request("POST", REGIONS.path(), body=body)

    async def change_region(self, short: str, **spec: Any) -> None:
        path = REGIONS.path("", self.name(short))
        await self.rig.admin.request("PATCH", path, body={"spec": spec}, content_type=MERGE)

    async def drop_region(self, short: str) -> None:
        await self.rig.admin.request("DELETE", REGIONS.path("", self.name(short)))

    async def label(self, node: str, region: str | None) -> None:
        """Give a node another region's label, or none."""
        value = None if region is None else self.name(region)
        body = {"metadata": {"labels": {names.LABEL_TOPOLOGY_REGION: value}}}
        await self._node(node, body)

    async def cordon(self, node: str, *, on: bool = True) -> None:
        await self._node(node, {"spec": {"unschedulable": on}})

    async def _node(self, node: str, body: Raw) -> None:
        path = NODES.path("", self.name(node))
        await self.rig.admin.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE)

    def alive(self, region: str = "") -> list[Sighting]:
        """Pods that are bound and neither gone nor going; of one region or of all."""
        alive = [seen for seen in self.pods.values() if seen.node and seen.leaving_s is None and seen.gone_s is None]
        return [seen for seen in alive if not region or seen.region == self.name(region)]

    async def follow(self) -> None:
        """Keep `pods`; never ends by itself."""
        async for kind, item in self.api.watch(f"/api/v1/namespaces/{self.rig.namespace}/pods", {}):
            for pod in item["items"] if kind == "LISTED" else [item]:
                self._see(pod, is_gone=kind == "DELETED")

    def _see(self, pod: Raw, *, is_gone: bool) -> None:
        metadata, now_s = pod["metadata"], time.monotonic()
        seen = self.pods.setdefault(metadata["name"], Sighting(metadata["labels"].get(names.LABEL_REGION, "")))
        if pod["spec"].get("nodeName") and not seen.node:
            seen.node, seen.bound_s = pod["spec"]["nodeName"], now_s
        if "deletionTimestamp" in metadata:
            seen.leaving_s = seen.leaving_s or now_s
            seen.grace_s = metadata["deletionGracePeriodSeconds"]
        seen.gone_s = now_s if is_gone else None
        conditions = pod.get("status", {}).get("conditions", ())
        seen.is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        self.num_ready.append(sum(other.is_ready for other in self.alive()))

    def on(self, node: str) -> list[Sighting]:
        """Every pod that ever was on a node."""
        return [seen for seen in self.pods.values() if seen.node == self.name(node)]


@asynccontextmanager
async def region_rig(
    plane: TestPlane, rig: OperatorRig, specs: Iterable[NodeSpec], *, gone_s: float = 0.1
) -> AsyncIterator[RegionRig]:
    """Nodes whose names and regions get the test's own word; they, the pods and the regions are gone at the end."""
    word = rig.namespace.removeprefix("test-")
    own = [
        replace(spec, name=f"{spec.name}-{word}", region=f"{spec.region}-{word}" if spec.region else None)
        for spec in specs
    ]
    stop = asyncio.Event()
    async with plane.client() as client:
        api = NodeApi(client)
        nodes = StatusOnlyNodes(own, client, delays=Delays(ready_s=0.1, gone_s=gone_s))
        serving = asyncio.ensure_future(nodes.run(stop))
        regions = RegionRig(rig, word, api)
        following = asyncio.ensure_future(regions.follow())
        try:
            await asyncio.wait_for(nodes.ready.wait(), 20)
            yield regions
        finally:
            following.cancel()
            stop.set()
            await asyncio.wait_for(serving, 10)
            for pod in await rig.list(PODS):
                await rig.delete(PODS, pod["metadata"]["name"], gracePeriodSeconds=0)
            for spec in own:
                if await rig.get(NODES, spec.name) is not None:
                    await rig.delete(NODES, spec.name)
            known = await rig.admin.request("GET", REGIONS.path())
            for name in (one["metadata"]["name"] for one in known["items"]):
                if name.endswith(f"-{word}"):
                    await rig.admin.request("DELETE", REGIONS.path("", name))
