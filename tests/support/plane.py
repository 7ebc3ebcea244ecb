"""One control plane for the whole test session (fixture `plane`), with the CRDs applied and no node.

Tests share it, so each works in its own namespace (fixture `namespace`) and looks only there.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.dynamic import DynamicClient
from rich.console import Console

from emberline_contract.crd import all_crds
from emberline_local import children, program
from emberline_local.plane import Plane
from emberline_local.progress import show_build
from support.audit import OPERATOR_USER, lacked_rights


@dataclass(frozen=True, slots=True)
class TestPlane:
    """A running control plane as tests use it."""

    __test__ = False

    program: Path
    state_dir: Path
    kubeconfig: Path
    api_port: int
    ca_file: Path
    audit_file: Path

    async def configuration(self) -> Configuration:
        """A client configuration of the administrator."""
        configuration = Configuration()
        await config.load_kube_config(str(self.kubeconfig), client_configuration=configuration)
        return configuration

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ApiClient]:
        """An administrator's client, closed at the end."""
        async with ApiClient(await self.configuration()) as api:
            yield api

    @asynccontextmanager
    async def dynamic(self) -> AsyncIterator[DynamicClient]:
        """An administrator's dynamic client (server-side apply, custom resources), closed at the end."""
        async with self.client() as api:
            # Its discovery cache lies in /tmp unless it is told where.
            yield await DynamicClient(api, cache_file=str(self.state_dir / "discovery.json"))

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """Output of kubectl; fails the test with kubectl's words if it ends badly."""
        done = self.run_kubectl(*args, stdin=stdin)
        if check and done.returncode != 0:
            pytest.fail(f"kubectl {' '.join(args)} ended with code {done.returncode}:\n{done.stderr}")
        return done.stdout

    def run_kubectl(self, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl whatever comes of it."""
        return subprocess.run(
            [str(self.program), "kubectl", "--kubeconfig", str(self.kubeconfig), *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def apply(self, *documents: dict[str, Any]) -> str:
        """Server-side apply by kubectl's own field manager."""
        text = "\n---\n".join(json.dumps(document) for document in documents)
        return self.kubectl("apply", "--server-side", "-f", "-", stdin=text)


@pytest.fixture(scope="session")
def localplane(pytestconfig: pytest.Config) -> Path:
    """The control plane program; the first use on a machine builds it, with progress shown."""
    found = program.find_program(os.environ)
    if found is not None:
        return found
    reason = program.why_not_buildable(os.environ)
    if reason is not None:
        pytest.skip(reason)
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), show_build(Console(stderr=True)) as report:
        return program.ensure_program(os.environ, report)


@pytest.fixture(scope="session")
def plane(localplane: Path) -> Iterator[TestPlane]:
    """A control plane with Emberline's CRDs and an audit log; stopped and removed at the end of the session.

    Ends with an error if the operator, in whatever test, was refused something for lack of rights.
    """
    # Not below pytest's own folder: user-readable, short, and gone afterwards.
    state_dir = Path(tempfile.mkdtemp(prefix="emberline-plane-"))
    running = Plane(localplane, state_dir, {**os.environ, children.MARK: str(state_dir)}, audit_log=True)
    try:
        with asyncio.Runner() as runner:
            runner.run(running.start())
            try:
                assert running.ports is not None
                test_plane = TestPlane(
                    localplane,
                    state_dir,
                    running.kubeconfig,
                    running.ports.api,
                    running.ca_file,
                    running.audit_file,
                )
                test_plane.apply(*all_crds().values())
                test_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
                yield test_plane
                lacked = lacked_rights(running.audit_file, OPERATOR_USER)
                # Not the last test's fault: whichever it was, manifests/base/operator-rights.yaml lacks something.
                assert not lacked, f"the operator was refused what it needs: {sorted(lacked)}"
            finally:
                runner.run(running.stop())
    finally:
        children.sweep(state_dir)
        shutil.rmtree(state_dir)


@pytest_asyncio.fixture
async def namespace(plane: TestPlane, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A namespace of this test's own; its deletion is asked for at the end and not waited for."""
    async with plane.dynamic() as client:
        namespaces = await client.resources.get(api_version="v1", kind="Namespace")
        created = await namespaces.create(body={"metadata": {"generateName": "test-"}})
        accounts = await client.resources.get(api_version="v1", kind="ServiceAccount")
        async with asyncio.timeout(10):
            # Until its default ServiceAccount is there, the namespace refuses pods.
            while not (await accounts.get(namespace=created.metadata.name)).items:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield created.metadata.name
        await namespaces.delete(name=created.metadata.name, body={"propagationPolicy": "Background"})
