"""Everything that depends on torch's version or on torch's private names, in one place.

Supported: torch 2.6 and later. The names used here are those that other libraries rely on too
(StatefulDataLoader, Lightning, Accelerate, timm), so they are unlikely to go without notice; a missing one raises
AttributeError at import, not in the middle of an epoch.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe, SequentialSampler, Subset, _utils, dataloader
from torch.utils.data import default_collate as default_collate
from torch.utils.data import default_convert as default_convert
from torch.utils.data._utils import collate as _collate
from torch.utils.data._utils import pin_memory as _pin_memory
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _sharding_worker_init_fn
from torch.utils.data.graph_settings import apply_random_seed

from . import overrides

TorchDataLoader = DataLoader
SAMPLER_MODULE = SequentialSampler.__module__
BaseIterator: Any = _BaseDataLoaderIter
RecordFunctionFast: Any = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)
# Where torch does not tell, one may record.
profiler_enabled: Callable[[], bool] = getattr(torch._C._autograd, "_profiler_enabled", lambda: True)
ITERABLE: Any = _DatasetKind.Iterable


def is_next_plain() -> bool:
    """Return True if no profiler records and torch's ``__next__`` was not replaced, so it need not be called."""
    written_in = getattr(_BaseDataLoaderIter.__next__, "__globals__", None)
    return written_in is _torch_names and not profiler_enabled()


_torch_names = vars(dataloader)
set_worker_signal_handlers: Callable[[], None] = getattr(torch._C, "_set_worker_signal_handlers", lambda: None)

_collate_map: dict[Any, Callable[..., Any]] = _collate.default_collate_fn_map
_torch_collate_map = dict(_collate_map)

_thread = threading.local()


class _Process:
    is_worker = False
    """True if this process only makes samples; worker_process.py sets it."""


process = _Process()


def pin_memory(batch: Any, device: Any = None) -> Any:
    """Copy a batch into page-locked memory, as torch does; looked up at call time, for a profiler's hook."""
    return _pin_memory.pin_memory(batch, device)


def exits() -> bool:
    """Return whether the interpreter is shutting down, so that nothing may be waited for any more."""
    return _utils is None or _utils.python_exit_status is not False


def make_worker_info(*, id: int, num_workers: int, seed: int, dataset: Any, worker_method: str, rng: Any = None) -> Any:
    """Make what ``torch.utils.data.get_worker_info()`` returns in a worker.

    ``rng``: see :func:`.compat_features.make_worker_rng`.
    """
    fields: dict[str, Any] = {"id": id, "num_workers": num_workers, "seed": seed, "dataset": dataset}
    if "worker_method" in worker.WorkerInfo.__annotations__:  # younger than torch 2.11
        fields["worker_method"] = worker_method
    if "rng" in worker.WorkerInfo.__annotations__:
        fields["rng"] = rng
    return worker.WorkerInfo(**fields)


def set_process_worker_info(info: Any) -> None:
    """Make ``get_worker_info()`` return ``info`` in this process."""
    worker._worker_info = info


def set_thread_name(name: str) -> None:
    """Name this thread for ``top`` and ``ps``, where torch can."""
    setter = getattr(torch.multiprocessing, "_set_thread_name", None)
    if setter is not None:
        setter(name)


pipe_lock = threading.RLock()
"""Held while torch finds the parts of a DataPipe, which it does by a hook in the class: one thread at a time can."""
os.register_at_fork(before=pipe_lock.acquire, after_in_parent=pipe_lock.release, after_in_child=pipe_lock.release)


def seed_iter_data_pipe(dataset: Any, shared_seed: int | None) -> Any:
    """Give an IterDataPipe the seed that all workers share, as torch does; other datasets pass as they are."""
    if isinstance(dataset, IterDataPipe) and shared_seed is not None:
        with pipe_lock:
            return apply_random_seed(dataset, torch.Generator().manual_seed(shared_seed))
    return dataset


def init_worker_of_pipe(init_fn: Callable[[int], Any] | None, num_ranks: int, rank: int, worker_id: int) -> None:
    """Give a worker's DataPipe its share, as torch does, and call the user's ``worker_init_fn`` then."""
    with pipe_lock:
        _sharding_worker_init_fn(None, num_ranks, rank, worker_id)
    if init_fn is not None:
        init_fn(worker_id)


def is_data_pipe(dataset: Any) -> bool:
    """Return whether the dataset is a DataPipe, which torch shards over ranks and workers by itself."""
    return isinstance(dataset, IterDataPipe | MapDataPipe)


def collates_by_default(collate_fn: Any) -> bool:
    """Return whether batches are made by torch's ``default_collate``, not extended by the user."""
    return collate_fn is default_collate and all(
        _torch_collate_map.get(kind) is function or function is collate_privately
        for kind, function in _collate_map.items()
    )


def worker_collate(samples: list[Any]) -> Any:
    """Collate as torch's ``default_collate`` does in a worker, but into private memory."""
    _thread.collates_privately, before = True, getattr(_thread, "collates_privately", False)
    try:
        return _collate.collate(samples, collate_fn_map={**_collate_map, torch.Tensor: collate_privately})
    finally:
        _thread.collates_privately = before


def collate_into_private_memory() -> None:
    """Let ``default_collate`` stack into private memory in this thread, which is a worker's.

    In a worker torch stacks into shared memory, one file under /dev/shm for each tensor. Here results are packed
    into slots, so that would be one copy more and a file too many. Does nothing where the user has put a function
    of his own in the place.
    """
    _thread.collates_privately = True
    if overrides.ON and _collate_map[torch.Tensor] is _torch_collate_map[torch.Tensor]:
        _collate_map[torch.Tensor] = collate_privately


def collate_privately(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stack tensors, in a worker's thread into private memory."""
    first = batch[0]
    plain = getattr(_thread, "collates_privately", False) and first.layout is torch.strided and not first.is_nested
    if not plain:
        return _torch_collate_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
    # As in torch's workers gradients are refused, and there is room for as many elements as the tensors have. The dtype
    # is that of torch without workers, for any number of workers: torch's workers take the first tensor's, and so cut
    # off the digits of the others, or fail.
    if len(batch) * first.numel() > sum(tensor.numel() for tensor in batch):
        raise RuntimeError("Trying to resize storage that is not resizable")
    dtype = functools.reduce(torch.promote_types, dict.fromkeys(tensor.dtype for tensor in batch))
    out = first.new_empty((len(batch), *first.shape), dtype=dtype)
    return torch.stack(batch, 0, out=out)


def batch_getter(dataset: Any) -> Callable[[Any], Any] | None:
    """Return the dataset's ``__getitems__`` where torch would use it and it is more than a loop over samples."""
    if isinstance(dataset, torch.utils.data.IterableDataset) or per_sample_subset(dataset) is not None:
        return None
    getter: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    return getter or None


def per_sample_subset(dataset: Any) -> Subset[Any] | None:
    """Return the dataset if it is exactly torch's Subset of a dataset that is read sample by sample."""
    if type(dataset) is Subset and not callable(getattr(dataset.dataset, "__getitems__", None)):
        return dataset
    return None
