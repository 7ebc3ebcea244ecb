"""Which rows of which requests the next step computes, and what its result means for them.

One token budget a step: decodes first, then the prompts of running requests, then new ones. A plan in flight pins what it
names: slots and blocks come free only when the last launched plan naming them is committed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from emberline_runtime.core.admission import QueueState, RefusalKind, Refused, decide_admission
from emberline_runtime.core.draft import Draft, Launched
from emberline_runtime.core.kv_cache import KvCache, Start
from emberline_runtime.core.prefix_index import Hash, sha256
from emberline_runtime.core.request import FinishReason, Request, Update
from emberline_runtime.core.sequence import Sequence
from emberline_runtime.core.step import ExecutorLimits, SlotResult, SlotRows, StepPlan, StepResult
from emberline_runtime.core.stopping import decide_finish
from emberline_runtime.core.waiting_queue import WaitingQueue

__all__ = ["Scheduler", "SchedulerStats", "Update"]


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges of now and counters since the start."""

    num_running: int
    num_waiting: int
    kv_usage: float
    """Part of the KV blocks that requests hold, 0 to 1."""
    num_preemptions: int
    num_prefix_query_tokens: int
    """Prompt tokens looked up in the prefix cache."""
    num_prefix_hit_tokens: int
    """Of these, found there."""


