"""How much faster two ranks are than one, for a tiny and a larger network, and why the tiny one may be slower.

    torchrun --nproc-per-node=2 examples/parallelism/scaling.py

A step exchanges every gradient once, whatever the batch size, so a network with little computation for each weight
waits for the exchange, as in the notes; the table shows the ratio.

Measured (two cores, gloo): see README.md. On GPUs, DataParallel's column included: not verified: no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from common import Rank, descend, joined, options, run_rank, seconds, wrapped
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Work:
    """A network and the shape of its samples."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _tiny() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _larger() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in [(3, 32), (32, 64), (64, 64)]:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


WORKS = (Work("tiny: 3 linear layers", _tiny, (1, 8, 8)), Work("larger: 3 convolutions", _larger, (3, 32, 32)))


@dataclass(frozen=True)
class Cost:
    """FLOPs of a step for one sample, and bytes that a step of any size exchanges."""

    flops: int
    exchanged: int


def cost(work: Work) -> Cost:
    """Return the FLOPs of one sample, forward and backward, and the bytes of the gradients."""
    network = work.make()
    with FlopCounterMode(display=False) as counter:
        cross_entropy(network(torch.zeros(1, *work.shape)), torch.zeros(1, dtype=torch.int64)).backward()
    return Cost(counter.get_total_flops(), sum(value.numel() * value.element_size() for value in network.parameters()))


def step_of(work: Work, rank: Rank, batch_size: int, *, together: bool) -> tuple[nn.Module, Callable[[], None]]:
    """Return a network and its training step on random images of this rank; ``together``: with all ranks."""
    torch.manual_seed(0)
    network = work.make().to(rank.device)
    model = wrapped(network, rank.device) if together else network
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank.number)
    images = torch.randn(batch_size, *work.shape, device=rank.device)
    labels = torch.randint(0, 10, (batch_size,), device=rank.device)

    def step() -> None:
        descend(optimizer, cross_entropy(model(images), labels))

    return network, step


def rates(work: Work, rank: Rank, batch_size: int, repeats: int) -> tuple[float, float, float]:
    """Return images a second of one process with one thread, with all threads, and of all ranks with one thread each.

    The batch size is global: all ranks together do the work of one process. The others wait while rank 0 is measured.
    """
    alone: list[float] = []
    for threads in (1, os.cpu_count() or 1):
        if rank.number == 0:
            torch.set_num_threads(threads)
            _, step = step_of(work, rank, batch_size, together=False)
            alone.append(batch_size / seconds(step, rank.device, repeats))
        dist.barrier()
    torch.set_num_threads(1)
    _, step = step_of(work, rank, batch_size // rank.count, together=True)
    together = torch.tensor(seconds(step, rank.device, repeats))
    dist.all_reduce(together, dist.ReduceOp.MAX)  # a step ends when it has ended on all ranks
    first = torch.tensor(alone or [0.0, 0.0])
    dist.broadcast(first, src=0)
    return first[0].item(), first[1].item(), batch_size / together.item()


def main() -> None:
    """Print the table."""
    args = options(__doc__, batch_size=128, repeats=30, device="cpu")  # the batch is that of all ranks together
    with joined(args.device) as rank:
        if rank.number == 0:
            print("| network | 1 process, 1 thread | 1 process, all threads | ranks | of 1 process | FLOP a byte |")
            print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for work in WORKS:
            one, threaded, ranks = rates(work, rank, args.batch_size, args.repeats)
            if rank.number == 0:
                costs = cost(work)
                intensity = costs.flops * args.batch_size / costs.exchanged
                print(
                    f"| {work.name} | {one:,.0f} | {threaded:,.0f} | {rank.count}: {ranks:,.0f} | {ranks / one:.2f} "
                    f"| {intensity:,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    run_rank(main)
