"""A job that is pickled once for all worker processes, where they inherit nothing: spawn and forkserver.

In: a job, and the memory file that these processes map. Out: what each of them gets in place of the job.
"""

from __future__ import annotations

import mmap

import numpy as np

from ..buffers.packing import pack, unpack
from ..buffers.slots import MemoryFile
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
        job: Job = unpack(np.frombuffer(mapped, dtype=np.uint8))
        return job


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
