"""Builds what takes batches to a device, pins and transforms them: a part of build.py that plain loaders do not run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .. import observe
from ..base import compat_features
from ..device.batch_keys import BatchKeys
from ..device.pinning import PinnedAhead
from ..device.prefetch import DeviceAhead, DeviceArguments, mover_of
from ..stages import Stage
from .runtime import LoaderRuntime


def device_ahead(source: Stage, arguments: DeviceArguments, runtime: LoaderRuntime, keys: BatchKeys) -> DeviceAhead:
    """Return the stage that takes batches to a device, or transforms them; ``keys``: of the first epoch."""
    return DeviceAhead(source, mover_of(arguments, runtime), arguments.prefetch_to_device, keys.draws)


def pinned_ahead(source: Stage, device: Any) -> PinnedAhead:
    """Return the stage that pins batches for the current accelerator, or for torch's ``pin_memory_device``."""
    index = compat_features.accelerator_index()
    pin: Callable[[Any], Any] = functools.partial(compat_features.pin_on_device, device=device, index=index)
    if observe.listener is not None:
        pin = observe.listener.pinning(source, pin)
    return PinnedAhead(source, pin, f"in pin memory thread for device {index}")
