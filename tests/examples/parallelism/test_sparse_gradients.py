"""DDP averages sparse gradients over gloo and leaves them sparse; a module is on one kind of device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sparse_gradients as example
import torch
from ranks import run_ranks
from scripts import PARALLELISM, run_as_torchrun
from torch.nn.parallel import DistributedDataParallel


@pytest.mark.slow
def test_sparse_gradients_are_averaged_and_stay_sparse_and_devices_are_not_mixed(tmp_path: Path) -> None:
    printed, silent = run_as_torchrun(PARALLELISM / "sparse_gradients.py", folder=tmp_path)
    found = re.search(r"averaged gradient: torch.sparse_coo, (\d+) of 1000 rows", printed)
    assert found, printed
    assert 16 < int(found[1]) <= 32  # the rows of both ranks, and no others
    assert "farthest from the mean of the dense ones: 0e+00\n" in printed
    for optimizer in ("SGD", "Adagrad", "SparseAdam"):
        assert f"{optimizer}: steps\n" in printed
    assert "\nAdam: Adam does not support sparse gradients" in printed
    assert "input module must be on the same type of devices" in printed
    assert silent == ""


def averaged_with_and_without_a_name(rank: int) -> list[torch.Tensor]:
    held, dropped = example.Bag(sparse=False), example.Bag(sparse=False)
    model = DistributedDataParallel(held)
    model(example.words_of(rank)).square().sum().backward()
    DistributedDataParallel(dropped)(example.words_of(rank)).square().sum().backward()
    return [module.table.weight.grad for module in (held, dropped)]  # type: ignore[misc]


def test_a_deleted_ddp_silently_averages_nothing(tmp_path: Path) -> None:
    zero, one = run_ranks(averaged_with_and_without_a_name, tmp_path, start="forkserver")
    assert torch.equal(zero[0], one[0])
    assert not torch.equal(zero[1], one[1])
