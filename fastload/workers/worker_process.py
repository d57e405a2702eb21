"""The life of a worker process, from its first line to its last. The parent's side is processes.py."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper

from ..base import compat, overrides
from ..base.worker_errors import wrap_exception
from ..buffers.layout import Layout, WriteRows
from ..buffers.packing import join, pack
from ..buffers.slots import MAX_CHUNK_BYTES, MemoryFile, chunk_offset, let_go_in_worker, message_offset, slot_offset
from ..keys import seeding
from ..work import GRACE, AnyTask, Task, task_of
from .deferred_sigint import raise_deferred_sigint_in_worker
from .fetch import Fetcher, Outcome, Result, failed_start, skipped
from .pool import MessageSink
from .samples import Job
from .transport import MAX_PACKET

if TYPE_CHECKING:
    from ..cache.records import Records
    from .spawn_start import PickledJob, SharedJob

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Words of the control page: the running iteration, then for each thread of each worker the id + 1 of the task it
# works on.
_ITERATION = 0
_FIRST_WORKER = 8
# Published layouts lie in slot 0, this far apart; each begins with its length.
LAYOUT_SHIFT = 24


class Control:
    """Words in shared memory that need no lock: each has one writer."""

    def __init__(self, memory: MemoryFile, num_workers: int, num_threads: int) -> None:
        number = _FIRST_WORKER + num_workers * num_threads
        self._words = np.frombuffer(memory.buffer(0, 8 * number), dtype=np.int64)
        self._threads = num_threads

    @property
    def iteration(self) -> int:
        """Number of the iteration whose tasks are to be done."""
        return int(self._words[_ITERATION])

    @iteration.setter
    def iteration(self, value: int) -> None:
        self._words[_ITERATION] = value

    def holds(self, worker_id: int) -> list[int]:
        """Return the serials of the tasks that a worker is at."""
        first = _FIRST_WORKER + worker_id * self._threads
        return [word - 1 for word in self._words[first : first + self._threads].tolist() if word]

    def note(self, worker_id: int, thread: int, task_id: int) -> None:
        """Note which task a thread of a worker is at; -1: it is between two."""
        self._words[_FIRST_WORKER + worker_id * self._threads + thread] = task_id + 1


class FileSink(MessageSink):
    """A worker's side of the memory file."""

    def __init__(self, memory: MemoryFile) -> None:
        self._memory = memory
        self._layouts: dict[int, Layout] = {}
        self._mapping = threading.Lock()

    def layout(self, generation: int) -> Layout | None:
        known = self._layouts.get(generation)
        if known is None:
            offset = generation << LAYOUT_SHIFT
            length = int.from_bytes(self._memory.read(8, offset), "little")
            if length == 0:
                return None
            known = self._layouts[generation] = pickle.loads(self._memory.read(length, offset + 8))
        return known

    def write_rows(self, layout: Layout, task: Task, write: WriteRows) -> Any:
        _, num_bytes = layout.offsets(task.num_rows)
        with self._mapping:
            buffer = np.frombuffer(self._memory.buffer(task.slot, max(1, num_bytes)), dtype=np.uint8)
        return write(layout.rows(buffer, task.num_rows, task.row, len(task.indices)))

    def encode(self, result: Result, task: AnyTask | None) -> bytes:
        """Turn a result into a packet; what is large goes into the task's slot and the packet says where."""
        if result.outcome in (Outcome.SAMPLES, Outcome.BATCH):
            assert isinstance(task, Task)
            pieces, length = pack(result.payload)
            if result.outcome == Outcome.SAMPLES and length > MAX_CHUNK_BYTES:
                raise ValueError(f"{length} bytes in one chunk, above {MAX_CHUNK_BYTES}")
            if length <= MAX_PACKET // 2:
                result = result._replace(payload=join(pieces).tobytes())
            else:
                whole = result.outcome == Outcome.BATCH
                offset = slot_offset(task.slot) if whole else chunk_offset(task.slot, task.chunk_id)
                self._memory.write(list(pieces), offset)
                result = result._replace(payload=length)
        message = result.pickled()
        if len(message) > MAX_PACKET:
            # What is said of a start belongs to no slot: slot 0 has a place for each worker.
            place = (task.slot, task.chunk_id) if isinstance(task, Task) else (0, result.worker_id)
            offset = message_offset(*place)
            self._memory.write([message], offset)
            message = pickle.dumps((offset, len(message)), 5)
        return message

    def decode(self, message: memoryview | bytes) -> AnyTask:
        fields = pickle.loads(message)
        if len(fields) == 3:
            _, offset, length = fields
            fields = pickle.loads(self._memory.read(length, offset))
        return task_of(fields)


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


