"""The oracle: an executor in pure Python whose next token is a hash of what the block table really contains.

Each position of a block holds a token and a mark, a digest of everything that the block table held before it when it was
written: as real KV does, it depends on all that came before. So a wrong block, a prefix of another's, a step too early
or too late gives other tokens; and a plan that breaks the rules of plans in flight is refused at once. With a pace and a
load time it is the engine of nodes that only pretend to have a GPU.
"""

from __future__ import annotations

import json
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Final

from emberline_contract.engine_config import EngineConfig
from emberline_contract.health import Phase
from emberline_runtime.core.step import (
    ExecutorLimits,
    Fault,
    FaultKind,
    SamplingSpec,
    SlotResult,
    SlotRows,
    SlotStart,
    StepPlan,
    StepResult,
    TokenLogprobs,
    Want,
)
from emberline_runtime.executors.base import MaskRows, ModelFolder, PhaseReport

BLOCK_TOKENS: Final = 16
MAX_MODEL_LEN: Final = 8192
"""Unless the configuration says less."""
MAX_BLOCKS: Final = 8192
BYTE_VOCAB: Final = 512
"""Without a config.json: bytes, and room for special ids."""
PRINTABLE: Final = range(32, 127)
"""What the oracle answers where ids are bytes."""

_ENTRY = struct.Struct("<II")
_UNWRITTEN = b"\xff" * _ENTRY.size
_COUNTER = struct.Struct("<QII")


class PlanError(ValueError):
    """A plan breaks the contract between scheduler and executor."""


class _Context:
    """Entries of a sequence from its start, digested as they come."""

    def __init__(self, entries: bytes = b"") -> None:
        self._digest = blake2b(entries, digest_size=16)

    def append(self, token: int) -> bytes:
        """The entry that holds `token` after all there was."""
        entry = _ENTRY.pack(token, int.from_bytes(self._digest.copy().digest()[:4], "little"))
        self._digest.update(entry)
        return entry

    def digest(self) -> bytes:
        return self._digest.digest()


def choose_token(digest: bytes, sampling: SamplingSpec, output_index: int, alphabet: Sequence[int]) -> int:
    """The token after a context. Greedy depends on the context alone, anything else also on seed, choice and index."""
    if sampling.temperature > 0:
        counter = _COUNTER.pack(sampling.seed % 2**64, sampling.choice, output_index)
        digest = blake2b(digest + counter, digest_size=16).digest()
    index = int.from_bytes(digest[:8], "little")
    barred = sampling.stop_token_ids if output_index < sampling.min_tokens else ()
    for step in range(len(alphabet)):
        token = alphabet[(index + step) % len(alphabet)]
        if token not in barred:
            return token
    return alphabet[index % len(alphabet)]


def expected_tokens(
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingSpec,
    alphabet: Sequence[int],
    eos: frozenset[int] = frozenset(),
) -> list[int]:
    """The oracle's definition without blocks, plans or batches: the answer that every request must get."""
    stops = eos.union(sampling.stop_token_ids)
    sampling = replace(sampling, stop_token_ids=tuple(stops))
    context = _Context()
    for token in prompt:
        context.append(token)
    answer: list[int] = []
    while len(answer) < max_tokens:
        token = choose_token(context.digest(), sampling, len(answer), alphabet)
        answer.append(token)
        context.append(token)
        if token in stops and len(answer) >= sampling.min_tokens:
            break
    return answer


def expected_prompt_logprobs(prompt: Sequence[int]) -> list[TokenLogprobs]:
    """The oracle's definition of prompt logprobs: one for each position but the first."""
    context = _Context()
    told = []
    for index, token in enumerate(prompt):
        if index:
            told.append(_made_up_logprob(context.digest(), token))
        context.append(token)
    return told


def _made_up_logprob(digest: bytes, token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -digest[0] / 256, 1 + digest[1] % 4)


def _read_vocab(config_json: Path) -> int | None:
    """The vocabulary that a model folder states; None without a config.json."""
    if not config_json.is_file():
        return None
    try:
        vocab = json.loads(config_json.read_bytes())["vocab_size"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{config_json} states no vocab_size; the oracle needs it, or a folder without config.json"
        ) from error
    return int(vocab)


@dataclass(slots=True)
class _Slot:
    start: SlotStart
    table: list[int]
    num_scheduled: int
    """Positions that plans, collected or not, compute."""
    num_output: int
    last_token: int = -1


