"""One region of one endpoint as `plan_scaling` sees it, to be played through time by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.choice import Choice
from emberline_operator.decision import Decision, RegionPlacement
from emberline_operator.plan.actions import Ask
from emberline_operator.plan.scaling import ScalePlan, plan_scaling
from emberline_operator.plan.start import FailedStart
from emberline_operator.plan.via import HPA_KIND, Via, choose_via
from emberline_operator.snapshot import (
    Demand,
    Features,
    GatewayView,
    MetricsApi,
    PodState,
    Recommendation,
    Ref,
    Snapshot,
    time_text,
)

Raw = dict[str, Any]
START = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)
CHILD = "tiny--default"
HPA_REF = Ref(HPA_KIND, CHILD)
UID = "11111111-0000-4000-8000-000000000001"
OURS = MetricsApi(is_ours=True)
CPU = Choice("", "bf16", "bf16", None, "auto", "", (), None, "")


def spec_of(**spec: Any) -> InferenceEndpointSpec:
    """A spec on CPUs; keyword arguments replace parts of it."""
    return InferenceEndpointSpec.model_validate(
        {"model": {"source": "pvc://models/tiny"}, "accelerator": {"kind": "Cpu"}, **spec}
    )


def calls(
    unfinished: int = 0, held: int = 0, *, idle_s: float = 0.0, held_s: float = 5.0, silent: tuple[str, ...] = ()
) -> Demand:
    """One gateway's word, and those that are silent."""
    view = GatewayView("gw-1", unfinished, idle_s, ever_active=True, held=held, held_s=held_s if held else 0.0)
    return Demand((view,), silent)


def hpa_of(spec: Raw | None = None, *conditions: tuple[str, str, str, str], uid: str = UID) -> Raw:
    """A live autoscaler with conditions (type, status, reason, message), controlled by the endpoint of that uid."""
    owner = {"kind": names.ENDPOINT_KIND, "name": "tiny", "uid": uid, "controller": True}
    stated = [
        {"type": kind, "status": status, "reason": reason, "message": message}
        for kind, status, reason, message in conditions
    ]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": CHILD}
    return {
        "kind": HPA_KIND,
        "metadata": {"name": CHILD, "namespace": "team", "uid": "hpa-uid", "ownerReferences": [owner]},
        "spec": spec or {"scaleTargetRef": target},
        "status": {"conditions": stated},
    }


@dataclass
class Region:
    """The region and who is in it. `now` is moved by hand."""

    spec: InferenceEndpointSpec
    replicas: int = 1
    demand: Demand | None = field(default_factory=calls)
    pods: tuple[PodState, ...] | None = None
    """None: as many engines as replicas, ready since long."""
    hpa: Raw | None = None
    looked_up: dict[Ref, Raw | None] = field(default_factory=lambda: {HPA_REF: None})
    api: MetricsApi = field(default_factory=MetricsApi)
    foreign: tuple[Raw, ...] = ()
    may_start: bool = True
    is_wanted: bool = True
    unknown_since: datetime | None = None
    now: datetime = START
    memory: tuple[Recommendation, ...] | None = None
    features: Features = field(default_factory=Features)
    failed: FailedStart | None = None
    """What status tells of the last start."""
    taken_up: dict[str, bool] = field(default_factory=dict)

    @property
    def live(self) -> Raw:
        metadata = {"name": CHILD, "uid": "u", "resourceVersion": "7", "creationTimestamp": time_text(START)}
        return {"metadata": metadata, "spec": {"replicas": self.replicas}}

    @property
    def seen(self) -> Snapshot:
        shown: Raw = {"name": "default"}
        if self.failed is not None:
            retry = time_text(self.failed.retry_time)
            shown["failedStart"] = {"phase": self.failed.phase, "count": self.failed.count, "retryTime": retry}
        endpoint = {
            "metadata": {"name": "tiny", "namespace": "team", "uid": UID, "generation": 1, "resourceVersion": "5"},
            "spec": self.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
            "status": {"observedGeneration": 1, "regions": [shown]},
        }
        return Snapshot(
            endpoint,
            children={HPA_REF: self.hpa} if self.hpa else {},
            looked_up=self.looked_up,
            pods=engines(self.replicas, self.now) if self.pods is None else self.pods,
            demands={} if self.demand is None else {"default": self.demand},
            metrics_api=self.api,
            recommendations={} if self.memory is None else {"default": self.memory},
            foreign_hpas=self.foreign,
            features=self.features,
            taken_up=self.taken_up,
        )

    @property
    def placement(self) -> RegionPlacement:
        decision = Decision("default", "inputs", {}, (), CPU, self.unknown_since)
        return RegionPlacement("default", decision, self.may_start, self.is_wanted, Reason.ANYWHERE, "why")

    @property
    def via(self) -> Via:
        return choose_via(self.spec, self.seen)

    def ask(self, **options: Any) -> ScalePlan | Ask:
        """One judgement; nothing is taken over."""
        return plan_scaling(self.spec, self.seen, self.placement, self.live, self.hpa, self.via, self.now, **options)

    def plan(self, **options: Any) -> ScalePlan:
        """One judgement that asks nothing; what it remembers is remembered."""
        plan = self.ask(**options)
        assert isinstance(plan, ScalePlan)
        self.memory = plan.recommendations
        return plan

    def after(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def engine(name: str, now: datetime, *, age_s: float = 3600, ready_s: float | None = 3000, **state: Any) -> PodState:
    """An engine that is bound to a node; `ready_s` None: it still starts."""
    ready = None if ready_s is None else now - timedelta(seconds=ready_s)
    made = PodState(name, "", "default", now - timedelta(seconds=age_s), ready, node="n")
    return replace(made, **state)


def engines(count: int, now: datetime) -> tuple[PodState, ...]:
    """Engines that have been ready for long."""
    return tuple(engine(f"tiny-{i}", now) for i in range(count))
