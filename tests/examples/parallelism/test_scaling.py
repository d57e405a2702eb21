"""The tiny network computes far less for each byte that it exchanges; both are trained by all ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import scaling
import torch
from common import Rank
from ranks import run_ranks
from scripts import PARALLELISM, run_as_torchrun

ROW = re.compile(r"^\| (\w+): .*? \| ([\d,]+) \| ([\d,]+) \| 2: ([\d,]+) \| [\d.]+ \| ([\d,]+) \|$", re.MULTILINE)


def test_the_exchange_does_not_depend_on_the_batch_size_and_dominates_the_tiny_network() -> None:
    tiny, larger = (scaling.cost(work) for work in scaling.WORKS)
    weights = 64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10
    assert tiny.exchanged == 4 * weights
    # Forward, and twice that back, but for the images, whose gradient nobody wants; two operations for each weight.
    assert tiny.flops == 2 * (3 * (64 * 512 + 512 * 512 + 512 * 10) - 64 * 512)
    assert larger.flops / larger.exchanged > 50 * tiny.flops / tiny.exchanged


def weights_after_a_step(rank: int) -> dict[str, torch.Tensor]:
    found = {}
    for together in (True, False):
        network, step = scaling.step_of(scaling.WORKS[0], Rank(rank, 2, torch.device("cpu")), 4, together=together)
        step()
        found["together" if together else "alone"] = torch.nn.utils.parameters_to_vector(network.parameters()).detach()
    return found


def test_a_step_of_all_ranks_exchanges_gradients_and_one_alone_does_not(tmp_path: Path) -> None:
    zero, one = run_ranks(weights_after_a_step, tmp_path, start="forkserver")
    assert torch.equal(zero["together"], one["together"])
    assert not torch.equal(zero["alone"], one["alone"])


@pytest.mark.slow
def test_the_script_times_one_process_and_two_ranks(tmp_path: Path) -> None:
    printed, silent = run_as_torchrun(
        PARALLELISM / "scaling.py", "--batch-size", "16", "--repeats", "2", folder=tmp_path
    )
    rows = ROW.findall(printed)
    assert [name for name, *_ in rows] == ["tiny", "larger"], printed
    assert all(int(number.replace(",", "")) > 0 for _, *numbers in rows for number in numbers)
    assert silent == ""
