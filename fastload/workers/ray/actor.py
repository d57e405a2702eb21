"""A worker as an actor of Ray: the actor's side.

In: calls of :class:`.actors.Actors`, each with a task. Out: a result. On the machine of the loader the rows are written
into the slot itself, as by a process of its own; else they are part of what the call returns, as NumPy arrays, which
Ray carries without pickling them.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from typing import Any, NamedTuple

import numpy as np
import torch

from ...base import compat
from ...base.worker_errors import wrap_exception
from ...buffers.layout import Buffer, Layout, WriteRows
from ...buffers.packing import join, pack
from ...buffers.slots import MemoryFile
from ...errors import SampleNote
from ...work import WorkItem
from ..fetch import Fetcher, Outcome, Result
from ..pipes import PipeSink
from ..pool import MessageSink
from ..samples import Job
from ..shared_job import JOB_OFFSET
from ..worker_process import FileSink, encoded, fetcher_of, keep_freed_memory
from .nodes import differences, identity

# Where the loader has written random bytes, so that its memory file is known to be it.
TOKEN_OFFSET = JOB_OFFSET - 4096
TOKEN_BYTES = 16

_FILES = "Ray's workers may be on other machines: the files must be there at the same path on each machine"


class Place(NamedTuple):
    """What a worker is told when it starts."""

    worker_id: int
    expected: dict[str, str]
    """The identity of the loader's machine; empty: it is not compared."""
    namespace: str
    """Where the loader's process is: see :func:`process_namespace`."""
    pid: int
    """The loader's process."""
    fd: int
    """Its memory file; -1: rows are returned."""
    token: bytes


class Started(NamedTuple):
    """What a worker says when it has started."""

    host: str
    node_id: str
    pid: int
    shares_memory: bool
    different: list[str]
    """Where its machine differs from the loader's."""
    failed: bytes | None
    """The result of a start that failed in the user's code."""


def process_namespace() -> str:
    """Return what two processes have in common that know each other by their numbers."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"


class RayWorker:
    """One worker. Ray makes it in a process of its own, and calls it from one thread."""

    def start(self, place: Place, packed_job: Buffer) -> Started:
        """Become a worker; called once, before :meth:`run`."""
        import ray

        where = f"in DataLoader Ray worker {place.worker_id} on {socket.gethostname()}"
        different = differences(place.expected, identity()) if place.expected else []
        memory = None if different else _shared_memory(place)
        failed = None
        if not different:
            failed = self._become_worker(place.worker_id, packed_job, memory, where)
        node_id = ray.get_runtime_context().get_node_id()
        return Started(socket.gethostname(), node_id, os.getpid(), memory is not None, different, failed)

    def _become_worker(self, worker_id: int, packed_job: Buffer, memory: MemoryFile | None, where: str) -> bytes | None:
        """Return None; or the result that says why it cannot be one."""
        torch.set_num_threads(1)
        keep_freed_memory()
        compat.process.is_worker = True
        self._worker_id, self._where = worker_id, where
        self._arrays = _ArraySink()
        self._sink: MessageSink = self._arrays if memory is None else FileSink(memory)
        try:
            job: Job = pickle.loads(packed_job.data)
            _name_classes_of_the_script()
            self._fetcher: Fetcher = fetcher_of(job, worker_id, where)
        except Exception as error:
            if isinstance(error, ImportError):
                error.add_note(
                    "the code of the dataset must be importable on each machine of the cluster: install it there, or "
                    "send it along with ray_options={'runtime_env': {'working_dir': '.'}}"
                )
            result = Result(-1, worker_id, Outcome.FAILED_START, 0, wrap_exception(error, where), 0)
            return encoded(self._arrays, result, None, where)
        return None

    def answer(self) -> None:
        """Do nothing: that it returns shows that this worker is there."""

    def try_samples(self, epoch: int, position: int, samples: list[tuple[int, Any]]) -> list[bool]:
        """Return which samples of a task, each with its place in it and its index, can be loaded here."""
        loader = self._fetcher.samples

        def can_load(row: int, index: Any) -> bool:
            loader.failures = []
            try:
                with loader.decoding_late():
                    loader.failed.one_by_one([index], epoch, position + row * loader.job.stride)
            except Exception:  # its substitutes fail too
                return False
            return not loader.failures

        return [can_load(row, index) for row, index in samples]

    def run(self, message: bytes) -> Any:
        """Do a task; return its message, and the rows or packed samples that are not in the loader's memory."""
        self._arrays.array = None
        item = self._sink.decode(message)
        result = self._fetcher.run(item, self._sink)
        if result.outcome == Outcome.ERROR and issubclass(result.payload.exc_type, FileNotFoundError):
            notes = getattr(result.payload, "sample_notes", [])
            result.payload.sample_notes = [*notes, SampleNote(_FILES)]
        told = encoded(self._sink, result, item, self._where)
        array = self._arrays.array
        return told if array is None else (told, array)


def _name_classes_of_the_script() -> None:
    """Let classes that came by value, from the script itself, be found by their names.

    So samples and errors of these classes can be pickled; the loader's process finds the script's own.
    """
    from ray.cloudpickle import cloudpickle

    script = sys.modules["__main__"]
    for kind in list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS):
        if kind.__module__ == "__main__" and kind.__qualname__.isidentifier():
            setattr(script, kind.__qualname__, kind)


class _ArraySink(PipeSink):
    """Keeps rows and packed samples aside, for Ray to carry."""

    def __init__(self) -> None:
        super().__init__()
        self.array: Buffer | None = None
        self._rows: Buffer = np.empty(0, dtype=np.uint8)

    def write_rows(self, layout: Layout, item: WorkItem, write: WriteRows) -> Any:
        count = len(item.indices)
        num_bytes = layout.offsets(count)[1]
        if len(self._rows) < num_bytes:
            self._rows = np.empty(num_bytes, dtype=np.uint8)  # Ray copies it before the next task begins
        objects = write(layout.rows(self._rows, count, 0, count))
        self.array = self._rows[:num_bytes]
        return objects

    def encode(self, result: Result, item: WorkItem | None) -> bytes:
        if result.outcome in (Outcome.SAMPLES, Outcome.BATCH):
            self.array = None  # rows that did not fit
            self.array = join(pack(result.payload)[0])
            result = result._replace(payload=None)
        return result.pickled()


def _shared_memory(place: Place) -> MemoryFile | None:
    """Return the loader's memory file; None where it cannot be opened from here, as on other machines."""
    if place.fd < 0 or place.namespace != process_namespace():
        return None
    path = f"/proc/{place.pid}/fd/{place.fd}"
    try:
        if not os.readlink(path).startswith("/memfd:fastload"):
            return None
        memory = MemoryFile(fd=os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:  # another user's, or a container's
        return None
    if memory.read(TOKEN_BYTES, TOKEN_OFFSET) == place.token:
        return memory
    memory.close()
    return None
