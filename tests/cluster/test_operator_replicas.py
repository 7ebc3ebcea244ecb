"""Replica rules 1 to 5 against a real API server: whatever happens in whatever order, nobody wakes an endpoint by himself, nobody
stops one with work, and never do two autoscalers select the same pods.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from emberline_contract import names
from emberline_operator.cluster.api import Api
from emberline_operator.cluster.kinds import DEPLOYMENTS, ENDPOINTS, HPAS, REGIONS
from emberline_operator.errors import RefusedError
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.plan.via import choose_via
from support.examples import examples
from support.operator_rig import endpoint_yaml, owns_replicas
from support.plane import TestPlane
from support.replicas_world import Judged, World

pytestmark = pytest.mark.cluster
MODES = st.sampled_from(["Auto", "HPA", "Operator", "External"])
SMALL = st.integers(0, 3)
CRASH = st.sampled_from([None, None, None, 0, 1, 2, 4])
"""How many writes the operator gets done before it dies."""
NUM_EXAMPLES = 16
NUM_STEPS = 14


@dataclass
class Lab:
    """What all examples share."""

    runner: asyncio.Runner
    api: Api
    namespace: str
    regions: tuple[str, str]
    numbers: itertools.count[int]


class Replicas(RuleBasedStateMachine):
    """One endpoint's life."""

    lab: ClassVar[Lab]

    def __init__(self) -> None:
        super().__init__()
        name = f"m{next(self.lab.numbers)}"
        self.world = World(self.lab.api, self.lab.namespace, name, self.lab.regions)
        self.lost: set[str] = set()
        self.is_made = False

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        result = self.lab.runner.run(coroutine)
        assert not self.world.wrong, "\n".join([*self.world.wrong, "history:", *self.world.history])
        return result

    def teardown(self) -> None:
        if self.is_made:
            try:
                self.settle()
            finally:
                self.lab.runner.run(self._clean())

    async def _clean(self) -> None:
        await self.world.api.request("DELETE", ENDPOINTS.path(*self.world.key))
        for region in self.lost:
            await self._put_back(region)
        await self._drop_foreign()

    # The endpoint and its operator.

    @initialize(mode=MODES, floor=SMALL, most=st.integers(1, 3), first=SMALL, bound=st.booleans(),
                metrics=st.sampled_from(["ours", "ours", "none"]), calls=st.integers(0, 6))  # fmt: skip
    def create(self, mode: str, floor: int, most: int, first: int, bound: bool, metrics: str, calls: int) -> None:
        self.world.metrics = metrics
        scaling = {
            "via": mode, "minReplicas": min(floor, most), "maxReplicas": most, "initialReplicas": min(first, most),
            "idleAfter": "60s", "scaleDownStabilization": "30s", "requestsPerReplica": 2,
        }  # fmt: skip
        placement = {"regions": [self.lab.regions[0]]} if bound else {}
        body = endpoint_yaml(self.world.name, self.world.namespace, scaling=scaling, placement=placement)
        self.run(self.world.api.request("POST", ENDPOINTS.path(self.world.namespace), body=body))
        self.is_made = True
        self.run(self.world.run_pass())
        if calls:
            self.requests_come(count=calls, starts=True, crash=None)

    def then_pass(self, crash: int | None) -> None:
        """Most of what happens is seen at once, and often enough the operator dies of it."""
        self.run(self.world.run_pass(crash_after=crash))

    @rule(crash=CRASH)
    def run_pass_on_old_news(self, crash: int | None) -> None:
        self.run(self.world.run_pass(fresh=False, crash_after=crash))

    @rule()
    def settle(self) -> None:
        self.run(self.world.settle())
        self.run(self._check())

    @rule()
    def restart(self) -> None:
        self.world.restart()

    # Users.

    @rule(mode=MODES, crash=CRASH)
    def change_mode(self, mode: str, crash: int | None) -> None:
        self.run(self._change_mode(mode))
        self.then_pass(crash)

    async def _change_mode(self, mode: str) -> None:
        spec: Any = {"scaling": {"via": mode}}
        if mode == "External":
            spec["placement"] = {"regions": list((await self.world.spec()).placement.regions[:1])}
        await self.world.edit(**spec)

    @rule(floor=SMALL, most=st.integers(1, 3), sequences=st.none() | st.integers(1, 64), crash=CRASH)
    def change_bounds(self, floor: int, most: int, sequences: int | None, crash: int | None) -> None:
        """Sometimes with another template."""
        engine = {} if sequences is None else {"maxSequences": sequences}
        scaling = {"minReplicas": min(floor, most), "maxReplicas": most, "initialReplicas": 0}
        assert self.run(self.world.edit(scaling=scaling, engine=engine))
        self.then_pass(crash)

    @rule(replicas=SMALL, crash=CRASH)
    def stop_or_scale(self, replicas: int, crash: int | None) -> None:
        """By hand; refused where nobody has asked for External."""
        self.run(self.world.edit(replicas=replicas))
        self.then_pass(crash)

    @rule(which=st.sampled_from([(), (0,), (1,), (0, 1)]), crash=CRASH)
    def change_regions(self, which: tuple[int, ...], crash: int | None) -> None:
        self.run(self.world.edit(placement={"regions": [self.lab.regions[i] for i in which]}))
        self.then_pass(crash)

    @rule(which=st.integers(0, 1))
    def lose_or_find_region(self, which: int) -> None:
        region = self.lab.regions[which]
        if region in self.lost:
            self.lost.discard(region)
            self.run(self._put_back(region))
        else:
            self.lost.add(region)
            self.run(self.world.api.request("DELETE", REGIONS.path(name=region)))

    async def _put_back(self, region: str) -> None:
        await self.world.api.request("POST", REGIONS.path(), body=region_body(region))

    @rule(number=SMALL, way=st.sampled_from(["scale", "apply", "let go"]), data=st.data())
    def another_manager(self, number: int, way: str, data: st.DataObject) -> None:
        region = self._some_region(data)
        if region is None:
            return
        if way == "scale":
            self.run(self.world.scale(region, number, "kubectl"))
        else:
            self.run(self.world.apply_replicas(region, number if way == "apply" else None, "argocd"))

    @rule(data=st.data())
    def foreign_autoscaler_comes_or_goes(self, data: st.DataObject) -> None:
        region = self._some_region(data)
        if self.run(self._drop_foreign()) == 0 and region is not None:
            self.run(self._add_foreign(region))

    async def _add_foreign(self, region: str) -> None:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.world.child(region)}
        body = {"metadata": {"name": f"theirs-{self.world.child(region)}"},
                "spec": {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 3}}  # fmt: skip
        await self.world.api.request("POST", HPAS.path(self.world.namespace), body=body)

    async def _drop_foreign(self) -> int:
        theirs = [name for hpa in await self.world.hpas() if (name := hpa["metadata"]["name"]).startswith("theirs-")]
        for name in theirs:
            await self.world.api.request("DELETE", HPAS.path(self.world.namespace, name))
        return len(theirs)

    # Gateways, autoscaler, kubelets, time.

    @rule(state=st.sampled_from(["ours", "late", "theirs", "none"]), is_silent=st.booleans(), arrives=st.booleans())
    def moods(self, state: str, is_silent: bool, arrives: bool) -> None:
        self.world.metrics = state
        self.world.gateways.is_silent, self.world.gateways.arrives_while_closing = is_silent, arrives

    @rule(count=st.integers(1, 9), starts=st.booleans(), crash=CRASH)
    def requests_come(self, count: int, starts: bool, crash: int | None) -> None:
        """They are held and wake their regions; with `starts`, engines get ready and take them."""
        gateways = self.world.gateways
        for region in sorted(self.run(self.world.deployments())):
            gateways.held[region] = gateways.held.get(region, 0) + count
            gateways.touch()
            self.run(self._wake(region))
            if starts:
                self.run(self.world.kubelet(region))
            if self.run(self._is_ready(region)):
                gateways.dispatched[region] = gateways.dispatched.get(region, 0) + gateways.held.pop(region)
        self.then_pass(crash)

    @rule(seconds=st.sampled_from([35, 65, 300]), ends=st.sampled_from([True, True, False]), crash=CRASH)
    def time_passes(self, seconds: int, ends: bool, crash: int | None) -> None:
        """With `ends`, all requests end before."""
        if ends:
            self.world.gateways.held.clear()
            self.world.gateways.dispatched.clear()
        self.world.gateways.touch()
        self.world.offset += timedelta(seconds=seconds)
        self.then_pass(crash)

    @rule(number=st.integers(1, 3), data=st.data())
    def autoscaler_writes(self, number: int, data: st.DataObject) -> None:
        """As the real one does: where it is, and nothing at zero."""
        region = self._some_region(data)
        if region is not None:
            self.run(self._autoscale(region, number))

    def _some_region(self, data: st.DataObject) -> str | None:
        there = sorted(self.run(self.world.deployments()))
        return data.draw(st.sampled_from(there)) if there else None

    async def _is_ready(self, region: str) -> bool:
        pods = await self.world.pods(region)
        ready = [c for pod in pods for c in pod["status"].get("conditions", ()) if c["type"] == "Ready"]
        return any(condition["status"] == "True" for condition in ready)

    async def _wake(self, region: str) -> None:
        """The gateway's 0 -> 1; whoever is not to be woken is woken all the same, and that is put right."""
        patch: Any = [
            {"op": "test", "path": "/spec/replicas", "value": None},
            {"op": "add", "path": "/spec/replicas", "value": 1},
        ]
        path = DEPLOYMENTS.path(self.world.namespace, self.world.child(region), "scale")
        try:
            await self.world.write("PATCH", path, patch, "application/json-patch+json", names.GATEWAY_MANAGER)
        except RefusedError:
            return

    async def _autoscale(self, region: str, number: int) -> None:
        live = await self.world.deployment(region)
        for hpa in await self.world.hpas():
            is_its = hpa["spec"]["scaleTargetRef"]["name"] == self.world.child(region)
            if is_its and live is not None and replicas_of(live) > 0:
                spec = hpa["spec"]
                number = min(max(number, spec["minReplicas"]), spec["maxReplicas"])
                await self.world.scale(region, number, "kube-controller-manager")

    # What must be so when everybody has had his say.

    async def _check(self) -> None:
        seen = self.world.seen()
        assert seen is not None
        spec = await self.world.spec()
        via = choose_via(spec, seen)
        hpas = await self.world.hpas()
        for region, live in (await self.world.deployments()).items():
            case = Judged(self.world, seen, spec, via, region)
            there = [
                h["metadata"]["name"] for h in hpas if h["spec"]["scaleTargetRef"]["name"] == live["metadata"]["name"]
            ]
            assert len(there) <= 1, f"two autoscalers on one selector: {there}"
            is_foreign = any(name.startswith("theirs-") for name in there)
            wants = via.mode == "HPA" and case.is_open
            assert bool(there) == (wants or is_foreign), f"via {via.mode}, open {case.is_open}: {there}"
            # A closed region's Deployment is kept as it is, and so is who owns what of it.
            assert not (case.is_open and owns_replicas_by_apply(live)), "replicas are handed over"
            if case.is_open and not is_foreign:
                self._check_number(replicas_of(live), case)

    def _check_number(self, replicas: int, case: Judged) -> None:
        scaling = case.spec.scaling
        if case.via.mode == "External":
            assert replicas == case.spec.replicas
        elif replicas == 0:
            assert scaling.min_replicas == 0, "it sleeps below its floor"
        elif case.via.mode == "Operator":
            assert scaling.min_replicas <= replicas <= scaling.max_replicas


