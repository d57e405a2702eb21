"""Actors: made, called, and ended.

In: a worker to make an actor for, or its task. Out: :class:`Call`, in a queue, when a call of an actor has ended.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...buffers.layout import Layout
from ...buffers.slots import MemoryFile
from ...errors import ClusterError
from .actor import TOKEN_BYTES, TOKEN_OFFSET, Place, RayWorker, process_namespace
from .assignment import RemoteTask, Worker
from .cluster import Cluster
from .nodes import identity
from .options import Options

# How long Ray may take to end an actor, in seconds.
_GRACE_S = 5.0


@dataclass(eq=False, slots=True)
class Actor:
    """One of Ray's."""

    handle: Any
    layouts: set[int] = field(default_factory=set)
    """Generations that it knows."""
    watch: int | None = None
    """A pidfd, of one that writes to our memory."""


class Call(NamedTuple):
    """A call of an actor that has ended."""

    worker: Worker
    actor: Actor
    task: RemoteTask | None
    """None: it was called to start, or to answer."""
    future: Any
    """What it returned, or why it did not."""


class Actors:
    """See the module. Each worker has one at most. Any thread may call anything.

    ``memory``: where slots lie, if they may write to it; ``calls``: where calls go that have ended.
    """

    def __init__(
        self,
        cluster: Cluster,
        memory: MemoryFile | None,
        packed_job: bytes,
        options: Options,
        calls: queue.SimpleQueue[Call | None],
    ) -> None:
        self.head_is_gone = False
        """Whether Ray cannot end actors any more; without the head they end by themselves."""
        self._cluster, self._ray, self._options, self._calls = cluster, cluster.ray, options, calls
        self._lock = threading.RLock()  # a thread that holds it may happen to collect, and so close, a dropped pool
        self._actors: dict[int, Actor] = {}
        """By worker."""
        self._home: Actor | None = None
        """The one that tries samples on this machine."""
        self._is_closed = False
        self._class = self._ray.remote(RayWorker)
        self._job = self._ray.put(np.frombuffer(packed_job, dtype=np.uint8))
        token = os.urandom(TOKEN_BYTES)
        if memory is not None:
            memory.write([token], TOKEN_OFFSET)
        fd = memory.fd if memory is not None and options.share_memory else -1
        expected = identity() if options.compare_nodes else {}
        self._place = Place(-1, expected, process_namespace(), os.getpid(), fd, token)

    def create(self, worker: Worker) -> None:
        """Let Ray make an actor for a worker that has none. Does nothing after :meth:`close`.

        Raises:
            ClusterError: Ray does not accept the options, or was shut down.
        """
        with self._lock:  # or it could be made behind the back of close()
            if self._is_closed:
                return
            self._cluster.check_open()
            actors = self._actors
            try:
                # Not Ray's own restarts (max_restarts, max_task_retries), tried with Ray 2.60: results are as exact,
                # but tasks wait at the actor that died, 0.6 to 0.9 s, while the others have nothing to do.
                handle = self._class.options(max_restarts=0, **self._options.actor).remote()
                actor = actors[worker.worker_id] = Actor(handle)
                place = self._place._replace(worker_id=worker.worker_id)
                self._call(worker, actor, None, handle.start, place, self._job)
            except Exception as error:
                raise ClusterError(
                    f"Ray does not take these workers, with ray_options={dict(self._options.actor)}: {error}"
                ) from error
            if self._actors is not actors:  # closed meanwhile: by this very thread
                self._end([actor])

    def try_here(self, worker: Worker, task: RemoteTask, samples: list[tuple[int, Any]]) -> None:
        """Let an actor on this machine try samples of a task, which failed at ``worker``; it is made for the first.

        It has the worker's number; samples are given with their place in the task, and their index.
        """
        with self._lock:
            if self._is_closed:
                return
            if self._home is None:
                kept = {name: value for name, value in self._options.actor.items() if name == "runtime_env"}
                here = self._cluster.placed_here()
                self._home = Actor(self._class.options(max_restarts=0, **kept, **here).remote())
                place = self._place._replace(worker_id=worker.worker_id, expected={}, fd=-1)
                self._call(worker, self._home, None, self._home.handle.start, place, self._job)
            item = task.item
            self._call(worker, self._home, task, self._home.handle.try_samples, item.epoch, item.position, samples)

    def is_home(self, call: Call) -> bool:
        """Return whether the actor that was called is the one that tries samples."""
        return self._home is not None and call.actor is self._home

    def is_current(self, call: Call) -> bool:
        """Return whether the actor that was called is still its worker's."""
        return self._actors.get(call.worker.worker_id) is call.actor

    def run(self, worker: Worker, task: RemoteTask, generation: int, layout: Layout | None) -> None:
        """Let a worker do a task; ``layout``: of the rows, if it does not find it in our memory, and its generation."""
        actor = self._actors.get(worker.worker_id)
        if actor is None:  # closed meanwhile
            return
        fields: tuple[Any, ...] = tuple(task.item)
        if not worker.shares_memory:
            encoded = b""
            if layout is not None and generation not in actor.layouts:
                actor.layouts.add(generation)
                encoded = pickle.dumps(layout, 5)
            fields = (0 if layout is None else generation, encoded, fields)
        self._call(worker, actor, task, actor.handle.run, pickle.dumps(fields, 5))

    def ask(self, worker: Worker) -> None:
        """Let a worker answer."""
        actor = self._actors.get(worker.worker_id)
        if actor is not None:
            self._call(worker, actor, None, actor.handle.answer)

    def _call(self, worker: Worker, actor: Actor, task: RemoteTask | None, method: Any, *arguments: Any) -> None:
        calls = self._calls
        method.remote(*arguments).future().add_done_callback(
            lambda future: calls.put(Call(worker, actor, task, future))
        )

    def watch(self, call: Call, pid: int) -> None:
        """Let :meth:`end` wait for the process of an actor that writes to our memory.

        Raises:
            ProcessLookupError: it has ended already.
        """
        with self._lock:
            if self.is_current(call):
                call.actor.watch = os.pidfd_open(pid)

    def end(self, worker: Worker) -> None:
        """End a worker's actor. It does not write to our memory afterwards."""
        with self._lock:
            actor = self._actors.pop(worker.worker_id, None)
        if actor is not None:
            self._end([actor])

    def close(self) -> None:
        """End all, for good. None writes to our memory afterwards."""
        with self._lock:
            self._is_closed = True
            actors, self._actors = self._actors, {}
            home, self._home = self._home, None
        self._end([*actors.values(), *([] if home is None else [home])])
        self._job = None

    def _end(self, actors: Iterable[Actor]) -> None:
        for actor in actors:
            if self._ray.is_initialized() and not self.head_is_gone:
                with contextlib.suppress(Exception):  # it may be gone already, or the cluster
                    self._ray.kill(actor.handle)
        deadline = time.monotonic() + (0.0 if self.head_is_gone else _GRACE_S)
        for actor in actors:
            if actor.watch is not None:
                _await_end(actor.watch, deadline)


def _await_end(watch: int, deadline: float) -> None:
    """Wait until a process has ended; from the deadline on, end it."""
    if not select.select([watch], [], [], max(0.0, deadline - time.monotonic()))[0]:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watch, signal.SIGKILL)
        select.select([watch], [], [], _GRACE_S)
    os.close(watch)
