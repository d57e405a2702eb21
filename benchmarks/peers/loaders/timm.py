"""timm's create_loader without its colour jitter, which the other sides do not do either."""

from collections.abc import Iterable
from typing import Any

import torch
from timm.data import create_dataset, create_loader

from benchmarks.peers.loaders import Work


def load(work: Work) -> Iterable[Any]:
    """Return timm's loader; for uint8 the one inside its prefetcher, which gives such batches."""
    loader = create_loader(
        create_dataset("", root=str(work.images), split="train", is_training=True),
        input_size=(3, 224, 224),
        batch_size=work.batch_size,
        is_training=True,
        color_jitter=0.0,
        num_workers=work.num_workers,
        use_prefetcher=not work.normalised,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    return loader if work.normalised else loader.loader
