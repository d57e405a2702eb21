"""How worker processes start that inherit nothing: by ``spawn`` or ``forkserver``."""

from __future__ import annotations

import dataclasses
from multiprocessing.context import BaseContext
from typing import NamedTuple

from ..buffers.slots import MemoryFile
from .fork_server import let_server_import_torch
from .late_starts import LateStarts
from .samples import Job
from .shared_job import PickledJob, SharedJob, noting_what_cannot_be_pickled, share_job


class Unforked(NamedTuple):
    """See the module."""

    source: SharedJob | PickledJob
    noting: noting_what_cannot_be_pickled
    """Around each start."""
    late: LateStarts | None
    """Says which workers may start; None: all at once."""
    job_pickled: str
    """How often the job is pickled."""


def unforked(job: Job, context: BaseContext, file: MemoryFile | None, *, takes_any: bool) -> Unforked:
    """Return how the workers of a job start; ``takes_any``: whether any worker takes any task."""
    method = context.get_start_method()
    let_server_import_torch(context)
    # The cache's descriptor goes to each worker as it is started.
    job = dataclasses.replace(job, cache=None)
    shared = share_job(job, file)
    return Unforked(
        shared or PickledJob(job),
        noting_what_cannot_be_pickled(method),
        LateStarts(job.num_workers) if shared is not None and takes_any else None,
        "for each worker" if shared is None else "once for all workers",
    )
