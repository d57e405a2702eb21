"""Images of CIFAR's size in memory: torch's DataLoader, fastload's in its place, and the way of airbench."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.airbench import TransformedEpochs
from benchmarks.cases.fuse import InMemory
from benchmarks.peers.loaders import Work


def load(work: Work, *, loader: str) -> Iterable[Any]:
    """Return the loader, as a script has it that makes hundreds of epochs: its workers stay."""
    dataset = InMemory(work.num_images)
    if loader == "airbench":
        *_, normalise = dataset.transform.transforms
        images = normalise(torch.from_numpy(dataset.data).permute(0, 3, 1, 2).contiguous().float() / 255)
        return TransformedEpochs(images, torch.tensor(dataset.targets), work.batch_size, work.num_workers)
    arguments: dict[str, Any] = {
        "batch_size": work.batch_size,
        "shuffle": True,
        "num_workers": work.num_workers,
        "drop_last": True,
        "persistent_workers": True,
    }
    torch.set_num_threads(1)
    if loader == "fastload":
        import fastload

        return fastload.DataLoader(dataset, **arguments, fuse=True)
    return DataLoader(dataset, **arguments)
