"""Progress of a long step on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from emberline_local.events import Event, EventKind
from emberline_local.program import Report


@contextmanager
def show_build(console: Console) -> Iterator[Report]:
    """Shows the build of the control plane program: a moving bar on a terminal, a line every tenth part elsewhere."""
    if not console.is_terminal:
        yield _LineReport(console)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(f"{what} (once on this machine)", total=total or None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield report


@contextmanager
def show_conversion(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Shows the conversion of the model: a moving bar on a terminal, a line for each thing done elsewhere."""
    if not console.is_terminal:
        told: set[str] = set()

        def tell(what: str, part: float) -> None:
            if what not in told:
                told.add(what)
                console.print(f"the model (once on this machine): {what}", highlight=False)

        yield tell
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        task = bars.add_task("the model", total=1.0, visible=False)

        def report(what: str, part: float) -> None:
            bars.update(task, description=f"the model (once on this machine): {what}", completed=part, visible=True)

        yield report


class Steps:
    """The steps of a cluster's start, each with its time; the one at work with what it waits for."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._status = console.status("")
        self._step: str | None = None
        self._since_s = 0.0

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, event: Event) -> None:
        """Takes one of the supervisor's events."""
        if event.kind is EventKind.DETAIL:
            self._status.update(f"{self._step}: {event.text}")
            return
        now_s = self._clock()
        if self._step is not None:
            self._console.print(f"[green]✓[/] {self._step} [dim]{now_s - self._since_s:.1f} s[/]", highlight=False)
        self._step = event.text if event.kind is EventKind.STEP else None
        self._since_s = now_s
        self._status.update(self._step or "")


class _LineReport:
    """Prints a line whenever another tenth of a step is done: readable in a CI log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, int] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        tenths = done * 10 // total if total else 0
        if tenths > self._last.get(what, -1):
            self._last[what] = tenths
            self._console.print(f"{what} (once on this machine): {done} of {total}", highlight=False)
