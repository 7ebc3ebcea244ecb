"""The names and command-line flags of the control plane's programs: pure, one function a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

ADMIN: Final = "admin"
NODE: Final = "node"
"""Names of kubeconfigs: for people, and for the process nodes (apart, so that an audit log tells who did what)."""

AUDIT_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    # One line a request, when it is answered.
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}
FRONT_PROXY_USER: Final = "front-proxy"
"""The user that the API server is towards aggregated servers."""
SERVICE_CIDR: Final = "10.0.0.0/16"

_CLIENT_QPS = ("--kube-api-qps=500", "--kube-api-burst=1000")
"""The defaults (20 and 30) are what a thousand pods would wait for."""
_NOT_A_REPLICA = "--leader-elect=false"


def etcd(folder: Path, client_port: int, peer_port: int) -> list[str]:
    """A single member that only holders of a certificate of its own authority may talk to."""
    client, peer = f"https://127.0.0.1:{client_port}", f"https://127.0.0.1:{peer_port}"
    files = {"cert-file": "etcd.crt", "key-file": "etcd.key", "trusted-ca-file": "etcd-ca.crt"}
    return [
        "--name=local",
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        *(f"--{name}={folder}/{file}" for name, file in files.items()),
        *(f"--peer-{name}={folder}/{file}" for name, file in files.items()),
        "--client-cert-auth",
        "--peer-client-cert-auth",
        "--socket-reuse-port",
        "--unsafe-no-fsync",  # the data goes with the cluster
        "--log-level=warn",
    ]


def api_server(folder: Path, etcd_port: int, port: int, audit_file: Path | None) -> list[str]:
    """Everything that RBAC, ServiceAccount tokens and aggregation need."""
    flags = [
        f"--etcd-servers=https://127.0.0.1:{etcd_port}",
        f"--etcd-cafile={folder}/etcd-ca.crt",
        f"--etcd-certfile={folder}/etcd.crt",
        f"--etcd-keyfile={folder}/etcd.key",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing",
        "--endpoint-reconciler-type=none",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--allow-privileged=true",
        "--authorization-mode=Node,RBAC",
        "--profiling=false",
        f"--tls-cert-file={folder}/api.crt",
        f"--tls-private-key-file={folder}/api.key",
        f"--client-ca-file={folder}/ca.crt",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={folder}/service-account.key",
        f"--service-account-signing-key-file={folder}/service-account.key",
        f"--requestheader-client-ca-file={folder}/front-proxy-ca.crt",
        f"--requestheader-allowed-names={FRONT_PROXY_USER}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={folder}/front-proxy.crt",
        f"--proxy-client-key-file={folder}/front-proxy.key",
    ]
    if audit_file is not None:
        # One file, however long: who reads it looks for all that was done.
        flags += [
            f"--audit-policy-file={folder}/audit-policy.json",
            f"--audit-log-path={audit_file}",
            "--audit-log-maxsize=100000",
        ]
    return flags


def controller_manager(folder: Path, kubeconfig: Path, port: int) -> list[str]:
    """Every controller that can do something here, with an HPA that reacts in seconds."""
    return [
        *_client(kubeconfig, port),
        f"--root-ca-file={folder}/ca.crt",
        f"--service-account-private-key-file={folder}/service-account.key",
        "--use-service-account-credentials",
        # They would fail at every pod for ever: endpoints refuse loopback addresses.
        "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
        "--horizontal-pod-autoscaler-sync-period=2s",
        "--horizontal-pod-autoscaler-downscale-stabilization=5s",
    ]


def scheduler(kubeconfig: Path, port: int) -> list[str]:
    """The default scheduler."""
    return _client(kubeconfig, port)


def _client(kubeconfig: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--permit-port-sharing",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        "--profiling=false",
        _NOT_A_REPLICA,
        *_CLIENT_QPS,
    ]