class Scheduler:
    """The engine's state. Used by one thread; reads no clock.

    After `schedule` gives a plan it must be launched, and its result committed, plans in their order; meanwhile
    `schedule` may be called again up to the executor's `max_in_flight`.
    """

    def __init__(
        self,
        limits: ExecutorLimits,
        *,
        max_batch_tokens: int,
        max_sequences: int,
        max_queued_requests: int,
        prefix_caching: bool,
        digest: Hash = sha256,
    ) -> None:
        self.limits = limits
        self._budget = min(max_batch_tokens, limits.max_rows)
        # No more runs at once than a step has rows: so each running request gets one in every step.
        self._max_running = min(max_sequences, limits.max_sequences, self._budget)
        self._max_queued = max_queued_requests
        self._cache = KvCache(limits.num_blocks, limits.block_tokens, prefix_caching=prefix_caching, digest=digest)
        self._sequences: dict[str, Sequence] = {}
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        """Those that hold a slot, in the order of their start; also ended ones that a plan in flight names."""
        self._free_slots = list(range(self._max_running))
        self._ends: list[int] = []
        """Slots freed since the last plan."""
        self._in_flight: deque[Launched] = deque()
        self._num_submitted = 0
        self._num_steps = 0
        self._num_preemptions = 0

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        """Plans given out and not committed."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether any request or plan has not ended."""
        return bool(self._running or self._waiting or self._in_flight)

    def stats(self) -> SchedulerStats:
        """A reading for metrics."""
        return SchedulerStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            kv_usage=self._cache.usage,
            num_preemptions=self._num_preemptions,
            num_prefix_query_tokens=self._cache.num_query_tokens,
            num_prefix_hit_tokens=self._cache.num_hit_tokens,
        )

    # What callers ask.

    def submit(self, request: Request) -> Refused | None:
        """Queue a request, or say why not; what is queued will be served."""
        if request.id in self._sequences:
            return Refused(RefusalKind.DUPLICATE, f"a request with id {request.id} has not ended; use another id", "id")
        queue = QueueState(len(self._waiting), self._max_running - len(self._running), self._max_queued)
        refused = decide_admission(request, self.limits, queue)
        if refused is not None:
            return refused
        stops = request.eos.union(request.sampling.stop_token_ids)
        sampling = replace(request.sampling, stop_token_ids=tuple(sorted(stops)))
        sequence = Sequence(request, sampling, self._num_submitted, list(request.prompt))
        self._num_submitted += 1
        self._cache.enter(sequence)
        self._sequences[request.id] = sequence
        self._waiting.add(sequence)
        return None

    def abort(self, request_id: str) -> Update | None:
        """Give a request up. The Update is returned if it is gone at once, else `commit` brings it once it is.

        Unknown and ended ids are let pass: the request may have ended while the call was on its way.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.finish is not None:
            return None
        sequence.finish = FinishReason.ABORT
        if sequence.num_in_flight:
            return None
        self._remove(sequence)
        return sequence.update()

    def finish(self, request_id: str, num_tokens: int) -> Update | None:
        """The caller found a stop string: the answer ends with its first `num_tokens` tokens, later ones are dropped.

        None if the request has ended otherwise meanwhile.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.finish is not None:
            return None
        if not 0 <= num_tokens <= sequence.num_output:
            raise ValueError(f"request {request_id} has {sequence.num_output} tokens, {num_tokens} are to be kept")
        del sequence.tokens[sequence.num_prompt + num_tokens :]
        return self._end(sequence, FinishReason.STOP).update()

    # The next step.

    def schedule(self, now_s: float) -> StepPlan | None:
        """The next plan, or None if there is nothing to compute until a commit or a submit.

        `now_s` is on the clock of the requests' `arrival_s`.
        """
        if len(self._in_flight) >= self.limits.max_in_flight:
            return None
        draft = Draft(self._budget)
        decodes, has_room = self._make_room([s for s in self._running if s.can_decode])
        for sequence in decodes:
            new_blocks = (self._cache.grow(sequence),) if self._cache.lacks_block(sequence) else ()
            draft.add_decode(sequence, new_blocks)
        for sequence in self._running:
            if draft.budget and sequence.can_prefill:
                draft.add_chunk(sequence)
        if has_room:
            self._start_waiting(draft, now_s)
        if draft.is_empty:
            return None
        launched = draft.launch(self._num_steps, self._ends)
        self._num_steps += 1
        self._ends.clear()
        self._in_flight.append(launched)
        return launched.plan

    def _make_room(self, decodes: list[Sequence]) -> tuple[list[Sequence], bool]:
        """Those of `decodes` that have or can get a block for their next token, after others have yielded if need be.

        Also whether there was room for all: if not, nobody starts in this step, who would soon have to yield in turn.
        """
        cache = self._cache
        has_room = not any(s.is_leaving for s in self._running)
        num_lacking = sum(map(cache.lacks_block, decodes))
        while num_lacking > cache.num_idle:
            has_room = False
            if any(s.finish is not None or s.is_leaving for s in self._running):
                # Blocks are on their way back: the latest starters skip a step.
                return self._without_latest(decodes, num_lacking - cache.num_idle), False
            self._preempt(self._choose_victim())
            decodes = [s for s in decodes if s.can_decode]
            num_lacking = sum(map(cache.lacks_block, decodes))
        return decodes, has_room

    def _without_latest(self, decodes: list[Sequence], num_excess: int) -> list[Sequence]:
        lacking = [s for s in decodes if self._cache.lacks_block(s)]
        skipped = set(map(id, lacking[len(lacking) - num_excess :]))
        return [s for s in decodes if id(s) not in skipped]

    def _choose_victim(self) -> Sequence:
        """The least urgent, of these the one that has least computed: it loses least; the latest of equals."""
        return min(self._running, key=lambda s: (-s.request.priority, s.num_computed, -s.order))

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.num_in_flight:
            sequence.is_leaving = True
            return
        self._num_preemptions += 1
        self._release(sequence)
        sequence.num_preemptions += 1
        sequence.num_history = len(sequence.tokens)
        sequence.is_leaving = False
        self._waiting.add(sequence)

    def _start_waiting(self, draft: Draft, now_s: float) -> None:
        if not (draft.budget and self._free_slots and self._waiting):
            return
        # A block for each that still grows: else the newcomer would yield again soon, its prompt computed in vain.
        num_spare = sum(map(self._cache.will_grow, self._running))
        for sequence in list(self._waiting):
            if not draft.budget or not self._free_slots:
                return
            if self._cache.is_coming(sequence.waits_for):
                continue
            outcome = self._cache.start(sequence, num_spare)
            if outcome is Start.NO_ROOM:
                return  # Nobody overtakes: else a long prompt might wait for ever.
            if outcome is Start.STARTED:
                self._waiting.remove(sequence)
                self._bind(sequence, now_s)
                draft.add_start(sequence)
                draft.add_chunk(sequence)
                num_spare += self._cache.will_grow(sequence)

    def _bind(self, sequence: Sequence, now_s: float) -> None:
        sequence.slot = heappop(self._free_slots)
        sequence.num_history = len(sequence.tokens)
        if not sequence.was_started:
            sequence.was_started = True
            sequence.num_cached = sequence.num_computed
            sequence.queue_s = now_s - sequence.request.arrival_s
        self._running.append(sequence)

    # What came of it.

    def commit(self, result: StepResult) -> list[Update]:
        """Take in the result of the oldest plan in flight; returns what there is to tell."""
        launched = self._in_flight.popleft()
        if result.step != launched.plan.step:
            raise ValueError(f"result of step {result.step} committed, step {launched.plan.step} is due")
        by_slot = {slot_result.slot: slot_result for slot_result in result.slots}
        if len(by_slot) < len(launched.named):
            missing = [rows.slot for rows in launched.plan.rows if rows.slot not in by_slot]
            raise ValueError(f"the result of step {result.step} lacks slots {missing}: each slot with rows has one")
        updates: list[Update] = []
        for rows, (sequence, samples) in zip(launched.plan.rows, launched.named, strict=True):
            sequence.num_in_flight -= 1
            sequence.num_pending -= samples
            if sequence.finish is None:
                update = self._accept(sequence, rows, by_slot[rows.slot])
                if update is not None:
                    updates.append(update)
            elif not sequence.num_in_flight:
                self._remove(sequence)
                if sequence.finish is FinishReason.ABORT:
                    updates.append(sequence.update())
            if sequence.is_leaving and sequence.finish is None and not sequence.num_in_flight:
                self._preempt(sequence)
        return updates

    def _accept(self, sequence: Sequence, rows: SlotRows, result: SlotResult) -> Update | None:
        if result.fault is not None:
            self._cache.distrust(sequence)
            return self._end(sequence, FinishReason.ERROR).update(error=result.fault.message)
        tokens: list[int] = []
        finish = None
        for token in result.tokens:
            sequence.tokens.append(token)
            tokens.append(token)
            finish = decide_finish(sequence.request, token, sequence.num_output)
            if finish is not None:
                break
        sequence.num_computed = result.num_valid
        self._cache.offer_written(sequence)
        prompt_logprobs = result.prompt_logprobs
        if prompt_logprobs is not None:
            # After a preemption the first ones may have been told already.
            prompt_logprobs = prompt_logprobs[max(0, sequence.num_prompt_told - rows.start - 1) :]
            sequence.num_prompt_told += len(prompt_logprobs)
        if finish is not None:
            self._end(sequence, finish)
        if not tokens and not prompt_logprobs and finish is None:
            return None
        return sequence.update(
            tuple(tokens),
            stop_token=tokens[-1] if finish is FinishReason.STOP else None,
            logprobs=None if result.logprobs is None else result.logprobs[: len(tokens)],
            prompt_logprobs=prompt_logprobs,
        )

    def _end(self, sequence: Sequence, reason: FinishReason) -> Sequence:
        sequence.finish = reason
        if not sequence.num_in_flight:
            self._remove(sequence)
        return sequence

    def _remove(self, sequence: Sequence) -> None:
        """Forget an ended request that no plan in flight names."""
        del self._sequences[sequence.request.id]
        if sequence.slot >= 0:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence)
        heappush(self._free_slots, sequence.slot)
        self._ends.append(sequence.slot)
        sequence.slot = -1

    def check_integrity(self) -> None:
        """Assert the invariants: free + cached + referenced = total, slots and counts agree. For tests and debugging."""
        self._cache.check_integrity(self._running)
        slots = [s.slot for s in self._running]
        assert sorted(slots + self._free_slots) == list(range(self._max_running)), "a slot is lost or held twice"
        assert len(self._running) + len(self._waiting) == len(self._sequences), "a request is lost"
        for launched in self._in_flight:
            assert all(s in self._running for s, _ in launched.named), "a plan in flight names what was freed"
        for sequence in self._sequences.values():
            named = sum(any(sequence is s for s, _ in launched.named) for launched in self._in_flight)
            assert sequence.num_in_flight == named, "plans in flight are miscounted"
            assert sequence.num_computed <= sequence.num_scheduled, "computed runs ahead of scheduled"
            known = len(sequence.tokens) + sequence.num_pending
            assert sequence.finish is not None or sequence.num_scheduled <= known, "unknown tokens are scheduled"
            assert sequence.num_scheduled <= len(sequence.blocks) * self.limits.block_tokens
