"""A seat at a pool: the place of workers that are no processes or threads of it, but run elsewhere.

In: tasks, taken from the same queue that the pool's own workers take theirs from. Out: results, sent as those send
theirs. So the pool does not know who has done a task. The relay sits there.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any, Protocol

import numpy as np

from ...base.worker_errors import read_error
from ...buffers.layout import Buffer, Layout
from ...buffers.packing import unpack
from ...buffers.slots import MemoryFile
from ...errors import ConfigError
from ...work import WorkItem
from ..fetch import Outcome, Result
from ..processes import ProcessPool, fields_of, writable
from ..threads import ThreadPool
from ..transport import PacketEndpoint
from ..worker_process import Control, FileSink


class Seat(Protocol):
    """See the module. :meth:`take` is for one thread, :meth:`rows` for one; the rest may be called by both at once."""

    memory: MemoryFile | None
    """Where slots lie, if other processes can map it."""

    @property
    def iteration(self) -> int:
        """The lowest number of an iteration whose tasks are to be done."""

    def take(self) -> tuple[WorkItem, int | None] | None:
        """Return the next task, and the worker it is for (None: any); None when there will be no more. Blocks."""

    def layout(self, generation: int) -> Layout | None:
        """Return a layout; None if it is not published yet."""

    def rows(self, slot: int, num_bytes: int) -> Buffer:
        """Return the first bytes of a slot."""

    def give(self, message: bytes, item: WorkItem | None, worker_id: int, packed: Buffer | None = None) -> None:
        """Send a result, pickled; ``item``: its task; ``packed``: samples or a batch, packed, that are its payload."""

    def end(self) -> None:
        """End :meth:`take`, and whatever waits in :meth:`give`; the pool's other workers end too."""

    def close(self) -> None:
        """Let go of what the seat has. Nobody takes or gives any more."""


class PacketSeat(Seat):
    """A seat at a pool of processes, whose slots lie in a memory file, or one that has no other workers."""

    def __init__(self, pool: ProcessPool, num_workers: int) -> None:
        shared: Any = pool.slots.memory
        # Descriptors and mappings of its own, as a process would have them: the pool's are not for several threads.
        self.memory: MemoryFile = MemoryFile(fd=os.dup(shared.fd))
        ends = [end.dup() for end in pool.ends]
        self._endpoints = [PacketEndpoint(end) for end in ends]
        self._by_number = {end.fileno(): worker_id for worker_id, end in enumerate(ends)}
        self._sink = FileSink(self.memory)
        self._control = Control(self.memory, num_workers)
        self._poll = select.poll()
        for number in self._by_number:
            self._poll.register(number, select.POLLIN)

    @property
    def iteration(self) -> int:
        return self._control.iteration

    def take(self) -> tuple[WorkItem, int | None] | None:
        worker_id = None
        endpoint = self._endpoints[0]
        if len(self._endpoints) > 1:
            worker_id = self._by_number[self._poll.poll()[0][0]]
            endpoint = self._endpoints[worker_id]
        message = endpoint.receive()
        return None if message is None else (self._sink.decode(message), worker_id)

    def layout(self, generation: int) -> Layout | None:
        return self._sink.layout(generation)

    def rows(self, slot: int, num_bytes: int) -> Buffer:
        return np.frombuffer(self.memory.buffer(slot, max(1, num_bytes)), dtype=np.uint8)

    def give(self, message: bytes, item: WorkItem | None, worker_id: int, packed: Buffer | None = None) -> None:
        if packed is not None:
            assert item is not None
            result = Result(*fields_of(message))
            payload = self._sink.kept([packed], len(packed), result.outcome, item)
            message = result._replace(payload=payload).pickled()
        self._endpoints[worker_id % len(self._endpoints)].send(self._sink.in_packet(message, worker_id, item))

    def end(self) -> None:
        for endpoint in self._endpoints:
            with contextlib.suppress(OSError):
                endpoint.end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for endpoint in self._endpoints:
            endpoint.end.close()
        self._control = None  # type: ignore[assignment]  # it keeps the file mapped
        self.memory.close()


class QueueSeat(Seat):
    """A seat at a pool of threads."""

    memory = None

    def __init__(self, pool: ThreadPool) -> None:
        self._state = pool.state
        self._num_takers = len(pool.workers) + 1

    @property
    def iteration(self) -> int:
        return self._state.iteration

    def take(self) -> tuple[WorkItem, int | None] | None:
        item = self._state.tasks[0].get()
        return None if item is None or self._state.closed else (item, None)

    def layout(self, generation: int) -> Layout | None:
        return self._state.layout(generation)

    def rows(self, slot: int, num_bytes: int) -> Buffer:
        buffer: Any = self._state.memory.buffer(slot, max(1, num_bytes))
        return np.frombuffer(buffer, dtype=np.uint8)

    def give(self, message: bytes, item: WorkItem | None, worker_id: int, packed: Buffer | None = None) -> None:
        result = Result(*fields_of(message))
        if result.outcome in (Outcome.ERROR, Outcome.FAILED_START) and isinstance(result.payload, bytes):
            result = result._replace(payload=read_error(result.payload))
        elif packed is not None and result.outcome in (Outcome.SAMPLES, Outcome.BATCH):
            result = result._replace(payload=unpack(writable(packed)))
        self._state.results.put(result)

    def end(self) -> None:
        self._state.closed = True
        for _ in range(self._num_takers):
            self._state.tasks[0].put(None)

    def close(self) -> None:
        return


def seat_at(pool: ProcessPool | ThreadPool, num_workers: int) -> Seat:
    """Return a seat at a pool; ``num_workers``: all that the job has.

    Raises:
        ConfigError: it has none.
    """
    if isinstance(pool, ThreadPool):
        return QueueSeat(pool)
    if not pool.ends:
        raise ConfigError(
            "workers on other machines beside processes write to a memory file, which this system does not have (Linux "
            "has it, without FASTLOAD_TRANSPORT=pipes); use worker_method='thread' with remote_workers"
        )
    return PacketSeat(pool, num_workers)
