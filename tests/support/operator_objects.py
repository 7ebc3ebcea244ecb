"""Objects as the API server shows them to the operator, and a small store that applies as it does.

`fields_of` says what an apply of an object owns; a cluster test holds it against the real API server's managedFields.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from emberline_contract import names
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.memory import Memory
from emberline_operator.plan.actions import Action, Apply, Ask, Delete, Evict, FillReplicas, Plan, Scale, Sleep
from emberline_operator.plan.conditions import status_object
from emberline_operator.plan.decide import decide
from emberline_operator.settings import Install
from emberline_operator.snapshot import Demand, GatewayView, MetricsApi, NodeState, PodState, Ref, Snapshot, time_text

Raw = dict[str, Any]

NOW = datetime(2026, 12, 1, 12, 0, 30, tzinfo=UTC)
INSTALL = Install("emberline/runtime:1", "http://gateway")
CHILD = Ref("Deployment", "tiny--default")
UID = "11111111-0000-4000-8000-000000000001"
_ATOMIC = frozenset(
    {"selector", "nodeSelector", "tolerations", "fieldRef", "args", "command", "drop", "matchLabels",
     "requiredDuringSchedulingIgnoredDuringExecution", "regions", "labelSelector", "matchLabelKeys", "items", "secretKeyRef",
     "configMapKeyRef", "metrics", "policies"}
)  # fmt: skip
_KEYS = {
    "containers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "imagePullSecrets": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "conditions": ("type",),
}
_WHOLE_ITEMS = frozenset({"ownerReferences", "imagePullSecrets"})


def fields_of(body: Raw) -> Raw:
    """FieldsV1 of an apply of this object."""
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("name", "namespace", "uid", "resourceVersion")}
    rest = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata")}
    return {
        f"f:{key}": _fields(value, key)
        for key, value in {**({"metadata": metadata} if metadata else {}), **rest}.items()
    }


def _fields(value: Any, name: str) -> Raw:
    if name in _ATOMIC and not (
        name == "selector" and isinstance(value, dict) and "matchLabels" not in value and not value
    ):
        return {}
    if isinstance(value, dict):
        return {f"f:{key}": _fields(child, key) for key, child in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        items = {}
        for item in value:
            keys = _KEYS.get(name) or tuple(k for k in ("containerPort", "port", "protocol") if k in item)
            key = json.dumps({k: item[k] for k in sorted(keys)}, separators=(",", ":"))
            inside = {f"f:{k}": _fields(child, k) for k, child in item.items()}
            items[f"k:{key}"] = {} if name in _WHOLE_ITEMS else {".": {}, **inside}
        return items
    return {}


def entry(manager: str, fields: Raw, *, operation: str = "Apply", subresource: str = "") -> Raw:
    """One entry of managedFields."""
    made: Raw = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return {**made, "subresource": subresource} if subresource else made


def live_of(body: Raw, manager: str = names.OPERATOR_MANAGER, *, version: int = 1) -> Raw:
    """A desired object as the API server keeps it after an apply by one manager."""
    live = copy.deepcopy(body)
    live["metadata"].setdefault("uid", f"uid-of-{body['metadata']['name']}")
    live["metadata"]["resourceVersion"] = str(version)
    live["metadata"]["managedFields"] = [entry(manager, fields_of(body))]
    return live


def make_endpoint(
    name: str = "tiny", namespace: str = "team", *, generation: int = 1, status: Raw | None = None, **spec: Any
) -> Raw:
    """An InferenceEndpoint with the CRD's defaults; keyword arguments replace parts of the spec."""
    given = {"model": {"source": "pvc://models/tiny"}, "accelerator": {"kind": "Cpu"}, **spec}
    full = InferenceEndpointSpec.model_validate(given).model_dump(mode="json", by_alias=True, exclude_none=True)
    metadata = {"name": name, "namespace": namespace, "uid": UID, "generation": generation,
                "creationTimestamp": time_text(NOW)}  # fmt: skip
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.ENDPOINT_KIND,
        "metadata": {**metadata, "resourceVersion": "1"},
        "spec": full,
        **({"status": status} if status else {}),
    }


EU_LABELS = {names.LABEL_TOPOLOGY_REGION: "eu"}
BOUND: Raw = {"models": {"kind": "PersistentVolumeClaim", "metadata": {"name": "models"}, "status": {"phase": "Bound"}}}


