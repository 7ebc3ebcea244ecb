"""Which executor computes: chosen once, at the start, each candidate answering with the reasons why it cannot.

Imports nothing heavy: an executor's module is imported when the chosen one is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from emberline_contract.engine_config import EngineConfig
from emberline_contract.names import ENV_EXECUTOR, ENV_ORACLE_LOAD_S, ENV_ORACLE_STEP_S
from emberline_runtime.executors.base import Executor, ModelFolder
from emberline_runtime.executors.machine import bound_spins
from emberline_runtime.models.errors import ModelFolderError
from emberline_runtime.models.registry import read_spec

Environ = Mapping[str, str]


class NoExecutorError(Exception):
    """No executor can serve this model as configured; the message has every candidate's reasons."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One executor that may be chosen."""

    name: str
    refusals: Callable[[ModelFolder, EngineConfig], list[str]]
    """Reasons why it cannot serve; empty if it can. Imports nothing heavy."""
    make: Callable[[Environ], Executor]
    is_automatic: bool
    """`auto` considers it; the others must be asked for by name."""
    needs_spec: bool
    """Reads weights; the others serve any folder, an empty one too."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The choice, and why not the others."""

    name: str
    model: ModelFolder
    make: Callable[[], Executor]
    """Imports the executor's module and makes it; `load` comes after."""
    refused: dict[str, list[str]]
    """Reasons of the candidates that were asked before, in order."""


def _torch_refusals(model: ModelFolder, config: EngineConfig) -> list[str]:
    from emberline_runtime.executors.torch.refusals import refusals

    return refusals(model.spec, config)


def _make_torch(environ: Environ) -> Executor:
    # libgomp reads the process's own environment, once, when torch loads it.
    bound_spins(os.environ)
    from emberline_runtime.executors.torch.executor import TorchExecutor

    return TorchExecutor()


def _make_oracle(environ: Environ) -> Executor:
    from emberline_runtime.executors.oracle import OracleExecutor

    return OracleExecutor(load_s=_seconds(environ, ENV_ORACLE_LOAD_S), step_s=_seconds(environ, ENV_ORACLE_STEP_S))


def _seconds(environ: Environ, name: str) -> float:
    value = environ.get(name) or "0"
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise NoExecutorError(f"{name} is {value!r}; set seconds from 0 to 3600")
    return seconds


ENTRIES = (
    Entry("torch", _torch_refusals, _make_torch, is_automatic=True, needs_spec=True),
    Entry("oracle", lambda model, config: [], _make_oracle, is_automatic=False, needs_spec=False),
)
"""In the order in which `auto` asks."""


def select(config: EngineConfig, folder: Path, environ: Environ, entries: tuple[Entry, ...] = ENTRIES) -> Selection:
    """The first executor that can serve the folder's model, or the one that is named if it can."""
    wanted = environ.get(ENV_EXECUTOR) or config.executor
    candidates = [entry for entry in entries if entry.name == wanted or (wanted == "auto" and entry.is_automatic)]
    if not candidates:
        names = ", ".join(["auto", *(entry.name for entry in entries)])
        raise NoExecutorError(f"there is no executor {wanted!r}; choose one of {names}")
    refused: dict[str, list[str]] = {}
    for entry in candidates:
        model, reasons = ModelFolder(folder, None), []
        if entry.needs_spec:
            try:
                model = ModelFolder(folder, read_spec(folder))
            except ModelFolderError as error:
                reasons = [str(error)]
        reasons = reasons or entry.refusals(model, config)
        if not reasons:
            return Selection(entry.name, model, partial(entry.make, environ), refused)
        refused[entry.name] = reasons
    because = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in refused.items())
    raise NoExecutorError(f"no executor can serve {folder}: {because}")
