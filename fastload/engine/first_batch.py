"""One batch of a loader, without its workers and device: what a preview of its transforms shows.

In: a loader. Out: the batch that it would load next. The loader and all generators stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base import compat
from ..errors import ConfigError
from ..keys.preserving import preserved_global_generators
from ..sampling.epochs import Epochs, Sampling
from ..sampling.sampler_generators import generators_kept
from ..spec import part, served_as, spec_of
from .build_device import keys_of
from .iteration import Iteration
from .kept import Kept

if TYPE_CHECKING:
    from ..transforms.draws import Draws


def batch_on_host(loader: compat.TorchDataLoader[Any], epochs: Epochs) -> tuple[Any, Callable[[int], Draws]]:
    """Return the batch that would come next, and a function of the draws of its samples, in this epoch and later.

    Loaded without workers by a copy of the loader, which stays as it is, with its samplers and an IterableDataset;
    so do the global generators.
    """
    spec = spec_of(loader)
    spec = served_as(
        spec,
        dataset=copy.deepcopy(spec.dataset) if spec.iterable else spec.dataset,
        num_workers=0,
        worker_threads=1,
        prefetch_factor=None,
        persistent_workers=False,
        timeout=0,
        pin_memory=False,
        device=None,
        batch_transform=None,
        resident=None,
        this_rank_only=True,
    )
    sampling = part(spec, Sampling)
    owner = sampling.epoch_owner
    epoch = getattr(owner, "epoch", None)
    try:
        with preserved_global_generators(), generators_kept(sampling):
            counted = epochs.copied()
            iteration = Iteration(loader, spec, counted, Kept())
            try:
                batch = iteration.source.next()
                data = batch.result()
            finally:
                iteration._shutdown_workers()
    except StopIteration:
        raise ConfigError(
            "the loader gives no batch: the dataset is empty, or has less than batch_size samples and drop_last=True"
        ) from None
    finally:
        if owner is not None:
            owner.epoch = epoch
    assert counted.last is not None
    keys = keys_of(spec, counted.last)(counted.last.shard)
    return data, lambda version: keys.draws(replace(batch, epoch=batch.epoch + version))
