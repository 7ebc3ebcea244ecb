"""The evaluator of NetworkPolicies that other tests rely on, against the rules of the API's documentation one by one."""

from __future__ import annotations

from typing import Any

import pytest

from support.network_policy import Network, Node, Outside, Peer, Pod, matches

Raw = dict[str, Any]

NAMESPACES = {"shop": {"kind": "prod"}, "lab": {"kind": "test"}}
WEB = Pod("shop", {"app": "web"}, ip="10.0.0.1", node="n1", ports={"http": 8080})
DB = Pod("shop", {"app": "db"}, ip="10.0.0.2", node="n1", ports={"sql": 5432})
TESTER = Pod("lab", {"app": "web"}, ip="10.0.1.1", node="n2")
CLIENT = Outside("203.0.113.7")
KUBELET, OTHER_KUBELET = Node("n1", "192.168.0.1"), Node("n2", "192.168.0.2")


def policy(namespace: str = "shop", app: str | None = "web", **spec: Any) -> Raw:
    selector = {"matchLabels": {"app": app}} if app else {}
    return {"metadata": {"namespace": namespace}, "spec": {"podSelector": selector, **spec}}


def ingress(*peers: Raw, ports: list[Raw] | None = None) -> Raw:
    return {**({"from": list(peers)} if peers else {}), **({"ports": ports} if ports is not None else {})}


POD_DB = {"podSelector": {"matchLabels": {"app": "db"}}}
PROD = {"namespaceSelector": {"matchLabels": {"kind": "prod"}}}
TEST = {"namespaceSelector": {"matchLabels": {"kind": "test"}}}
NONE: list[Raw] = []
TCP_8080 = [{"protocol": "TCP", "port": 8080}]

