"""Datasets that are verified: deterministic ones, and for each usual cause one that is not. Importable by workers."""

from __future__ import annotations

import os
import random
import threading
import uuid
import zlib
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torchvision.transforms import v2

_WORDS = {"apple", "banana", "cherry", "damson", "elder", "fig", "grape", "hazel", "iris", "juniper"}


class Pictures(Dataset[Any]):
    """Pictures of 3 x 12 x 12 pixels and their numbers."""

    def __init__(self, transform: Any = None, length: int = 24) -> None:
        self.transform = transform
        self.length = length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        picture = (torch.arange(432.0).reshape(3, 12, 12) + index) / 1000
        return (picture if self.transform is None else self.transform(picture)), index

    def __len__(self) -> int:
        return self.length


class SomeLost(Pictures):
    """Some of its pictures cannot be loaded."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index % 5 == 3:
            raise OSError(f"cannot read {index}")
        return super().__getitem__(index)


class PythonNoise:
    def __call__(self, x: Any) -> Any:
        return x + random.random() + float(np.random.rand())


class OwnGenerator:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, x: Any) -> Any:
        return x + self.rng.normal()

    def __repr__(self) -> str:
        return "OwnGenerator(std=1)"


class WorkerId:
    def __call__(self, x: Any) -> Any:
        worker = get_worker_info()
        return x + (0 if worker is None else worker.id + 1)


class ProcessId:
    def __call__(self, x: Any) -> Any:
        return x + os.getpid()


class Uuid:
    def __call__(self, x: Any) -> Any:
        return x + uuid.uuid4().int % 1000


class SetOrder:
    def __call__(self, x: Any) -> Any:
        # A number of its own for each order: a sum of the words' lengths would be the same for many orders.
        return x + zlib.crc32(" ".join(set(_WORDS)).encode()) % 2**20


class Counting:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x + self.calls


class SharedScratch:
    """Keeps its parameters in itself while it works: threads overwrite each other's."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.barrier = threading.Event()

    def __getstate__(self) -> dict[str, Any]:
        return {"mean": 0.0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]
        self.barrier = threading.Event()

    def __call__(self, x: Any) -> Any:
        self.mean = float(x.mean())
        self.barrier.wait(0.005)  # lets another thread in
        return x - self.mean


def chain(*stages: Any) -> Any:
    """Put stages between two that draw from the global generators."""
    return v2.Compose([v2.RandomHorizontalFlip(), *stages, v2.RandomCrop(8)])


good = Pictures(chain(PythonNoise()))
bad = Pictures(chain(OwnGenerator()))


class Unpicklable(Pictures):
    """Workers that are forked can use it; others cannot."""

    def __reduce__(self) -> Any:
        raise TypeError("this dataset stays where it is")


class FailingIn(Pictures):
    """Fails in workers: by an error, by death."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index == 9 and (get_worker_info() is not None or self.how == "everywhere"):
            if self.how == "death":
                os._exit(3)
            if self.how == "hang":
                threading.Event().wait()
            raise KeyError("nine")
        return super().__getitem__(index)


def collate_by_length(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence([sample[0].flatten() for sample in samples], batch_first=True)


class CollateWithGenerator:
    def __init__(self) -> None:
        self.rng = random.Random(0)

    def __call__(self, samples: list[Any]) -> Any:
        return torch.stack([sample[0] for sample in samples]) * self.rng.random()
