"""Several datasets as one, drawn by weight: :class:`Mixture`."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset

from ..base.checks import as_integer, check_count, check_number, check_seed, one_of
from ..errors import ConfigError
from .mixture_order import DEFAULT_BLOCK, MixtureOrder, Plan, Stage
from .order import Indices
from .quotas import END, first_draw

Weights: TypeAlias = Mapping[str, float]


class Mixture(ConcatDataset[Any]):
    """Several datasets, drawn by weight: each block of draws has exactly as many of each as its weight says."""

    def __init__(
        self,
        datasets: Mapping[str, Dataset[Any]],
        weights: Weights | Sequence[tuple[int, Weights]] | None = None,
        *,
        alpha: float = 1.0,
        unit: Literal["sample", "token"] = "sample",
        lengths: Mapping[str, Any] | None = None,
        block: int | None = None,
        max_epochs: int | Mapping[str, int] | None = None,
        num_samples: int | Literal["first", "all"] = "first",
    ) -> None:
        super().__init__(_checked_sources(datasets))
        self.names = tuple(datasets)
        sizes = np.diff(self.cumulative_sizes, prepend=0).tolist()
        self._sizes = dict(zip(self.names, sizes, strict=True))
        self.lengths = None if lengths is None else np.concatenate([np.asarray(lengths[name]) for name in self.names])
        self.block = None if block is None else check_count("block", block)
        weights = self._sizes if weights is None else weights
        names = tuple(sorted(self.names))
        total = sum(weights.values())
        stage = Stage(0, names, tuple(weights.get(name, 0) / total for name in names), tuple(self._sizes[n] for n in names))
        self.plan = Plan([stage])
        self.num_samples = num_samples

    def order(self, seed: int, block: int | None = None) -> MixtureOrder:
        """Return the order of the draws: an :class:`~fastload.sampling.order.Order`.

        Args:
            seed: an integer of up to 128 bits.
            block: draws of a block, if the mixture was made without one; None: 256.
        """
        ends = self.cumulative_sizes
        offsets = dict(zip(self.names, [0, *ends[:-1]], strict=True))
        block = self.block or block or DEFAULT_BLOCK
        return MixtureOrder(self.plan, offsets, self.num_samples, check_seed("seed", seed), block)

    fastload_order = order


def _checked_sources(datasets: Mapping[str, Dataset[Any]]) -> list[Dataset[Any]]:
    return list(datasets.values())
