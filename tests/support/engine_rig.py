"""Scheduler and oracle executor together, with everything that must hold checked after every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from emberline_runtime.core.admission import Refused
from emberline_runtime.core.prefix_index import Hash, sha256
from emberline_runtime.core.request import FinishReason, Request, Update
from emberline_runtime.core.scheduler import Scheduler
from emberline_runtime.core.step import ExecutorLimits, SamplingSpec, StepPlan, TokenLogprobs, Want
from emberline_runtime.executors.oracle import OracleExecutor, expected_prompt_logprobs, expected_tokens

T = TypeVar("T")
GREEDY = SamplingSpec(temperature=0)
FEATURES = frozenset({"min_tokens", "logprobs", "prompt_logprobs"})


def ask(name: str, prompt: int | tuple[int, ...], max_tokens: int = 8, **fields: object) -> Request:
    """A greedy request; a number of tokens stands for a prompt of that length that begins like no other."""
    if isinstance(prompt, int):
        prompt = tuple((sum(map(ord, name)) * 31 + place * place + place) % 97 for place in range(prompt))
    return replace(Request(name, prompt, GREEDY, max_tokens), **fields)  # type: ignore[arg-type]


def make_limits(
    *,
    num_blocks: int = 64,
    block_tokens: int = 4,
    max_rows: int = 64,
    max_sequences: int = 8,
    max_model_len: int = 4096,
    vocab: int = 100,
    max_in_flight: int = 1,
) -> ExecutorLimits:
    """A small device."""
    return ExecutorLimits(
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_rows=max_rows,
        max_sequences=max_sequences,
        max_model_len=max_model_len,
        vocab=vocab,
        max_in_flight=max_in_flight,
        features=FEATURES,
    )


@dataclass
class Heard:
    """What one caller was told."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    last: Update | None = None
    first_step: int | None = None
    """Number of the commit that brought the first token."""
    end_step: int | None = None
    kept: int | None = None
    """Tokens that `finish` kept."""
    is_aborted: bool = False

    @property
    def finish(self) -> FinishReason | None:
        """Why it ended; None while it has not."""
        return self.last.finish if self.last else None


