"""What a worker process sends home."""

from __future__ import annotations

import multiprocessing

import PIL.Image
import pytest
from fakes import Squares
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset

import fastload
from fastload.workers import worker_process

needs_fork = pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the limit is inherited")


@needs_fork
def test_samples_too_large_for_a_chunks_place_are_collated_in_a_worker(monkeypatch):
    monkeypatch.setattr(worker_process, "MAX_CHUNK_BYTES", 100)
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "packets")
    loader = fastload.DataLoader(Squares(64), 16, num_workers=2, multiprocessing_context="fork")
    expected = list(TorchLoader(Squares(64), 16))
    for found, wanted in zip(loader, expected, strict=True):
        assert all(one.equal(other) for one, other in zip(found, wanted, strict=True))
    statistics = loader.statistics()
    assert statistics.batches_without_layout == 4
    assert all("above 100" in reason for reason in statistics.without_layout_reason)


class Plugins(Dataset[int]):
    """How many plugins Pillow has before the first image is opened."""

    def __getitem__(self, index: int) -> int:
        return len(PIL.Image.OPEN)

    def __len__(self) -> int:
        return 4


@needs_fork
def test_workers_inherit_what_pillow_needs_for_the_common_formats():
    for batch in fastload.DataLoader(Plugins(), 4, num_workers=2, multiprocessing_context="fork"):
        assert batch.min() >= 5
