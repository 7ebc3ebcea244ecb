"""The protocol between the engine loop and whatever computes a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from emberline_contract.engine_config import EngineConfig
from emberline_contract.health import Phase
from emberline_runtime.core.step import ExecutorLimits, StepPlan, StepResult
from emberline_runtime.models.spec import ModelSpec

PhaseReport = Callable[[Phase], None]
"""Called as each phase of the start begins; the engine measures the time between calls."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk: its folder and what its config.json says. `spec` is None where no executor needs it (oracle)."""

    path: Path
    spec: ModelSpec | None


@dataclass(frozen=True, slots=True)
class MaskRows:
    """Executor-owned grammar masks: `num_rows` rows of uint32 words at `address`, bit set = token allowed."""

    address: int
    row_bytes: int


class ExecutorLost(RuntimeError):  # noqa: N818 - the field's word for it
    """The executor cannot compute any more: the process must end with a non-zero code."""


class Executor(Protocol):
    """One call a stage: `launch`, `sample`, `collect`, in that order for each plan; at most `limits.max_in_flight` between.

    Always called from the engine thread.
    """

    limits: ExecutorLimits
    """Valid after `load`."""

    def load(self, model: ModelFolder, config: EngineConfig, report: PhaseReport) -> None:
        """Read the weights, size and allocate the KV cache, run one forward pass."""

    def mask_rows(self, num_rows: int) -> MaskRows:
        """Room for grammar masks of the next plan to be sampled."""

    def launch(self, plan: StepPlan) -> None:
        """Start the forward pass; returns at once on asynchronous devices."""

    def sample(self, step: int) -> None:
        """Masks are filled: enqueue sampling of that step."""

    def collect(self) -> StepResult:
        """Wait for the oldest launched step, without the GIL where the device allows it."""

    def close(self) -> None:
        """Give the device's memory back."""
