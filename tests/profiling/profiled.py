"""Scripts that are recorded, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset

import fastload
from fastload.profiling.analyze import analysis_of
from fastload.profiling.blame import blamed_steps
from fastload.profiling.reader import read_trace
from fastload.profiling.ring import Record
from fastload.profiling.schema import Analysis
from fastload.profiling.trace import Rank, TaskSpan, Trace, TracedStep

DATASET = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __init__(self, seconds=0.002):
        self.seconds = seconds

    def __len__(self):
        return 24

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((4,), index)

"""


class Numbers(Dataset[Any]):
    """Samples of their index, each of which takes a time; of those of less than 0.3 ms not every one is told.

    Those of ``bad`` fail.
    """

    def __init__(self, seconds: float = 0.0006, length: int = 12, bad: tuple[int, ...] = ()) -> None:
        self.seconds, self.length, self.bad = seconds, length, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.length:
            raise IndexError(index)
        time.sleep(self.seconds)
        if index in self.bad:
            raise ValueError(f"sample {index}")
        return torch.tensor([index])


class Notes:
    """Stands for a recorder, and for its ring."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.signals: list[str] = []

    def ring(self) -> Notes:
        return self

    def write(self, kind: int, name: int, small: int, begun: int, ended: int, *numbers: int) -> None:
        self.records.append(Record(kind, name, small, begun, ended, *numbers, *[0] * (5 - len(numbers))))

    def missing(self, signal: str, why: str) -> None:
        self.signals.append(signal)


class Profiled(NamedTuple):
    """What became of a script."""

    status: int
    output: str
    errors: str
    folder: Path

    @property
    def trace(self) -> Trace:
        return read_trace(str(self.folder))

    @property
    def rank(self) -> Rank:
        """The only process that trained."""
        (rank,) = self.trace.ranks
        return rank

    @property
    def analysis(self) -> Analysis:
        return analysis_of(str(self.folder))


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    """Write a script that has the dataset ``Slow`` of 24 samples of 2 ms."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(DATASET + textwrap.dedent(text), encoding="utf-8")
    return path


def profile(folder: Path, *words: object, options: tuple[object, ...] = ("--full",), **settings: Any) -> Profiled:
    """Run words under ``fastload profile``, in a folder."""
    out = folder / "recording"
    command = [sys.executable, "-m", "fastload.cli", "profile", "--out", out, *options, *words]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, cwd=folder, timeout=240, **settings
    )
    return Profiled(done.returncode, done.stdout, done.stderr, out)


def record_in_fork(folder: Path, script: str, **options: Any) -> None:
    """Execute a script in a child of this process, within ``fastload.profile``: nothing has to be imported anew."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            with fastload.profile(folder=folder, **options):
                exec(compile(script, "train.py", "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "see what it printed"


BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
"""Those of 12 samples."""


def blame_of(rank: Rank) -> dict[str, int]:
    """Return what the stall of all steps is charged to, after checking that it sums up."""
    total: Counter[str] = Counter()
    for blamed in blamed_steps(rank, "host"):
        assert sum(blamed.parts.values()) == blamed.stall_ns
        total.update(blamed.parts)
    return +total


def indices_of(step: TracedStep) -> list[int]:
    return sorted(sample.index for task in step.batch.tasks for sample in task.samples if sample.index is not None)


def check_samples(task: TaskSpan) -> None:
    """Check that each sample of a task took 2 ms, one after the other."""
    assert {sample.weight for sample in task.samples} == {1}
    assert all(sample.ns >= 2_000_000 for sample in task.samples)
    times = [task.begun, *(time for sample in task.samples for time in (sample.begun, sample.ended)), task.ended]
    assert times == sorted(times)


def check_batches(steps: list[TracedStep], batches: list[list[int]], num_workers: int) -> None:
    """Check that steps have these batches, with their tasks and samples, each of which took 2 ms."""
    assert [indices_of(step) for step in steps] == batches
    for step, batch in zip(steps, batches, strict=True):
        assert sum(task.num_samples for task in step.batch.tasks) == len(batch)
        for task in step.batch.tasks:
            assert task.worker in (range(num_workers) if num_workers else [-1])
            check_samples(task)
            assert task.cpu_ns is not None
            assert task.cpu_ns < task.ns
            assert task.collate is not None
            assert task.ended <= step.wait.ended
            if num_workers:
                assert task.dispatched is not None
                assert task.arrived is not None
                assert task.dispatched <= task.begun
                assert task.ended <= task.arrived <= step.wait.ended
