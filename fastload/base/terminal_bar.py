"""A progress bar on standard error where that is a terminal. rich is imported where a bar is shown, not before."""

from __future__ import annotations

import sys
from typing import Any, Self


class TerminalBar:
    """A bar, percentage, time and a description, for a ``with`` statement."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            columns = (
                progress.BarColumn(bar_width=24),
                progress.TaskProgressColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("{task.description}"),
            )
            self._bar = progress.Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, total: int, done: int = 0) -> None:
        """Set the total, and how much of it was done before."""
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total)
            self._bar.advance(self._task, done)

    def describe(self, what: str) -> None:
        """Set the text of ``{task.description}``."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def reach(self, done: float) -> None:
        """Set how much of the total is done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def advance(self) -> None:
        """Add one to what is done."""
        if self._bar is not None:
            self._bar.advance(self._task)
