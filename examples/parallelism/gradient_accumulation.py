"""Gradient accumulation: the step of a larger batch, with no more messages between the ranks.

    torchrun --nproc-per-node=2 examples/parallelism/gradient_accumulation.py

The notes' recipe is right for the sum of the gradients. A mean must be divided by the samples of its *window*, not by
k, or the step of the short last window is too small; with batch norm each micro-batch has its own statistics.

Measured (two ranks, gloo, torch 2.13; 11 micro-batches in windows of 4, 4 and 3, twelve decimals): the weights are
those of one process with batches of 64, 64 and 48 samples; 3 messages with ``no_sync`` around both passes, 11 with it
around the backward pass only, the same as without it.
"""

import contextlib
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import torch
from common import count_buckets, joined, run_rank
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from fastload import DataLoader, DistributedBatchSampler

Way: TypeAlias = Literal["around both", "around backward", "nowhere"]
Batch: TypeAlias = tuple[Tensor, Tensor]

MICRO_BATCH = 8
EVERY = 4
NUM_SAMPLES = 176  # 11 micro-batches of two ranks: windows of 4, 4 and 3


def make_data() -> TensorDataset:
    """Return samples of eight numbers and their classes, the same on all ranks."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(NUM_SAMPLES, 8, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, inputs[:, :3].argmax(dim=1))


def make_network() -> nn.Module:
    """Return a network without batch norm, in float64 so that sums in another order still agree in twelve decimals."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def in_windows(batches: Iterable[Batch], every: int) -> Iterable[list[Batch]]:
    """Yield the batches in lists of ``every``; the last list may be shorter."""
    window: list[Batch] = []
    for batch in batches:
        window.append(batch)
        if len(window) == every:
            yield window
            window = []
    if window:
        yield window


def accumulate(model: nn.Module, window: list[Batch], way: Way, divide_by: int | None = None) -> None:
    """Add the gradients of a window's mean loss to ``.grad``."""
    samples = sum(len(labels) for _, labels in window)
    for place, (inputs, labels) in enumerate(window):
        no_sync: Any = contextlib.nullcontext
        if isinstance(model, DistributedDataParallel) and place + 1 < len(window):  # the last one synchronises
            no_sync = model.no_sync
        with no_sync() if way == "around both" else contextlib.nullcontext():
            outputs = model(inputs)
            if divide_by is None:
                loss = F.cross_entropy(outputs, labels, reduction="sum") / samples
            else:
                loss = F.cross_entropy(outputs, labels) / divide_by
            with no_sync() if way == "around backward" else contextlib.nullcontext():
                loss.backward()


def train(
    rank: int, world_size: int, batch_size: int, every: int, way: Way, divide_by: int | None = None
) -> tuple[Tensor, int]:
    """Train for an epoch; ``batch_size`` is a rank's micro-batch. Return the weights and the number of messages."""
    data = make_data()
    network = model = make_network()
    messages: list[int] = []
    if world_size > 1:
        model = DistributedDataParallel(network)
        messages = count_buckets(model)
    # Global batches do not depend on the number of ranks, and four small ones make a large one.
    sampler = DistributedBatchSampler(data, batch_size * world_size, tail="short", rank=rank, world_size=world_size)
    optimizer = torch.optim.SGD(network.parameters(), 0.5, momentum=0.9)
    for window in in_windows(DataLoader(data, batch_sampler=sampler), every):
        optimizer.zero_grad()
        accumulate(model, window, way, divide_by)
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()]), len(messages)


def main() -> None:
    """Compare the ways; rank 0 prints."""
    rows: list[tuple[str, Way, int | None]] = [
        ("no_sync around forward and backward", "around both", None),
        ("no_sync around backward only", "around backward", None),
        ("no no_sync", "nowhere", None),
        ("the same, divided by k also in the short window", "around both", EVERY),
    ]
    with joined("cpu") as rank:
        big = MICRO_BATCH * rank.count * EVERY
        reference, _ = train(0, 1, big, 1, "nowhere")
        for name, way, divide_by in rows:
            weights, messages = train(rank.number, rank.count, MICRO_BATCH, EVERY, way, divide_by)
            if rank.number == 0:
                off = (weights - reference).abs().max().item()
                print(f"{name:48} {messages:3} messages   {off:.0e} from one process with batches of {big}")


if __name__ == "__main__":
    run_rank(main)
