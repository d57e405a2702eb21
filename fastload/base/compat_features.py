"""What depends on torch's version or its private names, and a plain loader does not need: see :mod:`.compat`."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import worker

from . import compat

_thread = threading.local()


def make_worker_rng(random_generator: Any, torch_generator: Any, numpy_generator: Any) -> Any:
    """Make the field ``rng`` of a worker thread's info, by which ``torch.random.thread_safe_generator()`` finds it.

    None where torch has no such thing.
    """
    kind = getattr(worker, "_RNG", None)
    if kind is None:
        return None
    return kind(random_generator=random_generator, torch_generator=torch_generator, numpy_generator=numpy_generator)


def set_thread_worker_info(info: Any) -> None:
    """Make the second of :data:`WORKER_INFO` return ``info`` in this thread, and what the first returns elsewhere."""
    _thread.info = info


_get_worker_info = worker.get_worker_info


@functools.wraps(_get_worker_info)
def _get_worker_info_of_thread() -> Any:
    info = getattr(_thread, "info", None)
    return _get_worker_info() if info is None else info


WORKER_INFO = _get_worker_info, _get_worker_info_of_thread
"""torch's ``get_worker_info``, and what takes its place for worker threads."""


def draw_base_seed(generator: Any) -> int:
    """Draw a base seed from a generator (None: torch's global one) as an iterator of torch's does when it begins."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def process_group_store() -> Any:
    """Return the store of the default process group."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def accelerator_index() -> int:
    """Index of the current accelerator device."""
    getter: Callable[[], int] | None = getattr(torch.accelerator, "current_device_index", None)
    if getter is None:  # torch 2.6
        getter = torch.accelerator.current_device_idx
    return getter()


def pin_on_device(batch: Any, *, device: Any, index: int) -> Any:
    """Copy a batch into memory pinned for an accelerator: tensors, containers, and objects with ``pin_memory()``."""
    if getattr(_thread, "device_index", None) != index:
        # A thread of its own would otherwise make a context on device 0 beside the user's.
        setter = getattr(torch.accelerator, "set_device_index", None) or torch.accelerator.set_device_idx
        setter(index)
        _thread.device_index = index
    return compat.pin_memory(batch, device)
