"""NetworkPolicies as code: may a connection be made? Written to the semantics of networking.k8s.io/v1, tested by their own table.

A connection is allowed when the source's side allows it to leave and the target's side allows it to come in. A side that no
policy selects allows everything; one that some policy selects allows what any of its policies allows. What a pod says to itself
and what its own node says to it is always allowed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Raw = dict[str, Any]
Direction = Literal["Ingress", "Egress"]


@dataclass(frozen=True)
class Pod:
    """A pod, with its named ports."""

    namespace: str
    labels: Mapping[str, str]
    ip: str = ""
    node: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """A node: its kubelet, for instance. Seen by policies as an address."""

    name: str
    ip: str


@dataclass(frozen=True)
class Outside:
    """An address that is no pod's."""

    ip: str


Peer = Pod | Node | Outside


@dataclass(frozen=True)
class Network:
    """Policies and the labels of namespaces."""

    policies: tuple[Raw, ...]
    namespaces: Mapping[str, Mapping[str, str]]

    def allows(self, source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
        """Whether the source may connect to that port of the target."""
        if source is target or (isinstance(source, Node) and isinstance(target, Pod) and source.name == target.node):
            return True
        return self._side("Egress", source, target, target, port, protocol) and self._side(
            "Ingress", target, source, target, port, protocol
        )

    def _side(self, direction: Direction, own: Peer, other: Peer, target: Peer, port: int, protocol: str) -> bool:
        """Whether the policies of one side allow the connection. `target` is where the port is, whichever side is asked."""
        if not isinstance(own, Pod):
            return True
        policies = [policy for policy in self.policies if _selects(policy, own) and direction in _types(policy["spec"])]
        if not policies:
            return True
        rules = [(policy, rule) for policy in policies for rule in policy["spec"].get(direction.lower(), ())]
        peers = "from" if direction == "Ingress" else "to"
        return any(
            _names_port(rule.get("ports", ()), target, port, protocol)
            and self._names_peer(rule.get(peers, ()), policy["metadata"]["namespace"], other)
            for policy, rule in rules
        )

    def _names_peer(self, peers: Iterable[Raw], namespace: str, other: Peer) -> bool:
        listed = list(peers)
        return not listed or any(self._is_peer(peer, namespace, other) for peer in listed)

    def _is_peer(self, peer: Raw, namespace: str, other: Peer) -> bool:
        if "ipBlock" in peer:
            return _is_in(peer["ipBlock"], other.ip)
        if not isinstance(other, Pod):
            return False
        if "namespaceSelector" in peer:
            is_there = matches(peer["namespaceSelector"], self.namespaces[other.namespace])
        else:
            is_there = other.namespace == namespace
        return is_there and matches(peer.get("podSelector", {}), other.labels)


def matches(selector: Raw, labels: Mapping[str, str]) -> bool:
    """Whether a label selector fits; an empty one fits everything."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    return all(_fits(expression, labels) for expression in selector.get("matchExpressions", ()))


def _fits(expression: Raw, labels: Mapping[str, str]) -> bool:
    key = expression["key"]
    match expression["operator"]:
        case "In":
            return labels.get(key) in expression["values"]
        case "NotIn":
            return labels.get(key) not in expression["values"]
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case operator:
            raise ValueError(f"operator {operator!r}; a label selector knows In, NotIn, Exists and DoesNotExist")


def _selects(policy: Raw, pod: Pod) -> bool:
    return policy["metadata"]["namespace"] == pod.namespace and matches(
        policy["spec"].get("podSelector", {}), pod.labels
    )


def _types(spec: Raw) -> Iterable[str]:
    """`policyTypes`, with its default: Ingress always, Egress if there are egress rules."""
    return spec.get("policyTypes") or ("Ingress", *(["Egress"] if spec.get("egress") else []))


def _names_port(ports: Iterable[Raw], target: Peer, port: int, protocol: str) -> bool:
    listed = list(ports)
    return not listed or any(_is_port(entry, target, port, protocol) for entry in listed)


def _is_port(entry: Raw, target: Peer, port: int, protocol: str) -> bool:
    if entry.get("protocol", "TCP") != protocol:
        return False
    match entry.get("port"):
        case None:
            return True
        case int(first):
            return first <= port <= int(entry.get("endPort", first))
        case name:
            return isinstance(target, Pod) and target.ports.get(name) == port


def _is_in(block: Raw, ip: str) -> bool:
    if not ip:
        return False
    address = ipaddress.ip_address(ip)
    excepted = any(address in ipaddress.ip_network(network) for network in block.get("except", ()))
    return address in ipaddress.ip_network(block["cidr"]) and not excepted
