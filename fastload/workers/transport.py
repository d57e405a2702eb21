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
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import Any

# A packet takes kernel memory in one piece; above this a message lies in the memory file and the packet says where.
MAX_PACKET = 16_384
_RECEIVE_BYTES = 65_536


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

    name = "packets"

    def __init__(self, num_workers: int, *, shared: bool) -> None:
        self._num_workers = num_workers
        self._queue: socket.socket | None = None
        """Another end of what all workers read from."""
        self._ours: list[socket.socket] = []
        self._theirs: list[socket.socket] = []
        for _ in range(1 if shared else num_workers):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # the system caps it as it likes
            self._ours.append(ours)
            self._theirs.append(theirs)
        if shared:
            self._queue = self._theirs[0].dup()
            self._queue.settimeout(None)  # as for the workers, whose end it is; we do not block there
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
        return self._ours if self._queue is None else [*self._ours, self._queue]

    def recall(self) -> list[bytes]:
        """Take back the messages that no worker has read, where all workers read from one queue."""
        if self._queue is None:
            return []
        recalled = []
        try:
            while message := self._queue.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT):
                recalled.append(message)
        except (BlockingIOError, InterruptedError):
            recalled += self._waiting[0]
            self._waiting[0].clear()
        return recalled

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
        for end in [*self.inherited(), *self._theirs]:
            end.close()


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
