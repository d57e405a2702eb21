"""The numbers over real ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch.utils.data import TensorDataset

import fastload
from fastload.callbacks import Stall

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")


def test_every_rank_has_the_means_and_the_worst_rank_and_the_words_are_its_own(tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        loader = fastload.DataLoader(TensorDataset(torch.arange(24)), batch_size=4)
        stall = Stall(loader)
        list(loader)
        found = stall.numbers()
        assert stall.numbers() == {}
        return found, stall.last_line(), loader.statistics().stall

    (found, line, first), (other, _, second) = run_ranks(body, tmp_path)
    assert found == other
    assert found["data/ranks"] == 2.0
    assert found["data/share"] == pytest.approx((first["data/share"] + second["data/share"]) / 2)
    worst = max(first["data/share"], second["data/share"])
    assert found["data/worst_share"] == worst
    assert (first, second)[int(found["data/worst_rank"])]["data/share"] == worst
    assert line.startswith(f"{100 * first['data/share']:.0f} % of the step")


def test_torchs_loader_is_told_of_on_rank_0_and_nobody_waits(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def body(rank: int) -> Any:
        loader = torch.utils.data.DataLoader(TensorDataset(torch.arange(24)), batch_size=4)
        return Stall(loader).numbers() if rank == 0 else None

    assert run_ranks(body, tmp_path) == [{}, None]
    assert capfd.readouterr().err.count("nothing is logged") == 1
