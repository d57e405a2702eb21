"""Attaches to a loader: fastload's counts its steps itself, torch's gets iterators that do.

In: a loader, or what Accelerate made of it. Out: its :class:`~fastload.engine.steps.Steps`, and its worker processes.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from multiprocessing.process import BaseProcess
from typing import Any

import torch.utils.data

from ..base import compat
from ..engine.steps import Steps
from ..errors import ConfigError
from ..loader import DataLoader
from .device import DeviceSums

# The attribute of a torch loader that is watched.
_STEPS = "_fastload_steps"


class _StepsOfTorch(Steps):
    """Those of one of torch's loaders, with the iterator that is counted."""

    iterator: weakref.ref[Any] | None = None


def innermost(loader: Any) -> Any:
    """Return the loader within what Accelerate has prepared.

    Raises:
        ConfigError: it is no ``DataLoader``.
    """
    inner = loader
    while (base := getattr(inner, "base_dataloader", None)) is not None:
        inner = base
    if not isinstance(inner, torch.utils.data.DataLoader):
        raise ConfigError(
            "what a step loses to data is measured for torch.utils.data.DataLoader and its subclasses, got a loader "
            f"of type {type(inner).__qualname__}; leave the callback out, or give it a DataLoader"
        )
    return inner


def watch(loader: Any, iterator: Any = None) -> Steps:
    """Count the steps of a loader (see :func:`innermost`), for one more watcher; all share the device's clock.

    From its next iteration on, and in ``iterator``, one over it that has begun.
    """
    steps = _steps_of(loader, iterator)
    steps.watchers += 1
    if steps.device is None:
        steps.device = DeviceSums()
    return steps


def unwatch(loader: Any, steps: Steps) -> None:
    """Undo one :func:`watch`; the last one, for iterations to come."""
    steps.watchers -= 1
    if steps.watchers:
        return
    steps.device = None
    if vars(loader).get(_STEPS) is steps:
        for name in (_STEPS, "_get_iterator"):
            vars(loader).pop(name, None)


def worker_pids(loader: Any, steps: Steps) -> list[int]:
    """Return the process ids of a watched loader's workers."""
    if isinstance(loader, DataLoader):
        iterators: list[Any] = list(loader._kept.iterators)
    else:
        reference = getattr(steps, "iterator", None)
        iterators = [] if reference is None else [reference()]
    workers = [worker for iterator in iterators for worker in getattr(iterator, "_workers", ())]
    return [worker.pid for worker in workers if isinstance(worker, BaseProcess) and worker.pid is not None]


def _steps_of(loader: Any, iterator: Any) -> Steps:
    if isinstance(loader, DataLoader):
        return loader._kept.steps
    steps: _StepsOfTorch | None = vars(loader).get(_STEPS)
    if steps is None or vars(loader)["_get_iterator"].args[0] is not loader:  # a shallow copy has another's
        steps = vars(loader)[_STEPS] = _StepsOfTorch()
        # torch's __iter__ calls it, for each epoch or, with persistent workers, once.
        vars(loader)["_get_iterator"] = functools.partial(_counted_iterator, loader, steps)
    if iterator is None:
        iterator = getattr(loader, "_iterator", None)  # that of persistent workers, which is used again
    if isinstance(iterator, compat.BaseIterator):
        _count_in(iterator, steps)
    return steps


def _counted_iterator(loader: Any, steps: _StepsOfTorch) -> Any:
    caller = sys._getframe(1).f_locals.get("self")
    if caller is not loader and isinstance(caller, torch.utils.data.DataLoader) and vars(caller).get(_STEPS) is steps:
        return type(caller)._get_iterator(caller)  # a shallow copy, which nobody measures, has this function too
    begun = time.perf_counter_ns()
    iterator = type(loader)._get_iterator(loader)
    _count_in(iterator, steps)
    steps.begin(time.perf_counter_ns() - begun)
    return iterator


def _count_in(iterator: Any, steps: _StepsOfTorch) -> None:
    # By a weak reference: in a cycle its workers would live on until the next garbage collection.
    reference = steps.iterator = weakref.ref(iterator)
    iterator._next_data = functools.partial(_counted_next, reference, steps)
    # torch's __iter__ calls it for each later epoch of persistent workers.
    iterator._reset = functools.partial(_counted_reset, reference, steps)


def _counted_reset(reference: weakref.ref[Any], steps: Steps, *arguments: Any, **named: Any) -> None:
    iterator: Any = reference()
    begun = time.perf_counter_ns()
    type(iterator)._reset(iterator, *arguments, **named)
    steps.begin(time.perf_counter_ns() - begun)


def _counted_next(reference: weakref.ref[Any], steps: Steps) -> Any:
    iterator: Any = reference()
    steps.ask()
    try:
        data = type(iterator)._next_data(iterator)
    except StopIteration:
        steps.end()
        raise
    if hasattr(iterator, "_workers"):
        steps.give(ready=_num_ready(iterator))
    else:
        steps.give(waited_ns=0)
    return data


def _num_ready(iterator: Any) -> int | None:
    """Return how many batches torch has complete: received too early, or not yet received."""
    try:
        return int(iterator._data_queue.qsize()) + sum(len(one) > 1 for one in iterator._task_info.values())
    except (AttributeError, NotImplementedError):  # another torch; macOS
        return None
