"""One pass over fakes of the caches' writer and the gateways: order, failures, and the handshake around the write."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from emberline_contract import names
from emberline_contract.conditions import Reason
from emberline_contract.http import CloseRequest
from emberline_operator import demand
from emberline_operator.cluster.caches import Caches
from emberline_operator.cluster.kinds import BY_KIND, CLAIMS, ENDPOINTS, PODS
from emberline_operator.errors import ClusterError, ConflictError, NotFoundError, RefusedError
from emberline_operator.plan.actions import (
    Action,
    Apply,
    Delete,
    Evict,
    FillReplicas,
    Notice,
    Plan,
    SetDeletionCost,
)
from emberline_operator.plan.conditions import STATUS_PERIOD_S
from emberline_operator.reconcile import passes
from emberline_operator.reconcile.passes import Reconciler
from emberline_operator.reconcile.queue import Outcome
from emberline_operator.snapshot import Demand, Recommendation, Ref, Snapshot, time_text
from support.operator_objects import INSTALL, NOW, Raw, Store, condition_of, make_endpoint, quiet

KEY = ("team", "tiny")
LOOK_UP_HPA = "look up HorizontalPodAutoscaler tiny--default"
"""Whoever writes replicas must know that no autoscaler does."""


class Cluster:
    """Writes into the caches through a Store, and fails when the test says so."""

    def __init__(self, endpoint: Raw) -> None:
        self.caches = Caches()
        self.store = Store(endpoint)
        self.log: list[str] = []
        self.failures: dict[str, ClusterError] = {}
        self.version = 100
        self.meanwhile: Raw | None = None
        """The endpoint as somebody changes it just before the next write of its status."""
        self.put(ENDPOINTS.kind, endpoint)
        claim = {"metadata": {"name": "models", "namespace": "team"}, "status": {"phase": "Bound"}}
        self.put(CLAIMS.kind, claim)

    def put(self, kind: str, obj: Raw) -> None:
        self.version += 1
        metadata = {"namespace": "team", **obj["metadata"], "resourceVersion": str(self.version)}
        self.caches[BY_KIND[kind]].put({**obj, "kind": kind, "metadata": metadata})

    def _note(self, what: str) -> None:
        if what in self.failures:
            raise self.failures[what]
        self.log.append(what)

    def sync(self) -> None:
        for ref, child in self.store.children.items():
            self.put(ref.kind, child)
            # The store's own version, so that a scale is judged by it.
            known = self.caches[BY_KIND[ref.kind]].get(("team", ref.name))
            assert known is not None
            child["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]

    async def look_up(self, namespace: str, ref: Ref) -> Raw | None:
        self._note(f"look up {ref}")
        return self.store.children.get(ref)

    async def apply(self, body: Raw, *, manager: str, force: bool) -> None:
        self._note(f"apply {body['kind']} by {manager}")
        self.store.act([Apply(body, manager, "", force)])
        self.sync()

    async def apply_status(self, body: Raw) -> int:
        self._note("status")
        if self.meanwhile is not None:
            self.store.endpoint, self.meanwhile = (
                {**self.meanwhile, "status": self.store.endpoint.get("status", {})},
                None,
            )
        self.store.report(Plan((), body["status"]))
        self.put(ENDPOINTS.kind, self.store.endpoint)
        return int(self.store.endpoint["metadata"]["generation"])

    async def scale(self, namespace: str, ref: Ref, *, replicas: int, uid: str, resource_version: str) -> None:
        self._note(f"scale {replicas}")
        assert self.store.children[ref]["metadata"]["resourceVersion"] == resource_version
        self.store.scale(replicas, names.SCALE_MANAGER, ref)
        self.sync()

    async def delete(self, namespace: str, ref: Ref, *, uid: str) -> None:
        self._note(f"delete {ref}")

    async def evict(self, namespace: str, pod: str, *, uid: str, grace_s: int) -> None:
        self._note(f"evict {pod} ({uid}) in {grace_s} s")

    async def set_deletion_cost(self, namespace: str, pod: str, *, uid: str, cost: int, at: datetime) -> None:
        self._note(f"cost of {pod} ({uid}) {cost} at {time_text(at)}")

    async def fill_replicas(self, namespace: str, name: str, *, replicas: int, resource_version: str) -> None:
        self._note(f"fill {name} with {replicas} at {resource_version}")


class Door:
    """Gateways that answer what the test says, noting in the cluster's log."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.answer = quiet()
        self.objection = ""
        self.epochs: list[int] = []

    async def demand(self, namespace: str, name: str, region: str) -> Demand:
        self.cluster.log.append("ask")
        return self.answer

    async def close(self, request: CloseRequest) -> str:
        self.cluster.log.append("close")
        self.epochs.append(request.epoch)
        return self.objection

    async def reopen(self, request: CloseRequest) -> None:
        assert request.epoch == self.epochs[-1]
        self.cluster.log.append("reopen")


