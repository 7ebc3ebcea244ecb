"""One level-triggered pass: observe, decide, act, report. All the deciding is `plan.decide`'s."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Protocol, TypeGuard, assert_never

from emberline_contract.http import CloseRequest
from emberline_operator import demand
from emberline_operator.cluster.caches import Caches, Key
from emberline_operator.cluster.index import may_surge
from emberline_operator.cluster.writes import Writer
from emberline_operator.desired.template import signature
from emberline_operator.errors import ClusterError, ConflictError, NotFoundError, RefusedError
from emberline_operator.plan.actions import (
    Action,
    Apply,
    Ask,
    Delete,
    Evict,
    FillReplicas,
    Notice,
    Plan,
    Scale,
    SetDeletionCost,
    Sleep,
)
from emberline_operator.plan.belonging import own_deployments
from emberline_operator.plan.conditions import status_delay_s, status_object, with_failure
from emberline_operator.plan.decide import decide
from emberline_operator.plan.notices import notices_of
from emberline_operator.plan.replicas import replicas_of
from emberline_operator.reconcile.observe import Remembered, observe
from emberline_operator.reconcile.queue import Outcome
from emberline_operator.settings import Install
from emberline_operator.snapshot import Demand, Features, Json, Snapshot

_log = logging.getLogger(__name__)


class AsksGateways(Protocol):
    """The gateways, or a fake of them."""

    async def demand(self, namespace: str, name: str, region: str) -> Demand:
        """What the gateways say of one endpoint and region."""
        ...

    async def close(self, request: CloseRequest) -> str:
        """Close an endpoint's region everywhere; empty if all are closed, else who objects."""
        ...

    async def reopen(self, request: CloseRequest) -> None:
        """End a close."""
        ...


class TellsUsers(Protocol):
    """Whoever writes Events, or a fake of it."""

    async def tell(self, endpoint: Json, notice: Notice) -> None:
        """Tell it, unless it was told lately."""
        ...