class OracleExecutor:
    """Pure Python, deterministic, strict. Nothing is computed before `collect`, as on a slow device."""

    limits: ExecutorLimits

    def __init__(
        self,
        limits: ExecutorLimits | None = None,
        *,
        alphabet: Sequence[int] | None = None,
        poison_token: int | None = None,
        max_in_flight: int = 1,
        load_s: float = 0.0,
        step_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """With `limits` it is ready at once; else `load` takes them from the configuration and the model folder.

        `alphabet` are the ids it answers with (default: the vocabulary). A context that holds `poison_token` gives
        non-finite logits. A step takes `step_s`, loading `load_s`.
        """
        self._alphabet = alphabet
        self._poison_token = poison_token
        self._max_in_flight = max_in_flight
        self._load_s = load_s
        self._step_s = step_s
        self._clock = clock
        self._sleep = sleep
        self._slots: dict[int, _Slot] = {}
        self._holders: Counter[int] = Counter()
        """Tables that hold each block."""
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._num_sampled = 0
        """Of the plans in flight, how many were told to sample."""
        self._ready_s = 0.0
        """When the device has done all that was collected."""
        if limits is not None:
            self._allocate(limits)

    def _allocate(self, limits: ExecutorLimits) -> None:
        self.limits = limits
        self._alphabet = self._alphabet or range(limits.vocab)
        self._kv = [bytearray(_UNWRITTEN * limits.block_tokens) for _ in range(limits.num_blocks)]

    def load(self, model: ModelFolder, config: EngineConfig, report: PhaseReport) -> None:
        """Take `load_s` for weights that are not there."""
        report(Phase.WEIGHTS)
        if self._load_s > 0:
            self._sleep(self._load_s)
        report(Phase.KV)
        vocab = _read_vocab(model.path / "config.json")
        if vocab is None:
            vocab, self._alphabet = BYTE_VOCAB, self._alphabet or PRINTABLE
        max_model_len = min(config.max_model_len or MAX_MODEL_LEN, MAX_BLOCKS * BLOCK_TOKENS)
        self._allocate(
            ExecutorLimits(
                num_blocks=min(MAX_BLOCKS, config.max_sequences * -(-max_model_len // BLOCK_TOKENS)),
                block_tokens=BLOCK_TOKENS,
                max_rows=config.max_batch_tokens,
                max_sequences=config.max_sequences,
                max_model_len=max_model_len,
                vocab=vocab,
                max_in_flight=self._max_in_flight,
                features=frozenset({"min_tokens"}),
            )
        )
        report(Phase.WARMUP)

    def mask_rows(self, num_rows: int) -> MaskRows:
        """Refused: the oracle honours no grammar and does not name it among its features."""
        raise PlanError(f"{num_rows} grammar mask rows are asked of the oracle, which has none")

    def launch(self, plan: StepPlan) -> None:
        """Check the plan against the rules and bind its slots; its rows are computed in `collect`."""
        if len(self._in_flight) >= self.limits.max_in_flight:
            raise PlanError(f"step {plan.step}: {len(self._in_flight)} in flight, {self.limits.max_in_flight} allowed")
        if plan.moves or plan.num_mask_rows:
            raise PlanError(f"step {plan.step}: the oracle does no block moves and no grammar masks")
        for slot in plan.ends:
            self._check_not_in_flight(plan, slot)
            self._holders.subtract(self._slots.pop(slot).table)
        for start in plan.starts:
            self._bind(plan, start)
        if sum(rows.num_rows for rows in plan.rows) > self.limits.max_rows:
            raise PlanError(f"step {plan.step}: more than {self.limits.max_rows} rows")
        if len({rows.slot for rows in plan.rows}) < len(plan.rows):
            raise PlanError(f"step {plan.step}: a slot is named twice")
        for rows in plan.rows:
            self._admit_rows(plan, rows)
        written = self._written_by(plan)
        for start in plan.starts:
            self._check_cached(plan, start, written)
        self._in_flight.append((plan, self._clock()))

    def _check_not_in_flight(self, plan: StepPlan, slot: int) -> None:
        for other, _ in self._in_flight:
            if any(rows.slot == slot for rows in other.rows):
                raise PlanError(f"step {plan.step} ends or binds slot {slot}; step {other.step} in flight names it")

    def _bind(self, plan: StepPlan, start: SlotStart) -> None:
        size = self.limits.block_tokens
        if not 0 <= start.slot < self.limits.max_sequences or start.slot in self._slots:
            raise PlanError(f"step {plan.step}: slot {start.slot} is bound already or there is no such slot")
        if start.num_cached % size or start.num_cached >= len(start.tokens):
            raise PlanError(f"step {plan.step}: {start.num_cached} of {len(start.tokens)} tokens cannot be cached")
        self._check_not_in_flight(plan, start.slot)
        num_shared = start.num_cached // size
        for other, _ in self._in_flight:
            self._check_cached(plan, start, self._written_by(other))
        slot = _Slot(start, list(start.blocks[:num_shared]), start.num_cached, len(start.tokens) - start.num_prompt)
        self._holders.update(slot.table)
        self._slots[start.slot] = slot
        self._give(plan, slot, start.blocks[num_shared:])

    def _check_cached(self, plan: StepPlan, start: SlotStart, written: set[int]) -> None:
        for block in start.blocks[: start.num_cached // self.limits.block_tokens]:
            if block in written:
                raise PlanError(f"step {plan.step}: block {block} is called cached while it is being written")

    def _give(self, plan: StepPlan, slot: _Slot, blocks: tuple[int, ...]) -> None:
        """Append blocks that the slot is going to write: nobody else may hold them."""
        for block in blocks:
            if not 0 <= block < self.limits.num_blocks or self._holders[block]:
                raise PlanError(f"step {plan.step}: block {block} is given out while a slot holds it")
            self._holders[block] += 1
            slot.table.append(block)
            # Whatever was there is lost: who still relied on it shall see that.
            self._kv[block][:] = _UNWRITTEN * self.limits.block_tokens

    def _admit_rows(self, plan: StepPlan, rows: SlotRows) -> None:
        slot = self._slots.get(rows.slot)
        if slot is None:
            raise PlanError(f"step {plan.step}: slot {rows.slot} is not bound")
        self._give(plan, slot, rows.new_blocks)
        end = slot.num_scheduled + rows.num_rows
        if rows.start != slot.num_scheduled or not rows.num_rows or rows.num_draft:
            raise PlanError(f"step {plan.step}: slot {rows.slot} stands at {slot.num_scheduled}, not at {rows.start}")
        if end > len(slot.table) * self.limits.block_tokens:
            raise PlanError(f"step {plan.step}: slot {rows.slot} has no block for position {end - 1}")
        if rows.num_rows - len(rows.tokens) not in (0, 1):
            raise PlanError(
                f"step {plan.step}: slot {rows.slot} has {len(rows.tokens)} tokens for {rows.num_rows} rows"
            )
        slot.num_scheduled = end

    def _written_by(self, plan: StepPlan) -> set[int]:
        size = self.limits.block_tokens
        return {
            self._slots[rows.slot].table[position // size]
            for rows in plan.rows
            for position in range(rows.start, rows.start + rows.num_rows)
        }

    def sample(self, step: int) -> None:
        """Plans are told to sample in their order."""
        if self._num_sampled >= len(self._in_flight) or self._in_flight[self._num_sampled][0].step != step:
            raise PlanError(f"sample({step}) is not due")
        self._num_sampled += 1

    def collect(self) -> StepResult:
        """Compute the oldest plan in flight, at the oracle's pace."""
        if not self._num_sampled:
            raise PlanError("collect() before sample()")
        plan, launched_s = self._in_flight.popleft()
        self._num_sampled -= 1
        slots = tuple(self._compute(rows) for rows in plan.rows)
        if self._step_s > 0:
            self._ready_s = max(self._ready_s, launched_s) + self._step_s
            wait_s = self._ready_s - self._clock()
            if wait_s > 0:
                self._sleep(wait_s)
        return StepResult(plan.step, slots, self._step_s)

    def _compute(self, rows: SlotRows) -> SlotResult:
        slot = self._slots[rows.slot]
        size, entry_bytes = self.limits.block_tokens, _ENTRY.size
        before = b"".join(self._kv[block] for block in slot.table[: -(-rows.start // size)])[: rows.start * entry_bytes]
        context = _Context(before)
        tokens = rows.tokens if len(rows.tokens) == rows.num_rows else (*rows.tokens, slot.last_token)
        if min(tokens) < 0:
            raise PlanError(f"slot {rows.slot} is to go on with its last sampled token and has sampled none")
        end = rows.start + rows.num_rows
        prompt_logprobs = []
        for position, token in enumerate(tokens, rows.start):
            entry = context.append(token)
            offset = position % size * entry_bytes
            self._kv[slot.table[position // size]][offset : offset + entry_bytes] = entry
            if rows.want & Want.PROMPT_LOGPROBS and position + 1 < slot.start.num_prompt:
                prompt_logprobs.append(_made_up_logprob(context.digest(), slot.start.tokens[position + 1]))
        if self._poison_token is not None and self._poison_token in tokens:
            slot.last_token = 0  # A real sampler yields something too, and the next step may be on its way.
            fault = Fault(FaultKind.NONFINITE, f"logits at position {end - 1} are not finite")
            return SlotResult(rows.slot, (), end, fault=fault)
        answer: tuple[int, ...] = ()
        logprobs = None
        sampling = slot.start.sampling
        if rows.want & Want.TOKEN:
            assert self._alphabet is not None
            slot.last_token = choose_token(context.digest(), sampling, slot.num_output, self._alphabet)
            slot.num_output += 1
            answer = (slot.last_token,)
            if sampling.logprobs is not None:
                logprobs = (_made_up_logprob(context.digest(), slot.last_token),)
        told = tuple(prompt_logprobs) if rows.want & Want.PROMPT_LOGPROBS else None
        return SlotResult(rows.slot, answer, end, logprobs=logprobs, prompt_logprobs=told)

    def close(self) -> None:
        """Forget all slots and blocks."""
        self._slots.clear()
        self._holders.clear()
        self._in_flight.clear()
        self._num_sampled = 0
        self._kv = []
