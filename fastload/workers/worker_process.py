"""The life of a worker process, from its first line to its last. The parent's side is processes.py."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..base import compat, overrides
from ..buffers.slots import MemoryFile, let_go_in_worker
from ..keys import seeding
from ..keys.torch_streams import torch_worker_streams
from ..work import GRACE
from .deferred_sigint import raise_deferred_sigint_in_worker
from .fetch import Fetcher
from .samples import Job
from .transport import Link

if TYPE_CHECKING:
    from ..cache.records import Records
    from .spawn_start import PickledJob, SharedJob

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def worker_main(
    source: Job | SharedJob | PickledJob,
    worker_id: int,
    endpoint: Any,
    memory: MemoryFile | None,
    foreign: list[Any],
    cache: Records | None,
) -> None:
    """Live as worker ``worker_id``.

    Args:
        source: the job, if this process has inherited it, or where it is.
        endpoint: this worker's end of the transport.
        memory: the memory file; None where everything is in the messages.
        foreign: ends of others that this process has inherited by a fork.
        cache: see :class:`~.samples.Job`; it is not in a job that was pickled.
    """
    # Collections would write to every inherited object's header, and so copy the parent's memory page by page.
    gc.freeze()
    atexit.register(gc.unfreeze)  # else libraries report frozen objects as leaked where the interpreter is finalised
    try:
        raise_deferred_sigint_in_worker()
        for end in foreign:
            end.close()
        let_go_in_worker(memory)
        _watch_parent()
        compat.set_worker_signal_handlers()
        compat.set_thread_name("fastload_worker")
        torch.set_num_threads(1)
        keep_freed_memory()
        compat.process.is_worker = True
        _live(source, worker_id, Link(worker_id, endpoint, memory), memory, cache)
    except BaseException as error:
        # The parent waits for the end of this process, which itself waits for threads of the user's.
        end = threading.Timer(GRACE, os._exit, [1])
        end.daemon = True
        end.start()
        if not isinstance(error, KeyboardInterrupt | BrokenPipeError | ConnectionResetError):
            raise
        # The user's process got the interrupt too; or it is gone.


def _live(
    source: Job | SharedJob | PickledJob, worker_id: int, link: Link, memory: MemoryFile | None, cache: Records | None
) -> None:
    work: Callable[[], None]
    try:
        job = source if isinstance(source, Job) else dataclasses.replace(source.load(memory), cache=cache)
        overrides.results.update(job.compared)
        link.follow(job)
        become_worker(job, worker_id)
        if job.worker_threads > 1:
            from .sample_threads import SampleThreads

            work = SampleThreads(job, worker_id, link).run
        else:
            work = partial(_work, fetcher_of(job, worker_id, link.where), link)
    except Exception as error:
        link.fail(error)
        return
    work()


def _work(fetcher: Fetcher, link: Link) -> None:
    """Load one task after the other."""
    while (task := link.receive()) is not None:
        link.note(task)
        result = fetcher.run(task, link.sink)
        begun, is_measured = time.perf_counter_ns(), result.stages is not None
        link.send(result, task)
        if is_measured:
            fetcher.clock.sent(begun)
        link.note(None)
        del result


def fetcher_of(job: Job, worker_id: int, where: str) -> Fetcher:
    """Return what loads samples in this process, which is a worker.

    Raises:
        Exception: what the dataset raises.
    """
    seeder: seeding.Seeder = seeding.GlobalSeeder()
    if job.seed is not None:
        from ..keys.library_generators import LibraryGenerators

        seeder = libraries = LibraryGenerators(job.dataset, job.collate_fn, then=seeder)
        libraries.adopt()
    return Fetcher(job, worker_id, where, seeder)


def become_worker(job: Job, worker_id: int) -> None:
    """Make this process a worker: its generators, what ``get_worker_info()`` says, and ``worker_init_fn``.

    Raises:
        Exception: what ``worker_init_fn`` or the dataset raises.
    """
    _without_opencvs_threads()
    torch_worker_streams(job.base_seed, worker_id)
    dataset = compat.seed_iter_data_pipe(job.dataset, job.shared_seed)
    compat.set_process_worker_info(
        compat.make_worker_info(
            id=worker_id,
            num_workers=job.num_workers,
            seed=job.base_seed + worker_id,
            dataset=dataset,
            worker_method="multiprocessing",
        )
    )
    compat.collate_into_private_memory()
    if "lerobot" in sys.modules:
        from .video_decoders import forget_inherited_decoders

        forget_inherited_decoders()
    if job.worker_init_fn is not None:
        job.worker_init_fn(worker_id)


def _without_opencvs_threads() -> None:
    """Let OpenCV, if it is here, work in one thread as torch does: other cores have other workers.

    A forked worker has inherited its pool, but not the threads. OpenCV would wait for ever for the lock of one that was
    about to sleep at the fork; or, told to use 1 thread, for the ends of all. Told 0, it leaves the pool alone.
    """
    set_threads = getattr(sys.modules.get("cv2"), "setNumThreads", None)
    if set_threads is not None:
        set_threads(0)


def keep_freed_memory() -> None:
    """Let malloc keep what a sample frees for the next sample, up to 128 MiB, where it is glibc's.

    By default large blocks go back to the system at once and come again as fresh pages, to be zeroed: 65 to 200 page
    faults for an image of 224 x 224 floats, a fifth of its system time. Blocks above 32 MiB still do: no glibc keeps
    them by itself, and not every one can be told to. 128 MiB are four of the largest: a clip, and what is made of it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _watch_parent() -> None:
    """End this process when its parent ends, which the user's code may not notice for hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    try:
        watched = os.pidfd_open(parent.pid or 0)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):  # not Linux, or too old
        watched = parent.sentinel

    def watch() -> None:
        multiprocessing.connection.wait([watched])
        os._exit(1)

    threading.Thread(target=watch, name="fastload_parent_watch", daemon=True).start()
