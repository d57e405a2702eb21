"""The number of workers changes torch's samples, and how not.

    python examples/parallelism/worker_count.py

Shows: digests of an epoch, the order and the augmentation apart, for 0 to 4 workers, of torch's loader and of
fastload's.

The notes claim: with another number of workers the samples are others. True of the augmentation only: torch seeds
worker ``w`` with ``base_seed + w``, so that what a sample draws depends on who loads it, and when. The order is drawn
in the parent and stays. In fastload a sample's randomness is a function of (seed, epoch, index).

Measured (torch 2.13): torch's order is one for all, its augmentation is another for each number of workers; fastload's
are the same for any, and for two ranks.
"""

import hashlib
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import fastload


class Augmented(Dataset[tuple[int, Tensor]]):
    """Indices, each with one draw of every global generator."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        drawn = [random.random(), float(np.random.rand()), torch.rand((), dtype=torch.float64).item()]
        return index, torch.tensor(drawn, dtype=torch.float64)


def digests(loader: Any) -> tuple[str, str]:
    """Return digests of the order and of what was drawn for the samples, by index, in one epoch."""
    order: list[int] = []
    drawn: dict[int, list[float]] = {}
    for indices, draws in loader:
        order += indices.tolist()
        drawn |= dict(zip(indices.tolist(), draws.tolist(), strict=True))
    return _digest(order), _digest(sorted(drawn.items()))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def torchs(num_workers: int) -> tuple[str, str]:
    """Return the digests of torch's loader, all its generators seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        generator = torch.Generator().manual_seed(0)
        return digests(TorchDataLoader(Augmented(), 8, shuffle=True, num_workers=num_workers, generator=generator))


def ours(num_workers: int) -> tuple[str, str]:
    """Return the digests of fastload's loader with a seed."""
    return digests(fastload.DataLoader(Augmented(), 8, shuffle=True, num_workers=num_workers, seed=0))


def ours_on_ranks(world_size: int) -> tuple[str, str]:
    """Return the digests of the ranks' loaders together, their batches in the order of the ranks."""
    loaders = []
    for rank in range(world_size):
        sampler = fastload.DistributedBatchSampler(Augmented(), 8, seed=0, rank=rank, world_size=world_size)
        loaders.append(fastload.DataLoader(Augmented(), batch_sampler=sampler, num_workers=1))
    steps = zip(*loaders, strict=True)
    return digests(tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in steps)


def main() -> None:
    """Print a line for each number of workers."""
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores, on purpose
    state = random.getstate(), np.random.get_state()
    for num_workers in (0, 1, 2, 4):
        (order, drawn), (our_order, our_drawn) = torchs(num_workers), ours(num_workers)
        print(f"{num_workers} workers   torch: order {order}, drawn {drawn}   fastload: {our_order}, {our_drawn}")
    random.setstate(state[0])
    np.random.set_state(state[1])
    for world_size in (1, 2, 4):
        order, drawn = ours_on_ranks(world_size)
        print(f"{world_size} ranks     fastload: order {order}, drawn {drawn}")


if __name__ == "__main__":
    main()
