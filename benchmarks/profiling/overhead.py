"""What recording costs: the same batches with it and without it, by turns in one process.

    python -m benchmarks.profiling.overhead --processes 8 [--rows benchmarks/rows/overhead.csv]

For samples of 1 ms and of CIFAR's size, in torch's loader and in fastload's, at the default level. A machine's pace
changes by several percent within seconds, so neither runs that follow each other nor workers that run beside each other
show one percent. Here three loaders without workers give a batch each in turns, in an order drawn anew each time: one
that is recorded, and two that are not, whose difference is what this measurement can tell. Eight turns are a round, and
their sums are compared. Where objects happen to lie in memory makes half a percent, so several processes do that.

What a batch costs is the thread's CPU time in ``next()``: it holds all that a worker's hooks do (one task in eight of
such samples is heard in full, after the first 64 of which all are, and which are left out here), and all that the
loop's hooks do, which in a loader with workers is another process's time. The hooks of the queue between the two, a
call or two a batch, are not in it, nor is explaining the recording afterwards. The hooks are those of the command.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch.utils.data import Dataset

import fastload
from benchmarks.cases.fuse import CifarSizedImages
from benchmarks.figures.parts import recording
from benchmarks.figures.rows import Row, Rows, append_rows
from benchmarks.neighbours import cores_used_by_others, read_cpu
from benchmarks.options import add_rows, check_outputs
from benchmarks.report import look_around, spread_row, stamp

LOADERS = {"torch": torch.utils.data.DataLoader, "fastload": fastload.DataLoader}
TASKS = 8
"""Batches of a round: one in eight is heard in full."""
FIRST = 72
"""Batches before the first round: more than are heard in full."""


class Busy(Dataset[tuple[torch.Tensor, int]]):
    """Samples of 1 ms: a fixed amount of work; it is measured once how much that is."""

    def __init__(self, length: int) -> None:
        self.table = np.arange(64, dtype=np.float32)
        self.sample = torch.zeros(3, 32, 32)
        self.length = length
        begun = time.thread_time_ns()
        self.work(20_000)
        self.turns = max(1, round(1_000_000 * 20_000 / (time.thread_time_ns() - begun)))

    def work(self, turns: int) -> None:
        table = self.table
        for _ in range(turns):
            table.sum()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.work(self.turns)
        return self.sample, index


SAMPLES: Mapping[str, tuple[Any, int, int]] = {"1 ms": (Busy, 64, 8), "CIFAR": (CifarSizedImages, 128, 20)}
"""The dataset, its usual batch size, and rounds of a process. Recording may cost 1 % and 2 %."""


def one_round(sides: Sequence[Iterator[Any]], draw: random.Random) -> list[float]:
    """Return the CPU seconds that some batches of each side take, of which each gives one in its turn."""
    taken = [0.0] * len(sides)
    for _ in range(TASKS):
        for place in draw.sample(range(len(sides)), len(sides)):
            begun = time.thread_time()
            next(sides[place])
            taken[place] += time.thread_time() - begun
    return taken


def measure(name: str, size: str, seed: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a batch, and by what share it takes longer if recorded, and by another loader."""
    torch.set_num_threads(1)
    dataset, batch_size, rounds = SAMPLES[size]
    samples = dataset(batch_size * (FIRST + rounds * TASKS))
    loaders = [LOADERS[name](samples, batch_size=batch_size) for _ in range(3)]
    with tempfile.TemporaryDirectory() as folder:
        sides = [iter(loader) for loader in loaders[:2]]  # before there are any hooks
        with fastload.profile(loaders[2], folder=Path(folder, "recording")):
            sides.append(iter(loaders[2]))
            for side in sides:
                for _ in islice(side, FIRST):
                    pass
            found = [one_round(sides, random.Random(seed * 1000 + number)) for number in range(rounds)]
    another, recorded = (statistics.median(one[side] / one[0] for one in found) - 1 for side in (1, 2))
    return statistics.median(one[0] for one in found) / TASKS, recorded, another


def interval(found: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, from processes drawn anew."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(found, k=len(found))) for _ in range(2000))
    return statistics.median(found), medians[50], medians[-51]


def rows_of(name: str, size: str, found: Sequence[tuple[float, float, float]], common: Mapping[str, str]) -> list[Row]:
    batches, recorded, another = zip(*found, strict=True)
    rows = [spread_row(f"{size} samples", name, "CPU ms/batch", [batch * 1e3 for batch in batches], common)]
    for metric, shares in (("recorded, % more", recorded), ("another loader, % more", another)):
        value, low, high = (share * 100 for share in interval(shares))
        numbers = {"value": value, "low": low, "high": high}
        rows.append(
            Row(case=f"{size} samples", side=name, metric=metric, **numbers, spread="95 %", n=len(shares), **common)
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--sizes", nargs="+", choices=SAMPLES, default=list(SAMPLES))
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, default=list(LOADERS))
    add_rows(parser)
    options = parser.parse_args(arguments)
    check_outputs(parser, options)
    typed = sys.argv[1:] if arguments is None else arguments
    surroundings = look_around(typed, module="benchmarks.profiling.overhead")
    rows: list[Row] = []
    for name in options.loaders:
        for size in options.sizes:
            found, used = [], read_cpu()
            for seed in track(range(options.processes), f"{name}, {size}", console=Console(stderr=True)):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    found.append(process.submit(measure, name, size, seed).result())
            common = stamp(surroundings, cores_used_by_others(used, read_cpu()))
            rows += rows_of(name, size, found, common)
            append_rows(options.rows, rows[-3:])
    print(recording(Rows({"overhead": rows})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
