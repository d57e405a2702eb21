"""What loaders did, told at the end of the process: FASTLOAD_REPORT=1, or ``fastload run --report``.

In: the loaders that begin to iterate. Out: a line for each of them on standard error when the interpreter exits. Of a
loader only its counters are kept, so that nothing lives longer than it would without the report.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from typing import Any

# Failed samples that are listed for a loader.
_LISTED = 5

# Name, workers and counters of each loader that has iterated, in the order of their first iterations, by the identity
# of the counters (which are kept, so that no other object gets that identity).
_noted: dict[int, tuple[str, str, Any]] = {}


def report_at_exit() -> None:
    """Report what all loaders of this process do when it exits. Call this once."""
    from fastload.loader import DataLoader

    loader_class: Any = DataLoader  # Any: assigning to a method
    begin = loader_class._get_iterator

    @functools.wraps(begin)
    def _get_iterator(loader: Any) -> Any:
        _note(loader)
        return begin(loader)

    loader_class._get_iterator = _get_iterator
    atexit.register(_print_lines, os.getpid())


def _note(loader: Any) -> None:
    """Keep what the report is to say of ``loader``, as it is now."""
    workers = (
        f"{_number(loader.num_workers, 'worker')} ({loader.worker_method})" if loader.num_workers else "no workers"
    )
    counts = loader._runtime.counts
    _noted[id(counts)] = (type(loader).__name__, workers, counts)


def _print_lines(pid: int) -> None:
    """Print the report, unless this is a fork of the process that was to report."""
    if os.getpid() != pid:
        return
    rank = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
    for name, workers, counts in _noted.values():
        done = f"{_number(counts.batches, 'batch', 'es')}, {_number(counts.samples, 'sample')}"
        print(f"fastload: {rank}{name}: {done}, {workers}", file=sys.stderr)
        failures = counts.failures
        if failures is not None and failures.total:
            last = list(failures.recent)[-_LISTED:]
            print(
                f"fastload: {rank}{_number(failures.total, 'sample')} could not be loaded; the last:", file=sys.stderr
            )
            for failed in last:
                print(f"fastload: {rank}  {failed}", file=sys.stderr)


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"
