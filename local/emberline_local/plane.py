"""A control plane on loopback: etcd, API server, controller manager and scheduler as children of this process.

Owns the programs, their certificates, ports and start order; knows nothing of nodes or of Emberline.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import socket
import ssl
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import aiohttp

from emberline_local import plane_flags
from emberline_local.certificates import KeyPair, make_authority, make_certificate, make_private_key, private_key_pem
from emberline_local.children import Child, start_child
from emberline_local.errors import PlaneError
from emberline_local.plane_flags import ADMIN, NODE

_ADMIN_GROUP = "system:masters"
_CLIENTS = {
    ADMIN: ("emberline-local:admin", _ADMIN_GROUP),
    NODE: ("emberline-local:node", _ADMIN_GROUP),
    "controller-manager": ("system:kube-controller-manager", None),
    "scheduler": ("system:kube-scheduler", None),
}
_API_HOSTS = ("localhost", "127.0.0.1", "10.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Ports:
    """The plane's loopback ports."""

    etcd: int
    etcd_peer: int
    api: int
    controller_manager: int
    scheduler: int


class Plane:
    """A control plane whose whole state is one folder; `environ` is what its programs get.

    `start` returns when the API server serves and pods can be made in namespace `default`; after an error it has
    stopped what it had started. `stop` goes in the order in which nothing waits for something that is gone.
    """

    def __init__(
        self,
        program: Path,
        state_dir: Path,
        environ: Mapping[str, str],
        *,
        audit_log: bool = False,
        start_timeout_s: float = 90.0,
        stop_grace_s: float = 10.0,
    ) -> None:
        self._program = program
        self._dir = state_dir
        self._environ = environ
        self._audit_log = audit_log
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self._children: dict[str, Child] = {}
        self.ports: Ports | None = None

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator."""
        return self.kubeconfig_of(ADMIN)

    def kubeconfig_of(self, client: str) -> Path:
        """Kubeconfig of one of the plane's own clients."""
        return self._dir / f"{client}.kubeconfig"

    @property
    def ca_file(self) -> Path:
        """The authority of the API server's certificate, as pods see it in `ca.crt`."""
        return self._dir / "ca.crt"

    @property
    def audit_file(self) -> Path:
        """JSON lines, one an answered request, where the audit log was asked for."""
        return self._dir / "audit.log"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts the programs. Raises PlaneError with the log of the one that did not come up."""
        self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._start()
        except TimeoutError:
            tails = "\n".join(f"{c.name} ({c.log}):\n{c.log_tail()}" for c in self._children.values())
            await self.stop()
            raise PlaneError(f"the control plane was not ready after {self._start_timeout_s} s\n{tails}") from None
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        with ExitStack() as reserved:
            held = [reserved.enter_context(_reserve_port()) for _ in fields(Ports)]
            self.ports = Ports(*(port.getsockname()[1] for port in held))
            self._write_files(self.ports, dt.datetime.now(dt.UTC))
            await self._run("etcd", plane_flags.etcd(self._dir, self.ports.etcd, self.ports.etcd_peer))
            audit_file = self.audit_file if self._audit_log else None
            await self._run(
                "kube-apiserver", plane_flags.api_server(self._dir, self.ports.etcd, self.ports.api, audit_file)
            )
            async with self._session() as session:
                await self._wait_for(session, "/readyz")
                await self._run(
                    "kube-controller-manager",
                    plane_flags.controller_manager(
                        self._dir, self.kubeconfig_of("controller-manager"), self.ports.controller_manager
                    ),
                )
                await self._run(
                    "kube-scheduler", plane_flags.scheduler(self.kubeconfig_of("scheduler"), self.ports.scheduler)
                )
                # Until the controller manager has made it, every pod in the namespace is refused.
                await self._wait_for(session, "/api/v1/namespaces/default/serviceaccounts/default")

    async def stop(self) -> None:
        """Ends the programs; safe to call again, and after a failed start."""
        clients = [self._children.pop(n) for n in ("kube-scheduler", "kube-controller-manager") if n in self._children]
        await asyncio.gather(*(child.stop(self._stop_grace_s) for child in clients))
        # All at once would leave the API server waiting for an etcd that is gone; as it would be if etcd crashed.
        has_etcd = "etcd" in self._children and not self._children["etcd"].has_ended
        for name, grace_s in (
            ("kube-apiserver", self._stop_grace_s if has_etcd else 0.0),
            ("etcd", self._stop_grace_s),
        ):
            if name in self._children:
                await self._children.pop(name).stop(grace_s)

    async def wait_until_one_ends(self) -> str:
        """Returns when a program of the started plane has ended, with a sentence that says which and its last words."""
        waits = {asyncio.ensure_future(child.process.wait()): child for child in self._children.values()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return _ended(waits[done.pop()])

    async def _run(self, name: str, flags: list[str]) -> None:
        self._children[name] = await start_child(
            name,
            [str(self._program), name, *flags],
            log=self._dir / f"{name}.log",
            environ=self._environ,
        )

    def _session(self) -> aiohttp.ClientSession:
        assert self.ports is not None
        context = ssl.create_default_context(cafile=str(self.ca_file))
        context.load_cert_chain(self._dir / f"{ADMIN}.crt", self._dir / f"{ADMIN}.key")
        return aiohttp.ClientSession(
            f"https://127.0.0.1:{self.ports.api}", connector=aiohttp.TCPConnector(ssl=context, force_close=True)
        )

    async def _wait_for(self, session: aiohttp.ClientSession, path: str) -> None:
        while True:
            for child in self._children.values():
                if child.has_ended:
                    raise PlaneError(_ended(child))
            try:
                async with session.get(path) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass  # not listening yet; the loop looks whether it ever will
            await asyncio.sleep(_POLL_S)

    def _write_files(self, ports: Ports, now: dt.datetime) -> None:
        authority = make_authority("emberline-local", now)
        self._write_pair("ca", authority)
        # The API server's own authority towards aggregated servers: another one, or any client could pose as it.
        front_authority = make_authority("emberline-local-front-proxy", now)
        self._write_pair("front-proxy-ca", front_authority)
        self._write_pair("front-proxy", make_certificate(front_authority, plane_flags.FRONT_PROXY_USER, now))
        # etcd trusts an authority of its own: whoever may talk to it owns the cluster.
        etcd_authority = make_authority("emberline-local-etcd", now)
        self._write_pair("etcd-ca", etcd_authority)
        self._write_pair("etcd", make_certificate(etcd_authority, "etcd", now, hosts=("localhost", "127.0.0.1")))
        self._write_pair("api", make_certificate(authority, "kube-apiserver", now, hosts=_API_HOSTS))
        self._write("service-account.key", private_key_pem(make_private_key()))
        for client, (user, group) in _CLIENTS.items():
            self._write_pair(client, make_certificate(authority, user, now, organization=group))
            self._write(self.kubeconfig_of(client).name, json.dumps(self._kubeconfig(client, ports.api)).encode())
        if self._audit_log:
            self._write("audit-policy.json", json.dumps(plane_flags.AUDIT_POLICY).encode())

    def _kubeconfig(self, client: str, api_port: int) -> dict[str, object]:
        name = "emberline-local"
        user = {
            "client-certificate": str(self._dir / f"{client}.crt"),
            "client-key": str(self._dir / f"{client}.key"),
        }
        cluster = {"server": f"https://127.0.0.1:{api_port}", "certificate-authority": str(self.ca_file)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": client, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": client, "namespace": "default"}}],
            "current-context": name,
        }

    def _write_pair(self, name: str, pair: KeyPair) -> None:
        self._write(f"{name}.key", pair.key_pem())
        self._write(f"{name}.crt", pair.certificate_pem())

    def _write(self, name: str, data: bytes) -> None:
        path = self._dir / name
        path.touch(mode=0o600)
        path.write_bytes(data)


def _ended(child: Child) -> str:
    return f"{child.name} ended with code {child.process.returncode}; the end of {child.log}:\n{child.log_tail()}"


def _reserve_port() -> socket.socket:
    """A socket that keeps a free loopback port until it is closed, for a program that shares ports (SO_REUSEPORT).

    A port that was merely seen free may be taken by any outgoing connection before its program listens there.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held
