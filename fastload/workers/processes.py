"""Worker processes: who does the work in other processes, how they start, how they end.

In: WorkItems. Out: Results. The parent's side is :class:`ProcessPool`; the worker's is :func:`worker_main`.

NOTE [How workers end]
A worker leaves when its endpoint ends (the pool was closed), when its parent is gone, or when it is killed. The
parent's end is watched by a small thread, since the worker may be in the user's code for hours. A pool that is closed
waits a bounded time for what is being worked on, then terminates, then kills. A worker that dies by itself is found
through its sentinel, which is among what the parent waits for.
"""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper

from .. import compat, seeding
from ..errors import WorkerDied
from ..layout import Buffer, Layout
from ..packing import join, pack, unpack
from ..plan import WorkItem
from ..slots import Memory, MemoryFile, OwnFork, PrivateMemory, SlotPool, chunk_offset, let_go_in_worker, slot_offset
from .fetch import ERROR, FAILED_START, SAMPLES, SKIPPED, START, WHOLE, Fetcher, Job, Result
from .transport import MAX_PACKET, Packets, Pipes, Transport, use_packets

# How long a pool that is closed waits for its workers before it terminates them, in seconds: torch's figure.
_GRACE = 5.0

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

# Words of the control page: the running iteration, then for each worker the serial + 1 of the item it works on.
_ITERATION = 0
_FIRST_WORKER = 8
# Published layouts lie in slot 0, this far apart; each begins with its length.
_LAYOUT_SHIFT = 24
_JOB_OFFSET = 1 << 42


class _Control:
    """Words in shared memory that need no lock: each has one writer."""

    def __init__(self, memory: MemoryFile, num_workers: int) -> None:
        self._words = np.frombuffer(memory.buffer(0, 8 * (_FIRST_WORKER + num_workers)), dtype=np.int64)

    @property
    def iteration(self) -> int:
        return int(self._words[_ITERATION])

    @iteration.setter
    def iteration(self, value: int) -> None:
        self._words[_ITERATION] = value

    def holds(self, worker_id: int) -> int | None:
        """Serial of the item that a worker is at; None between items."""
        return int(self._words[_FIRST_WORKER + worker_id]) - 1 if self._words[_FIRST_WORKER + worker_id] else None

    def begin(self, worker_id: int, serial: int) -> None:
        self._words[_FIRST_WORKER + worker_id] = serial + 1

    def end(self, worker_id: int) -> None:
        self._words[_FIRST_WORKER + worker_id] = 0


class _FileSink:
    """A worker's side of the memory file. See :class:`~fastload.workers.fetch.Sink`."""

    def __init__(self, memory: MemoryFile) -> None:
        self._memory = memory
        self._layouts: dict[int, Layout] = {}

    def layout(self, generation: int) -> Layout | None:
        known = self._layouts.get(generation)
        if known is None:
            offset = generation << _LAYOUT_SHIFT
            length = int.from_bytes(self._memory.read(8, offset), "little")
            if length == 0:
                return None
            known = self._layouts[generation] = pickle.loads(self._memory.read(length, offset + 8))
        return known

    def write_rows(self, layout: Layout, samples: Sequence[Any], item: WorkItem) -> Any:
        _, num_bytes = layout.offsets(item.num_rows)
        memory = self._memory.buffer(item.slot, max(1, num_bytes))
        return layout.write(samples, np.frombuffer(memory, dtype=np.uint8), item.num_rows, item.row)

    def encode(self, result: Result, item: WorkItem | None) -> bytes:
        """Turn a result into a packet; what is large goes into the item's slot and the packet says where."""
        if result.status in (SAMPLES, WHOLE):
            pieces, length = pack(result.payload)
            if length <= MAX_PACKET // 2:
                payload: Any = join(pieces).tobytes()
            else:
                assert item is not None
                offset = slot_offset(item.slot) if result.status == WHOLE else chunk_offset(item.slot, item.chunk_id)
                self._memory.write(list(pieces), offset)
                payload = length
            result = result._replace(payload=payload)
        message = pickle.dumps(tuple(result), 5)
        if len(message) > MAX_PACKET:
            assert item is not None
            offset = chunk_offset(item.slot, item.chunk_id)
            self._memory.write([message], offset)
            message = pickle.dumps((offset, len(message)), 5)
        return message

    def decode(self, message: memoryview | bytes) -> WorkItem:
        fields = pickle.loads(message)
        if len(fields) == 2:
            offset, length = fields
            fields = pickle.loads(self._memory.read(length, offset))
        return WorkItem(*fields)


