"""The order of an epoch, as a function of (seed, epoch).

For now one order: a full random permutation whose generator is seeded from the epoch's key, so that it depends on no
global generator and on no number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from .seeding import ORDER, Keys


class KeyedSampler(Sampler[int]):
    """All indices once, in an order given by a seed and the epoch.

    Args:
        dataset: anything with a length.
        seed: any integer of up to 128 bits, signed.

    Raises:
        ValueError: the dataset is empty.
    """

    def __init__(self, dataset: Sized, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0
        if len(dataset) == 0:
            raise ValueError(f"num_samples should be a positive integer value, but got num_samples={len(dataset)}")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(int.from_bytes(Keys(self.seed, self.epoch, ORDER).key(0)[:8], "little"))
        yield from torch.randperm(len(self.dataset), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.dataset)
