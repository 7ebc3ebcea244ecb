"""One endpoint's requests in one region: which are held, which are at which pod, and whether dispatching is allowed.

Everything here happens between two awaits of its callers, so a close sees each request as held or dispatched, never neither.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from emberline_gateway.directory import Directory
from emberline_gateway.holding import Gate, Held, HoldQueue, Wait, decide_wait
from emberline_gateway.measures import Measures
from emberline_gateway.objects import Pod, Target
from emberline_gateway.routing import Load, choose

Waiter = asyncio.Future[Pod]
CallLater = Callable[[float, Callable[[], None]], object]


class QueueFullError(Exception):
    """As many requests are held as `serving.maxQueue` allows."""


class DisplacedError(Exception):
    """The endpoint was deleted, left or failed to start in this region, or has an engine in another one: resolve anew."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What all desks share."""

    directory: Directory
    load: Load
    measures: Measures
    clock: Callable[[], float]
    call_later: CallLater
    on_held: Callable[[Desk], None]
    """Told of each request that is held."""


class Desk:
    """Holds and dispatches for one target."""

    def __init__(self, target: Target, tools: Tools, started_s: float) -> None:
        self.target = target
        self.gate = Gate()
        self.wake_error = ""
        """What the last attempt to wake the endpoint ended with; empty when it did not fail."""
        self.drained = asyncio.Event()
        """Set while nothing is held."""
        self.drained.set()
        self._tools = tools
        self._queue: HoldQueue[Waiter] = HoldQueue()
        self._at_pods: Counter[str] = Counter()
        """Name of a pod -> requests at it; pods without any are not in it."""
        self._turn = 0
        self._active_s = started_s
        labels = (target.namespace, target.name)
        self._held_gauge = tools.measures.held.labels(*labels)
        self._dispatched_gauge = tools.measures.dispatched.labels(*labels)

    @property
    def num_held(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def num_dispatched(self) -> int:
        """Requests at a pod."""
        return self._at_pods.total()

    def outstanding(self) -> dict[str, int]:
        """Requests by the name of the pod that they are at."""
        return dict(self._at_pods)

    @property
    def is_closed(self) -> bool:
        """Whether the operator has closed it."""
        return self.gate.is_closed(self._tools.clock())

    @property
    def may_wake(self) -> bool:
        """Whether the gateway may start the endpoint."""
        endpoint = self._tools.directory.endpoint(self.target.namespace, self.target.name)
        return endpoint is not None and endpoint.may_wake and self._tools.directory.failed_start(self.target) is None

    def idle_s(self) -> float:
        """Seconds since a request arrived or ended; 0 while one is unfinished."""
        if self._at_pods or self._queue:
            return 0.0
        return self._tools.clock() - self._active_s

    def held_s(self) -> float:
        """Seconds that the request that is held longest has waited; 0 while none is."""
        since_s = self._queue.since_s()
        return 0.0 if since_s is None else self._tools.clock() - since_s

    def pods(self) -> tuple[Pod, ...]:
        """Pods that are not on their way out."""
        return self._tools.directory.pods(self.target)

    def wait(self) -> Wait:
        """What a held request waits for."""
        return decide_wait(self.pods(), self.wake_error)

    def take(self, avoid: str = "") -> Pod | None:
        """A pod for a request that has just come; None when it must be held. What is taken must be given back."""
        self._active_s = self._tools.clock()
        if self._queue:  # those that wait go first
            return None
        return self._dispatch(avoid)

    def hold(self, arrival: int, max_queue: int) -> Held[Waiter]:
        """A place in the queue; its waiter yields a pod, which must be given back, or raises DisplacedError."""
        held = Held(arrival, asyncio.get_running_loop().create_future(), self._tools.clock())
        if not self._queue.enter(held, max_queue):
            raise QueueFullError
        self.drained.clear()
        self._held_gauge.inc()
        self._tools.on_held(self)
        return held

    def withdraw(self, held: Held[Waiter]) -> None:
        """The client is gone or its time is over; a pod that it had been given in the same moment goes back."""
        if self._queue.leave(held):
            self._left()
        elif held.waiter.done() and held.waiter.exception() is None:
            self.give_back(held.waiter.result())

    def give_back(self, pod: Pod) -> None:
        """The request at that pod has ended, or comes back to be tried again."""
        self._tools.load.remove(pod)
        self._at_pods[pod.name] -= 1
        if not self._at_pods[pod.name]:
            del self._at_pods[pod.name]
        self._active_s = self._tools.clock()
        self._dispatched_gauge.dec()

    def leave_out(self, pod: Pod) -> None:
        """The pod failed before its first byte."""
        pause_s = self._tools.load.leave_out(pod, self._tools.clock())
        self._tools.call_later(pause_s, self.pump)

    def answered(self, pod: Pod) -> None:
        """The pod sent a first byte."""
        self._tools.load.forgive(pod.uid)

    def close(self, epoch: int, ttl_s: float) -> bool:
        """Stops dispatching until `reopen` or the time; False when a younger close is in force."""
        if not self.gate.close(epoch, ttl_s, self._tools.clock()):
            return False
        self._tools.call_later(ttl_s, self.pump)
        return True

    def reopen(self, epoch: int) -> bool:
        """Ends that close and lets go what was held; False when a younger close is in force."""
        if not self.gate.reopen(epoch, self._tools.clock()):
            return False
        self.pump()
        return True

    def pump(self) -> None:
        """Lets go, in order of arrival, what can go now. Called whenever pods, gate or endpoint have changed."""
        for pod in self.pods():
            if not pod.is_ready:  # it restarts: whatever it refused was another life
                self._tools.load.forgive(pod.uid)
        is_displaced = self._is_displaced()
        while self._queue:
            if is_displaced:
                self._queue.release().waiter.set_exception(DisplacedError())
            elif (next_pod := self._dispatch()) is not None:
                self._queue.release().waiter.set_result(next_pod)
            else:
                return
            self._left()

    def _is_displaced(self) -> bool:
        """Whether what is held here should be somewhere else: nothing can take it here, and another region's engine can."""
        directory = self._tools.directory
        endpoint = directory.endpoint(self.target.namespace, self.target.name)
        if endpoint is None or self.target not in endpoint.targets:
            return True
        if directory.failed_start(self.target) is not None:
            return True  # to another region, or to be told so
        return not directory.ready_pods(self.target) and bool(directory.ready_pods(directory.assign(endpoint)))

    def _left(self) -> None:
        self._held_gauge.dec()
        self._active_s = self._tools.clock()
        if not self._queue:
            self.drained.set()

    def _dispatch(self, avoid: str = "") -> Pod | None:
        now_s = self._tools.clock()
        if self.gate.is_closed(now_s):
            return None
        pod = choose(self._tools.directory.ready_pods(self.target), self._tools.load, now_s, self._turn, avoid)
        if pod is not None:
            self._turn += 1
            self._tools.load.add(pod)
            self._at_pods[pod.name] += 1
            self._dispatched_gauge.inc()
        return pod


class Desks:
    """The desks there are; made when first asked for, dropped when their endpoint is gone and nothing is left at them."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._started_s = tools.clock()
        self._desks: dict[Target, Desk] = {}
        tools.directory.on_change = self._changed

    def at(self, target: Target) -> Desk:
        """The desk of that target."""
        desk = self._desks.get(target)
        if desk is None:
            desk = self._desks[target] = Desk(target, self._tools, self._started_s)
        return desk

    def known(self) -> list[Desk]:
        """Those of every endpoint, and those of former ones that still have something to do."""
        current = [target for endpoint in self._tools.directory.endpoints() for target in endpoint.targets]
        for target in self._desks.keys() - set(current):
            self._drop_if_done(target)
        for target in current:
            self.at(target)
        return list(self._desks.values())

    def _changed(self, target: Target) -> None:
        endpoint = self._tools.directory.endpoint(target.namespace, target.name)
        targets = endpoint.targets if endpoint else ()
        # A pod that is ready in one region may take what is held for another.
        for concerned in dict.fromkeys((target, *targets)):
            desk = self._desks.get(concerned)
            if desk is not None:
                desk.pump()
        if target in self._desks and target not in targets:
            self._drop_if_done(target)

    def _drop_if_done(self, target: Target) -> None:
        desk = self._desks[target]
        if not (desk.num_held or desk.num_dispatched or desk.is_closed):
            del self._desks[target]
