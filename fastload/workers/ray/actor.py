"""A worker as an actor of Ray: the actor's side.

On the machine of the loader rows are written into the slot itself, as by a process of its own. Elsewhere they are part
of what the call returns, as NumPy arrays, which Ray carries without pickling them; so are samples and batches that are
packed.

NOTE [One writer]
Ray may start an actor again while the process that it was before still lives. So a process that writes to the loader's
memory holds a lock of it, one for each worker, which the system takes from it when it has ended. The next one waits for
the lock, and so does the loader before it gives what was lost to another.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import sys
from typing import Any, NamedTuple

import numpy as np
import torch

from ...base import compat
from ...buffers.layout import Buffer, Layout, WriteRows
from ...buffers.packing import join, pack
from ...buffers.slots import MemoryFile
from ...work import Item, WorkItem, task_of
from ..fetch import Fetcher, Outcome, Result, failed_start
from ..pipes import PipeSink
from ..samples import Job
from ..worker_process import encoded, fetcher_of, keep_freed_memory

LOCKS_AT = 1 << 41
"""The byte of the memory file that the first worker locks, in slot 0; see NOTE [One writer]."""


class Place(NamedTuple):
    """What a worker is told when it starts: where the loader's process is, its number, and that of its memory file."""

    worker_id: int
    namespace: str
    pid: int
    fd: int
    """-1: rows are returned."""


class Started(NamedTuple):
    """What a worker says when it has started."""

    host: str
    shares_memory: bool
    failed: bytes | None
    """The result of a start that failed in the user's code."""


def process_namespace() -> str:
    """Return what two processes have in common that know each other by their numbers."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"


class RayWorker:
    """One worker. Ray makes it in a process of its own, again where that dies, and calls it from one thread."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._sink: _ArraySink
        self._fetcher: Fetcher
        self._where: str

    def start(self, place: Place, packed_job: Buffer) -> Started:
        """Become a worker, if this process is none yet, and say so."""
        if self._started is not None:
            return self._started
        import ray

        torch.set_num_threads(1)
        keep_freed_memory()
        compat.process.is_worker = True
        self._where = f"in DataLoader Ray worker {place.worker_id} on {socket.gethostname()}"
        self._sink = _ArraySink(_shared_memory(place))
        failed = None
        try:
            job: Job = pickle.loads(packed_job.data)
            _name_classes_of_the_script()
            self._fetcher = fetcher_of(job, place.worker_id, self._where)
        except Exception as error:
            if isinstance(error, ImportError):
                error.add_note(
                    "the code of the dataset must be importable on each machine of the cluster: install it there, or "
                    "send it along with ray_options={'runtime_env': {'working_dir': '.'}}"
                )
            result = failed_start(error, place.worker_id, self._where)
            failed = encoded(self._sink, result, None, self._where)
        node = ray.get_runtime_context().get_node_id()
        host = f"{socket.gethostname()} (pid {os.getpid()}, node {node[:8]})"
        self._started = Started(host, self._sink.memory is not None, failed)
        return self._started

    def run(self, layout: tuple[int, bytes] | None, message: bytes) -> Any:
        """Do a task; return its message, and the rows or packed samples that are not in the loader's memory.

        ``layout``: what rows are to fit: its number, and pickled; None: there is none. ``message``: the task, pickled.
        Returns None where this process was not told to start: it took the place of one that had died.
        """
        if self._started is None:
            return None
        sink = self._sink
        sink.array = None
        if layout is not None and layout[0] not in sink.layouts:
            sink.layouts[layout[0]] = pickle.loads(layout[1])
        item = task_of(pickle.loads(message))
        told = encoded(sink, self._fetcher.run(item, sink), item, self._where)
        return told if sink.array is None else (told, sink.array)


def _name_classes_of_the_script() -> None:
    """Let classes that came by value, from the script itself, be found by name, so that their objects are pickled."""
    from ray.cloudpickle import cloudpickle

    script = sys.modules["__main__"]
    for kind in list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS):
        if kind.__module__ == "__main__" and kind.__qualname__.isidentifier():
            setattr(script, kind.__qualname__, kind)


class _ArraySink(PipeSink):
    """Writes rows to the loader's memory, where there is one. Keeps them aside else, for Ray to carry."""

    def __init__(self, memory: MemoryFile | None) -> None:
        super().__init__()
        self.memory = memory
        self.layouts: dict[int, Layout] = {}
        self.array: Buffer | None = None
        self._rows: Buffer = np.empty(0, dtype=np.uint8)

    def layout(self, generation: int) -> Layout | None:
        return self.layouts.get(generation)

    def write_rows(self, layout: Layout, item: WorkItem, write: WriteRows) -> Any:
        count = len(item.indices)
        if self.memory is not None:
            num_bytes = max(1, layout.offsets(item.num_rows)[1])
            buffer = np.frombuffer(self.memory.buffer(item.slot, num_bytes), dtype=np.uint8)
            return write(layout.rows(buffer, item.num_rows, item.row, count))
        num_bytes = layout.offsets(count)[1]
        if len(self._rows) < num_bytes:
            self._rows = np.empty(num_bytes, dtype=np.uint8)  # Ray copies it before the next task begins
        objects = write(layout.rows(self._rows, count, 0, count))
        self.array = self._rows[:num_bytes]
        return objects

    def encode(self, result: Result, item: Item | None) -> bytes:
        if result.outcome in (Outcome.SAMPLES, Outcome.BATCH):
            self.array = join(pack(result.payload)[0])
            result = result._replace(payload=None)
        return result.pickled()


def _shared_memory(place: Place) -> MemoryFile | None:
    """Return the loader's memory file, locked; None where it cannot be opened from here, as on other machines."""
    if place.fd < 0 or place.namespace != process_namespace():
        return None
    path = f"/proc/{place.pid}/fd/{place.fd}"
    try:
        if not os.readlink(path).startswith("/memfd:fastload"):
            return None
        memory = MemoryFile(fd=os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:  # another user's, or a container's
        return None
    fcntl.lockf(memory.fd, fcntl.LOCK_EX, 1, LOCKS_AT + place.worker_id)
    return memory
