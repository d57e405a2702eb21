"""How far a run is: a bar on a terminal, lines elsewhere; on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.report import complain


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show progress on standard error: a bar on a terminal, otherwise a line for each side's first measurement.

    Yields:
        A function that takes what is measured next.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        seen = set()
        start = time.monotonic()

        def advance(what: str) -> None:
            if what not in seen:
                seen.add(what)
                complain(f"{time.monotonic() - start:6.0f} s  {what}")

        yield advance
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # No refreshing thread: it would take turns on the cores that are measured.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=total)
        num_begun = 0

        def advance(what: str) -> None:
            nonlocal num_begun
            bar.update(task, description=what, completed=num_begun, refresh=True)
            num_begun += 1

        yield advance
