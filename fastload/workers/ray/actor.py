"""A worker as an actor of Ray: the actor's side.

What a call returns is the message of a worker with a pipe, with the rows in it: as a NumPy array, which Ray carries
without pickling it again.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
from typing import NamedTuple

import numpy as np
import torch

from ...base import compat
from ...buffers.layout import Buffer
from ...work import task_of
from ..fetch import failed_start
from ..pipes import PipeSink
from ..samples import Job
from ..transport import encoded
from ..worker_process import become_worker, fetcher_of, keep_freed_memory


class Started(NamedTuple):
    """Message of a worker that has started."""

    host: str
    failed: bytes | None
    """The result of a start that failed in the user's code."""


class RayWorker:
    """One worker. Ray makes it in a process of its own, again where that dies, and calls it from one thread."""

    def __init__(self, worker_id: int, packed_job: Buffer) -> None:
        import ray

        torch.set_num_threads(1)
        keep_freed_memory()
        compat.process.is_worker = True
        self._sink = PipeSink()
        self._where = f"in DataLoader Ray worker {worker_id} on {socket.gethostname()}"
        failed = None
        try:
            job: Job = pickle.loads(packed_job.data)
            _name_classes_of_the_script()
            become_worker(job, worker_id)
            self._fetcher = fetcher_of(job, worker_id, self._where)
        except Exception as error:
            if isinstance(error, ImportError):
                error.add_note(
                    "the code of the dataset must be importable on each machine of the cluster: install it there, or "
                    "send it along with ray_options={'runtime_env': {'working_dir': '.'}}"
                )
            result = failed_start(error, worker_id, self._where)
            failed = encoded(self._sink, result, None, self._where)
        node = ray.get_runtime_context().get_node_id()
        self._started = Started(f"{socket.gethostname()} (pid {os.getpid()}, node {node[:8]})", failed)

    def started(self) -> Started:
        """Say that this process is a worker, or why it cannot be one."""
        return self._started

    def run(self, layout: tuple[int, bytes] | None, message: bytes) -> Buffer:
        """Do a task; return the message that says its result.

        ``layout``: what rows are to fit: its number, and pickled; None: there is none. ``message``: the task, pickled.
        """
        sink = self._sink
        if layout is not None and layout[0] not in sink.layouts:
            sink.layouts[layout[0]] = pickle.loads(layout[1])
        task = task_of(pickle.loads(message))
        result = self._fetcher.run(task, sink)
        return np.frombuffer(encoded(sink, result, task, self._where), dtype=np.uint8)


def _name_classes_of_the_script() -> None:
    """Let classes that came by value, from the script itself, be found by name, so that their objects are pickled."""
    from ray.cloudpickle import cloudpickle

    script = sys.modules["__main__"]
    for kind in list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS):
        if kind.__module__ == "__main__" and kind.__qualname__.isidentifier():
            setattr(script, kind.__qualname__, kind)