class Link:
    """A worker's link to the user's process, which has pickled the job, or forked the worker with it."""

    def __init__(self, worker_id: int, endpoint: Any, memory: MemoryFile | None) -> None:
        self.where = f"in DataLoader worker process {worker_id}"
        self.sink: MessageSink = endpoint.sink() if memory is None else FileSink(memory)
        self._worker_id, self._endpoint, self._memory = worker_id, endpoint, memory
        self._control: Control | None = None
        self._skips = False
        self._sending = threading.Lock()

    def follow(self, job: Job) -> None:
        """Note from now on which tasks are done, and skip those of iterations that are over, unless it has streams."""
        if self._memory is not None:
            self._control = Control(self._memory, job.num_workers, job.worker_threads)
        self._skips = not job.streams

    def receive(self) -> AnyTask | None:
        """Return the next task; None when there will be no more. Called by one thread at a time."""
        while (message := self._endpoint.receive()) is not None:
            try:
                task = self.sink.decode(message)
            except Exception as error:  # indices that only their own process can read
                self.fail(error)
                return None
            if self._control is None or task.iteration >= self._control.iteration or not self._skips:
                return task
            self.send(skipped(task, self._worker_id), task)
        return None

    def note(self, task: AnyTask | None, thread: int = 0) -> None:
        """Note what a thread begins; None: it is between two tasks."""
        if self._control is not None:
            self._control.note(self._worker_id, thread, -1 if task is None else task.task_id)

    def send(self, result: Result, task: AnyTask | None) -> None:
        """Send a result; ``task``: what it is of."""
        message = encoded(self.sink, result, task, self.where)
        with self._sending:
            self._endpoint.send(message)

    def fail(self, error: Exception) -> None:
        """Say that this worker cannot start, or go on."""
        self.send(failed_start(error, self._worker_id, self.where), None)


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
    seeding.torch_worker_streams(job.base_seed, worker_id)
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


def encoded(sink: MessageSink, result: Result, task: AnyTask | None, where: str) -> bytes:
    """Encode a result; one that cannot be pickled becomes an error that says so, in its place."""
    try:
        return sink.encode(result, task)
    except Exception as error:
        instead = _in_its_place(result, error, where)
        last = result.outcome in (Outcome.ERROR, Outcome.FAILED_START)
        return sink.encode(instead, task) if last else encoded(sink, instead, task, where)


def _in_its_place(result: Result, error: Exception, where: str) -> Result:
    """Return what is sent for a result that cannot be pickled. One for an error can be pickled for certain."""
    if result.outcome in (Outcome.SAMPLES, Outcome.ROWS_NEW_LAYOUT):
        return result._replace(outcome=Outcome.UNSENDABLE, payload=f"samples cannot be sent one by one ({error!r})")
    if result.outcome in (Outcome.ERROR, Outcome.FAILED_START):
        wrapper: ExceptionWrapper = result.payload
        # A class that cannot be found by its name, such as one defined in a function: its text still can.
        substitute = ExceptionWrapper((RuntimeError, RuntimeError(), None), where=where)
        vars(substitute).update(vars(wrapper), exc_type=RuntimeError)
        name = wrapper.exc_type.__name__
        substitute.where = f"{where} (as RuntimeError, because {name} itself cannot be pickled: {error!r})"
        return result._replace(payload=substitute)
    error.add_note(
        "the result of the dataset or of collate_fn could not be sent to the main process; "
        "return tensors, arrays or other picklable objects"
    )
    return result._replace(outcome=Outcome.ERROR, payload=wrap_exception(error, where))


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
