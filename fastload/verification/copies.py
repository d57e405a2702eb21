"""Copies of a loader's parts for one run, so that it changes neither the user's objects nor what another run loads.

A copy goes through pickle, in memory, as for a worker started by spawn. Large tensors and arrays, long lists of plain
values, functions, locks and open files are shared, so that a dataset of any size can be copied, and one with a lambda.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..keys.library_generators import copies_for_thread

_SHARED_BYTES = 1 << 20
_SHARED_LENGTH = 10_000
_PLAIN = (str, bytes, int, float, bool, type(None))
_SHARED_KINDS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.GeneratorType,
    io.IOBase,
    type,
)
_LOCKS = {"lock", "RLock", "Lock", "_local"}


@dataclass(slots=True)
class Parts:
    """The objects of a loader that each run has copies of."""

    dataset: Any
    sampler: Any = None
    batch_sampler: Any = None
    collate_fn: Any = None
    worker_init_fn: Any = None
    generator: Any = None


def copied(parts: Parts) -> Parts:
    """Return copies of a loader's parts.

    Raises:
        Exception: whatever a class of the user's raises that cannot be pickled.
    """
    file, shared = io.BytesIO(), list[Any]()
    _Copier(file, shared).dump(parts)
    file.seek(0)
    made: Parts = _Uncopier(file, shared).load()
    # Functions are shared, but not the transforms in their closures, which draw from generators of their own.
    made.dataset, made.collate_fn = copies_for_thread(made.dataset, made.collate_fn)
    return made


class _Copier(pickle.Pickler):
    def __init__(self, file: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._shared = shared

    def persistent_id(self, value: Any) -> int | None:
        if not _is_shared(value):
            return None
        self._shared.append(value)
        return len(self._shared) - 1


class _Uncopier(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, place: int) -> Any:
        return self._shared[place]


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
    return isinstance(value, _SHARED_KINDS) or kind.__name__ in _LOCKS


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(type(one) in _PLAIN for one in value))


__all__ = ["Parts", "copied"]
