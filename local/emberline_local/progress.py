"""Progress of a long step on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

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
