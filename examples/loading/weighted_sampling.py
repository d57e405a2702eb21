"""Drawing samples by weight on several ranks.

    python examples/loading/weighted_sampling.py

torch's ``WeightedRandomSampler`` does not know ranks: with one seed each rank draws the same
samples, with a seed for each rank they depend on the number of ranks. In fastload the draw at a position of the epoch
depends on (seed, epoch, position), and the positions of a global batch are split between the ranks.

Measured (10,000 draws on two ranks from 4 samples with weights 0, 1, 2, 5): 0, 0.125, 0.259 and 0.616 of the draws; 0,
0.125, 0.250 and 0.625 are expected.
"""

from collections import Counter

import torch
from torch.utils.data import WeightedRandomSampler

from fastload import DistributedBatchSampler

WEIGHTS = [0.0, 1.0, 2.0, 5.0]


def torchs_draws(seed_of_rank: list[int], num: int) -> list[list[int]]:
    """Return what torch's sampler draws on each rank."""
    return [
        list(WeightedRandomSampler(WEIGHTS, num, generator=torch.Generator().manual_seed(seed)))
        for seed in seed_of_rank
    ]


def shares(world_size: int, epoch: int, num_draws: int, global_batch_size: int = 8) -> list[list[list[int]]]:
    """Return each rank's batches of an epoch."""
    found = []
    for rank in range(world_size):
        sampler = DistributedBatchSampler(
            WEIGHTS,
            global_batch_size,
            weights=WEIGHTS,
            num_draws=num_draws,
            tail="short",
            seed=1,
            rank=rank,
            world_size=world_size,
        )
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def global_batches(of_ranks: list[list[list[int]]]) -> list[list[int]]:
    """Return the global batches: the ranks' batches of each step, joined."""
    return [[index for batch in step for index in batch] for step in zip(*of_ranks, strict=True)]


def frequencies(draws: list[int]) -> list[float]:
    """Return how often each sample was drawn."""
    counts = Counter(draws)
    return [counts[index] / len(draws) for index in range(len(WEIGHTS))]


def main() -> None:
    """Print draws and frequencies."""
    same = torchs_draws([1, 1], 8)
    print(f"torch, one seed:      rank 0 {same[0]}, rank 1 {same[1]}")
    for world_size in (1, 2):
        of_ranks = shares(world_size, epoch=0, num_draws=8)
        print(f"fastload, {world_size} rank(s): {'; '.join(f'rank {r} {b[0]}' for r, b in enumerate(of_ranks))}")
    wanted = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    drawn = [index for batch in global_batches(shares(2, epoch=0, num_draws=10_000)) for index in batch]
    print("expected", *(f"{share:.3f}" for share in wanted))
    print("drawn   ", *(f"{share:.3f}" for share in frequencies(drawn)))


if __name__ == "__main__":
    main()
