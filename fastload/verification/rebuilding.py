"""Builds a loader again with other arguments, over copies of its parts, so that no run affects another or the user.

Parts are copied through pickle, in memory. Large tensors and arrays, long lists of plain values, functions, locks and
open files are shared, so a dataset of any size can be copied, and one that holds a lambda.
"""

from __future__ import annotations

import inspect
import io
import math
import time
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset

from ..base.compat import TorchDataLoader
from ..base.copies import COPIED, copied
from ..keys.library_transforms import copies_for_thread
from ..loader import DataLoader

_PARTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "generator")
_SHARED_BYTES = 1 << 20
_SHARED_LENGTH = 10_000
_PLAIN = (str, bytes, int, float, bool, type(None))
_SHARED_TYPES = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.GeneratorType, io.IOBase, type)
_LOCKS = {"lock", "RLock", "Lock", "_local"}


def arguments_of(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """Return the constructor arguments that make such a loader; those of fastload's class only if it is one.

    ``shuffle`` is missing: the sampler stands for it.
    """
    names = inspect.signature(DataLoader.__init__).parameters
    found = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    batches = loader.batch_sampler
    if type(batches) is BatchSampler and batches.sampler is loader.sampler:
        found |= {"batch_size": batches.batch_size, "drop_last": batches.drop_last, "batch_sampler": None}
    elif batches is not None:
        found |= {"batch_size": 1, "drop_last": False, "sampler": None}
    if isinstance(loader.dataset, IterableDataset):
        found["sampler"] = None
    return found


def build(arguments: Mapping[str, Any]) -> DataLoader[Any]:
    """Construct a loader that runs beside the process group; without workers, leave out what only workers need.

    Raises:
        ConfigError, ValueError: the arguments cannot be combined.
    """
    without_workers = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
    without_workers["multiprocessing_context"] = None
    loader: DataLoader[Any] = DataLoader(**{**arguments, **({} if arguments["num_workers"] else without_workers)})
    loader._this_rank_only = True
    return loader


class Copies:
    """Copies a loader's arguments for each run; shares their parts, and notes it once, if these cannot be copied.

    ``seconds``: if a copy takes longer, the parts are shared from then on.
    """

    def __init__(self, notes: list[str], seconds: float = math.inf) -> None:
        self._notes, self._seconds = notes, seconds
        self._are_shared = False

    def of(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for one run, with copies of dataset, samplers, functions and generator."""
        if self._are_shared:
            return dict(arguments)
        begun, made, reason = time.perf_counter(), dict(arguments), ""
        try:
            parts = {name: arguments[name] for name in _PARTS if name in arguments}
            made |= copied(parts, lambda thing: thing if _is_shared(thing) else COPIED)
            # Functions are shared, but not the transforms in their closures, which draw from generators of their own.
            made["dataset"], made["collate_fn"] = copies_for_thread(made["dataset"], made.get("collate_fn"))
        except Exception as error:  # whatever the user's class raises
            made, reason = dict(arguments), f"cannot be copied ({type(error).__name__}: {error})"
        if not reason and time.perf_counter() - begun > self._seconds:
            reason = "takes long to copy"
        if reason:
            self._are_shared = True
            self._notes.append(
                f"the dataset {reason}, so all runs share it: what one run changes in it affects the next one"
            )
        return made


def _is_shared(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return kind in (str, bytes) and len(value) > _SHARED_LENGTH
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() > _SHARED_BYTES
    if isinstance(value, np.ndarray):
        return value.nbytes > _SHARED_BYTES
    if kind in (list, tuple):
        return len(value) > _SHARED_LENGTH and _is_plain(value[0]) and _is_plain(value[-1])
    return isinstance(value, _SHARED_TYPES) or kind.__name__ in _LOCKS


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(type(item) in _PLAIN for item in value))
