"""How worker processes start that inherit nothing, by ``spawn`` or ``forkserver``: their job is pickled.

Once for all of them, if possible.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import pickle
from collections.abc import Iterator
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

import numpy as np

from ..buffers.packing import pack, unpack
from ..buffers.slots import MemoryFile
from ..errors import add_note
from .fork_server import let_server_import_torch
from .late_starts import LateStarts
from .samples import Job

JOB_OFFSET = 1 << 42
"""Where it lies, in slot 0."""


class SharedJob:
    """A job that lies in the memory file, pickled once for all workers. Their tensors and arrays share its pages."""

    def __init__(self, length: int) -> None:
        self._length = length

    def load(self, memory: MemoryFile | None) -> Job:
        """Return the job, in the worker."""
        assert memory is not None
        # Private: a worker may change its copy of the dataset, as it may after a fork.
        mapped = mmap.mmap(memory.fd, self._length, flags=mmap.MAP_PRIVATE, offset=JOB_OFFSET)
        with noting_what_cannot_be_imported():
            job: Job = unpack(np.frombuffer(mapped, dtype=np.uint8))
        return job


class PickledJob:
    """A job that is pickled for each worker, while its process is being started.

    By itself, so that ``load`` raises what unpickling raises: multiprocessing would end the worker.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def __getstate__(self) -> bytes:
        return bytes(ForkingPickler.dumps(self._job))

    def __setstate__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def load(self, memory: MemoryFile | None) -> Job:
        """Return the job, in the worker."""
        with noting_what_cannot_be_imported():
            job: Job = pickle.loads(self._pickled)
        return job


@contextlib.contextmanager
def noting_what_cannot_be_pickled(start_method: str) -> Iterator[None]:
    """Add to the error of a worker's start what can be done about it."""
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        error.add_note(
            f"the dataset, collate_fn and worker_init_fn must be picklable for workers started by {start_method!r}; "
            "define them at the top level of a module, or pass multiprocessing_context='fork'"
        )
        raise


@contextlib.contextmanager
def noting_what_cannot_be_imported() -> Iterator[None]:
    """Add to the error of a class or function of the user's ``__main__`` why a worker has no such name."""
    try:
        yield
    except (AttributeError, ImportError) as error:
        if "main__'" in str(error):  # "__mp_main__" is the script, as a worker imports it
            add_note(
                error,
                "a worker that is not forked imports the classes and functions of the dataset, collate_fn and "
                "worker_init_fn, and cannot import what is defined in a notebook's cell or below "
                "`if __name__ == '__main__'`: move it to a module (%%writefile makes one from a cell), or pass "
                "multiprocessing_context='fork' or worker_method='thread'",
            )
        raise


def share_job(job: Job, file: MemoryFile | None) -> SharedJob | None:
    """Write a job to the memory file; None where that cannot be, and multiprocessing pickles it for each worker."""
    if file is None:
        return None
    try:
        pieces, length = pack(job, for_all=True)
    except Exception:
        # Locks, queues and shared tensors can only be passed while a process is being started; and for what cannot be
        # pickled at all, multiprocessing's own error follows.
        return None
    file.write(list(pieces), JOB_OFFSET)
    return SharedJob(length)


class Unforked(NamedTuple):
    """How worker processes start that inherit nothing."""

    source: SharedJob | PickledJob
    late: LateStarts | None
    """Says which workers may start; None: all at once."""
    job_pickled: str
    """How often the job is pickled."""


def unforked(job: Job, context: BaseContext, file: MemoryFile | None, *, takes_any: bool) -> Unforked:
    """Return how the workers of a job start; ``takes_any``: whether any worker takes any task."""
    let_server_import_torch(context)
    # The cache's descriptor goes to each worker as it is started.
    job = dataclasses.replace(job, cache=None)
    shared = share_job(job, file)
    return Unforked(
        shared or PickledJob(job),
        LateStarts(job.num_workers) if shared is not None and takes_any else None,
        "for each worker" if shared is None else "once for all workers",
    )
