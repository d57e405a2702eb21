"""A progress bar on standard error, where that is a terminal. rich is imported when a bar is made, not before."""

from __future__ import annotations

import sys
from typing import Self


class TerminalBar:
    """A bar, percentage, time and a description, for a ``with`` statement."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.BarColumn(bar_width=24),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}"),
        )
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True, disable=not on_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, total: int) -> None:
        """Set the total; nothing of it is done."""
        self._bar.update(self._task, total=total, completed=0)

    def describe(self, what: str) -> None:
        """Set the text of ``{task.description}``."""
        self._bar.update(self._task, description=what)

    def reach(self, done: float) -> None:
        """Set how much of the total is done."""
        self._bar.update(self._task, completed=done)

    def advance(self) -> None:
        """Add one to what is done."""
        self._bar.advance(self._task)
