"""How work and results pass between the user's process and its workers. Two ways, one interface.

``packets``: AF_UNIX SOCK_SEQPACKET pairs and one memory file. A packet goes to exactly one reader, atomically, so any
idle worker may read from the one shared pair, and a worker that is killed holds no lock. Linux.

``pipes``: a pipe for each worker, and everything is in the message: see pipes.py. Elsewhere, and wherever
``FASTLOAD_TRANSPORT=pipes`` is set (read when a pool starts), so that it is tested on Linux too.

A message is bytes. Sending never blocks the user's process: what does not fit at once waits in a deque, and results are
always read before more is sent, so that neither side can wait for the other for ever. A worker's end has two methods:
``receive()`` blocks until there is a message, and returns None when there will be no more; ``send()`` blocks while the
other side does not read. What either side has received is valid until it receives again.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch._utils import ExceptionWrapper

from ..base.worker_errors import wrap_exception
from ..buffers.layout import Layout, WriteRows
from ..buffers.slots import MAX_CHUNK_BYTES, MemoryFile, chunk_offset, message_offset, slot_offset
from ..work import AnyTask, Task, task_of
from .fetch import Outcome, Result, failed_start, skipped
from .pool import MessageSink
from .samples import Job

# A packet takes kernel memory in one piece; above this a message lies in the memory file and the packet says where.
MAX_PACKET = 16_384
_RECEIVE_BYTES = 65_536
# Words of the control page: the running iteration, then for each thread of each worker the id + 1 of the task it
# works on.
_FIRST_WORKER = 8
# Published layouts lie in slot 0, this far apart; each begins with its length.
LAYOUT_SHIFT = 24


class PacketEndpoint:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        end.settimeout(None)  # whatever socket.setdefaulttimeout() was told
        self.end = end
        self._memory: memoryview | None = None

    def __getstate__(self) -> socket.socket:
        return self.end

    def __setstate__(self, end: socket.socket) -> None:
        self.__init__(end)  # type: ignore[misc]  # the one way to build it

    def receive(self) -> memoryview | None:
        """Return the next message; None when there will be no more."""
        if self._memory is None:
            self._memory = memoryview(bytearray(_RECEIVE_BYTES))
        length = self.end.recv_into(self._memory)
        return self._memory[:length] if length else None

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.end.send(message)


class Packets:
    """Socket pairs: one for all workers (``shared``), so that the idle ones take work from it, or one each."""

    name = "shared memory"

    def __init__(self, num_workers: int, *, shared: bool) -> None:
        self._num_workers = num_workers
        self._ours: list[socket.socket] = []
        self._theirs: list[socket.socket] = []
        for _ in range(1 if shared else num_workers):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # the system caps it as it likes
            self._ours.append(ours)
            self._theirs.append(theirs)
        self._waiting: list[deque[bytes]] = [deque() for _ in self._ours]
        self._memory = memoryview(bytearray(_RECEIVE_BYTES))
        self._poll = select.poll()
        for end in self._ours:
            self._poll.register(end, select.POLLIN)
        self._next = 0

    def endpoint(self, worker_id: int) -> PacketEndpoint:
        """Make the end of this worker, just before it is started."""
        return PacketEndpoint(self._theirs[worker_id % len(self._theirs)])

    def started(self, worker_id: int) -> None:
        """Let go of our copy of a worker's end; a shared one is kept until the last worker has it."""
        if worker_id == self._num_workers - 1:
            for end in self._theirs:
                end.close()
            self._theirs.clear()

    def inherited(self) -> list[Any]:
        """Return the other ends that a worker forked now should close."""
        return self._ours

    def send(self, message: bytes, worker_id: int | None, tag: int = 0) -> None:
        """Send to one worker, or to the first free one. Never blocks. ``tag`` names the message for pipes."""
        pair = (worker_id or 0) % len(self._ours)
        waiting = self._waiting[pair]
        if waiting or not self._try(pair, message):
            waiting.append(message)

    def _try(self, pair: int, message: bytes) -> bool:
        try:
            self._ours[pair].send(message)
        except (BlockingIOError, InterruptedError):
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True  # every reader has died; wait() sees it
        return True

    def receive(self) -> memoryview | None:
        """Return the next message that is there, or None. Never blocks."""
        ends = self._ours
        for _ in ends:
            self._next = (self._next + 1) % len(ends)
            try:
                length = self._receive_from(ends[self._next])
            except (BlockingIOError, InterruptedError, ConnectionResetError):
                continue
            if length:
                return self._memory[:length]
        self._drain()
        return None

    def _receive_from(self, end: socket.socket) -> int:
        try:
            return end.recv_into(self._memory)
        except ConnectionResetError:
            # Told once, when a worker has ended without reading all that was sent to it. What it sent is still there.
            return end.recv_into(self._memory)

    def _drain(self) -> None:
        for pair, waiting in enumerate(self._waiting):
            while waiting and self._try(pair, waiting[0]):
                waiting.popleft()

    def wait(self, sentinels: Sequence[int], timeout: float | None) -> list[int]:
        """Block until there may be a message, a sentinel is ready, or the time is over; return ready sentinels."""
        for sentinel in sentinels:
            self._poll.register(sentinel, select.POLLIN)
        for end, waiting in zip(self._ours, self._waiting, strict=True):
            self._poll.modify(end, select.POLLIN | (select.POLLOUT if waiting else 0))
        try:
            events = self._poll.poll(None if timeout is None else max(0, timeout) * 1000)
        finally:
            for sentinel in sentinels:
                self._poll.unregister(sentinel)
        ready = {fd for fd, _ in events}
        return [sentinel for sentinel in sentinels if sentinel in ready]

    def close(self) -> None:
        """End all workers' ``receive``."""
        for end in self._ours:
            try:
                # Not only close: a process forked meanwhile may have a copy, and the workers must see the end.
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for end in [*self._ours, *self._theirs]:
            end.close()


class Control:
    """Words in shared memory that need no lock: each has one writer."""

    def __init__(self, memory: MemoryFile, num_workers: int, num_threads: int) -> None:
        number = _FIRST_WORKER + num_workers * num_threads
        self._words = np.frombuffer(memory.buffer(0, 8 * number), dtype=np.int64)
        self._threads = num_threads

    def begin(self, iteration: int) -> None:
        """Let only tasks of this iteration and later ones be done."""
        self._words[0] = iteration

    def is_over(self, task: AnyTask) -> bool:
        """Return whether a task is of an iteration that is over."""
        return task.iteration < int(self._words[0])

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
            from ..buffers.packing import join, pack  # rows need none

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
            if self._control is None or not self._skips or not self._control.is_over(task):
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


def _files_may_be_large() -> bool:
    """Return whether a sparse file may be of any size: the memory file's offsets lie far apart."""
    import resource  # Unix only

    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def use_packets() -> bool:
    """Return whether this system supports packets, and ``FASTLOAD_TRANSPORT`` does not ask for pipes.

    Raises:
        ValueError: the variable has another value.
    """
    wish = os.environ.get("FASTLOAD_TRANSPORT", "")
    if wish not in ("", "pipes"):
        raise ValueError(f"FASTLOAD_TRANSPORT must be 'pipes', or unset for packets where there are any, got {wish!r}")
    can = hasattr(os, "memfd_create") and hasattr(socket, "SOCK_SEQPACKET") and _files_may_be_large()
    return can and not wish
