"""Who divides the batch: DistributedSampler divides the dataset, DistributedBatchSampler the batch.

    python examples/loading/batch_split.py

With DistributedSampler each rank gets ``batch_size`` samples, not its share of them: a learning rate chosen for 100
does not fit a step of 400. ``DataLoader(batch_sampler=fastload.DistributedBatchSampler(dataset, 100))`` gives a rank 25
of 100; a global batch that the ranks do not divide is an error that names the nearest one that they do.
"""

import torch
from torch.utils.data import DistributedSampler, TensorDataset

import fastload

BATCH_SIZE, NUM_RANKS = 100, 4


def first_batches(rank: int) -> dict[str, list[int]]:
    """Return the first batch of a rank, as indices of the dataset, for each sampler."""
    dataset = TensorDataset(torch.arange(1200))
    samplers = {
        "torch.DistributedSampler": DistributedSampler(dataset, NUM_RANKS, rank),
        "fastload.DistributedSampler": fastload.DistributedSampler(dataset, NUM_RANKS, rank),
    }
    loaders = {name: fastload.DataLoader(dataset, BATCH_SIZE, sampler=sampler) for name, sampler in samplers.items()}
    batch_sampler = fastload.DistributedBatchSampler(dataset, BATCH_SIZE, rank=rank, world_size=NUM_RANKS)
    loaders["fastload.DistributedBatchSampler"] = fastload.DataLoader(dataset, batch_sampler=batch_sampler)
    return {name: next(iter(loader))[0].tolist() for name, loader in loaders.items()}


def main() -> None:
    """Print how many samples a rank gets, and how many different ones a step has."""
    of_ranks = [first_batches(rank) for rank in range(NUM_RANKS)]
    for name in of_ranks[0]:
        pieces = [batches[name] for batches in of_ranks]
        seen = len({index for piece in pieces for index in piece})
        print(f"{name:32}  a rank gets {[len(piece) for piece in pieces]}, a step has {seen}")


if __name__ == "__main__":
    main()
