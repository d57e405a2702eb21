"""DistributedSampler splits the dataset, DistributedBatchSampler the batch; they cannot be combined."""

from __future__ import annotations

from pathlib import Path

import batch_split
import pytest
import torch
from ranks import run_ranks
from scripts import PARALLELISM, run_as_torchrun
from torch.utils.data import TensorDataset

import fastload


def first_batches(_: int) -> dict[str, list[int]]:
    return batch_split.first_batches(100)


def test_a_batch_size_of_100_is_100_or_25_samples_of_each_rank_by_sampler(tmp_path: Path) -> None:
    everybodys = run_ranks(first_batches, tmp_path, 4, start="forkserver")
    seen = {name: [index for batches in everybodys for index in batches[name]] for name in everybodys[0]}
    assert {name: (len(everybodys[0][name]), len(seen[name])) for name in seen} == {
        "torch.DistributedSampler": (100, 400),
        "fastload.DistributedSampler": (100, 400),
        "fastload.DistributedBatchSampler": (25, 100),
    }
    assert all(len(set(indices)) == len(indices) for indices in seen.values())  # no sample twice in a step
    of_one = fastload.DistributedBatchSampler(TensorDataset(torch.arange(1200)), 100, rank=0, world_size=1)
    assert seen["fastload.DistributedBatchSampler"] == next(iter(of_one))


def test_both_samplers_at_once_and_an_indivisible_batch_size_are_errors() -> None:
    dataset = TensorDataset(torch.arange(1200))
    sampler = fastload.DistributedBatchSampler(dataset, 100, rank=0, world_size=4)
    with pytest.raises(ValueError, match="batch_sampler option is mutually exclusive with batch_size"):
        fastload.DataLoader(dataset, 100, batch_sampler=sampler)
    with pytest.raises(fastload.ConfigError, match="the nearest are 99 and 102"):
        fastload.DistributedBatchSampler(dataset, 100, rank=0, world_size=3)


@pytest.mark.slow
def test_the_script_prints_the_samples_of_a_rank_and_of_a_step(tmp_path: Path) -> None:
    printed, silent = run_as_torchrun(PARALLELISM / "batch_split.py", "--batch-size", "10", folder=tmp_path)
    assert [line.split("  a rank gets ")[1] for line in printed.splitlines()] == [
        "[10, 10], a step has 20",
        "[10, 10], a step has 20",
        "[5, 5], a step has 10",
    ]
    assert silent == ""
