"""Images of CIFAR's size in memory: torch's DataLoader, fastload's in its place, and the way of airbench."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.cases.arrays import BATCH, TransformedEpochs
from benchmarks.cases.cifar import CifarSizedImages
from benchmarks.cases.fuse import InMemory
from benchmarks.peers.loaders import Work


def load(work: Work, *, loader: str) -> Iterable[Any]:
    """Return the loader, as a script has it that makes hundreds of epochs: its workers stay."""
    if loader == "airbench":
        if work.batch_size != BATCH:
            raise ValueError(f"its batches have {BATCH} images, got batch_size={work.batch_size}")
        return TransformedEpochs.of(CifarSizedImages(work.num_images), work.num_workers)
    arguments: dict[str, Any] = {
        "batch_size": work.batch_size,
        "shuffle": True,
        "num_workers": work.num_workers,
        "drop_last": True,
        "persistent_workers": True,
    }
    dataset = InMemory(work.num_images)
    torch.set_num_threads(1)
    if loader == "fastload":
        import fastload

        return fastload.DataLoader(dataset, **arguments, fuse=True)
    return DataLoader(dataset, **arguments)
