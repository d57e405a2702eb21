"""The same network and batch trained by one process, data parallel, model parallel, and model parallel in a pipeline.

    torchrun --nproc-per-node=2 examples/parallelism/data_vs_model_parallel.py

Without a pipeline no two ranks work at the same time, since each waits for the other's output: four GPUs take four
times as long as data parallel, as the notes found. Their 0.5 % in accuracy are not due to it, which computes the same;
perhaps to BatchNorm, which sees 512 images in a stage of the network, and 128 in a copy of it (not verified: no GPU).

Measured (two ranks on two cores): see README.md.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from common import Rank, batch_of, joined, options, run_rank, seconds, wrapped
from pipeline_schedules import Pipeline, make_stages
from send_receive import Piece
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Interval = tuple[float, float]


class Clocked(nn.Module):
    """A module that records when it works, by a clock that all processes of a machine share.

    The backward pass, from the output's gradient to the last parameter's, is one interval.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.module, self.device = module, device
        self.intervals: list[Interval] = []
        self._began = 0.0
        first = next(module.parameters())  # its gradient is computed last
        first.register_post_accumulate_grad_hook(self._back_ends)

    def now(self) -> float:
        """Return the time after the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()

    def forward(self, batch: Tensor) -> Tensor:
        """Call the module."""
        began = self.now()
        output: Tensor = self.module(batch)
        self.intervals.append((began, self.now()))
        if output.requires_grad:
            output.register_hook(self._back_begins)
        return output

    def _back_begins(self, _: Tensor) -> None:
        self._began = self.now()

    def _back_ends(self, _: Tensor) -> None:
        self.intervals.append((self._began, self.now()))


def overlap(left: list[Interval], right: list[Interval]) -> float:
    """Return for how many seconds both worked at the same time."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in left for b in right)


def model_parallel(rank: Rank, images: Tensor, labels: Tensor) -> tuple[Clocked, Callable[[], None]]:
    """Return this rank's piece, and a step without a pipeline."""
    clocked = Clocked(make_stages(rank.count)[rank.number].to(rank.device), rank.device)
    piece = Piece(rank, clocked)

    def step() -> None:
        clocked.zero_grad()
        piece.forward(images, labels).backward()

    return clocked, step


def data_parallel(rank: Rank, images: Tensor, labels: Tensor) -> tuple[nn.Module, Callable[[], None]]:
    """Return this rank's copy, and a step in which each rank takes its share of the batch."""
    network = nn.Sequential(*make_stages(rank.count)).to(rank.device)
    mine = slice(rank.number, None, rank.count)
    return network, step_of(wrapped(network, rank.device), rank, images[mine], labels[mine])


def alone(rank: Rank, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a step of one process."""
    return step_of(nn.Sequential(*make_stages(rank.count)).to(rank.device), rank, images, labels)


def step_of(model: nn.Module, rank: Rank, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a step of a model on a batch."""
    images, labels = images.to(rank.device), labels.to(rank.device)

    def step() -> None:
        model.zero_grad()
        cross_entropy(model(images), labels).backward()

    return step


def main() -> None:
    """Print the table."""
    args = options(__doc__, batch_size=32, micro_batches=4, repeats=9, device="auto")
    images, labels = batch_of(args.batch_size)
    with joined(args.device) as rank:
        pipeline = Pipeline(rank, "1F1B", args.micro_batches, args.batch_size)
        clocked, in_turn = model_parallel(rank, images, labels)
        ways: dict[str, Callable[[], object]] = {
            "one process": alone(rank, images, labels) if rank.number == 0 else _nothing,
            "data parallel": data_parallel(rank, images, labels)[1],
            "model parallel": in_turn,
            f"... in {args.micro_batches} micro-batches (1F1B)": functools.partial(pipeline.step, images, labels),
        }
        if rank.number == 0:
            print(f"batches of {args.batch_size}, {rank.count} ranks on {rank.device.type}")
            print("| | s a step | of data parallel |\n| --- | --- | --- |", flush=True)
        taken = {}
        for name, step in ways.items():
            dist.barrier()
            slowest = torch.tensor(seconds(step, rank.device, args.repeats), device=rank.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            taken[name] = slowest.item()
        if rank.number == 0:
            for name, value in taken.items():
                print(f"| {name} | {value:.3f} | {value / taken['data parallel']:.2f} |", flush=True)
        everybodys: list[list[Interval]] = [[]] * rank.count
        dist.all_gather_object(everybodys, clocked.intervals)
        if rank.number == 0:
            both = sum(overlap(left, right) for left, right in itertools.combinations(everybodys, 2))
            work = sum(end - begin for intervals in everybodys for begin, end in intervals)
            print(f"model parallel: {work:.2f} s of work, {both:.2f} s of it by two ranks at the same time", flush=True)


def _nothing() -> None:
    """Do nothing, while rank 0 works."""


if __name__ == "__main__":
    run_rank(main)
