"""Without a pipeline the ranks of a model parallel network never work at once; all ways give the same gradients."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import data_vs_model_parallel
import pytest
import torch
from common import Rank, batch_of
from pipeline_schedules import step_alone
from ranks import run_ranks
from scripts import PARALLELISM, run_as_torchrun
from torch import Tensor

CPU = torch.device("cpu")
STEPS = 3


def stepped(rank: int, count: int) -> tuple[list[Tensor], list[Tensor], list[tuple[float, float]]]:
    here = Rank(rank, count, CPU)
    images, labels = batch_of(8)
    clocked, in_turn = data_vs_model_parallel.model_parallel(here, images, labels)
    for _ in range(STEPS):
        in_turn()
    copy, together = data_vs_model_parallel.data_parallel(here, images, labels)
    together()
    found = [[value.grad for value in module.parameters() if value.grad is not None] for module in (clocked, copy)]
    return found[0], found[1], clocked.intervals


def test_one_rank_works_at_a_time_and_gradients_equal_one_processs(tmp_path: Path) -> None:
    count = 2
    ranks = run_ranks(functools.partial(stepped, count=count), tmp_path, count, start="forkserver")
    _, alone = step_alone(*batch_of(8), count, CPU)
    for number, (piece, copy, _) in enumerate(ranks):
        for left, right in zip(piece, alone[number], strict=True):
            torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)
        for left, right in zip(copy, itertools.chain.from_iterable(alone), strict=True):
            torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)
    worked = [intervals for _, _, intervals in ranks]
    assert [len(intervals) for intervals in worked] == [2 * STEPS] * 2  # forward and back
    assert all(end > begin for intervals in worked for begin, end in intervals)
    assert data_vs_model_parallel.overlap(*worked) == 0.0
    # Rank 0 forward, rank 1 forward and back, rank 0 back.
    order = [rank for _, rank in sorted((begin, rank) for rank in range(2) for begin, _ in worked[rank])]
    assert order == [0, 1, 1, 0] * STEPS


def test_overlap_is_the_time_that_both_work() -> None:
    assert data_vs_model_parallel.overlap([(0.0, 2.0), (5.0, 6.0)], [(1.0, 5.5)]) == 1.5


@pytest.mark.slow
def test_the_script_prints_four_ways(tmp_path: Path) -> None:
    arguments = ("--batch-size", "4", "--micro-batches", "2", "--repeats", "1", "--device", "cpu")
    printed, silent = run_as_torchrun(PARALLELISM / "data_vs_model_parallel.py", *arguments, folder=tmp_path)
    rows = [line.strip("| ").split(" | ")[0] for line in printed.splitlines() if line.startswith("| ")]
    assert rows[2:] == ["one process", "data parallel", "model parallel", "... in 2 micro-batches (1F1B)"]
    assert printed.splitlines()[-1].endswith("0.00 s of it by two ranks at the same time")
    assert silent == ""
