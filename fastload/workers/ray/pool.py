"""Starts a pool whose workers are actors."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from typing import Any

from ...buffers.private_memory import PrivateMemory
from ...buffers.slots import SlotPool
from ...cache.shared import Ticket
from ..pool import WorkerArguments
from ..samples import Job
from .cluster import Cluster, ray_module
from .options import options_of
from .relay import RayPool

# What a task costs, in tasks of a process (0.1 to 0.15 ms of processor time): a result in the object store takes 8 ms,
# see docs/ray.md. It is smaller here, since longer tasks delay the first batch. By the second a task takes 2 ms for
# each of many workers: a result from another machine occupies Ray's thread in the loader's process, and its raylet's,
# for a millisecond each.
_TASK_COST, _TASK_COST_PER_WORKER = 16.0, 1 / 3


def task_cost(num_workers: int) -> float:
    """Return what a task costs, in those of a process, with so many of Ray's workers of all ranks of this machine."""
    return max(_TASK_COST, _TASK_COST_PER_WORKER * num_workers)


def start(job: Job, arguments: WorkerArguments, keep: int) -> RayPool:
    """Start actors: see :func:`fastload.engine.build.module_of`."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    cache: Any = None if job.cache is None else Ticket()
    packed, options = _pickled(replace(job, cache=cache)), options_of(arguments.ray_options)
    slots = SlotPool(PrivateMemory(), keep)
    try:
        pool = RayPool(Cluster(), slots, packed, options, job.num_workers, assigned=arguments.assigned)
    except BaseException:
        slots.close()
        raise
    pool.task_cost = task_cost(job.num_workers * (int(ranks) if ranks.isdecimal() else 1))
    return pool


def _pickled(job: Job) -> bytes:
    """Pickle a job as Ray pickles functions: classes and functions of the script itself by value."""
    try:
        packed: bytes = ray_module().cloudpickle.dumps(job, protocol=5)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        error.add_note(
            "the dataset, collate_fn and worker_init_fn must be picklable for Ray's workers, which may be on other "
            "machines: open files, locks and connections in __getitem__ or worker_init_fn, not in __init__"
        )
        raise
    return packed