class _MessageSink:
    """A worker's side where everything is in the message. See :class:`~fastload.workers.fetch.Sink`."""

    def __init__(self) -> None:
        self._layouts: dict[int, Layout] = {}

    def layout(self, generation: int) -> Layout | None:
        return self._layouts.get(generation)

    def write_rows(self, layout: Layout, samples: Sequence[Any], item: WorkItem) -> Any:
        rows: Buffer = np.empty(layout.offsets(len(samples))[1], dtype=np.uint8)
        objects = layout.write(samples, rows, len(samples), 0)
        return objects, pickle.PickleBuffer(rows.data)

    def encode(self, result: Result, item: WorkItem | None) -> bytes:
        if result.status in (SAMPLES, WHOLE):
            result = result._replace(payload=pickle.PickleBuffer(join(pack(result.payload)[0]).data))
        return pickle.dumps(tuple(result), 5)

    def decode(self, message: memoryview | bytes) -> WorkItem:
        generation, encoded, fields = pickle.loads(message)
        if generation and generation not in self._layouts:
            self._layouts[generation] = pickle.loads(encoded)
        return WorkItem(*fields)


class _SharedJob:
    """A job that lies in the memory file, pickled once for all workers. Their tensors and arrays share its pages."""

    def __init__(self, length: int) -> None:
        self._length = length

    def load(self, memory: MemoryFile | None) -> Job:
        import mmap

        assert memory is not None
        # Private: a worker may change its copy of the dataset, as it may after a fork.
        mapped = mmap.mmap(memory.fd, self._length, flags=mmap.MAP_PRIVATE, offset=_JOB_OFFSET)
        job: Job = unpack(np.frombuffer(mapped, dtype=np.uint8))
        return job


class _DirectJob:
    """A job that a worker inherits, or that is pickled for each worker by multiprocessing itself."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def load(self, memory: MemoryFile | None) -> Job:
        return self._job


def worker_main(
    source: _SharedJob | _DirectJob,
    worker_id: int,
    endpoint: Any,
    memory: MemoryFile | None,
    parent_pid: int,
    foreign: list[Any],
) -> None:
    """Live as worker ``worker_id`` of the process ``parent_pid``.

    Args:
        source: where the job is.
        worker_id: 0 to num_workers - 1.
        endpoint: this worker's end of the transport.
        memory: the memory file; None where everything is in the messages.
        parent_pid: whose end this worker does not outlive.
        foreign: ends of others that this process has inherited by a fork.
    """
    # Collections would write to every inherited object's header, and so copy the parent's memory page by page.
    gc.freeze()
    try:
        for end in foreign:
            end.close()
        let_go_in_worker(memory)
        _watch_parent(parent_pid)
        compat.set_worker_signal_handlers()
        compat.set_thread_name("fastload_worker")
        torch.set_num_threads(1)
        _keep_freed_memory()
        job = source.load(memory)
        del source
        _live(job, worker_id, endpoint, memory)
    except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        pass  # the user's process got the interrupt too; or it is gone


def _live(job: Job, worker_id: int, endpoint: Any, memory: MemoryFile | None) -> None:
    sink = _MessageSink() if memory is None else _FileSink(memory)
    where = f"in DataLoader worker process {worker_id}"
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
    try:
        if job.worker_init_fn is not None:
            job.worker_init_fn(worker_id)
        fetcher = Fetcher(job, worker_id, where)
    except Exception:
        result = Result(-1, worker_id, FAILED_START, 0, ExceptionWrapper(where=where), 0)
        endpoint.send(_encoded(sink, result, None, where))
        return
    control = None if memory is None else _Control(memory, job.num_workers)
    while (message := endpoint.receive()) is not None:
        item = sink.decode(message)
        if control is not None:
            if item.iteration != control.iteration and item.layout != START:
                endpoint.send(sink.encode(Result(item.serial, worker_id, SKIPPED, 0, None, 0), item))
                continue
            control.begin(worker_id, item.serial)
        result = fetcher.run(item, sink)
        encoded = _encoded(sink, result, item, where)
        del result
        endpoint.send(encoded)
        if control is not None:
            control.end(worker_id)


def _encoded(sink: _FileSink | _MessageSink, result: Result, item: WorkItem | None, where: str) -> bytes:
    """Encode a result; one that cannot be pickled becomes an error that says so, in its place."""
    try:
        return sink.encode(result, item)
    except Exception as error:
        if result.status == ERROR or result.status == FAILED_START:
            wrapper: ExceptionWrapper = result.payload
            # A class that cannot be found by its name, such as one defined in a function: its text still can.
            substitute = ExceptionWrapper((RuntimeError, RuntimeError(), None), where=where)
            substitute.exc_msg = wrapper.exc_msg
            name = wrapper.exc_type.__name__
            substitute.where = f"{where} (as RuntimeError, because {name} itself cannot be pickled: {error})"
        else:
            error.add_note(
                "the result of the dataset or of collate_fn could not be sent to the main process; "
                "return tensors, arrays or other picklable objects"
            )
            substitute = ExceptionWrapper((type(error), error, error.__traceback__), where=where)
        result = result._replace(status=ERROR if result.status != FAILED_START else FAILED_START, payload=substitute)
        return sink.encode(result, item)


def _keep_freed_memory() -> None:
    """Let malloc keep what a sample frees for the next sample, up to 128 MiB, where it is glibc's.

    By default large blocks go back to the system at once and come again as fresh pages, to be zeroed: 65 to 200 page
    faults for an image of 224 x 224 floats, a fifth of its system time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 128 << 20)


