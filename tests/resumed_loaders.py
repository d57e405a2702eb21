"""Loaders that are stopped and resumed in tests of several libraries: a dataset that draws, a stream, known orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kit.datasets
import torch
from torch.utils.data import IterableDataset

import fastload

LENGTH = 26


class Noisy(kit.datasets.Noisy):
    """A number, and draws."""

    def __init__(self) -> None:
        super().__init__(LENGTH)


class Count(IterableDataset[torch.Tensor]):
    """A stream that says where it is."""

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.place < LENGTH:
            self.place += 1
            yield torch.tensor([self.place - 1.0])
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def keyed(num_workers: int = 0, *, samples: Any = None, **options: Any) -> Any:
    return fastload.DataLoader(samples or Noisy(), 4, shuffle=True, seed=5, num_workers=num_workers, **options)


def in_order(num_workers: int = 0, *, samples: Any = None) -> Any:
    return fastload.DataLoader(samples or Noisy(), 4, seed=5, num_workers=num_workers)


def shared_out(num_workers: int = 0, *, samples: Any = None, **options: Any) -> Any:
    sampler = fastload.DistributedSampler(samples or Noisy(), 1, 0, seed=5)
    return fastload.DataLoader(samples or Noisy(), 4, sampler=sampler, num_workers=num_workers, **options)


def global_batches(num_workers: int = 0, **options: Any) -> Any:
    sampler = fastload.DistributedBatchSampler(Noisy(), 4, seed=5, tail="short")
    return fastload.DataLoader(Noisy(), batch_sampler=sampler, num_workers=num_workers, **options)
