"""How far a verification has come, told on standard error: a bar on a terminal, a line for each check elsewhere."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Shows what is being done. To be used in a ``with`` statement.

    Args:
        shown: True: a bar on a terminal, lines elsewhere; False: nothing; None: a bar on a terminal, nothing elsewhere.
    """

    def __init__(self, shown: bool | None) -> None:
        terminal = sys.stderr.isatty()
        self._lines = bool(shown) and not terminal
        self._bar: Any = None
        self._task: Any = None
        self._done, self._total = 0, 0
        if terminal and shown is not False:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def plan(self, num_checks: int) -> None:
        """Say how many checks there will be."""
        self._total = num_checks
        if self._bar is not None:
            self._task = self._bar.add_task("", total=num_checks)

    def begin(self, what: str) -> None:
        """Say what is done now."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def end(self, what: str, verdict: str, seconds: float) -> None:
        """Say how a check came out."""
        self._done += 1
        if self._bar is not None:
            self._bar.advance(self._task)
        elif self._lines:
            done = f"[{self._done}/{self._total}]"
            print(f"fastload verify: {done} {what}: {verdict} ({seconds:.1f} s)", file=sys.stderr, flush=True)


__all__ = ["Progress"]
