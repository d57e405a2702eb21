"""The progress of a verification, on standard error: a bar on a terminal, a line for each check elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..terminal_bar import TerminalBar


class Progress(TerminalBar):
    """Shows the progress. To be used in a ``with`` statement.

    Args:
        shown: True: a bar on a terminal, lines elsewhere; False: nothing; None: a bar on a terminal, nothing elsewhere.
    """

    def __init__(self, shown: bool | None) -> None:
        super().__init__(_columns, shown=shown is not False)
        self._lines = bool(shown) and not sys.stderr.isatty()
        self._done, self._total = 0, 0

    def begin(self, total: int, done: int = 0) -> None:
        """Set the number of checks."""
        super().begin(total, done)
        self._total = total

    def end(self, what: str, verdict: str, seconds: float) -> None:
        """Report the verdict of a check."""
        self.advance()
        self._done += 1
        if self._lines:
            done = f"[{self._done}/{self._total}]"
            print(f"fastload verify: {done} {what}: {verdict} ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _columns(rich: ModuleType) -> list[Any]:
    return [
        rich.BarColumn(bar_width=24),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("{task.description}"),
    ]


__all__ = ["Progress"]