class Told:
    """Notes what users are told."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    async def tell(self, endpoint: Raw, notice: Notice) -> None:
        self.reasons.append(notice.reason.value)


class Rig:
    def __init__(self, endpoint: Raw) -> None:
        self.now: datetime = NOW
        self.cluster = Cluster(endpoint)
        self.door = Door(self.cluster)
        writer: Any = self.cluster
        self.told = Told()
        self.reconciler = Reconciler(self.cluster.caches, writer, self.door, self.told, INSTALL, lambda: self.now)

    async def one_pass(self) -> Outcome:
        self.cluster.log.clear()
        return await self.reconciler.reconcile(KEY)

    async def settle(self) -> None:
        for _ in range(6):
            if not (await self.one_pass()).has_written:
                return
        raise AssertionError("never quiet")

    def wake(self) -> None:
        """The gateway scaled, and a pod has been ready for long."""
        self.cluster.store.scale(1)
        self.cluster.sync()
        template = self.cluster.store.deployment["spec"]["template"]["metadata"]
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": time_text(NOW - timedelta(hours=2))}
        metadata = {
            "name": "tiny-1",
            "creationTimestamp": ready["lastTransitionTime"],
            "labels": template["labels"],
            "annotations": template["annotations"],
        }
        self.cluster.put(PODS.kind, {"metadata": metadata, "status": {"phase": "Running", "conditions": [ready]}})

    def condition(self, kind: str) -> Raw:
        return condition_of(Plan((), self.cluster.store.endpoint["status"]), kind)


@pytest.fixture
async def rig() -> Rig:
    return Rig(make_endpoint(scaling={"idleAfter": "60s"}))


async def test_the_first_passes_write_in_order_and_then_nothing(rig: Rig) -> None:
    assert (await rig.one_pass()).has_written
    first = [line for line in rig.cluster.log if not line.startswith("look up")]
    assert first == [
        "apply ConfigMap by emberline-operator",
        "apply Service by emberline-operator",
        "apply PodDisruptionBudget by emberline-operator",
        "apply Deployment by emberline-operator",
        "apply Deployment by emberline-scale",
        "status",
    ]
    await rig.settle()
    outcome = await rig.one_pass()
    assert outcome == Outcome()
    assert rig.cluster.log == []


async def test_an_endpoint_that_is_gone_or_going_is_left_alone(rig: Rig) -> None:
    assert await rig.reconciler.reconcile(("team", "other")) == Outcome()
    going = make_endpoint()
    going["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    rig.cluster.put(ENDPOINTS.kind, going)
    assert await rig.one_pass() == Outcome()
    assert rig.cluster.log == []


async def test_sleep_is_close_scale_reopen(rig: Rig) -> None:
    await rig.settle()
    rig.wake()
    await rig.one_pass()
    assert rig.cluster.log == ["ask", LOOK_UP_HPA, "close", "scale 0", "reopen", "status"]


async def test_an_objection_reopens_and_writes_nothing(rig: Rig) -> None:
    await rig.settle()
    rig.wake()
    rig.door.objection = "gw-1 is busy: 2 running"
    outcome = await rig.one_pass()
    assert rig.cluster.log == ["ask", LOOK_UP_HPA, "close", "reopen", "status"]
    assert outcome.again_s is not None
    assert 0 < outcome.again_s <= 10
    await rig.one_pass()
    rig.now += timedelta(days=-1)
    await rig.one_pass()
    assert rig.door.epochs == sorted(set(rig.door.epochs)), "higher each time, also when the clock goes back"


async def test_a_handshake_that_takes_too_long_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that comes after the gateways have opened again by themselves would end running requests."""
    monkeypatch.setattr(demand, "HANDSHAKE_S", 0.01)
    await rig.settle()
    rig.wake()

    async def hang(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    rig.cluster.scale = hang  # type: ignore[method-assign]
    outcome = await rig.one_pass()
    assert rig.cluster.log == ["ask", LOOK_UP_HPA, "close", "reopen", "status"]
    assert outcome.again_s is not None


@pytest.mark.parametrize("error", [ConflictError("PATCH", 409, "changed"), RefusedError("PATCH", 403, "no")])
async def test_a_write_that_fails_reopens_too(rig: Rig, error: ClusterError) -> None:
    await rig.settle()
    rig.wake()
    rig.cluster.failures["scale 0"] = error
    with pytest.raises(type(error)):
        await rig.one_pass()
    assert rig.cluster.log[:4] == ["ask", LOOK_UP_HPA, "close", "reopen"]
    is_shown = rig.condition("Degraded")["reason"] == "ApplyFailed"
    assert is_shown is isinstance(error, RefusedError), "a conflict is nothing to show: the next pass looks again"


async def test_a_refused_write_stops_the_pass_and_is_shown_once(rig: Rig) -> None:
    rig.cluster.failures["apply Service by emberline-operator"] = RefusedError("PATCH /s", 403, "exceeded quota")
    with pytest.raises(RefusedError):
        await rig.one_pass()
    assert "apply Deployment by emberline-operator" not in rig.cluster.log
    degraded = rig.condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyFailed")
    assert degraded["message"] == "PATCH /s: exceeded quota; it is tried again"
    assert (rig.condition("Ready")["status"], rig.condition("Ready")["reason"]) == ("False", "ApplyFailed")
    assert rig.condition("Reconciling")["status"] == "True", "a quota may be raised"
    rig.now += timedelta(seconds=60)
    with pytest.raises(RefusedError):
        await rig.one_pass()
    assert "status" not in rig.cluster.log, "the same failure is not written again"
    assert rig.condition("Degraded")["lastTransitionTime"] == degraded["lastTransitionTime"]
    rig.cluster.failures.clear()
    await rig.settle()
    assert rig.condition("Degraded")["status"] == "False"


async def test_status_waits_unless_a_condition_flips(rig: Rig) -> None:
    await rig.settle()
    rig.wake()
    rig.door.answer = quiet(1)
    await rig.one_pass()
    assert rig.cluster.log[-1] == "status", "Ready has another reason"
    rig.now += timedelta(seconds=61)
    rig.door.answer = quiet(1)
    await rig.one_pass()
    assert rig.cluster.log[-1] == "status", "another minute, long enough after the last write"
    rig.now += timedelta(seconds=1)
    rig.door.answer = Demand((), ("gw-1: no answer",))
    await rig.one_pass()
    assert rig.cluster.log[-1] == "status", "ScalingActive flips"
    rig.now += timedelta(seconds=1)
    rig.door.answer = Demand((), ("gw-1: it answered 500",))
    outcome = await rig.one_pass()
    assert "status" not in rig.cluster.log, "only a message differs"
    assert outcome.again_s == pytest.approx(STATUS_PERIOD_S - 1)
    rig.now -= timedelta(hours=1)
    assert (await rig.one_pass()).again_s == STATUS_PERIOD_S, "the clock has been set back"
    rig.now += timedelta(hours=1)
    rig.cluster.store.endpoint["metadata"]["generation"] = 2
    rig.cluster.put(ENDPOINTS.kind, rig.cluster.store.endpoint)
    await rig.one_pass()
    assert rig.cluster.log[-1] == "status", "a new generation is seen"
    rig.now += timedelta(seconds=STATUS_PERIOD_S)
    assert (await rig.one_pass()).again_s is not None
    assert "status" not in rig.cluster.log


async def test_an_endpoint_that_goes_while_its_status_is_written_is_no_failure(rig: Rig) -> None:
    rig.cluster.failures["status"] = NotFoundError("PATCH", 404, "gone")
    assert (await rig.one_pass()).has_written


async def test_a_change_that_a_status_write_overtakes_is_not_lost(rig: Rig) -> None:
    """The answer to the write brings the new spec into the cache before its own event, which is then old news."""
    rig.cluster.meanwhile = make_endpoint(generation=2, engine={"maxSequences": 7})
    await rig.one_pass()
    assert rig.cluster.log[-1] == "status"
    await rig.one_pass()
    rig.cluster.meanwhile = make_endpoint(generation=3, engine={"maxSequences": 9})
    rig.wake()
    rig.door.answer = quiet(1)
    outcome = await rig.one_pass()
    assert outcome.again_s == 0


def planned(monkeypatch: pytest.MonkeyPatch, *actions: Action, **parts: Any) -> None:
    """The next passes decide this."""
    monkeypatch.setattr(passes, "decide", lambda *_: Plan(actions, {"conditions": []}, **parts))


COST = SetDeletionCost("tiny-1", "u-1", 3, NOW, "it is busy")
GO = Evict("tiny-2", "u-2", 10, "it is elsewhere")


async def test_every_action_is_carried_out_with_what_guards_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Ref("Service", "tiny--eu")
    planned(monkeypatch, COST, GO, FillReplicas(2, "7", "there is none"), Delete(service, "u-3", "left"))
    await rig.one_pass()
    assert rig.cluster.log[:4] == [
        f"cost of tiny-1 (u-1) 3 at {time_text(NOW)}",
        "evict tiny-2 (u-2) in 10 s",
        "fill tiny with 2 at 7",
        "delete Service tiny--eu",
    ]


@pytest.mark.parametrize("error", [ConflictError("PATCH", 409, "changed"), RefusedError("PATCH", 403, "no")])
async def test_what_must_not_run_goes_whatever_else_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: ClusterError
) -> None:
    cost = f"cost of tiny-1 (u-1) 3 at {time_text(NOW)}"
    rig.cluster.failures[cost] = error
    planned(monkeypatch, COST, Delete(Ref("Service", "tiny--eu"), "u-3", "left"), GO)
    with pytest.raises(type(error)):
        await rig.one_pass()
    assert rig.cluster.log[0] == "evict tiny-2 (u-2) in 10 s"
    assert "delete Service tiny--eu" not in rig.cluster.log