def owns_replicas_by_apply(live: Any) -> bool:
    applied = [e for e in live["metadata"]["managedFields"] if e["operation"] == "Apply"]
    return owns_replicas({"metadata": {"managedFields": applied}}, names.OPERATOR_MANAGER)


def region_body(name: str) -> Any:
    return {"apiVersion": names.API_VERSION, "kind": names.REGION_KIND, "metadata": {"name": name}, "spec": {}}


def test_whatever_happens(plane: TestPlane, namespace: str) -> None:
    regions = (f"rep-a-{os.getpid()}", f"rep-b-{os.getpid()}")
    with asyncio.Runner() as runner:
        api = runner.run(Api.connect(plane.kubeconfig))
        try:
            for region in regions:
                runner.run(api.request("POST", REGIONS.path(), body=region_body(region)))
            Replicas.lab = Lab(runner, api, namespace, regions, itertools.count())
            run_state_machine_as_test(
                Replicas,
                settings=settings(
                    **examples(NUM_EXAMPLES),
                    stateful_step_count=NUM_STEPS,
                    # What real controllers do meanwhile is not the same twice, so nothing can be made smaller.
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for region in regions:
                runner.run(api.request("DELETE", REGIONS.path(name=region)))
            runner.run(api.close())


async def test_from_the_autoscaler_to_the_operator_and_back_to_zero(plane: TestPlane, namespace: str) -> None:
    """One way through the rules in which everybody has something to write when his turn comes."""
    api = await Api.connect(plane.kubeconfig)
    try:
        world = World(api, namespace, "tiny", ("rep-x", "rep-y"))
        world.metrics = "ours"
        scaling = {"idleAfter": "60s", "requestsPerReplica": 2}
        await api.request("POST", ENDPOINTS.path(namespace), body=endpoint_yaml("tiny", namespace, scaling=scaling))
        await world.settle()
        await world.scale(names.DEFAULT_REGION, 1, names.GATEWAY_MANAGER)
        await world.kubelet(names.DEFAULT_REGION)
        world.gateways.dispatched[names.DEFAULT_REGION] = 6
        await world.settle()
        assert await state_of(world) == (1, 1), "growing is the autoscaler's"

        assert await world.edit(scaling={"via": "Operator"})
        await world.run_pass()
        assert await state_of(world) == (1, 0), "it goes first"
        await world.settle()
        assert await state_of(world) == (3, 0)

        assert await world.edit(scaling={"via": "HPA"})
        await world.settle()
        assert await state_of(world) == (3, 1)
        world.gateways.dispatched.clear()
        world.offset += timedelta(hours=1)
        world.gateways.is_silent = True
        await world.settle()
        assert await state_of(world) == (3, 1), "nobody knows"
        world.gateways.is_silent = False
        await world.settle()
        assert await state_of(world) == (0, 1)
        assert not world.wrong
    finally:
        await api.request("DELETE", ENDPOINTS.path(namespace))
        await api.close()


async def state_of(world: World) -> tuple[int, int]:
    """Replicas, and the number of autoscalers."""
    live = await world.deployment(names.DEFAULT_REGION)
    assert live is not None
    return replicas_of(live), len(await world.hpas())
