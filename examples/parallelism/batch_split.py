"""Who divides the batch: DistributedSampler divides the dataset, DataParallel the batch, DistributedBatchSampler both.

    torchrun --nproc-per-node=4 examples/parallelism/batch_split.py

With DistributedSampler each rank gets ``batch_size`` samples, not its share of them, as the notes claim: a learning
rate chosen for 100 does not fit a step of 400. ``DataLoader(batch_sampler=fastload.DistributedBatchSampler(d, 100))``
gives a rank 25 of 100; a global batch that the ranks do not divide is an error that names the nearest one that they do.

Measured (4 ranks): the ranks' samples are disjoint, and with DistributedBatchSampler together those of one process.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import joined, options, run_rank
from torch.utils.data import DistributedSampler, TensorDataset

import fastload


def first_batches(batch_size: int) -> dict[str, list[int]]:
    """Return the first batch of this rank, as indices of the dataset, for each sampler; needs a process group."""
    dataset = TensorDataset(torch.arange(1200))
    loaders = {
        "torch.DistributedSampler": fastload.DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset)),
        "fastload.DistributedSampler": fastload.DataLoader(
            dataset, batch_size, sampler=fastload.DistributedSampler(dataset)
        ),
        "fastload.DistributedBatchSampler": fastload.DataLoader(
            dataset, batch_sampler=fastload.DistributedBatchSampler(dataset, batch_size)
        ),
    }
    return {name: next(iter(loader))[0].tolist() for name, loader in loaders.items()}


def main() -> None:
    """Print how many samples a rank gets, and how many different ones a step has."""
    args = options(__doc__, batch_size=100)
    with joined("cpu") as rank:
        mine = first_batches(args.batch_size)
        everybodys: list[dict[str, list[int]]] = [{}] * rank.count
        dist.all_gather_object(everybodys, mine)
        if rank.number == 0:
            for name in mine:
                pieces = [batches[name] for batches in everybodys]
                seen = len({index for piece in pieces for index in piece})
                print(f"{name:32}  a rank gets {[len(piece) for piece in pieces]}, a step has {seen}", flush=True)


if __name__ == "__main__":
    run_rank(main)
