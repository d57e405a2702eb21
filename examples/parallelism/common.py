"""What the examples share: options, joining the process group (step by step in ddp_toy.py), a step, a batch, timing.

In: the command line, and torchrun's environment variables. Out: a :class:`Rank` inside a process group.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).parents[1]))  # where leaving.py is

from leaving import end_process, leave, run_rank

# fmt: off
__all__ = [
    "LIMIT", "Rank", "batch_of", "count_buckets", "cut", "descend", "end_process", "farthest", "gradients", "joined",
    "leave", "options", "run_rank", "seconds", "wrapped",
]
# fmt: on

# Time limit of collectives. The first step of a large network may take minutes.
LIMIT = datetime.timedelta(minutes=5)


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse the command line: ``batch_size=32`` is ``--batch-size``, an int; of a tuple one is chosen, or the first."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, default in defaults.items():
        choices = default if isinstance(default, tuple) else None
        first = default[0] if isinstance(default, tuple) else default
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(first), default=first, choices=choices)
    return parser.parse_args()


@dataclass(frozen=True)
class Rank:
    """This process's rank, the number of ranks, and this rank's device."""

    number: int
    count: int
    device: torch.device


@contextmanager
def joined(device: str = "auto") -> Iterator[Rank]:
    """Create the process group from torchrun's environment variables, and destroy it unless the body raises.

    Without these variables it is a group of one rank.
    """
    number, count = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    own_gpu = device == "auto" and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    place = torch.device("cuda", local) if own_gpu else torch.device("cpu" if device == "auto" else device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    store = dist.HashStore() if count == 1 else None  # type: ignore[attr-defined]
    if store is not None:
        dist.init_process_group("nccl" if own_gpu else "gloo", store=store, rank=0, world_size=1, timeout=LIMIT)
    else:
        dist.init_process_group("nccl" if own_gpu else "gloo", timeout=LIMIT)
    yield Rank(number, count, place)
    leave()


def wrapped(network: nn.Module, device: torch.device, **more: Any) -> DistributedDataParallel:
    """Return a network that is on a device in DDP, which gives it rank 0's weights. On the CPU device_ids is None."""
    return DistributedDataParallel(network, device_ids=[device.index] if device.type == "cuda" else None, **more)


def count_buckets(model: DistributedDataParallel) -> list[int]:
    """Return a list to which each backward pass appends the size of each bucket that it sends, in elements."""
    sent: list[int] = []

    def average(_, bucket):  # type: ignore[no-untyped-def]  # DDP refuses string annotations
        sent.append(bucket.buffer().numel())
        return allreduce_hook(model.process_group, bucket)  # what DDP does without a hook

    model.register_comm_hook(None, average)
    return sent


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Make a step: compute the gradients of a loss, and let the optimizer follow them."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def batch_of(size: int, side: int = 16) -> tuple[Tensor, Tensor]:
    """Return images [size, 3, side, side] and labels [size], the same on every rank."""
    data = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, side, side, generator=data), torch.randint(0, 10, (size,), generator=data)


def gradients(module: nn.Module) -> list[Tensor]:
    """Return the gradients, in the parameters' order."""
    return [value.grad for value in module.parameters() if value.grad is not None]


def farthest(left: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    """Return the largest absolute difference between tensors in the same order."""
    return max((one - other).abs().max().item() for one, other in zip(left, right, strict=True))


def cut(layers: list[nn.Module], count: int) -> list[nn.Sequential]:
    """Split layers into ``count`` stages of nearly equal numbers of layers."""
    places = [round(place * len(layers) / count) for place in range(count + 1)]
    return [nn.Sequential(*layers[start:end]) for start, end in itertools.pairwise(places)]


def seconds(step: Callable[[], object], device: torch.device, repeats: int = 5, warm_up: int = 2) -> float:
    """Return the median time of a step, including its work on the GPU."""
    times = []
    for repeat in range(warm_up + repeats):
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if repeat >= warm_up:
            times.append(time.perf_counter() - started)
    return statistics.median(times)
