"""What is decided for one region: hardware and precision, decided once and kept.

A decision is made again when a field of the spec changes that it depends on, when the region's selector changes, and when
what was chosen has had no possible node for five minutes and nothing runs. Nodes that come, go or change their labels
change nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.resources import InferenceEndpointSpec
from emberline_operator.choice import Choice, NoChoice
from emberline_operator.decision import Decision
from emberline_operator.hardware.choose import choose, is_possible
from emberline_operator.hardware.classes import classes_of
from emberline_operator.hardware.gpu_table import GpuTable
from emberline_operator.hardware.inventory import Hardware, hardware_of
from emberline_operator.regions.recall import recall
from emberline_operator.regions.region import Region, can_take_pods, is_node_of, nodes_of
from emberline_operator.snapshot import Json, NodeState, Snapshot, time_text

IMPOSSIBLE_FOR: Final = timedelta(minutes=5)
"""How long a choice must have had no possible node before another is made."""
_ENGINE_FIELDS: Final = {"max_model_len", "max_batch_tokens", "max_sequences", "kv_cache"}
"""Fields of `spec.engine` that memory depends on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is decided for a region."""

    decision: Decision | None
    """None: nothing can be decided, and nothing has been."""
    is_current: bool
    """Whether the decision is one for the spec as it is now."""
    reason: Reason
    message: str
    check_in_s: float | None = None


def placement_inputs(spec: InferenceEndpointSpec) -> str:
    """Hash of the fields that a decision depends on. Defaults are left out, so that a field of a later release changes no hash."""
    depends = {
        "model": spec.model.model_dump(mode="json", exclude_defaults=True, exclude={"served_name"}),
        "accelerator": spec.accelerator.model_dump(mode="json", exclude_defaults=True),
        "precision": spec.precision.model_dump(mode="json", exclude_defaults=True),
        "engine": spec.engine.model_dump(mode="json", exclude_defaults=True, include=_ENGINE_FIELDS),
        "placement": spec.placement.model_dump(
            mode="json", exclude_defaults=True, include={"node_selector", "tolerations"}
        ),
    }
    text = json.dumps(depends, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def settle(
    spec: InferenceEndpointSpec,
    region: Region,
    seen: Snapshot,
    live: Json | None,
    record: Decision | None,
    table: GpuTable,
    now: datetime,
) -> Outcome:
    """The decision for a region in which pods may be placed; `live` is its Deployment and `record` what is recorded on it."""
    case = _Case(spec, region, seen, table, now)
    inputs = placement_inputs(spec)
    if record is not None and record.inputs == inputs:
        if dict(record.node_labels) == dict(region.node_labels):
            return _kept(case, live, record)
        if case.is_possible(record.choice):
            return case.decided(case.decision(inputs, record.choice, has_moved=_runs(seen, region.name)))
    chosen = case.choose()
    if isinstance(chosen, NoChoice):
        return Outcome(record, is_current=False, reason=chosen.reason, message=f"{case.where}: {chosen.message}")
    if record is None and live is not None:
        chosen = recall(live, region, chosen, case.choices()) or chosen
    has_moved = record is not None and dict(record.node_labels) != dict(region.node_labels) and _runs(seen, region.name)
    return case.decided(case.decision(inputs, chosen, has_moved=has_moved or (record is not None and record.has_moved)))


def _kept(case: _Case, live: Json | None, record: Decision) -> Outcome:
    region, now = case.region, case.now
    record = replace(
        record,
        jurisdictions=region.jurisdictions or record.jurisdictions,
        has_moved=record.has_moved and _has_older_pods(case.seen, region.name, live),
    )
    if case.is_possible(record.choice):
        return case.placed(replace(record, impossible_since=None))
    if case.is_cpu:
        return case.impossible(record, "engines wait until one can", None)
    since = min(record.impossible_since or now, now).replace(microsecond=0)
    kept = replace(record, impossible_since=since)
    until = since + IMPOSSIBLE_FOR
    if now < until:
        after = f"the choice stays until {time_text(until)}, then another one is made if nothing runs"
        return case.impossible(kept, after, (until - now).total_seconds())
    if _runs(case.seen, region.name):
        return case.impossible(kept, "the choice stays while engines run", None)
    chosen = case.choose_now()
    if isinstance(chosen, NoChoice):
        return case.impossible(kept, f"and there is no other choice: {chosen.message}", None)
    return case.decided(case.decision(record.inputs, chosen, has_moved=False))


@dataclass(frozen=True)
class _Case:
    """One region's question. What a node costs to look at is spent once."""

    spec: InferenceEndpointSpec
    region: Region
    seen: Snapshot
    table: GpuTable
    now: datetime

    @property
    def is_cpu(self) -> bool:
        return self.spec.accelerator.kind == "Cpu"

    @property
    def where(self) -> str:
        return "the cluster" if self.region.name == names.DEFAULT_REGION else f"region {self.region.name}"

    @cached_property
    def nodes(self) -> tuple[NodeState, ...]:
        return nodes_of(self.region, self.spec, self.seen.nodes)

    @cached_property
    def able(self) -> tuple[NodeState, ...]:
        return tuple(node for node in self.nodes if can_take_pods(node, self.spec))

    @cached_property
    def hardware(self) -> tuple[Hardware, ...]:
        """Of nodes that can take pods now, and of pools."""
        return self._hardware(self.able)

    def is_possible(self, choice: Choice) -> bool:
        """Whether a node that can take pods now, or a pool, could hold the choice."""
        if self.is_cpu and not self.region.node_labels:
            return True
        # Every pass asks this, and the first node is mostly enough.
        able = (
            n for n in self.seen.nodes.values() if is_node_of(n, self.region, self.spec) and can_take_pods(n, self.spec)
        )
        if self.is_cpu:
            return any(True for _ in able)
        return is_possible(choice, self._hardware(())) or any(is_possible(choice, self._hardware((n,))) for n in able)

    def choose_now(self) -> Choice | NoChoice:
        """The choice among nodes that can take pods now, and pools."""
        return choose(self.spec, self.hardware, self.table)

    def choose(self) -> Choice | NoChoice:
        """As `choose_now`; where that gives nothing, nodes count that cannot take pods now and may again."""
        if self._has_nothing:
            return NoChoice(Reason.NO_NODES, self._nothing())
        chosen = self.choose_now()
        if isinstance(chosen, NoChoice) and len(self.able) < len(self.nodes):
            return choose(self.spec, self._hardware(self.nodes), self.table)
        return chosen

    def choices(self) -> list[Choice]:
        """What would be chosen if the region had one class of GPUs only, for each that it has."""
        classes = classes_of(self._hardware(self.nodes), self.spec.accelerator.types)
        each = [choose(self.spec, one.members, self.table) for one in classes]
        return [choice for choice in each if isinstance(choice, Choice)]

    def decision(self, inputs: str, choice: Choice, *, has_moved: bool) -> Decision:
        region = self.region
        return Decision(
            region.name, inputs, dict(region.node_labels), region.jurisdictions, choice, has_moved=has_moved
        )

    def decided(self, decision: Decision) -> Outcome:
        """The decision, with the words for it."""
        if self.is_possible(decision.choice):
            return self.placed(decision)
        return self.impossible(decision, "engines wait until one can", None)

    def placed(self, decision: Decision) -> Outcome:
        """The decision, which a node or pool can hold."""
        gpu = f"{decision.choice.gpu_class} " if decision.choice.gpu_class else ""
        if self.region.name == names.DEFAULT_REGION:
            words = f"no region was asked for; any {gpu}node will do"
            return Outcome(decision, is_current=True, reason=Reason.ANYWHERE, message=words)
        words = f"pods go to {gpu}nodes with {_words(self.region.node_labels)}"
        return Outcome(decision, is_current=True, reason=Reason.IN_REGION, message=words)

    def impossible(self, decision: Decision, then: str, check_in_s: float | None) -> Outcome:
        """The decision although nothing can hold it now."""
        choice = decision.choice
        what = f"{choice.gpu_class} ({choice.format})" if choice.gpu_class else choice.resource_name
        if self.able and not self.is_cpu:
            reason, words = Reason.NO_SUCH_GPU, f"no node or pool of {self.where} that can take pods has {what} now"
        elif self.nodes:
            blocked = ", ".join(f"{node.name} ({_trouble(node)})" for node in self.nodes[:4])
            reason, words = Reason.NO_NODES, f"no node of {self.where} can take pods now: {blocked}"
        else:
            reason, words = Reason.NO_NODES, self._nothing()
        return Outcome(decision, is_current=True, reason=reason, message=f"{words}; {then}", check_in_s=check_in_s)

    def _hardware(self, nodes: Sequence[NodeState]) -> tuple[Hardware, ...]:
        return hardware_of(nodes, self.region.pools, self.table)

    @property
    def _has_nothing(self) -> bool:
        if self.is_cpu:
            return not self.nodes and bool(self.region.node_labels)
        return not self.nodes and not self.region.pools

    def _nothing(self) -> str:
        selector = self.spec.placement.node_selector
        labels = _words({**self.region.node_labels, **selector})
        asked = " (placement.nodeSelector is in it)" if selector else ""
        if self.region.name == names.DEFAULT_REGION:
            return f"no node carries {labels}{asked}; label one" if labels else "the cluster has no node; add one"
        if self.is_cpu:
            return f"no node carries {labels}{asked}; label nodes so"
        pools = f"InferenceRegion {self.region.name} declares no gpuPools"
        return f"no node carries {labels}{asked}, and {pools}; label nodes so, or declare the pool that makes them"


def _runs(seen: Snapshot, region: str) -> bool:
    return any(pod.region == region and pod.node and not pod.has_ended for pod in seen.pods)


def _has_older_pods(seen: Snapshot, region: str, live: Json | None) -> bool:
    """Whether a pod lives that was made from another template than the present one."""
    template = live["spec"]["template"] if live else {}
    current = template.get("metadata", {}).get("annotations", {}).get(names.ANNOTATION_TEMPLATE_HASH, "")
    living = (pod for pod in seen.pods if pod.region == region and not pod.terminating and not pod.has_ended)
    return any(pod.template_hash != current for pod in living)


def _trouble(node: NodeState) -> str:
    if node.is_cordoned:
        return "cordoned"
    if not node.is_ready:
        return "not Ready"
    return "tainted: " + ", ".join(taint.key for taint in node.taints)


def _words(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
