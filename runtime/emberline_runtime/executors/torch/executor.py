"""The torch executor: plans in, tokens out, on any device that torch has."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from emberline_contract.engine_config import EngineConfig, KvType
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
    Want,
)
from emberline_runtime.errors import StartRefused
from emberline_runtime.executors.base import ExecutorLost, MaskRows, ModelFolder, PhaseReport
from emberline_runtime.executors.kv_size import KvNeed, decide_cpu_budget_bytes, decide_kv_size
from emberline_runtime.executors.machine import MemoryAllowance, observe_memory, observe_threads
from emberline_runtime.executors.torch.attention import TILE_ROWS, Attention, ExactAttention, FastAttention
from emberline_runtime.executors.torch.batch import Batch, Piece, Slot, make_batch
from emberline_runtime.executors.torch.eight_bit import FP8
from emberline_runtime.executors.torch.kv import PagedKv, block_bytes
from emberline_runtime.executors.torch.linear import Product, decide_product
from emberline_runtime.executors.torch.load import Quantiser, load_weights
from emberline_runtime.executors.torch.model import Model, Rows
from emberline_runtime.executors.torch.sampling import FEATURES, Draw, choose
from emberline_runtime.models.registry import make_parameters
from emberline_runtime.models.spec import ModelSpec

BLOCK_TOKENS = 16
CUDA_FRACTION = 0.85
"""Of the device's free memory after the weights, for the KV cache; activations take from the rest."""

_DTYPES: Mapping[KvType, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": FP8,
}

log = logging.getLogger(__name__)


