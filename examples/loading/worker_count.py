"""The number of workers changes torch's samples, but not fastload's with a seed.

    python examples/loading/worker_count.py

torch seeds worker ``w`` with ``base_seed + w``, so a sample's random numbers depend on which worker loads it, and when;
in fastload with a seed they depend on (seed, epoch, index).

Measured (torch 2.13): torch's order is always the same, its augmentation differs for each number of workers; fastload's
are both always the same, also for two ranks.
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
    """Indices, each with a random number from every global generator."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        drawn = [random.random(), float(np.random.rand()), torch.rand((), dtype=torch.float64).item()]
        return index, torch.tensor(drawn, dtype=torch.float64)


def digests(loader: Any) -> tuple[str, str]:
    """Return hashes of the order and of the samples' random numbers, by index, for one epoch."""
    order: list[int] = []
    drawn: dict[int, list[float]] = {}
    for indices, draws in loader:
        order += indices.tolist()
        drawn |= dict(zip(indices.tolist(), draws.tolist(), strict=True))
    return _digest(order), _digest(sorted(drawn.items()))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:8]


def torchs(num_workers: int) -> tuple[str, str]:
    """Return the hashes of torch's loader, with all generators seeded."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        generator = torch.Generator().manual_seed(0)
        return digests(TorchDataLoader(Augmented(), 8, shuffle=True, num_workers=num_workers, generator=generator))


def ours(num_workers: int) -> tuple[str, str]:
    """Return the hashes of fastload's loader with a seed."""
    return digests(fastload.DataLoader(Augmented(), 8, shuffle=True, num_workers=num_workers, seed=0))


def ours_on_ranks(world_size: int) -> tuple[str, str]:
    """Return the hashes of the ranks' loaders together, with their batches in the order of the ranks."""
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
