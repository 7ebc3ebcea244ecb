"""What a pass over one endpoint must know of all the others, kept up to date object by object: no pass walks through thousands."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from emberline_contract import names
from emberline_contract.conditions import ConditionType, Reason
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, NODES, PODS, REGIONS
from emberline_operator.cluster.node_kinds import NodeKinds
from emberline_operator.pods import read_pod
from emberline_operator.regions.region import read_region
from emberline_operator.snapshot import Json, NodeState, Rival, Waiter, holds_gpus, is_gpu, read_node, time_of

Key = tuple[str, str]

_WAITS: Final = {
    ConditionType.READY.value: frozenset({Reason.UNSCHEDULABLE, Reason.NOT_PLACED}),
    ConditionType.DEGRADED.value: frozenset({Reason.UNSCHEDULABLE, Reason.RESIDENCY_VIOLATION}),
    ConditionType.ROLLOUT_BLOCKED.value: frozenset({Reason.WAITING_FOR_GPU}),
}
"""Conditions and reasons of an endpoint that another node could help."""


class Index:
    """Told of every change of a cached object. What it gives is never changed afterwards: it may be part of a snapshot."""

    def __init__(self) -> None:
        self.node_kinds = NodeKinds()
        """Which kinds of nodes there are."""
        self._nodes: dict[str, NodeState] = {}
        self._pods: dict[Key, tuple[str, Key, dict[str, int]]] = {}
        """Engine pods that are bound: node, endpoint, GPUs."""
        self._on_node: defaultdict[str, Counter[Key]] = defaultdict(Counter)
        self._gpus: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._gpus_of: dict[str, Mapping[str, int]] = {}
        """The same, as it was given to the last snapshot; without the nodes that have changed since."""
        self._wanted: dict[Key, str] = {}
        """Served name that an endpoint asks for."""
        self._rivals: defaultdict[str, dict[Key, Rival]] = defaultdict(dict)
        self._left: dict[Key, str] = {}
        self._there: set[Key] = set()
        """All endpoints: the gateway goes by `<namespace>/<name>` before it goes by served names."""
        self._came_or_went: set[str] = set()
        """Qualified names of endpoints that are new or gone."""
        self._waiting: frozenset[Key] = frozenset()
        self._surging_children: dict[Key, tuple[Key, Json]] = {}
        """Deployment -> its endpoint and pod template."""
        self._surging: Mapping[Key, tuple[Json, ...]] = {}
        self._waiters: defaultdict[Key, dict[str, Waiter]] = defaultdict(dict)
        """Endpoint -> pod -> engine that finds no node."""
        self._waiter_of: dict[Key, Key] = {}
        """Its pod -> endpoint."""
        self._shown_waiters: Mapping[Key, tuple[Waiter, ...]] | None = None
        self._shown_nodes: Mapping[str, NodeState] | None = None
        self._shown_gpus: Mapping[str, Mapping[str, int]] | None = None

    def change(self, old: Json | None, new: Json | None) -> None:
        """An object has come, changed or gone."""
        obj = new if new is not None else old
        assert obj is not None
        match obj["kind"]:
            case NODES.kind:
                self._change_node(obj["metadata"]["name"], new)
            case PODS.kind:
                self._change_pod(_key(obj), new)
            case ENDPOINTS.kind:
                self._change_endpoint(_key(obj), new)
                self.node_kinds.change_selector(_node_selector(old), _node_selector(new))
            case REGIONS.kind:
                self.node_kinds.change_selector(_region_labels(old), _region_labels(new))
            case DEPLOYMENTS.kind:
                self._change_deployment(obj, new)
            case _:
                pass

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """All nodes by name."""
        if self._shown_nodes is None:
            self._shown_nodes = MappingProxyType(dict(self._nodes))
        return self._shown_nodes

    @property
    def gpus_in_use(self) -> Mapping[str, Mapping[str, int]]:
        """Node -> resource -> GPUs that engines of any endpoint hold."""
        if self._shown_gpus is None:
            for node in self._gpus.keys() - self._gpus_of.keys():
                self._gpus_of[node] = MappingProxyType(dict(+self._gpus[node]))
            self._shown_gpus = MappingProxyType(dict(self._gpus_of))
        return self._shown_gpus

    @property
    def waiting(self) -> frozenset[Key]:
        """Endpoints whose status says that another node could help them."""
        return self._waiting

    @property
    def surging(self) -> Mapping[Key, tuple[Json, ...]]:
        """Endpoints whose Deployments may start a GPU engine besides those that it replaces, just now; its pod templates."""
        return self._surging

    @property
    def waiters(self) -> Mapping[Key, tuple[Waiter, ...]]:
        """Engines with GPUs for which the scheduler has found no node, by endpoint."""
        if self._shown_waiters is None:
            shown = {endpoint: tuple(pods.values()) for endpoint, pods in self._waiters.items()}
            self._shown_waiters = MappingProxyType(shown)
        return self._shown_waiters

    def endpoints_on(self, node: str) -> frozenset[Key]:
        """Endpoints with engines bound to a node."""
        return frozenset(self._on_node.get(node, ()))

    def rivals(self, endpoint: Key) -> tuple[Rival, ...]:
        """Other endpoints that ask for the same served name, the oldest first."""
        wanted = self._wanted.get(endpoint)
        if wanted is None:
            return ()
        others = (rival for key, rival in self._rivals[wanted].items() if key != endpoint)
        return tuple(sorted(others, key=lambda rival: (rival.created, rival.namespace, rival.name)))

    def is_shadowed(self, endpoint: Key) -> bool:
        """Whether its served name is `<namespace>/<name>` of another endpoint."""
        namespace, _, name = self._wanted.get(endpoint, "").partition("/")
        return (namespace, name) != endpoint and (namespace, name) in self._there

    def take_rivals(self) -> frozenset[Key]:
        """Endpoints to which changes of other endpoints' served names matter; they are told once.

        Of all changes since it was last asked, because one may have come with the answer to a write and not by an event.
        """
        changed, self._left = self._left, {}
        names_of_others, self._came_or_went = self._came_or_went, set()
        wanted = {*changed.values(), *(self._wanted.get(endpoint, "") for endpoint in changed), *names_of_others}
        return frozenset(key for name in wanted if name for key in self._rivals.get(name, ())) - changed.keys()

    def _change_node(self, name: str, node: Json | None) -> None:
        self._shown_nodes = None
        if node is None:
            self._nodes.pop(name, None)
        else:
            self._nodes[name] = read_node(node)
        self.node_kinds.change_node(name, self._nodes.get(name))

    def _change_pod(self, key: Key, pod: Json | None) -> None:
        before = self._pods.pop(key, None)
        if before is not None:
            self._count(*before, -1)
        if key in self._waiter_of:
            self._forget_waiter(key)
        endpoint = pod["metadata"].get("labels", {}).get(names.LABEL_ENDPOINT) if pod else None
        if pod is None or endpoint is None:
            return
        state = read_pod(pod)
        if state.unschedulable and state.gpus and not state.terminating:
            self._waiter_of[key] = (key[0], endpoint)
            self._waiters[key[0], endpoint][key[1]] = Waiter(key[1], state.gpus, pod["spec"], state.unschedulable)
            self._shown_waiters = None
        if holds_gpus(pod):
            self._pods[key] = (state.node, (key[0], endpoint), dict(state.gpus))
            self._count(*self._pods[key], 1)

    def _forget_waiter(self, key: Key) -> None:
        endpoint = self._waiter_of.pop(key)
        del self._waiters[endpoint][key[1]]
        if not self._waiters[endpoint]:
            del self._waiters[endpoint]
        self._shown_waiters = None

    def _count(self, node: str, endpoint: Key, gpus: dict[str, int], sign: int) -> None:
        on_node = self._on_node[node]
        on_node[endpoint] += sign
        if not on_node[endpoint]:
            del on_node[endpoint]
        if not on_node:
            del self._on_node[node]
        for resource, count in gpus.items():
            self._gpus[node][resource] += sign * count
        if gpus:
            if not +self._gpus[node]:
                del self._gpus[node]
            self._gpus_of.pop(node, None)
            self._shown_gpus = None

    def _change_endpoint(self, key: Key, endpoint: Json | None) -> None:
        if (endpoint is not None) != (key in self._there):
            self._there ^= {key}
            self._came_or_went.add(names.qualified_name(*key))
        before = self._wanted.pop(key, "")
        if before:
            self._rivals[before].pop(key, None)
        wanted = endpoint.get("spec", {}).get("model", {}).get("servedName", "") if endpoint else ""
        if endpoint is not None and wanted:
            self._wanted[key] = wanted
            created = time_of(endpoint["metadata"]["creationTimestamp"])
            self._rivals[wanted][key] = Rival(created, *key)
        if before != wanted:
            self._left[key] = before
        if before and not self._rivals[before]:
            del self._rivals[before]
        self._waiting = _with(self._waiting, key, endpoint is not None and _waits(endpoint))

    def _change_deployment(self, obj: Json, deployment: Json | None) -> None:
        name = obj["metadata"].get("labels", {}).get(names.LABEL_ENDPOINT)
        if name is None:
            return
        before = self._surging_children.pop(_key(obj), None)
        if deployment is not None and is_surging(deployment):
            self._surging_children[_key(obj)] = ((_key(obj)[0], name), deployment["spec"]["template"])
        if before != self._surging_children.get(_key(obj)):
            surging: defaultdict[Key, tuple[Json, ...]] = defaultdict(tuple)
            for endpoint, template in self._surging_children.values():
                surging[endpoint] += (template,)
            self._surging = dict(surging)


def is_surging(deployment: Json) -> bool:
    """Whether a Deployment rolls out and may start a GPU engine before an old one has ended."""
    spec, status = deployment["spec"], deployment.get("status", {})
    if not spec.get("replicas", 1) or not may_surge(deployment):
        return False
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return not is_seen or status.get("updatedReplicas", 0) < status.get("replicas", 0)


def may_surge(deployment: Json) -> bool:
    """Whether a roll-out of this Deployment takes a GPU before it gives one back."""
    spec = deployment["spec"]
    surge = spec.get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 0)
    containers = spec["template"]["spec"].get("containers", ())
    needs_gpu = any(is_gpu(name) for c in containers for name in c.get("resources", {}).get("limits", {}))
    return needs_gpu and surge not in (0, "0", "0%")


def _waits(endpoint: Json) -> bool:
    for condition in endpoint.get("status", {}).get("conditions", ()):
        if condition["type"] == ConditionType.PLACED.value:
            if condition["status"] != "True" or condition["reason"] == Reason.PARTLY_PLACED.value:
                return True
        elif condition["reason"] in _WAITS.get(condition["type"], ()):
            return True
    return False


def _with(keys: frozenset[Key], key: Key, is_in: bool) -> frozenset[Key]:
    """The set with or without a key; the same one if nothing changes."""
    if (key in keys) is is_in:
        return keys
    return keys | {key} if is_in else keys - {key}


def _key(obj: Json) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _node_selector(endpoint: Json | None) -> Mapping[str, str]:
    """Labels that an endpoint asks of its nodes."""
    selector: Mapping[str, str] = (
        endpoint.get("spec", {}).get("placement", {}).get("nodeSelector", {}) if endpoint else {}
    )
    return selector


def _region_labels(region: Json | None) -> Mapping[str, str]:
    """Labels that an InferenceRegion asks of its nodes."""
    return {} if region is None else read_region(region).node_labels