class Rig:
    """Drives a scheduler over the oracle, and checks each promise as it goes."""

    def __init__(
        self,
        limits: ExecutorLimits,
        *,
        max_batch_tokens: int = 64,
        max_sequences: int = 8,
        max_queued_requests: int = 1000,
        prefix_caching: bool = True,
        alphabet: Sequence[int] | None = None,
        poison_token: int | None = None,
        digest: Hash = sha256,
    ) -> None:
        self.limits = limits
        self.alphabet = alphabet or range(limits.vocab)
        self.poison_token = poison_token
        self.scheduler = Scheduler(
            limits,
            max_batch_tokens=max_batch_tokens,
            max_sequences=max_sequences,
            max_queued_requests=max_queued_requests,
            prefix_caching=prefix_caching,
            digest=digest,
        )
        self.executor = OracleExecutor(limits, alphabet=self.alphabet, poison_token=poison_token)
        self.heard: dict[str, Heard] = {}
        self.plans: list[StepPlan] = []
        self.started: list[str] = []
        """Ids in the order of their starts, restarts included."""
        self.num_commits = 0
        self._aborting: dict[str, int] = {}
        """Ids given up, and the commits left until they must be gone."""

    def submit(self, request: Request) -> Refused | None:
        """As the scheduler's."""
        refused = self.scheduler.submit(request)
        if refused is None:
            self.heard[request.id] = Heard(request)
        return self._checked(refused)

    def abort(self, request_id: str) -> None:
        """As the scheduler's; it must be gone when what is in flight now is committed."""
        heard = self.heard[request_id]
        was_open = heard.finish is None
        update = self.scheduler.abort(request_id)
        if update is not None:
            assert was_open, "an ended request was told to have ended again"
            heard.is_aborted = True
            self._hear(update)
        elif was_open:
            heard.is_aborted = True
            self._aborting.setdefault(request_id, self.scheduler.num_in_flight)
        self._checked(None)

    def finish(self, request_id: str, num_tokens: int) -> None:
        """As the scheduler's: the caller found a stop string after so many tokens."""
        heard = self.heard[request_id]
        update = self.scheduler.finish(request_id, num_tokens)
        if heard.finish is None and not heard.is_aborted:
            assert update is not None, "a running request is ended at once by finish"
            heard.kept = num_tokens
            del heard.tokens[num_tokens:]
            del heard.logprobs[num_tokens:]
            self._hear(update)
        else:
            assert update is None, "an ended request was ended again"
        self._checked(None)

    def launch(self) -> bool:
        """Launch the next plan, if there is one."""
        has_work, num_in_flight = self.scheduler.has_work, self.scheduler.num_in_flight
        leaving = {s.slot for s in self.scheduler._running if s.is_leaving}
        num_preemptions = self.scheduler.stats().num_preemptions
        plan = self.scheduler.schedule(0.0)
        self.scheduler.check_integrity()
        if plan is None:
            assert num_in_flight or not has_work, "requests wait, nothing runs and nothing is in flight"
            return False
        assert not leaving & {rows.slot for rows in plan.rows}, "one that is to yield goes on"
        if self.scheduler.stats().num_preemptions > num_preemptions or any(
            s.is_leaving for s in self.scheduler._running
        ):
            assert not plan.starts, "one starts in a step in which another has to yield"
        by_slot = {s.slot: s.request.id for s in self.scheduler._running}
        self.started += [by_slot[start.slot] for start in plan.starts]
        self.plans.append(plan)
        self.executor.launch(plan)
        self.executor.sample(plan.step)
        return True

    def commit(self) -> list[Update]:
        """Collect the oldest plan in flight and take it in."""
        updates = self.scheduler.commit(self.executor.collect())
        self.num_commits += 1
        for update in updates:
            self._hear(update)
        for request_id in list(self._aborting):
            self._aborting[request_id] -= 1
            if self.heard[request_id].finish is not None:
                del self._aborting[request_id]
            else:
                assert self._aborting[request_id] > 0, f"{request_id} was given up and is still there"
        return self._checked(updates)

    def step(self) -> list[Update]:
        """Launch all that can be in flight, then commit one plan."""
        while self.scheduler.num_in_flight < self.limits.max_in_flight and self.launch():
            pass
        return self.commit() if self.scheduler.num_in_flight else []

    def run(self, max_steps: int) -> None:
        """Step until nothing is left."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, f"not done after {max_steps} steps"
        self.check_empty()

    def check_empty(self) -> None:
        """Nothing is held when nothing runs, and every caller heard an end."""
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.scheduler.stats().kv_usage == 0
        for heard in self.heard.values():
            assert heard.finish is not None, f"{heard.request.id} never heard an end"

    def _checked(self, value: T) -> T:
        self.scheduler.check_integrity()
        return value

    def _hear(self, update: Update) -> None:
        heard = self.heard[update.request_id]
        assert heard.finish is None, f"{update.request_id} was told something after its end"
        if heard.last is not None:
            assert update.num_cached == heard.last.num_cached, "the cached tokens of the first start are told"
        heard.last = update
        heard.tokens += update.tokens
        heard.logprobs += update.logprobs or ()
        heard.prompt_logprobs += update.prompt_logprobs or ()
        if update.tokens and heard.first_step is None:
            heard.first_step = self.num_commits
        assert update.num_prompt == len(heard.request.prompt)
        assert update.num_output == len(heard.tokens), "num_output and the tokens told differ"
        if update.finish is not None:
            heard.end_step = self.num_commits
            self.check_answer(heard)

    def expected(self, request: Request) -> list[int]:
        """What the oracle's definition demands."""
        return expected_tokens(request.prompt, request.max_tokens, request.sampling, self.alphabet, request.eos)

    def check_answer(self, heard: Heard) -> None:
        """An ended request got exactly what it must get."""
        request = heard.request
        assert heard.last is not None
        expected = self.expected(request)
        if request.sampling.logprobs is not None:
            assert [entry.token for entry in heard.logprobs] == heard.tokens
        if heard.is_aborted or heard.kept is not None:
            assert heard.finish is (FinishReason.ABORT if heard.is_aborted else FinishReason.STOP)
            assert heard.tokens == expected[: len(heard.tokens)]
            return
        if self.poison_token in request.prompt:
            assert heard.finish is FinishReason.ERROR
            assert heard.last.error is not None
            assert heard.tokens == []
            return
        assert heard.tokens == expected, f"{request.id} got {heard.tokens}, the definition says {expected}"
        stops = request.eos.union(request.sampling.stop_token_ids)
        is_stop = expected[-1] in stops and len(expected) >= request.sampling.min_tokens
        assert heard.finish is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        assert heard.last.stop_token == (expected[-1] if is_stop else None)
        if request.sampling.prompt_logprobs is not None:
            assert heard.prompt_logprobs == expected_prompt_logprobs(request.prompt)

    def num_rows(self, plan: StepPlan, request_id: str) -> int:
        """Rows that a plan just launched gives a request."""
        slots = {s.request.id: s.slot for s in self.scheduler._running}
        return sum(rows.num_rows for rows in plan.rows if rows.slot == slots.get(request_id))


def num_wanted_tokens(plan: StepPlan) -> int:
    """Tokens that a plan samples."""
    return sum(bool(rows.want & Want.TOKEN) for rows in plan.rows)
