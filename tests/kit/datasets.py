"""Datasets of one line each. Spawned workers import this module, so it imports little."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Sized(Dataset[Any]):
    """Has the length that it is given; sample i is i, unless a subclass makes another."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class Made(Sized):
    """Sample i is what a function makes of i."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        super().__init__(length)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Noisy(Sized):
    """Sample i is i, and a draw of each of the three global generators."""

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))]
        return torch.tensor([index, *drawn], dtype=torch.float64)


class Stream(IterableDataset[Any]):
    """Streams what a function returns, which is called for each pass."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make())


class Replicas(IterableDataset[Any]):
    """Numbers that say which replica they are of; each is ten shorter than the one before it."""

    def __init__(self, length: int = 41) -> None:
        self.length, self.place = length, 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        while self.place < self.length - 10 * worker:
            self.place += 1
            yield (self.place - 1) * workers + worker
        self.place = 0


class PlacedReplicas(Replicas):
    """Replicas that say where they are."""

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Documents(Sized):
    """Sample i has a few tokens of value i, and as labels draws of three generators."""

    def tokens_of(self, index: int) -> int:
        return 1 + index * 7 % 13

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = random.randrange(1 << 30), int(np.random.randint(1 << 30)), int(torch.randint(1 << 30, ()))
        number = self.tokens_of(index)
        return {"input_ids": np.full(number, index), "labels": [sum(drawn)] * number}