# Policies, source, target, port, protocol, whether it is allowed.
TABLE: dict[str, tuple[list[Raw], Peer, Peer, int, str, bool]] = {
    "no policy": ([], TESTER, WEB, 8080, "TCP", True),
    "no policy, from outside": ([], CLIENT, WEB, 8080, "TCP", True),
    "a policy of another namespace": ([policy("lab", ingress=NONE)], TESTER, WEB, 8080, "TCP", True),
    "a policy of another pod": ([policy(app="db", ingress=NONE)], TESTER, WEB, 8080, "TCP", True),
    "no rule: nothing comes in": ([policy(ingress=NONE)], DB, WEB, 8080, "TCP", False),
    "ingress not even mentioned: nothing comes in": ([policy()], DB, WEB, 8080, "TCP", False),
    "an empty selector selects every pod": ([policy(app=None)], WEB, DB, 5432, "TCP", False),
    "ingress alone binds no egress": ([policy(ingress=NONE)], WEB, DB, 5432, "TCP", True),
    "an empty rule: everything comes in": ([policy(ingress=[{}])], CLIENT, WEB, 8080, "UDP", True),
    "an empty list of peers is every peer": ([policy(ingress=[{"from": []}])], CLIENT, WEB, 1, "TCP", True),
    "an empty list of ports is every port": ([policy(ingress=[{"ports": []}])], CLIENT, WEB, 1, "UDP", True),
    "policyTypes without Ingress": ([policy(policyTypes=["Egress"])], DB, WEB, 8080, "TCP", True),
    "policyTypes with Egress and no rule": ([policy(policyTypes=["Egress"])], WEB, DB, 5432, "TCP", False),
    "egress rules imply Egress": ([policy(egress=[{"to": [TEST]}])], WEB, DB, 5432, "TCP", False),
    "egress rules imply Ingress too": ([policy(egress=[{}])], DB, WEB, 8080, "TCP", False),
    "an empty list of egress implies nothing": ([policy(egress=NONE)], WEB, DB, 5432, "TCP", True),
    "a pod of the same namespace": ([policy(ingress=[ingress(POD_DB)])], DB, WEB, 8080, "TCP", True),
    "a pod selector means this namespace": (
        [policy("lab", ingress=[ingress({"podSelector": {}})])], WEB, TESTER, 80, "TCP", False),
    "a namespace selector means every pod there": ([policy(ingress=[ingress(TEST)])], TESTER, WEB, 8080, "TCP", True),
    "a namespace selector that does not fit": ([policy(ingress=[ingress(TEST)])], DB, WEB, 8080, "TCP", False),
    "both in one peer: both must fit": ([policy(ingress=[ingress({**TEST, **POD_DB})])], TESTER, WEB, 8080, "TCP", False),
    "both in one peer fit": ([policy(app="db", ingress=[ingress({**TEST, "podSelector": {}})])], TESTER, DB, 1, "TCP", True),
    "two peers: one must fit": ([policy(ingress=[ingress(TEST, POD_DB)])], DB, WEB, 8080, "TCP", True),
    "an empty namespace selector is every namespace": (
        [policy(ingress=[ingress({"namespaceSelector": {}})])], TESTER, WEB, 8080, "TCP", True),
    "an empty namespace selector is not the outside": (
        [policy(ingress=[ingress({"namespaceSelector": {}})])], CLIENT, WEB, 8080, "TCP", False),
    "policies add up": ([policy(ingress=NONE), policy(ingress=[ingress(POD_DB)])], DB, WEB, 8080, "TCP", True),
    "rules add up": ([policy(ingress=[ingress(TEST), ingress(POD_DB)])], DB, WEB, 8080, "TCP", True),
    "port": ([policy(ingress=[ingress(ports=TCP_8080)])], DB, WEB, 8080, "TCP", True),
    "another port": ([policy(ingress=[ingress(ports=TCP_8080)])], DB, WEB, 8081, "TCP", False),
    "another protocol": ([policy(ingress=[ingress(ports=TCP_8080)])], DB, WEB, 8080, "UDP", False),
    "a protocol left out is TCP": ([policy(ingress=[ingress(ports=[{"port": 8080}])])], DB, WEB, 8080, "TCP", True),
    "a port left out is every port": ([policy(ingress=[ingress(ports=[{"protocol": "UDP"}])])], DB, WEB, 99, "UDP", True),
    "a range, its end": ([policy(ingress=[ingress(ports=[{"port": 80, "endPort": 90}])])], DB, WEB, 90, "TCP", True),
    "a range, beyond": ([policy(ingress=[ingress(ports=[{"port": 80, "endPort": 90}])])], DB, WEB, 91, "TCP", False),
    "a named port of the target": ([policy(ingress=[ingress(ports=[{"port": "http"}])])], DB, WEB, 8080, "TCP", True),
    "a name that the target has not": ([policy(ingress=[ingress(ports=[{"port": "sql"}])])], DB, WEB, 5432, "TCP", False),
    "a named port of egress is the target's": ([policy(egress=[{"ports": [{"port": "sql"}]}])], WEB, DB, 5432, "TCP", True),
    "peer and port of one rule": ([policy(ingress=[ingress(POD_DB, ports=TCP_8080)])], DB, WEB, 8081, "TCP", False),
    "peer of one rule and port of another": (
        [policy(ingress=[ingress(TEST, ports=TCP_8080), ingress(POD_DB, ports=[{"port": 1}])])], DB, WEB, 8080, "TCP", False),
    "an address": ([policy(ingress=[ingress({"ipBlock": {"cidr": "203.0.113.0/24"}})])], CLIENT, WEB, 1, "TCP", True),
    "an excepted address": (
        [policy(ingress=[ingress({"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.7/32"]}})])],
        CLIENT, WEB, 1, "TCP", False),
    "an address that is not in it": (
        [policy(ingress=[ingress({"ipBlock": {"cidr": "198.51.100.0/24"}})])], CLIENT, WEB, 1, "TCP", False),
    "to an address outside": ([policy(egress=[{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}])], WEB, CLIENT, 1, "TCP", True),
    "both sides must allow": (
        [policy(egress=[{}]), policy(app="db", ingress=NONE)], WEB, DB, 5432, "TCP", False),
    "the pod itself": ([policy(policyTypes=["Ingress", "Egress"])], WEB, WEB, 8080, "TCP", True),
    "the pod's own node": ([policy(ingress=NONE)], KUBELET, WEB, 8080, "TCP", True),
    "another node": ([policy(ingress=NONE)], OTHER_KUBELET, WEB, 8080, "TCP", False),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_connection(case: str) -> None:
    policies, source, target, port, protocol, expected = TABLE[case]
    assert Network(tuple(policies), NAMESPACES).allows(source, target, port, protocol) is expected


@pytest.mark.parametrize(
    ("expression", "labels", "expected"),
    [
        ({"operator": "In", "values": ["a", "b"]}, {"k": "b"}, True),
        ({"operator": "In", "values": ["a"]}, {"k": "b"}, False),
        ({"operator": "In", "values": ["a"]}, {}, False),
        ({"operator": "NotIn", "values": ["a"]}, {"k": "a"}, False),
        ({"operator": "NotIn", "values": ["a"]}, {"k": "b"}, True),
        ({"operator": "NotIn", "values": ["a"]}, {}, True),
        ({"operator": "Exists"}, {"k": ""}, True),
        ({"operator": "Exists"}, {}, False),
        ({"operator": "DoesNotExist"}, {"k": "a"}, False),
        ({"operator": "DoesNotExist"}, {}, True),
    ],
)
def test_expressions(expression: Raw, labels: dict[str, str], expected: bool) -> None:
    assert matches({"matchExpressions": [{"key": "k", **expression}]}, labels) is expected
    both = {"matchLabels": {"other": "1"}, "matchExpressions": [{"key": "k", **expression}]}
    assert matches(both, labels) is False
    assert matches(both, {**labels, "other": "1"}) is expected


def test_an_unknown_operator_is_an_error() -> None:
    with pytest.raises(ValueError, match="operator 'Gt'"):
        matches({"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["1"]}]}, {})
