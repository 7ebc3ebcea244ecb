"""Who may reach whom once the shipped NetworkPolicies are in force: a table, evaluated on the files themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from emberline_contract import names
from emberline_operator.desired.child import Child
from support.network_policy import Network, Node, Outside, Peer, Pod

MANIFESTS = Path(__file__).parents[3] / "manifests"
Raw = dict[str, Any]


def documents(path: str) -> list[Raw]:
    return [document for document in yaml.safe_load_all((MANIFESTS / path).read_text()) if document]


def labels_of(file: str, name: str) -> dict[str, str]:
    """Labels of the pods of a Deployment."""
    (deployment,) = (d for d in documents(file) if d["kind"] == "Deployment" and d["metadata"]["name"] == name)
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


SYSTEM = names.SYSTEM_NAMESPACE
SCRAPES = {f"{names.GROUP}/scrapes-metrics": "true"}
NAMESPACES = {
    name: {"kubernetes.io/metadata.name": name, **labels}
    for name, labels in {
        SYSTEM: {},
        "team-a": {},
        "team-b": {},
        "open": {},
        "monitoring": SCRAPES,
        "kube-system": {},
    }.items()
}
OWNED = [
    {**policy, "metadata": {**policy["metadata"], "namespace": namespace}}
    for policy in documents("components/endpoint-namespace/network-policy.yaml")
    for namespace in ("team-a", "team-b")
]
NETWORK = Network((*documents("base/network-policies.yaml"), *OWNED), NAMESPACES)

OPERATOR = Pod(SYSTEM, labels_of("base/operator.yaml", names.OPERATOR_NAME), ip="10.0.0.1", node="n1")
GATEWAY = Pod(SYSTEM, labels_of("base/gateway.yaml", names.GATEWAY_NAME), ip="10.0.0.2", node="n1")
PEER = Pod(SYSTEM, labels_of("base/gateway.yaml", names.GATEWAY_NAME), ip="10.0.0.3", node="n2")
ENGINE = Pod("team-a", Child("team-a", "tiny", "uid", "eu").labels, ip="10.0.1.1", node="n2")
SIBLING = Pod("team-a", Child("team-a", "other", "uid", "eu").labels, ip="10.0.1.2", node="n2")
NEIGHBOUR = Pod("team-b", Child("team-b", "tiny", "uid", "eu").labels, ip="10.0.2.1", node="n2")
UNGUARDED = Pod("open", Child("open", "tiny", "uid", "eu").labels, ip="10.0.3.1", node="n2")
"""In a namespace whose owner has not taken the component."""
APP = Pod("team-a", {"app": "shop"}, ip="10.0.1.9", node="n2")
STRANGER = Pod("kube-system", {"app": "stranger"}, ip="10.0.9.9", node="n2")
IMPOSTOR = Pod("team-a", {names.LABEL_APP: names.GATEWAY_NAME}, ip="10.0.1.8", node="n2")
"""Says that it is a gateway, in a namespace of its own."""
DATABASE = Pod("team-b", {"app": "db"}, ip="10.0.2.9", node="n1")
SCRAPER = Pod("monitoring", {"app": "prometheus"}, ip="10.0.8.1", node="n1")
DNS = Pod("kube-system", {"k8s-app": "kube-dns"}, ip="10.0.9.1", node="n1")
API_SERVER, NODE_DNS = Outside("192.168.0.10"), Outside("169.254.20.10")
CLIENT, ELSEWHERE = Outside("203.0.113.7"), Outside("198.51.100.1")
OWN_NODE, OTHER_NODE = Node("n1", "192.168.0.1"), Node("n2", "192.168.0.2")

HTTP, ADMIN, HEALTH, ENGINE_PORT = (
    names.GATEWAY_PORT,
    names.GATEWAY_ADMIN_PORT,
    names.OPERATOR_HEALTH_PORT,
    names.ENGINE_PORT,
)

TABLE: dict[str, tuple[Peer, Peer, int, bool]] = {
    # The gateway's public port is everybody's.
    "client -> gateway": (CLIENT, GATEWAY, HTTP, True),
    "app -> gateway": (APP, GATEWAY, HTTP, True),
    "stranger -> gateway": (STRANGER, GATEWAY, HTTP, True),
    "scraper -> gateway metrics": (SCRAPER, GATEWAY, HTTP, True),
    "other node -> gateway": (OTHER_NODE, GATEWAY, HTTP, True),
    # Its admin port is the operator's and its peers'.
    "operator -> gateway admin": (OPERATOR, GATEWAY, ADMIN, True),
    "peer -> gateway admin": (PEER, GATEWAY, ADMIN, True),
    "gateway -> peer admin": (GATEWAY, PEER, ADMIN, True),
    "client -> gateway admin": (CLIENT, GATEWAY, ADMIN, False),
    "app -> gateway admin": (APP, GATEWAY, ADMIN, False),
    "impostor -> gateway admin": (IMPOSTOR, GATEWAY, ADMIN, False),
    "scraper -> gateway admin": (SCRAPER, GATEWAY, ADMIN, False),
    "engine without policy -> gateway admin": (UNGUARDED, GATEWAY, ADMIN, False),
    "kubelet -> gateway probes": (OWN_NODE, GATEWAY, ADMIN, True),
    "other node -> gateway admin": (OTHER_NODE, GATEWAY, ADMIN, False),
    "client -> gateway, any other port": (CLIENT, GATEWAY, 9999, False),
    # The operator answers scrapers and its node.
    "scraper -> operator metrics": (SCRAPER, OPERATOR, HEALTH, True),
    "kubelet -> operator probes": (OWN_NODE, OPERATOR, HEALTH, True),
    "other node -> operator": (OTHER_NODE, OPERATOR, HEALTH, False),
    "client -> operator": (CLIENT, OPERATOR, HEALTH, False),
    "app -> operator": (APP, OPERATOR, HEALTH, False),
    "gateway -> operator": (GATEWAY, OPERATOR, HEALTH, False),
    "scraper -> operator, any other port": (SCRAPER, OPERATOR, 22, False),
    # Engines answer gateways and scrapers.
    "gateway -> engine": (GATEWAY, ENGINE, ENGINE_PORT, True),
    "gateway -> engine of another namespace": (GATEWAY, NEIGHBOUR, ENGINE_PORT, True),
    "gateway -> engine without policy": (GATEWAY, UNGUARDED, ENGINE_PORT, True),
    "scraper -> engine metrics": (SCRAPER, ENGINE, ENGINE_PORT, True),
    "kubelet -> engine probes": (OTHER_NODE, ENGINE, ENGINE_PORT, True),
    "operator -> engine": (OPERATOR, ENGINE, ENGINE_PORT, False),
    "client -> engine": (CLIENT, ENGINE, ENGINE_PORT, False),
    "app of the same namespace -> engine": (APP, ENGINE, ENGINE_PORT, False),
    "impostor -> engine": (IMPOSTOR, ENGINE, ENGINE_PORT, False),
    "engine -> sibling": (ENGINE, SIBLING, ENGINE_PORT, False),
    "engine of another namespace -> engine": (NEIGHBOUR, ENGINE, ENGINE_PORT, False),
    "app -> engine of another namespace": (APP, NEIGHBOUR, ENGINE_PORT, False),
    "gateway -> engine, any other port": (GATEWAY, ENGINE, 22, False),
    "app -> engine without policy": (APP, UNGUARDED, ENGINE_PORT, True),
    # What is said to an engine stays there.
    "engine -> outside": (ENGINE, ELSEWHERE, 443, False),
    "engine -> DNS": (ENGINE, DNS, 53, False),
    "engine -> API server": (ENGINE, API_SERVER, 6443, False),
    "engine -> gateway": (ENGINE, GATEWAY, HTTP, False),
    "engine -> database": (ENGINE, DATABASE, 5432, False),
    # Operator and gateway reach what they need.
    "operator -> API server": (OPERATOR, API_SERVER, 6443, True),
    "operator -> API server, by its Service": (OPERATOR, API_SERVER, 443, True),
    "operator -> DNS": (OPERATOR, DNS, 53, True),
    "operator -> DNS on the node": (OPERATOR, NODE_DNS, 53, True),
    "operator -> gateway public port": (OPERATOR, GATEWAY, HTTP, False),
    "operator -> database": (OPERATOR, DATABASE, 5432, False),
    "operator -> impostor": (OPERATOR, IMPOSTOR, ADMIN, False),
    "gateway -> API server": (GATEWAY, API_SERVER, 6443, True),
    "gateway -> DNS": (GATEWAY, DNS, 53, True),
    "gateway -> database": (GATEWAY, DATABASE, 5432, False),
    "gateway -> app": (GATEWAY, APP, ENGINE_PORT, False),
    "gateway -> outside by plain HTTP": (GATEWAY, ELSEWHERE, 80, False),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_reach(case: str) -> None:
    source, target, port, expected = TABLE[case]
    assert NETWORK.allows(source, target, port) is expected


def test_dns_by_either_protocol() -> None:
    for source in (OPERATOR, GATEWAY):
        assert NETWORK.allows(source, DNS, 53, "UDP")
        assert NETWORK.allows(source, DNS, 53, "TCP")
        assert not NETWORK.allows(source, ELSEWHERE, 443, "UDP")


def test_the_table_depends_on_the_policies() -> None:
    """Without any policy everything that the table refuses is open, so no line of it is true by itself."""
    unguarded = Network((), NAMESPACES)
    assert all(unguarded.allows(source, target, port) for source, target, port, _ in TABLE.values())
    for left_out in NETWORK.policies:
        rest = Network(tuple(policy for policy in NETWORK.policies if policy is not left_out), NAMESPACES)
        assert any(rest.allows(s, t, port) is not expected for s, t, port, expected in TABLE.values())