def make_pod_state(name: str = "tiny-1", *, age_s: float = 60, ready_s: float | None = None, **state: Any) -> PodState:
    """A pod that was made `age_s` ago and, if `ready_s` is given, became ready so long ago."""
    if ready_s is not None:
        state.setdefault("node", f"node-of-{name}")
    return PodState(
        name=name,
        template_hash=state.pop("template_hash", ""),
        region=state.pop("region", names.DEFAULT_REGION),
        created=NOW - timedelta(seconds=age_s),
        ready_since=None if ready_s is None else NOW - timedelta(seconds=ready_s),
        **state,
    )


def quiet(idle_s: float = 10_000.0, *gateways: str) -> Demand:
    """Gateways that have seen nothing for so long."""
    return Demand(tuple(GatewayView(g, 0, idle_s, ever_active=True) for g in gateways or ("gw-1",)))


@dataclass
class Store:
    """Children of one endpoint, written as the API server would. Replicas follow its rules, the traps included."""

    endpoint: Raw
    claims: Raw = field(default_factory=lambda: dict(BOUND))
    regions: Raw = field(default_factory=dict)
    children: dict[Ref, Raw] = field(default_factory=dict)
    pods: tuple[PodState, ...] = ()
    demand: Demand | None = None
    """What the gateways answer, whatever the region; None: they have seen nothing for long."""
    nodes: dict[str, NodeState] = field(default_factory=lambda: {"n-eu": NodeState("n-eu", EU_LABELS)})
    metrics_api: MetricsApi = field(default_factory=MetricsApi)
    status_written: datetime | None = None
    taken_up: tuple[str, ...] = ()
    """Pods for which a cluster autoscaler makes nodes."""
    history: list[int] = field(default_factory=list)
    """Every value that replicas of any Deployment has had."""
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self._versions = itertools.count(2)

    def snapshot(self, **changes: Any) -> Snapshot:
        seen: Raw = {
            "endpoint": self.endpoint,
            "claims": self.claims,
            "regions": self.regions,
            "children": dict(self.children),
            "pods": self.pods,
            "nodes": self.nodes,
            "metrics_api": self.metrics_api,
            "status_written": self.status_written,
        }
        return Snapshot(**{**seen, **changes})

    def decide(self, install: Install = INSTALL, now: datetime = NOW, **changes: Any) -> Plan:
        """One decision, the same whatever earlier ones have worked out."""
        plan = self._answered(self.snapshot(**changes), install, now)
        assert plan == self._answered(self.snapshot(**changes, memory=self.memory), install, now)
        return plan

    def _answered(self, seen: Snapshot, install: Install, now: datetime) -> Plan:
        """The decision with every question answered: what is not among the children is not there."""
        while True:
            match decide(seen, install, now):
                case Plan() as plan:
                    return plan
                case Ask(objects=objects, demand_of=region, autoscaler_of=waiting):
                    assert objects or region or waiting
                    taken_up = {**seen.taken_up, **{pod: pod in self.taken_up for pod in waiting}}
                    looked_up = {**seen.looked_up, **dict.fromkeys(objects)}
                    demands = dict(seen.demands) if region is None else {**seen.demands, region: self.demand or quiet()}
                    found = {"looked_up": looked_up, "demands": demands, "taken_up": taken_up}
                    seen = Snapshot(**{**_parts(seen), **found})

    def settle(self, install: Install = INSTALL, now: datetime = NOW) -> Plan:
        """Pass after pass until nothing is written; gives the last, quiet one."""
        for _ in range(8):
            before, plan = self.endpoint.get("status"), self.decide(install, now)
            self.report(plan)
            if not plan.actions and plan.status == before:
                return plan
            self.act(plan.actions)
        raise AssertionError(f"never quiet: {[action.why for action in plan.actions]}")

    def report(self, plan: Plan) -> None:
        self.endpoint = {**self.endpoint, "status": plan.status}
        status = entry(
            names.OPERATOR_MANAGER, fields_of(status_object(self.endpoint, plan.status)), subresource="status"
        )
        self.endpoint["metadata"] = {**self.endpoint["metadata"], "managedFields": [status]}

    def act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Apply():
                    self._apply(action)
                case Scale() | Sleep(scale=Scale()):
                    self._scale(action.scale if isinstance(action, Sleep) else action)
                case Delete(ref=ref, uid=uid):
                    assert self.children.pop(ref)["metadata"]["uid"] == uid
                case Evict(pod=name, uid=uid):
                    assert [pod.uid for pod in self.pods if pod.name == name] == [uid]
                    self.pods = tuple(pod for pod in self.pods if pod.name != name)
                case FillReplicas(replicas=replicas):
                    spec = {**self.endpoint["spec"], "replicas": replicas}
                    self.endpoint = {**self.endpoint, "spec": spec}
                case _:
                    raise AssertionError(action)

    def _apply(self, action: Apply) -> None:
        ref, body = action.ref, copy.deepcopy(action.body)
        known = self.children.get(ref)
        if known is not None and "uid" in body["metadata"]:
            assert body["metadata"]["uid"] == known["metadata"]["uid"]
        version = next(self._versions)
        if ref.kind != "Deployment":
            self.children[ref] = live_of(body, action.manager, version=version)
            return
        entries = {e["manager"]: e for e in known["metadata"]["managedFields"]} if known else {}
        entries[action.manager] = entry(action.manager, fields_of(body))
        old = known["spec"].get("replicas") if known else None
        is_owned = any("f:replicas" in e["fieldsV1"].get("f:spec", {}) for e in entries.values())
        had = known is not None and "f:replicas" in self._owned(known, action.manager)
        # The trap: dropping the last ownership of replicas, or never having any, means 1.
        replicas = body["spec"].get("replicas", old if is_owned or (old is not None and not had) else 1)
        live = known if action.manager == names.SCALE_MANAGER and known else live_of(body, action.manager)
        live = copy.deepcopy(live)
        live["spec"]["replicas"] = replicas
        live["metadata"]["generation"] = version
        live["metadata"].update(
            resourceVersion=str(version), managedFields=list(entries.values()), creationTimestamp=time_text(NOW)
        )
        self.children[ref] = live
        self.history.append(replicas)

    def _owned(self, live: Raw, manager: str) -> Raw:
        found = [e["fieldsV1"].get("f:spec", {}) for e in live["metadata"]["managedFields"] if e["manager"] == manager]
        return found[0] if found else {}

    def _scale(self, scale: Scale) -> None:
        assert scale.resource_version in ("", self.children[scale.ref]["metadata"]["resourceVersion"])
        self.scale(scale.replicas, names.SCALE_MANAGER, scale.ref)

    def scale(self, replicas: int, manager: str = names.GATEWAY_MANAGER, ref: Ref = CHILD) -> None:
        """Somebody scales: the field is theirs alone."""
        live = copy.deepcopy(self.children[ref])
        for known in live["metadata"]["managedFields"]:
            known["fieldsV1"].get("f:spec", {}).pop("f:replicas", None)
        mine = entry(manager, {"f:spec": {"f:replicas": {}}}, operation="Update", subresource="scale")
        live["metadata"]["managedFields"].append(mine)
        live["metadata"]["resourceVersion"] = str(next(self._versions))
        live["spec"]["replicas"] = replicas
        self.children[ref] = live
        self.history.append(replicas)

    @property
    def deployment(self) -> Raw:
        return self.children[CHILD]


def _parts(seen: Snapshot) -> Raw:
    return {name: getattr(seen, name) for name in Snapshot.__dataclass_fields__}


def condition_of(plan: Plan, kind: str) -> Raw:
    """A condition of a plan's status; empty if it is not there."""
    return next((c for c in plan.status["conditions"] if c["type"] == kind), {})


EU: Raw = {"eu": {"metadata": {"name": "eu"}, "spec": {}}}


def made(**spec: Any) -> Store:
    """An endpoint whose objects are there; its Deployment is at the floor."""
    store = Store(make_endpoint(**spec), regions=EU, demand=quiet(1))
    store.settle()
    return store


def current(store: Store) -> str:
    """Hash of the template that the Deployment has now."""
    annotations: dict[str, str] = store.deployment["spec"]["template"]["metadata"]["annotations"]
    return annotations[names.ANNOTATION_TEMPLATE_HASH]


def ready_pod(store: Store, name: str = "tiny-1", **state: Any) -> PodState:
    """A pod of the current template that has been ready for ten minutes."""
    return make_pod_state(name, ready_s=600, **{"template_hash": current(store), **state})
