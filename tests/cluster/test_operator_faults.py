"""Whatever becomes of the connection, the API server or etcd: state converges, and nothing is deleted that should be there.

A control plane of this file's own, since it is stopped and started, and two replicas that are started again when they end,
as a kubelet does it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from emberline_contract import names
from emberline_contract.crd import all_crds
from emberline_local import children, plane_flags
from emberline_local.plane import Plane
from emberline_operator.cluster.kinds import CONFIGMAPS, DEPLOYMENTS, ENDPOINTS, PODS
from support.examples import SOAK
from support.fault_proxy import Fault, FaultProxy, fault_proxy
from support.operator_process import OperatorProcess, holder, replica
from support.operator_rig import (
    OPERATOR_USER,
    OperatorRig,
    audit_of,
    eventually,
    install_account,
    operator_rig,
)
from support.plane import TestPlane

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
OUTAGE_S = 8.0 if SOAK == 1 else 60.0
"""Longer than the Lease in any case."""
UNREST_S = 12.0 if SOAK == 1 else 120.0
PATIENCE_S = 60.0
WATCHES = {"resync_s": 3.0, "watch_grace_s": 2.0}


@dataclass
class Stage:
    """The plane that is hurt, and the replicas behind the proxy."""

    plane: Plane
    tested: TestPlane
    proxy: FaultProxy
    folder: Path
    replicas: dict[str, OperatorProcess] = field(default_factory=dict)
    num_ends: int = 0
    """How often a replica has ended by itself."""

    async def stop(self, *programs: str) -> None:
        """Kill programs of the plane."""
        for program in programs:
            await self.plane._children.pop(program).stop(0.0)

    async def start(self, *programs: str) -> None:
        """Start them again, where they were."""
        ports, folder = self.plane.ports, self.tested.state_dir
        assert ports is not None
        flags = {
            "etcd": plane_flags.etcd(folder, ports.etcd, ports.etcd_peer),
            "kube-apiserver": plane_flags.api_server(folder, ports.etcd, ports.api, self.tested.audit_file),
        }
        for program in programs:
            await self.plane._run(program, flags[program])
        async with self.plane._session() as session:
            await self.plane._wait_for(session, "/readyz")

    async def keep(self, rig: OperatorRig, name: str) -> None:
        """Run a replica, and another in its place whenever it ends."""
        while True:
            async with replica(rig, name, self.folder, **WATCHES) as process:
                self.replicas[name] = process
                await process.process.wait()
                self.num_ends += 1
            await asyncio.sleep(1.0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(localplane: Path) -> AsyncIterator[Stage]:
    # Not below pytest's own folder: user-readable, short, and gone afterwards.
    folder = Path(tempfile.mkdtemp(prefix="emberline-faults-"))
    state_dir = folder / "plane"
    state_dir.mkdir()
    plane = Plane(localplane, state_dir, {**os.environ, children.MARK: str(state_dir)}, audit_log=True)
    try:
        await plane.start()
        assert plane.ports is not None
        tested = TestPlane(localplane, state_dir, plane.kubeconfig, plane.ports.api, plane.ca_file, plane.audit_file)
        tested.apply(*all_crds().values())
        tested.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        proxy = fault_proxy(tested, seed=4)
        async with proxy.serve(), operator_rig(tested, "default", folder) as rig:
            kubeconfig = proxy.kubeconfig(install_account(tested), folder / "proxied")
            rig.settings = replace(rig.settings, kubeconfig=kubeconfig)
            stage = Stage(plane, tested, proxy, folder)
            kept = [asyncio.create_task(stage.keep(rig, name)) for name in ("one", "two")]
            try:
                yield stage
            finally:
                for task in kept:
                    task.cancel()
                await asyncio.gather(*kept, return_exceptions=True)
    finally:
        await plane.stop()
        children.sweep(state_dir)
        shutil.rmtree(folder)


@asynccontextmanager
async def endpoints(stage: Stage, tmp_path: Path, number: int = 8) -> AsyncIterator[OperatorRig]:
    """A namespace with endpoints that are as they should be; at the end they are so again, and nothing is missing or new."""
    namespace = f"faults-{tmp_path.name.replace('_', '-')[:40].strip('-')}"
    stage.tested.kubectl("create", "namespace", namespace)
    async with operator_rig(stage.tested, namespace, tmp_path) as rig:
        await rig.claim()
        try:
            for rank in range(number):
                await rig.endpoint(f"tiny-{rank}", scaling={"minReplicas": rank % 2, "maxReplicas": 2})
            await converged(rig, number)
            uids = await uids_of(rig)
            yield rig
            await converged(rig, number)
        except AssertionError as error:
            for process in stage.replicas.values():
                error.add_note(f"{process.name} says:\n{process.words()[-3000:]}")
            raise
        assert await uids_of(rig) == uids, "nothing has been made anew"
        deleted = [
            event["objectRef"]
            for event in audit_of(stage.tested, namespace, OPERATOR_USER)
            if event["verb"] in ("delete", "deletecollection")
        ]
        assert {ref["resource"] for ref in deleted} <= {CONFIGMAPS.plural}, "old configurations, and nothing else"


async def uids_of(rig: OperatorRig) -> dict[str, str]:
    found = [*await rig.list(DEPLOYMENTS), *await rig.list(PODS)]
    return {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in found}


async def converged(rig: OperatorRig, number: int) -> None:
    """Return when every endpoint has exactly what belongs to it, at its newest generation."""

    async def is_so() -> bool:
        for endpoint in await rig.list(ENDPOINTS):
            if endpoint["status"].get("observedGeneration") != endpoint["metadata"]["generation"]:
                return False
        deployments = {o["metadata"]["name"]: o for o in await rig.list(DEPLOYMENTS)}
        configs = {o["metadata"]["name"] for o in await rig.list(CONFIGMAPS, names.LABEL_ENDPOINT)}
        named = {config_of(deployment) for deployment in deployments.values()}
        expected = {names.child_name(f"tiny-{rank}", names.DEFAULT_REGION): rank % 2 for rank in range(number)}
        return (
            {name: o["spec"]["replicas"] for name, o in deployments.items()} == expected
            and named <= configs
            and len(await rig.list(PODS)) == sum(expected.values())
        )

    await eventually(is_so, "every endpoint with what belongs to it", PATIENCE_S)


def config_of(deployment: dict[str, Any]) -> str:
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    return next(str(volume["configMap"]["name"]) for volume in volumes if "configMap" in volume)


async def unrest(rig: OperatorRig, duration_s: float) -> None:
    """Change what a pass reacts to, again and again: specs that restart nothing, and children that somebody has spoilt."""
    until_s = asyncio.get_running_loop().time() + duration_s
    number = 0
    while asyncio.get_running_loop().time() < until_s:
        number += 1
        name = f"tiny-{number % 8}"
        child = names.child_name(name, names.DEFAULT_REGION)
        await rig.patch(ENDPOINTS, name, {"spec": {"scaling": {"maxReplicas": 2 + number % 3}}})
        await rig.patch(DEPLOYMENTS, child, {"spec": {"revisionHistoryLimit": 7}})
        await asyncio.sleep(0.1)


async def test_one_request_in_ten_fails(stage: Stage, tmp_path: Path) -> None:
    """Refused, busy, broken, done without an answer: also those for the Lease, so leaders may change."""
    async with endpoints(stage, tmp_path) as rig:
        stage.proxy.rate = 0.1
        try:
            await unrest(rig, UNREST_S)
            while stage.proxy.injected.keys() != set(Fault):
                await unrest(rig, 1.0)
            await converged(rig, 8)
        finally:
            stage.proxy.rate = 0.0


async def test_watches_are_cut_again_and_again(stage: Stage, tmp_path: Path) -> None:
    async with endpoints(stage, tmp_path) as rig:
        working = asyncio.create_task(unrest(rig, UNREST_S / 3))
        num_cut = 0
        while not working.done():
            num_cut += stage.proxy.cut_watches()
            await asyncio.sleep(0.5)
        await working
        assert num_cut > 0


async def test_a_watch_that_falls_silent_is_told_by_the_probes(stage: Stage, tmp_path: Path) -> None:
    """The lists go on, so the work does too; and the probes ask for a restart until the watch speaks again."""
    async with endpoints(stage, tmp_path) as rig:
        stage.proxy.silent.add(ENDPOINTS.plural)

        async def probed(status: int) -> dict[str, Any] | None:
            touched = {"metadata": {"annotations": {"touched": str(time.monotonic())}}}
            await rig.patch(ENDPOINTS, "tiny-0", touched)
            answers = [await stage.replicas["one"].asked(path) for path in ("/healthz", "/readyz")]
            is_told = answers[0][1].get("watches", {}).get(ENDPOINTS.plural, {}).get("stale") == (status == 503)
            return answers[1][1] if is_told and {code for code, _ in answers} == {status} else None

        report = await eventually(lambda: probed(503), "a stale watch", PATIENCE_S)
        watches = report["watches"]
        assert [plural for plural, watch in watches.items() if watch["stale"]] == [ENDPOINTS.plural]
        assert watches[ENDPOINTS.plural]["age_s"] > watches[PODS.plural]["age_s"]
        assert ENDPOINTS.plural in report["troubles"][0]
        stage.proxy.silent.clear()
        stage.proxy.cut_watches()
        await eventually(lambda: probed(200), "no stale watch", PATIENCE_S)


@pytest.mark.parametrize("programs", [("kube-apiserver",), ("etcd",)], ids=["API server", "etcd"])
async def test_the_control_plane_goes_and_comes_back(stage: Stage, tmp_path: Path, programs: tuple[str, ...]) -> None:
    async with endpoints(stage, tmp_path) as rig:
        before = stage.num_ends
        await stage.stop(*programs)
        await asyncio.sleep(OUTAGE_S)
        await stage.start(*programs)

        async def has_leader() -> str:
            return await holder(rig)

        await eventually(has_leader, "a leader", PATIENCE_S)
        assert stage.num_ends > before, "the leader could not renew for longer than it may"
        await unrest(rig, 1.0)
