"""A progress bar on standard error where that is a terminal. rich is imported where a bar is shown, not before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Self


class TerminalBar:
    """A bar of rich's; to be used in a ``with`` statement.

    Args:
        columns: returns the bar's columns, given the module ``rich.progress``.
        shown: False: nothing is shown, on a terminal neither.
    """

    def __init__(self, columns: Callable[[ModuleType], list[Any]], *, shown: bool = True) -> None:
        self._bar: Any = None
        self._task: Any = None
        if shown and sys.stderr.isatty():
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(*columns(progress), console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, total: int, done: int = 0) -> None:
        """Say how much there is to do, and how much of it was done before."""
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total)
            self._bar.advance(self._task, done)

    def describe(self, what: str) -> None:
        """Say what is done now; shown in the place of ``{task.description}``."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def reach(self, done: float) -> None:
        """Say how much is done of the total."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def advance(self) -> None:
        """Say that one more is done."""
        if self._bar is not None:
            self._bar.advance(self._task)


__all__ = ["TerminalBar"]
