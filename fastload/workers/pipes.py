"""The transport of systems without memory files: a pipe for each worker. See transport.py."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from ..buffers.layout import Buffer, Layout, WriteRows
from ..buffers.packing import join, pack
from ..work import AnyTask, Task, task_of
from .fetch import Outcome, Result
from .pool import MessageSink


class PipeEndpoint:
    """A worker's end of its pipe."""

    def __init__(self, connection: Connection[bytes, bytes]) -> None:
        self.end = connection

    def receive(self) -> bytes | None:
        """Return the next message; None when there will be no more."""
        try:
            return self.end.recv_bytes() or None
        except (EOFError, ConnectionResetError):
            return None

    def send(self, message: bytes) -> None:
        """Send a message."""
        self.end.send_bytes(message)

    def sink(self) -> PipeSink:
        """Return what reads and writes the messages: whole, since there is no memory file."""
        return PipeSink()


class Pipes:
    """A duplex pipe for each worker, with a thread that writes to it.

    A worker that has not started, or hangs in the user's code, does not read: only its thread waits for it then. Of
    messages for any worker at most ``tasks_ahead`` are under way to one.
    """

    name = "pipes"

    def __init__(self, num_workers: int, context: BaseContext, tasks_ahead: int = 2) -> None:
        self._context = context
        self._ours: list[Connection[bytes, bytes]] = []
        self._theirs: dict[int, Connection[bytes, bytes]] = {}
        self._under_way: list[deque[int]] = [deque() for _ in range(num_workers)]
        """Tags of the messages that each worker has not answered, the one it is at first."""
        self._tasks_ahead = tasks_ahead
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Messages for whichever worker is free next, with their tags."""
        self._to_write: dict[int, queue.SimpleQueue[bytes | None]] = {}
        """Messages for the threads, each begun with its worker's first message: after all workers were forked."""

    def endpoint(self, worker_id: int) -> PipeEndpoint:
        """Make the end of this worker, just before it is started."""
        ours, theirs = self._context.Pipe(duplex=True)
        self._ours.append(ours)
        self._theirs[worker_id] = theirs
        return PipeEndpoint(theirs)

    def started(self, worker_id: int) -> None:
        """Let go of our copy of a worker's end."""
        self._theirs.pop(worker_id).close()

    def inherited(self) -> list[Any]:
        """Return the other ends that a worker forked now should close."""
        return self._ours

    def send(self, message: bytes, worker_id: int | None, tag: int = 0) -> None:
        """Send to one worker, or to the first free one; ``tag`` names the message in :meth:`held_by`."""
        if worker_id is not None:
            self._give(worker_id, message, tag)
        else:
            self._waiting.append((message, tag))
            self._drain()

    def held_by(self, worker_id: int) -> list[int]:
        """Return the tag of the message that a worker is at."""
        return list(self._under_way[worker_id])[:1]

    def _drain(self) -> None:
        while self._waiting:
            worker_id = min(range(len(self._ours)), key=lambda one: len(self._under_way[one]))
            if len(self._under_way[worker_id]) >= self._tasks_ahead:
                return
            self._give(worker_id, *self._waiting.popleft())

    def _give(self, worker_id: int, message: bytes, tag: int) -> None:
        self._under_way[worker_id].append(tag)
        if worker_id not in self._to_write:
            messages = self._to_write[worker_id] = queue.SimpleQueue()
            arguments = self._ours[worker_id], messages
            threading.Thread(target=_write_all, args=arguments, name="fastload_send", daemon=True).start()
        self._to_write[worker_id].put(message)

    def receive(self) -> bytes | None:
        """Return the next message that is there, or None. Never blocks."""
        for worker_id, end in enumerate(self._ours):
            try:
                if end.poll():
                    message = _receive(end)
                    if self._under_way[worker_id]:  # else it says that the worker cannot start
                        self._under_way[worker_id].popleft()
                    self._drain()
                    return message
            except (EOFError, OSError):
                continue  # the worker has died, perhaps in the middle of a message; wait() sees it
        return None

    def wait(self, sentinels: Sequence[int], timeout: float | None) -> list[int]:
        """Block until there may be a message, a sentinel is ready, or the time is over; return ready sentinels."""
        ready = wait([*self._ours, *sentinels], timeout)
        self._drain()
        return [sentinel for sentinel in sentinels if sentinel in ready]

    def close(self) -> None:
        """End all workers' ``receive``."""
        for end in self._ours:
            _shut_down(end)
        for messages in self._to_write.values():
            messages.put(None)
        for end in self._theirs.values():
            end.close()
        # Ours are closed with their last user: their descriptors must not become other files' while a thread writes.
        self._ours.clear()
        self._to_write.clear()


def _shut_down(connection: Any) -> None:
    """End the conversation. Closing alone would not, where a process forked meanwhile has a copy of the end."""
    if hasattr(socket, "AF_UNIX"):  # there a duplex pipe is a pair of sockets
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)


def _write_all(connection: Connection[bytes, bytes], messages: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError):  # the worker has died; wait() sees it
        while (message := messages.get()) is not None:
            connection.send_bytes(message)


def _receive(connection: Connection[bytes, bytes]) -> bytes:
    try:
        return connection.recv_bytes()
    except ConnectionResetError:
        # Told once, when a worker has ended without reading all that was sent to it. What it sent is still there.
        return connection.recv_bytes()


class PipeSink(MessageSink):
    """A worker's side where everything is in the message."""

    def __init__(self) -> None:
        self.layouts: dict[int, Layout] = {}
        """By generation."""

    def layout(self, generation: int) -> Layout | None:
        return self.layouts.get(generation)

    def write_rows(self, layout: Layout, task: Task, write: WriteRows) -> Any:
        count = len(task.indices)
        rows: Buffer = np.empty(layout.offsets(count)[1], dtype=np.uint8)
        objects = write(layout.rows(rows, count, 0, count))
        return objects, pickle.PickleBuffer(rows.data)

    def encode(self, result: Result, task: AnyTask | None) -> bytes:
        if result.outcome in (Outcome.SAMPLES, Outcome.BATCH):
            result = result._replace(payload=pickle.PickleBuffer(join(pack(result.payload)[0]).data))
        return result.pickled()

    def decode(self, message: memoryview | bytes) -> AnyTask:
        generation, encoded, fields = pickle.loads(message)
        if generation and generation not in self.layouts:
            self.layouts[generation] = pickle.loads(encoded)
        return task_of(fields)
