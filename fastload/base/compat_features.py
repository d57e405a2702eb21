"""Code for torch's private names that a plain loader does not need: see :mod:`.compat`."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import worker

from . import compat
from .overrides import Override

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
    """Make ``get_worker_info()`` return ``info`` in this thread, while :func:`worker_info_override` is installed."""
    _thread.info = info


def worker_info_override(purpose: str, **options: Any) -> Override:
    """Return the override of torch's ``get_worker_info``, with these further arguments."""

    def info_of_thread(_: Override) -> Any:
        return getattr(_thread, "info", None)

    name = worker.__name__
    return Override(name, name, "get_worker_info", purpose, info_of_thread, **options)


class _Collation(Override):
    """Override of ``default_collate``'s stacking: see :func:`~fastload.base.compat.collate_into_private_memory`.

    That one installs it by itself, so that a plain loader runs nothing of this module.
    """

    def place(self) -> tuple[Any, Any]:
        """Return torch's map, and the class."""
        return pkgutil.resolve_name(self.owner), torch.Tensor

    def is_original(self, found: Any) -> bool:
        """Return whether it is torch's, or fastload's, which calls torch's outside of workers."""
        return found is compat.collate_privately or super().is_original(found)

    def stand_in(self, original: Any) -> Any:
        """Return what stacks into private memory in workers."""
        return compat.collate_privately


_MAP = "torch.utils.data._utils.collate:default_collate_fn_map"
OVERRIDES = (_Collation("torch", _MAP, "torch.Tensor", "tensors are stacked into private memory"),)


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