async def test_an_object_that_can_never_be_valid_is_nothing_that_is_on_its_way(rig: Rig) -> None:
    words = 'spec.template.labels: Invalid value: "a b"' + "." * 2000
    rig.cluster.failures["apply Deployment by emberline-operator"] = RefusedError("PATCH /d", 422, words)
    with pytest.raises(RefusedError):
        await rig.one_pass()
    ready, stalled = rig.condition("Ready"), rig.condition("Stalled")
    assert (ready["status"], ready["reason"], stalled["status"]) == ("False", "ApplyFailed", "True")
    assert rig.condition("Reconciling") == {}
    for kind in ("Ready", "Stalled", "Degraded"):
        message = rig.condition(kind)["message"]
        assert message.startswith("PATCH /d: spec.template.labels")
        assert message.endswith("…; correct what it comes from, in the spec or in its InferenceRegion")
    rig.cluster.failures.clear()
    await rig.settle()
    assert rig.condition("Stalled") == {}
    assert rig.condition("Ready")["reason"] == "ScaledToZero"


async def test_what_serves_is_ready_although_the_newest_spec_can_never_be_valid(rig: Rig) -> None:
    await rig.settle()
    rig.cluster.failures["apply Service by emberline-operator"] = RefusedError("PATCH /s", 422, "invalid")
    rig.cluster.store.children[Ref("Service", "tiny--default")]["spec"]["type"] = "NodePort"
    rig.cluster.sync()
    with pytest.raises(RefusedError):
        await rig.one_pass()
    assert rig.condition("Ready")["reason"] == "ScaledToZero"
    assert rig.condition("Stalled")["reason"] == "ApplyFailed"


