"""A dataset of its own for each worker thread, as each worker process has one.

What one worker changes in its copy (its place in a stream, what ``worker_init_fn`` sets), neither the others nor the
user's object see.

Copied is what a dataset may keep its place in: the dataset, and those that it holds, such as a ``Subset``'s; objects of
the user's classes and of the datasets' packages; iterators; random generators; containers of at most 1,000 items. The
copies share all else: tensors, arrays, longer containers, files, locks, functions, objects of other packages, and
objects in the dataset that cannot be copied.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import io
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ..base import compat
from ..base.copies import COPIED, copied
from ..base.users_line import is_users_module
from ..errors import ConfigError
from .samples import Job

# Longer ones hold data.
_MAX_ITEMS = 1000
_CONTAINERS = list, tuple, dict, set, collections.deque
_HOLDERS = types.MethodType, types.SimpleNamespace, functools.partial, Iterator
_GENERATORS = random.Random, np.random.RandomState, np.random.Generator, torch.Generator
# Their objects hold no place, or are named above.
_LIBRARIES = {"builtins", "fastload", "numpy", "torch"}


def with_replicas(job: Job) -> list[Job]:
    """Return the jobs of worker threads: each with a dataset of its own, if it may change it.

    Raises:
        ConfigError: the dataset cannot be copied.
    """
    if not job.iterable and job.worker_init_fn is None:
        return [job] * job.num_workers
    with compat.pipe_lock:
        replicas = [compat.seed_iter_data_pipe(_replica(job.dataset), job.shared_seed) for _ in range(job.num_workers)]
    return [dataclasses.replace(job, dataset=replica) for replica in replicas]


def _replica(dataset: Any) -> Any:
    packages: set[str] = set()
    """The datasets' own."""

    def may_change(kind: type) -> bool:
        return is_users_module(kind.__module__) or _package(kind) in packages

    def instead(thing: Any) -> Any:
        """Return what stands for an object in the copy: see :func:`fastload.base.copies.copied`."""
        if isinstance(thing, _CONTAINERS):
            return COPIED if len(thing) <= _MAX_ITEMS else thing
        if isinstance(thing, _GENERATORS) and not isinstance(thing, random.SystemRandom):
            return copy.deepcopy(thing)
        if isinstance(thing, type):
            return _without_del(thing) if hasattr(thing, "__del__") and may_change(thing) else thing
        if isinstance(thing, (torch.Tensor, np.ndarray, io.IOBase)):
            return thing
        kind, is_dataset = type(thing), isinstance(thing, Dataset) or thing is dataset
        if is_dataset:
            packages.update({_package(kind)} - _LIBRARIES)
        if is_dataset or may_change(kind):
            if hasattr(kind, "__copy__"):
                return copy.copy(thing)
            return COPIED if is_dataset or _can_be_pickled(thing) else thing
        return COPIED if isinstance(thing, _HOLDERS) else thing

    try:
        return copied(dataset, instead)
    except Exception as error:
        raise ConfigError(
            f"{type(dataset).__name__} cannot be copied: {type(error).__name__}: {error}. With worker_method='thread' "
            "each worker has its own copy of an IterableDataset, and of a dataset with a worker_init_fn: give the "
            "class a __copy__, or a __getstate__ that leaves out what cannot be pickled, or use "
            "worker_method='multiprocessing'"
        ) from error


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _can_be_pickled(thing: Any) -> bool:
    try:
        return not isinstance(thing.__reduce_ex__(5), str)  # a name: there is one such object
    except Exception:
        return False


@functools.cache
def _without_del(kind: type) -> type:
    """Return a subclass for copies, whose end must not close a file that they share with the user's dataset."""
    return type(kind)(kind.__name__, (kind,), {"__del__": lambda self: None, "__module__": kind.__module__})