def _watch_parent(parent_pid: int) -> None:
    try:
        watched = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):  # not Linux, or too old
        watched = -1

    def watch() -> None:
        if watched >= 0:
            select.select([watched], [], [])
        else:
            while True:
                time.sleep(1.0)
                try:
                    os.kill(parent_pid, 0)
                except ProcessLookupError:
                    break
                except OSError:
                    continue
        os._exit(1)

    threading.Thread(target=watch, name="fastload_parent_watch", daemon=True).start()


class ProcessPool:
    """A set of worker processes.

    Args:
        job: what they load.
        context: how they are started.
        shared: whether any idle worker takes any item; else each item names its worker.
        keep_slots: free slots whose memory is kept.

    Ownership: to be used and closed by the process that made it, one thread at a time.
    """

    worker_method = "multiprocessing"

    def __init__(self, job: Job, context: BaseContext, *, shared: bool, keep_slots: int) -> None:
        self.start_method: str = context.get_start_method()
        self.workers: list[BaseProcess] = []
        self._job = job
        self._items: dict[int, WorkItem] = {}
        self._mail: dict[int, int] = {}
        self._latest: tuple[int, bytes] = (0, b"")
        self._dead: int | None = None
        self._closed = False
        self._pid = os.getpid()
        packets = use_packets()
        self._file = MemoryFile() if packets else None
        memory: Memory = self._file if self._file is not None else PrivateMemory()
        self.slots = SlotPool(memory, keep_slots)
        self._control = None if self._file is None else _Control(self._file, job.num_workers)
        self._transport: Transport = (
            Packets(job.num_workers, shared=shared) if packets else Pipes(job.num_workers, context)
        )
        self.job_pickled = "inherited"
        try:
            self._start(context)
        except BaseException:
            self.close(grace=0)
            raise

    @property
    def transport(self) -> str:
        """``packets`` or ``pipes``."""
        return self._transport.name

    def _start(self, context: BaseContext) -> None:
        direct = _DirectJob(self._job)
        source = direct if self.start_method == "fork" else self._share_job(direct)
        for worker_id in range(self._job.num_workers):
            endpoint = self._transport.endpoint(worker_id)
            foreign = self._transport.inherited() if self.start_method == "fork" else []
            process = context.Process(  # type: ignore[attr-defined]  # every concrete context has it
                target=worker_main,
                args=(source, worker_id, endpoint, self._file, os.getpid(), foreign),
                daemon=True,
            )
            with OwnFork():
                try:
                    process.start()
                except (TypeError, AttributeError, pickle.PicklingError) as error:
                    error.add_note(
                        f"the dataset, collate_fn and worker_init_fn must be picklable for workers started by "
                        f"{self.start_method!r}; define them at the top level of a module, or pass "
                        "multiprocessing_context='fork'"
                    )
                    raise
            self.workers.append(process)
            self._transport.started(worker_id)

    def _share_job(self, direct: _DirectJob) -> _SharedJob | _DirectJob:
        self.job_pickled = "for each worker"
        if self._file is None:
            return direct
        try:
            pieces, length = pack(self._job, for_all=True)
        except Exception:
            # Locks, queues and shared tensors can only be passed while a process is being started; and for what
            # cannot be pickled at all, multiprocessing's own error follows.
            return direct
        self._file.write(list(pieces), _JOB_OFFSET)
        self.job_pickled = "once for all workers"
        return _SharedJob(length)

    def begin(self, iteration: int) -> None:
        """Let items of older iterations be skipped."""
        if self._control is not None:
            self._control.iteration = iteration

    def publish(self, generation: int, layout: Layout) -> None:
        """Make a layout known to all workers."""
        encoded = pickle.dumps(layout, 5)
        self._latest = generation, encoded
        if self._file is not None:
            offset = generation << _LAYOUT_SHIFT
            self._file.write([encoded], offset + 8)
            self._file.write([len(encoded).to_bytes(8, "little")], offset)  # last: workers look at it first

    def submit(self, item: WorkItem, worker_id: int | None = None) -> None:
        """Give an item to one worker, or to whoever is idle first. Never blocks.

        Raises:
            Exception: whatever pickling the indices raises; nothing has been sent then.
        """
        if self._file is None:
            message = pickle.dumps((*self._latest, tuple(item)), 5)
        else:
            message = pickle.dumps(tuple(item), 5)
            if len(message) > MAX_PACKET:
                slot = self._mail[item.serial] = self.slots.acquire()
                self._file.write([message], slot_offset(slot))
                message = pickle.dumps((slot_offset(slot), len(message)), 5)
        self._items[item.serial] = item
        self._transport.send(message, worker_id)

    def poll(self) -> Result | None:
        """Return a result that is there, or None. Never blocks.

        Raises:
            WorkerDied: a worker has ended by itself, and all that it had sent has been read.
        """
        message = self._transport.receive()
        if message is None:
            if self._dead is not None:
                raise self._death(self._dead)
            return None
        fields = pickle.loads(message)
        if len(fields) == 2:
            assert self._file is not None
            offset, length = fields
            fields = pickle.loads(self._file.take(length, offset))
        result = Result(*fields)
        self._items.pop(result.serial, None)
        mail = self._mail.pop(result.serial, None)
        if mail is not None:
            self.slots.release(mail)
        return result

    def wait(self, timeout: float | None) -> None:
        """Block until there may be a result, a worker has died, or the time (in seconds) is over."""
        sentinels = {process.sentinel: worker_id for worker_id, process in enumerate(self.workers)}
        ready = self._transport.wait(list(sentinels), timeout)
        if ready:
            self._dead = sentinels[ready[0]]

    def take_samples(self, payload: Any, item: WorkItem) -> list[Any]:
        """Return the samples of a SAMPLES result."""
        if isinstance(payload, int):
            assert self._file is not None
            payload = self._file.take(payload, chunk_offset(item.slot, item.chunk_id))
        samples: list[Any] = unpack(_writable(payload))
        return samples

    def take_whole(self, payload: Any, item: WorkItem) -> Any:
        """Return the batch of a WHOLE result; the slot is the user's or free afterwards."""
        if isinstance(payload, int):
            return unpack(self.slots.lend(item.slot, payload))
        self.slots.release(item.slot)
        return unpack(_writable(payload))

    def take_rows(self, payload: Any, item: WorkItem, layout: Layout) -> list[Sequence[Any]]:
        """Return the objects of a ROWS result, after its rows are in the slot."""
        if self._file is not None:
            objects: list[Sequence[Any]] = payload
            return objects
        objects, rows = payload
        count = len(item.indices)
        batch = self.slots.view(item.slot, layout.offsets(item.num_rows)[1])
        layout.copy_rows(np.frombuffer(rows, dtype=np.uint8), count, batch, item.num_rows, item.row)
        return objects

    def _death(self, worker_id: int) -> WorkerDied:
        process = self.workers[worker_id]
        process.join()
        code = process.exitcode
        item = None
        if self._control is not None:
            serial = self._control.holds(worker_id)
            item = None if serial is None else self._items.get(serial)
        samples: tuple[object, ...] = ()
        doing = "between two tasks"
        if item is not None:
            samples = tuple(item.indices) if isinstance(item.indices, list | tuple) else (item.indices,)
            doing = f"while loading batch {item.batch_id} (samples {_shortened(samples)})"
        elif self._control is None:
            doing = "while loading"
        how = f"exited with code {code}"
        if code is not None and code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
        hint = "; the kernel log will say if memory ran out" if code == -signal.SIGKILL else ""
        died = WorkerDied(
            f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly: worker {worker_id} {how} {doing}{hint}",
            worker_id=worker_id,
            exitcode=code,
            samples=samples,
        )
        # torch's words, for those who look for them: there its signal handler's error is the cause of the other.
        ended = f"is killed by signal: {signal.strsignal(-code)}." if code is not None and code < 0 else "has ended."
        died.__cause__ = RuntimeError(f"DataLoader worker (pid {process.pid}) {ended}")
        return died

    def close(self, grace: float = _GRACE) -> None:
        """End all workers. Blocks at most ``grace`` seconds for what is being worked on, and then a little."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._transport.close()
        deadline = time.monotonic() + grace
        for end_it in (None, "terminate", "kill"):
            for process in self.workers:
                if end_it is not None and process.is_alive():
                    getattr(process, end_it)()
            for process in self.workers:
                process.join(max(0.0, deadline - time.monotonic()))
            deadline = time.monotonic() + 1.0
        self._control = None
        self.slots.close()


def _writable(payload: Any) -> Buffer:
    found: Buffer = np.frombuffer(payload, dtype=np.uint8)
    return found if found.flags.writeable else found.copy()


def _shortened(samples: tuple[object, ...]) -> str:
    shown = [repr(sample)[:40] for sample in samples[:8]]
    return ", ".join(shown) + (f", ... {len(samples)} in all" if len(samples) > 8 else "")


__all__ = ["ProcessPool", "worker_main"]
