"""A device that works later than it is told to, for tests without one: two streams, events, and a caching allocator.

What is queued runs when the test says so, or when something waits for it. The allocator gives memory again as the real
one does: for the stream that it was allocated on, at once; for others it waits only for those it was told of.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


class Event:
    """Behind the work of a stream so far."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._place = stream.queued

    def query(self) -> bool:
        return self._stream.done >= self._place

    def synchronize(self) -> None:
        self._stream.run(self._place)


class Stream:
    """Work in order, done when somebody runs it."""

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []
        self.queued = 0
        self.done = 0

    def launch(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self.queued += 1

    def run(self, until: int | None = None) -> None:
        while self.done < (self.queued if until is None else until):
            self.done += 1
            self._work[self.done - 1]()


class SimulatedStreams:
    """See ``fastload.streams.Streams``.

    Args:
        safe: False leaves out what tells the allocator of the compute stream: the mistake of many prefetchers.
    """

    def __init__(self, *, safe: bool = True) -> None:
        self.side = Stream()
        self.compute = Stream()
        self._safe = safe
        self._beside = False
        self._free: list[tuple[Tensor, Event | None]] = []
        self._block_of: dict[int, tuple[Tensor, list[bool]]] = {}
        self.num_blocks = 0

    def holds(self, leaf: Tensor) -> bool:
        return id(leaf) in self._block_of

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        self._beside = True
        try:
            yield
        finally:
            self._beside = False

    def to_device(self, leaf: Tensor) -> Tensor:
        assert self._beside
        block = self._allocate(leaf)
        read = self._reader(leaf)
        self.side.launch(lambda: block.copy_(read()))
        given = block.view(block.shape)
        used: list[bool] = []
        self._block_of[id(given)] = block, used
        weakref.finalize(given, self._freed, id(given))
        return given

    def _reader(self, leaf: Tensor) -> Callable[[], Tensor]:
        """Return what a copy reads when it runs. It does not keep the host's tensor, as no device does."""
        memory = leaf.detach()
        return lambda: memory

    def _allocate(self, leaf: Tensor) -> Tensor:
        for place, (block, event) in enumerate(self._free):
            if block.shape == leaf.shape and block.dtype == leaf.dtype and (event is None or event.query()):
                del self._free[place]
                return block
        self.num_blocks += 1
        return torch.full_like(leaf, 99)

    def _freed(self, key: int) -> None:
        block, used = self._block_of.pop(key)
        self._free.append((block, Event(self.compute) if used else None))

    def copy_into(self, place: Tensor, leaf: Tensor) -> None:
        assert self._beside
        block = self._block_of[id(leaf)][0]
        self.side.launch(lambda: place.copy_(block))

    def mark_side(self) -> Event:
        return Event(self.side)

    def mark_compute(self) -> Event:
        return Event(self.compute)

    def compute_waits(self, event: Event) -> None:
        self.compute.launch(event.synchronize)

    def side_waits(self, event: Event) -> None:
        self.side.launch(event.synchronize)

    def used_by_compute(self, leaf: Tensor) -> None:
        if self._safe:
            self._block_of[id(leaf)][1].append(True)

    def used_by_side(self, leaf: Tensor) -> None:
        self.side_waits(self.mark_compute())

    def kernel(self, leaf: Tensor, then: Callable[[Tensor], Any]) -> None:
        """Queue work of the user's on a tensor, which it does not keep alive."""
        found = self._block_of.get(id(leaf))
        block = leaf if found is None else found[0]
        self.compute.launch(lambda: then(block))
