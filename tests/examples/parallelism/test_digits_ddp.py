"""The corrected script learns, tests each image once, and saves a plain state dict."""

from __future__ import annotations

import re
from pathlib import Path

import digits_ddp
import pytest
import torch
from common import Rank, digits
from ranks import run_ranks
from scripts import PARALLELISM, run_as_torchrun

EPOCH = re.compile(r"^epoch +\d+  loss \S+  test (\d+)/(\d+) = ", re.MULTILINE)


@pytest.mark.slow
def test_two_ranks_learn_the_digits_and_save_a_plain_state_dict(tmp_path: Path) -> None:
    saved = tmp_path / "digits.pt"
    printed, silent = run_as_torchrun(
        PARALLELISM / "digits_ddp.py", "--epochs", "4", "--device", "cpu", "--save", str(saved), folder=tmp_path
    )
    epochs = [(int(right), int(total)) for right, total in EPOCH.findall(printed)]
    assert len(epochs) == 4, printed
    assert all(total == 360 for _, total in epochs)
    assert epochs[-1][0] >= 324  # 90 %
    assert silent == ""

    network = digits_ddp.make_network()
    network.load_state_dict(torch.load(saved, weights_only=True))  # no "module." in front of the names
    _, _, images, labels = digits()
    with torch.inference_mode():
        right = (network.eval()(images).argmax(dim=1) == labels).sum().item()
    assert right == epochs[-1][0]  # one process counts what two counted in shares
    assert not list(tmp_path.glob("*.part"))


def statistics_after_an_epoch(rank: int) -> list[torch.Tensor]:
    network, _ = digits_ddp.train(Rank(rank, 2, torch.device("cpu")), 1, 128, 0.1)
    return list(network.buffers())


def test_all_ranks_are_tested_with_rank_0s_statistics(tmp_path: Path) -> None:
    zero, one = run_ranks(statistics_after_an_epoch, tmp_path, start="forkserver")
    assert len(zero) == 6
    assert all(torch.equal(left, right) for left, right in zip(zero, one, strict=True))


@pytest.mark.slow
def test_one_process_is_a_group_of_one(tmp_path: Path) -> None:
    (printed,) = run_as_torchrun(
        PARALLELISM / "digits_ddp.py", "--epochs", "1", "--device", "cpu", folder=tmp_path, num_ranks=1
    )
    assert EPOCH.findall(printed)[0][1] == "360"