async def test_users_are_told_what_the_plan_says_and_what_failed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = Notice("Normal", Reason.DECIDED, "precision bf16")
    planned(monkeypatch, COST, notices=(notice,))
    await rig.one_pass()
    assert rig.told.reasons == ["Decided"]
    rig.cluster.failures[f"cost of tiny-1 (u-1) 3 at {time_text(NOW)}"] = RefusedError("PATCH", 403, "no")
    with pytest.raises(RefusedError):
        await rig.one_pass()
    assert rig.told.reasons == ["Decided", "ApplyFailed"]


async def test_the_next_pass_finds_what_the_last_one_remembered(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"default": (Recommendation(NOW, 2),)}
    seen: list[Snapshot] = []

    def decide(snapshot: Snapshot, *_: Any) -> Plan:
        seen.append(snapshot)
        return Plan((), {"conditions": []}, recommendations=kept)

    monkeypatch.setattr(passes, "decide", decide)
    await rig.one_pass()
    await rig.one_pass()
    assert [snapshot.recommendations for snapshot in seen] == [{}, kept]
    going = make_endpoint()
    going["metadata"]["deletionTimestamp"] = "2026-12-01T12:00:00Z"
    rig.cluster.put(ENDPOINTS.kind, going)
    await rig.one_pass()
    rig.cluster.put(ENDPOINTS.kind, make_endpoint())
    await rig.one_pass()
    assert seen[-1].recommendations == {}, "another endpoint of the same name"


async def test_the_earliest_time_counts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(monkeypatch, requeue_after_s=7.0)
    await rig.one_pass()
    assert (await rig.one_pass()).again_s == 7.0
