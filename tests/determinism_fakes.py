"""Datasets that draw from every global generator, and what a batch of the first is.

This module imports little: spawned workers that are given such a dataset import it.
"""

from __future__ import annotations

import pickle
import random
from random import gauss
from typing import Any

import numpy as np
import torch
from kit.datasets import Sized

import fastload


class Drawing(Sized):
    """Each sample is its index and draws from all three generators; the number of draws depends on the sample."""

    def __init__(self, length: int = 53) -> None:
        super().__init__(length)

    def __getitem__(self, index: int) -> tuple[int, float, float, float, torch.Tensor]:
        for _ in range(index % 3):
            random.random()
            np.random.rand()
            torch.rand(1)
        return index, random.random(), gauss(0.0, 1.0), float(np.random.normal()), torch.rand(2)


def drawn() -> tuple[float, float, float]:
    """Return two draws of ``fastload.rng()``, and one of its twin."""
    first = fastload.rng().random()
    return first, fastload.rng().random(), torch.rand((), dtype=torch.float64, generator=fastload.torch_rng()).item()


class RngDrawing(Sized):
    """Index, and draws of the sample's own generators."""

    def __getitem__(self, index: int) -> tuple[float, ...]:
        return float(index), *drawn()


class Mixed(Sized):
    """Draws as users do: cached gaussians, permutations, shuffles, nested tensors, and a seed set in the middle."""

    def __init__(self) -> None:
        super().__init__(31)

    def __getitem__(self, index: int) -> Any:
        if index % 5 == 0:
            random.seed(index)  # the next sample must not notice
            np.random.seed(index)
            torch.manual_seed(index)
        order = list(range(6))
        random.shuffle(order)
        draws = [random.gauss(0, 1), random.choice([1.0, 2.0, 3.0]), float(np.random.randn()), random.uniform(0, 1)]
        return {
            "order": torch.tensor(order),
            "draws": torch.tensor(draws, dtype=torch.float64),
            "numpy": np.random.permutation(4),
            "torch": (torch.randperm(5), torch.empty(2).normal_(), torch.randint(0, 9, (2,))),
            "index": index,
        }


Sample = tuple[int, float, float, float, tuple[float, ...]]


def samples(batch: Any) -> list[Sample]:
    """Take a collated batch apart."""
    indices, *draws, pairs = batch
    rows = zip(indices.tolist(), *(draw.tolist() for draw in draws), pairs.tolist(), strict=True)
    return [(index, first, second, third, tuple(pair)) for index, first, second, third, pair in rows]


def stopped_at(loader: Any, epoch: int, step: int) -> dict[str, Any]:
    """Iterate up to a step of an epoch and return the state there, as it comes out of a file."""
    for _ in range(epoch):
        list(loader)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    state: dict[str, Any] = pickle.loads(pickle.dumps(loader.state_dict()))
    loader.close()
    return state


def batches(loader: Any) -> list[list[Sample]]:
    """Return all batches of one pass, taken apart."""
    return [samples(batch) for batch in loader]
