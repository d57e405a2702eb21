"""Prints what each loader did when the interpreter exits: ``fastload run --report``, or FASTLOAD_REPORT=1.

A line for each on standard error, which also says where its time went, by stage. Only the counters of a loader are
kept, so that nothing lives longer than it would without the report.

Below ``fastload run`` the first loader of a process is also noted in the file FASTLOAD_RUN, which the first process has
open: if the file is empty at the end, ``inject/sitecustomize.py`` says there that no loader was replaced.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from .. import observe
from ..measurement.numbers import stages_in_words, stages_s
from .result_file import may_act

# Failed samples that are listed for a loader.
_LISTED = 5


def start() -> None:
    """Report on the loaders of this process as the environment says. Call this once."""
    if os.environ.get("FASTLOAD_REPORT") == "1":
        report = ExitReport()
        observe.on_iteration.append(report.iterating)
        atexit.register(report.print_lines)
    if "FASTLOAD_RUN" in os.environ:
        observe.on_iteration.append(_note_first)


def _note_first(_: Any) -> None:
    observe.on_iteration.remove(_note_first)
    may_act(os.environ["FASTLOAD_RUN"])


class ExitReport:
    """Notes the loaders that are iterated, and prints what they did."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Name, workers, counters and measurement of each loader, in the order of first iterations, by the identity of
        # the counters (which are kept, so that no other object gets that identity).
        self._noted: dict[int, tuple[str, str, Any, Any]] = {}

    def iterating(self, loader: Any) -> None:
        """Note what the report needs of a loader."""
        workers = f"{_number(loader.num_workers, 'worker')} ({loader.worker_method})"
        counts, measured = loader._runtime.counts, loader._runtime.measured
        about = type(loader).__name__, workers if loader.num_workers else "no workers"
        self._noted[id(counts)] = (*about, counts, measured)

    def print_lines(self) -> None:
        """Print the report; nothing in a fork of the process that started it."""
        if os.getpid() != self._pid:
            return
        begin = f"fastload: rank {os.environ['RANK']}:" if "RANK" in os.environ else "fastload:"
        for name, workers, counts, measured in self._noted.values():
            done = f"{_number(counts.batches, 'batch', 'es')}, {_number(counts.samples, 'sample')}"
            stages = stages_s(measured)
            where = f"; {stages_in_words(stages)}" if stages else ""
            print(f"{begin} {name}: {done}, {workers}{where}", file=sys.stderr)
            failures = counts.failures
            if failures is not None and failures.total:
                print(f"{begin} {_number(failures.total, 'sample')} could not be loaded; the last:", file=sys.stderr)
                for failed in list(failures.recent)[-_LISTED:]:
                    print(f"{begin}   {failed}", file=sys.stderr)


def _number(count: int, noun: str, plural: str = "s") -> str:
    return f"{count} {noun}{'' if count == 1 else plural}"