class TorchExecutor:
    """One plan in flight. In fp32 on a CPU a request's tokens depend on prompt, sampling and seed alone (exact mode).

    `clock` measures a step; `memory` and `num_threads` are what this process may use, observed if not given.
    """

    limits: ExecutorLimits

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        memory: Callable[[], MemoryAllowance] = observe_memory,
        num_threads: int | None = None,
    ) -> None:
        self._clock = clock
        self._memory = memory
        self._num_threads = num_threads
        self._slots: dict[int, Slot] = {}
        self._pending: StepPlan | None = None
        self._launched_s = 0.0

    def load(self, model: ModelFolder, config: EngineConfig, report: PhaseReport) -> None:
        """See Executor. Raises ModelFolderError or StartRefused with what to do."""
        if model.spec is None:
            raise ValueError("the torch executor needs the model's spec; the registry refuses a folder without one")
        spec = model.spec
        report(Phase.WEIGHTS)
        if config.device == "cuda" and not torch.cuda.is_available():
            raise StartRefused("torch finds no CUDA device; give the pod a GPU, or set the engine's device to cpu")
        self._device = torch.device(config.device)
        self._is_exact = config.device == "cpu" and config.dtype == "fp32"
        if config.device == "cpu":
            num_threads = self._num_threads or observe_threads()
            torch.set_num_threads(num_threads)
            log.info("compute threads", extra={"details": {"num_threads": num_threads}})
        memory = self._memory()
        dtype = _DTYPES[config.dtype]
        with torch.inference_mode():
            quantiser = self._decide_quantiser(spec, config, dtype)
            weights = load_weights(model.path, make_parameters(spec), dtype, self._device, quantiser)
            self._tell(weights.num_bytes, config, quantiser)
            self._model = Model(spec, weights, is_exact=self._is_exact)
            report(Phase.KV)
            self._make_cache(spec, config, memory, weights.num_bytes)
        report(Phase.WARMUP)
        self._warm_up()

    def mask_rows(self, num_rows: int) -> MaskRows:
        """Never called: grammars are not among the features."""
        raise NotImplementedError(f"the torch executor has no grammar masks; {num_rows} rows were asked for")

    def launch(self, plan: StepPlan) -> None:
        """Take the plan; the work is done in `collect`."""
        if self._pending is not None:
            raise RuntimeError(f"step {self._pending.step} is not collected; one plan may be in flight")
        self._pending = plan
        self._launched_s = self._clock()

    def sample(self, step: int) -> None:
        """Nothing to wait for: there are no masks."""

    def collect(self) -> StepResult:
        """Compute the launched plan. torch gives the GIL up in each operation."""
        plan, self._pending = self._pending, None
        if plan is None:
            raise RuntimeError("no step was launched")
        try:
            with torch.inference_mode():
                slots = self._step(plan)
        except RuntimeError as error:  # what torch raises when the device or its memory fails
            raise ExecutorLost(f"step {plan.step} failed on {self._device}: {error}") from error
        return StepResult(plan.step, slots, self._clock() - self._launched_s)

    def close(self) -> None:
        """Drop weights and cache."""
        self._slots.clear()
        self._pending = None
        for name in ("_model", "_kv"):
            self.__dict__.pop(name, None)

    def _decide_quantiser(self, spec: ModelSpec, config: EngineConfig, dtype: torch.dtype) -> Quantiser | None:
        kind = spec.stored_weights or config.quantization
        if kind is None:
            return None
        if kind == "int4":
            raise ValueError("int4 weights are not computed; the registry refuses them")
        return Quantiser(kind, decide_product(kind, self._device, dtype), is_stored=spec.stored_weights is not None)

    @staticmethod
    def _tell(weights_bytes: int, config: EngineConfig, quantiser: Quantiser | None) -> None:
        details: dict[str, str | int] = {"bytes": weights_bytes, "dtype": config.dtype}
        if quantiser is not None:
            details |= {"quantization": quantiser.kind, "product": quantiser.product}
            if config.device == "cuda" and quantiser.product is Product.DEQUANTISED:
                log.warning(
                    "weights in eight bits save memory on this GPU and cost speed: each product turns them back"
                )
        log.info("weights", extra={"details": details})

    def _make_cache(self, spec: ModelSpec, config: EngineConfig, memory: MemoryAllowance, weights_bytes: int) -> None:
        """`memory` is what there was before the weights came."""
        dtype = _DTYPES[config.kv_type]
        if config.device == "cpu":
            budget_bytes = decide_cpu_budget_bytes(memory, weights_bytes)
        else:
            # What quantising and reading left in torch's own cache is free too.
            torch.cuda.empty_cache()
            budget_bytes = int(CUDA_FRACTION * torch.cuda.mem_get_info(self._device)[0])
        need = KvNeed(
            block_bytes=block_bytes(spec.layers, BLOCK_TOKENS, dtype),
            block_tokens=BLOCK_TOKENS,
            max_positions=spec.max_positions,
            max_model_len=config.max_model_len,
            max_sequences=config.max_sequences,
        )
        size = decide_kv_size(need, budget_bytes, config.kv_cache_bytes)
        log.info("KV cache", extra={"details": {"decision": size.why, "type": config.kv_type}})
        self._kv = PagedKv(spec.layers, size.num_blocks, BLOCK_TOKENS, dtype, self._device)
        self.limits = ExecutorLimits(
            num_blocks=size.num_blocks,
            block_tokens=BLOCK_TOKENS,
            max_rows=config.max_batch_tokens,
            max_sequences=config.max_sequences,
            max_model_len=size.max_model_len,
            vocab=spec.vocab,
            features=FEATURES,
        )

    def _warm_up(self) -> None:
        """One token through every layer: the first pass sets up what torch makes lazily."""
        start = SlotStart(0, (0,), 1, (0,), 0, SamplingSpec(temperature=0.0))
        self.launch(StepPlan(0, starts=(start,), rows=(SlotRows(0, 0, 1, (0,), want=Want.TOKEN),)))
        self.collect()
        self._slots.clear()

    def _step(self, plan: StepPlan) -> tuple[SlotResult, ...]:
        for ended in plan.ends:
            del self._slots[ended]
        for move in plan.moves:
            if move.kind != "copy":
                raise ValueError(f"a block cannot be moved {move.kind!r}: there are no host blocks")
            self._kv.copy(move.src, move.dst)
        self._bind(plan)
        batch = make_batch(plan.rows, self._slots, BLOCK_TOKENS)
        if not batch.pieces:
            return ()
        tokens = self._choose(self._forward(batch), [piece for piece in batch.pieces if piece.wants_token])
        return tuple(self._settle(piece, batch, tokens) for piece in batch.pieces)

    def _bind(self, plan: StepPlan) -> None:
        """Slots take blocks, and those without KV are zeroed."""
        taken: list[int] = []
        for start in plan.starts:
            self._slots[start.slot] = Slot.bound(start)
            taken.extend(start.blocks[-(-start.num_cached // BLOCK_TOKENS) :])
        for part in plan.rows:
            self._slots[part.slot].blocks.extend(part.new_blocks)
            taken.extend(part.new_blocks)
        self._kv.clear(taken)

    def _forward(self, batch: Batch) -> torch.Tensor:
        """The logits of each piece's last row that wants a token."""
        num_rows = len(batch.tokens)
        num_filling = -num_rows % TILE_ROWS if self._is_exact else 0
        rows = Rows(
            tokens=self._ints(batch.tokens + [0] * num_filling),
            positions=self._ints(batch.positions + [0] * num_filling),
            blocks=self._ints(batch.blocks),
            offsets=self._ints(batch.offsets),
        )
        hidden = self._model.forward(rows, self._kv, self._attention(batch, num_rows + num_filling))
        wanted = [piece.first_row + piece.num_rows - 1 for piece in batch.pieces if piece.wants_token]
        num_filling = -len(wanted) % TILE_ROWS if self._is_exact else 0
        chosen = hidden[self._ints(wanted + [0] * num_filling)]
        return self._model.logits(chosen)[: len(wanted)]

    def _attention(self, batch: Batch, num_rows: int) -> Attention:
        if self._is_exact:
            return ExactAttention(batch, BLOCK_TOKENS, self._kv.zero_block, num_rows, self._device)
        return FastAttention(batch, BLOCK_TOKENS, self._kv.zero_block, self._device)

    def _choose(self, logits: torch.Tensor, pieces: Sequence[Piece]) -> dict[int, int | None]:
        """Slot to token, None where the row is not finite."""
        if not pieces:
            return {}
        slots = [self._slots[piece.slot] for piece in pieces]
        draws = [Draw(slot.sampling, piece.end - slot.num_prompt) for slot, piece in zip(slots, pieces, strict=True)]
        is_finite = logits.sum(
            -1
        ).isfinite()  # one NaN or infinity makes the sum so; five times cheaper than asking each
        tokens = choose(logits.masked_fill(~is_finite[:, None], 0.0), draws)
        return {
            piece.slot: token if finite else None
            for piece, token, finite in zip(pieces, tokens.tolist(), is_finite.tolist(), strict=True)
        }

    def _settle(self, piece: Piece, batch: Batch, tokens: Mapping[int, int | None]) -> SlotResult:
        """Advance the slot's counter and say what came of its rows."""
        slot = self._slots[piece.slot]
        slot.num_valid = piece.end
        slot.last_token = batch.tokens[piece.first_row + piece.num_rows - 1]
        if not piece.wants_token:
            return SlotResult(piece.slot, (), piece.end)
        token = tokens[piece.slot]
        if token is None:
            message = f"the logits after position {piece.end - 1} are not finite"
            return SlotResult(piece.slot, (), piece.end, fault=Fault(FaultKind.NONFINITE, message))
        slot.last_token = token
        return SlotResult(piece.slot, (token,), piece.end)

    def _ints(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