class Reconciler:
    """Passes over single endpoints."""

    def __init__(
        self,
        caches: Caches,
        writer: Writer,
        gateways: AsksGateways,
        events: TellsUsers,
        install: Install,
        clock: Callable[[], datetime],
    ) -> None:
        self._caches = caches
        self._writer = writer
        self._gateways = gateways
        self._events = events
        self._install = install
        self._clock = clock
        self.features = Features()
        """What the API server can do; whoever has asked it says so before the first pass."""
        self._remembered: dict[Key, Remembered] = {}
        self._surging: dict[Key, tuple[Json, ...]] = {}
        """Endpoints whose roll-outs that may take a spare GPU are being written, with their templates; the caches do not show
        them yet."""
        self._epoch = 0

    async def reconcile(self, key: Key) -> Outcome:
        """Bring one endpoint a step nearer to what it should be. Status is written also when an action fails."""
        remembered = self._remembered.setdefault(key, Remembered())
        seen = observe(self._caches, key, self.features, remembered)
        if seen is None:
            del self._remembered[key]
            return Outcome()
        plan = await self._decide(key, await self._with_demand(seen))
        remembered.recommendations, remembered.rooms = plan.recommendations, plan.rooms
        try:
            return await self._carry_out(key, seen, plan)
        finally:
            self._surging.pop(key, None)

    async def _carry_out(self, key: Key, seen: Snapshot, plan: Plan) -> Outcome:
        again_s = plan.requeue_after_s
        try:
            async for retry_s in self._do_all(seen, plan.actions):
                again_s = retry_s if again_s is None else min(again_s, retry_s)
        except ConflictError:
            raise
        except ClusterError as error:
            before = seen.endpoint.get("status", {})
            is_invalid = isinstance(error, RefusedError) and error.is_invalid
            status = with_failure(plan.status, before, str(error), self._clock(), is_invalid=is_invalid)
            await self._report(key, seen, status, notices_of(before, status))
            raise
        delay_s = await self._report(key, seen, plan.status, plan.notices)
        if delay_s is not None:
            again_s = delay_s if again_s is None else min(again_s, delay_s)
        # Scales and deletions come back as events; after an apply the caches already hold the answer.
        return Outcome(any(isinstance(action, Apply) for action in plan.actions), again_s)

    async def _do_all(self, seen: Snapshot, actions: Sequence[Action]) -> AsyncIterator[float]:
        """Do the actions in order; gives the times after which to look again. The first that fails ends it, but for evictions:
        an engine that is where it must not be goes whatever else is refused.
        """
        failure: ClusterError | None = None
        for action in actions:
            if failure is not None and not isinstance(action, Evict):
                continue
            try:
                retry_s = await self._act(seen, action)
            except ClusterError as error:
                failure = failure or error
                continue
            if retry_s is not None:
                yield retry_s
        if failure is not None:
            raise failure

    async def _with_demand(self, seen: Snapshot) -> Snapshot:
        """What `decide` will ask for anyway is told before: it would have to begin anew."""
        if seen.endpoint["spec"].get("scaling", {}).get("via") == "External":
            return seen
        awake = [region for region, live in own_deployments(seen).items() if replicas_of(live) > 0]
        told = {region: await self._gateways.demand(seen.namespace, seen.name, region) for region in awake}
        return replace(seen, demands=told)

    async def _decide(self, key: Key, seen: Snapshot) -> Plan:
        while True:
            # Of two passes that run at once, the second must see what the first is about to take.
            surging = {
                other: it for other, it in {**self._caches.index.surging, **self._surging}.items() if other != key
            }
            index = self._caches.index
            seen = replace(seen, surging=surging, gpus_in_use=index.gpus_in_use, waiters=index.waiters)
            match decide(seen, self._install, self._clock()):
                case Plan() as plan:
                    begun = [action.body for action in plan.actions if _begins_surge(action, seen)]
                    if begun:
                        self._surging[key] = tuple(body["spec"]["template"] for body in begun)
                    return plan
                case Ask(objects=objects, demand_of=region, autoscaler_of=pods):
                    asked = sorted(objects)
                    answers = await asyncio.gather(*(self._writer.look_up(seen.namespace, ref) for ref in asked))
                    found = dict(zip(asked, answers, strict=True))
                    seen = replace(seen, looked_up={**seen.looked_up, **found})
                    for pod in sorted(pods):
                        is_taken_up = await self._writer.is_taken_up(seen.namespace, pod)
                        seen = replace(seen, taken_up={**seen.taken_up, pod: is_taken_up})
                    if region is not None:
                        told = await self._gateways.demand(seen.namespace, seen.name, region)
                        seen = replace(seen, demands={**seen.demands, region: told})

    async def _act(self, seen: Snapshot, action: Action) -> float | None:
        """Do one action; gives the time after which to look again if it could not be done yet."""
        match action:
            case Apply(body=body, manager=manager, force=force):
                await self._writer.apply(body, manager=manager, force=force)
            case Scale():
                await self._scale(seen, action)
            case Sleep():
                return await self._sleep(seen, action)
            case Delete(ref=ref, uid=uid):
                await self._writer.delete(seen.namespace, ref, uid=uid)
            case Evict(pod=pod, uid=uid, grace_s=grace_s):
                await self._writer.evict(seen.namespace, pod, uid=uid, grace_s=grace_s)
            case SetDeletionCost(pod=pod, uid=uid, cost=cost, at=at):
                await self._writer.set_deletion_cost(seen.namespace, pod, uid=uid, cost=cost, at=at)
            case FillReplicas(replicas=replicas, resource_version=version):
                await self._writer.fill_replicas(seen.namespace, seen.name, replicas=replicas, resource_version=version)
            case _:
                assert_never(action)
        _log.info("endpoint %s/%s: %s", seen.namespace, seen.name, action.why)
        return None

    async def _scale(self, seen: Snapshot, scale: Scale) -> None:
        await self._writer.scale(
            seen.namespace,
            scale.ref,
            replicas=scale.replicas,
            uid=scale.uid,
            resource_version=scale.resource_version,
        )

    async def _sleep(self, seen: Snapshot, sleep: Sleep) -> float | None:
        """The handshake: only when every gateway has closed is the scale written; in any case all are opened again."""
        self._epoch = max(self._epoch + 1, int(self._clock().timestamp() * 1000))
        request = CloseRequest(
            namespace=seen.namespace, name=seen.name, region=sleep.region, epoch=self._epoch, ttl_s=demand.CLOSE_TTL_S
        )
        try:
            async with asyncio.timeout(demand.HANDSHAKE_S):
                objection = await self._gateways.close(request)
                if not objection:
                    await self._scale(seen, sleep.scale)
        except TimeoutError:
            objection = f"not closed and written within {demand.HANDSHAKE_S:g} s"
        finally:
            await self._gateways.reopen(request)
        if objection:
            _log.info("endpoint %s/%s stays awake: %s", seen.namespace, seen.name, objection)
            return sleep.retry_s
        _log.info("endpoint %s/%s: %s", seen.namespace, seen.name, sleep.scale.why)
        return None

    async def _report(self, key: Key, seen: Snapshot, status: Json, notices: Sequence[Notice]) -> float | None:
        """Write the status if it is due; gives the time until there is more to do, None if events will tell."""
        delay_s = await self._write_status(key, seen, status)
        for notice in notices:
            await self._events.tell(seen.endpoint, notice)
        return delay_s

    async def _write_status(self, key: Key, seen: Snapshot, status: Json) -> float | None:
        now = self._clock()
        delay_s = status_delay_s(seen.endpoint, status, seen.status_written, now)
        if delay_s is None or delay_s > 0:
            return delay_s
        try:
            generation = await self._writer.apply_status(status_object(seen.endpoint, status))
        except NotFoundError:
            return None
        self._remembered[key].status_written = now
        # The cache now holds a spec that came meanwhile, so its own event will be old news and trigger nothing.
        return None if generation == seen.generation else 0.0


def _begins_surge(action: Action, seen: Snapshot) -> TypeGuard[Apply]:
    """Whether an action begins a roll-out that may take a GPU before it gives one back."""
    if not isinstance(action, Apply) or action.ref.kind != "Deployment" or "template" not in action.body["spec"]:
        return False
    live = seen.children.get(action.ref)
    is_new = live is not None and signature(live["spec"]["template"]) != signature(action.body["spec"]["template"])
    return is_new and may_surge(action.body)
