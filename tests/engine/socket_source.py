"""A dataset on a server, and the source that asks for whole batches of it over a socket.

An example of a source of one's own: see "A source" in CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from torch.utils.data import Dataset, default_collate

from fastload import observe
from fastload.sampling.epochs import EpochWork
from fastload.stages import Source
from fastload.work import GRACE, Batch, Counts
from fastload.workers.samples import Job


class SocketSource(Source):
    """Sends index batches, and receives collated batches."""

    def __init__(self, address: Any, counts: Counts) -> None:
        self.pid = os.getpid()  # a forked child must not read from this connection
        self._connection: Connection[Any, Any] = Client(address)
        self._counts = counts

    def begin(self, work: EpochWork, upcoming: EpochWork | None = None) -> None:
        self.iteration = next(observe.numbers)
        self._work, self._row = work, work.first_row

    def next(self, wait: bool = True) -> Batch:
        try:
            indices = next(self._work.index_batches)
        except StopIteration:
            raise
        except Exception as error:  # of the sampler
            return Batch(error=error)
        batch = Batch(epoch=self._work.epoch, position=self._work.shard.position(self._row), indices=indices)
        self._row += len(indices)
        self._connection.send(indices)
        found = pickle.loads(self._connection.recv_bytes())
        if isinstance(found, Exception):
            batch.error = found
        else:
            batch.data = found
            self._counts.count(len(indices), None)
        return batch

    def close(self, grace: float = GRACE) -> None:
        self._connection.close()


class OnServer(Dataset[Any]):
    """A dataset that a server holds; only its length is known here."""

    def __init__(self, address: Any, length: int) -> None:
        self.address, self.length = address, length

    def __len__(self) -> int:
        return self.length

    def fastload_source(self, job: Job, counts: Counts) -> Source:
        return SocketSource(self.address, counts)


def serve(load: Callable[[int], Any], listener: Listener) -> None:
    """Serve one client, in this thread, until it closes the connection."""
    with listener.accept() as connection:
        while True:
            try:
                indices = connection.recv()
            except EOFError:
                return
            try:
                found: Any = default_collate([load(index) for index in indices])
            except Exception as error:
                found = error
            connection.send_bytes(pickle.dumps(found))  # send() would pass tensors through shared memory


def served(load: Callable[[int], Any]) -> tuple[Any, threading.Thread]:
    """Start a server in a thread that ends with its client; return its address, and the thread."""
    listener = Listener()
    thread = threading.Thread(target=lambda: (serve(load, listener), listener.close()))
    thread.start()
    return listener.address, thread
