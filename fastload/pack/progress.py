"""How far packing has come: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """Shows how many images are done, on standard error. To be used in a ``with`` statement."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("packing"),
                BarColumn(bar_width=32),
                MofNCompleteColumn(),
                TextColumn("images,"),
                TimeElapsedColumn(),
                TextColumn("gone,"),
                TimeRemainingColumn(),
                TextColumn("left"),
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

    def begin(self, total: int, done: int) -> None:
        """Say how many images there are, and how many of them were packed before."""
        if self._bar is not None:
            self._task = self._bar.add_task("", total=total)
            self._bar.advance(self._task, done)

    def advance(self) -> None:
        """Say that an image is done."""
        if self._bar is not None:
            self._bar.advance(self._task)


__all__ = ["Progress"]
