"""Builds what takes batches to a device, pins and transforms them: a part of build.py that plain loaders do not run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import observe
from ..arguments import DeviceArguments
from ..base import compat_features
from ..device.batch_keys import BatchKeys
from ..device.pinning import PinnedAhead
from ..device.prefetch import DeviceAhead, mover_of
from ..sampling.epochs import EpochWork
from ..spec import Spec, part
from ..stages import Stage
from ..work import Shard
from .kept import Kept


def keys_of(spec: Spec, work: EpochWork) -> Callable[[Shard], BatchKeys]:
    """Return a function from a shard to what names the samples of its batches."""
    seed = spec.seed_of_keys(work.base_seed)
    return functools.partial(BatchKeys, seed, ids_are_indices=spec.ids_are_indices, auto_collation=spec.auto_collation)


def device_ahead(source: Stage, spec: Spec, kept: Kept, work: EpochWork) -> DeviceAhead:
    """Return the stage that takes batches to a device, or transforms them; ``work``: of the first epoch."""
    mover = mover_of(part(spec, DeviceArguments), kept)
    keys = keys_of(spec, work)(work.shard)
    return DeviceAhead(source, mover, spec.prefetch_to_device, keys.draws)


def pinned_ahead(source: Stage, device: Any) -> PinnedAhead:
    """Return the stage that pins batches for the current accelerator, or for torch's ``pin_memory_device``."""
    index = compat_features.accelerator_index()
    pin: Callable[[Any], Any] = functools.partial(compat_features.pin_on_device, device=device, index=index)
    if observe.listener is not None:
        pin = observe.listener.pinning(source, pin)
    return PinnedAhead(source, pin, f"in pin memory thread for device {index}")
