"""A device that works later than it is told to, for tests without one: streams, events, and a caching allocator.

What is queued runs when the test says so, or when something waits for it. The allocator gives memory again as the real
one does: for the stream that it was allocated on, at once; for others it waits only for those it was told of.

NOTE [Order]
Whatever the streams happen to do, a device may do something else. So each access to memory is checked against those
before it: one of the two writes, and neither is ordered behind the other by a stream, an event or the host, is a
:class:`Race`, when it is queued. Each stream, and the host, has a clock: how many accesses of each stream it is behind.
An event carries the clock of its stream; who waits for it, or has seen it come, is behind all that.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


class Race(AssertionError):
    """What a real device would punish, now or some day."""


class Clock(dict[str, int]):
    """How many accesses of each stream somebody is behind."""

    def join(self, other: Clock) -> None:
        for name, number in other.items():
            self[name] = max(self.get(name, 0), number)


class Event:
    """Behind the work of a stream so far."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._place = stream.queued
        self.clock = Clock(stream.clock)

    def query(self) -> bool:
        come = self._stream.done >= self._place
        if come:
            self._stream.host.join(self.clock)
        return come

    def synchronize(self) -> None:
        self.run()
        self._stream.host.join(self.clock)

    def run(self) -> None:
        """Let a stream come so far; the host does not hear of it."""
        self._stream.run(self._place)


class Stream:
    """Work in order, done when somebody runs it.

    Args:
        name: in clocks.
        host: the host's clock.
    """

    def __init__(self, name: str, host: Clock) -> None:
        self.name = name
        self.host = host
        self.clock = Clock()
        self._work: list[Callable[[], Any]] = []
        self.queued = 0
        self.done = 0

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return other is not None and self is not other  # torch's streams answer every comparison with None by False

    __hash__ = object.__hash__

    def launch(self, work: Callable[[], Any]) -> None:
        self.clock.join(self.host)  # what the host has seen is over
        self._work.append(work)
        self.queued += 1

    def wait(self, event: Event) -> None:
        self.launch(event.run)
        self.clock.join(event.clock)

    def access(self, memory: Memory, *, writes: bool) -> None:
        """Note that the work that is queued next reads or writes memory.

        Raises:
            Race: other work, which is not known to be over by then, does so too.
        """
        self.clock.join(self.host)
        memory.check(self.clock, f"the {self.name} stream", writes=writes)
        number = self.clock[self.name] = self.clock.get(self.name, 0) + 1
        (memory.writes if writes else memory.reads)[self.name] = number

    def run(self, until: int | None = None) -> None:
        while self.done < (self.queued if until is None else until):
            self.done += 1
            self._work[self.done - 1]()


class Memory:
    """Who read and wrote some memory last.

    Args:
        words: what it is, for errors.
    """

    def __init__(self, words: str) -> None:
        self.words = words
        self.reads = Clock()
        self.writes = Clock()

    def check(self, clock: Clock, who: str, *, writes: bool) -> None:
        """Check that somebody may access it now.

        Raises:
            Race: he may not.
        """
        before = [("writes", self.writes)] + [("reads", self.reads)] * writes
        for does, accesses in before:
            for name, number in accesses.items():
                if clock.get(name, 0) < number:
                    what = "writes" if writes else "reads"
                    raise Race(f"{who} {what} {self.words}, which the {name} stream may still have to do: it {does} it")


class Block:
    """Memory of the device, given to one tensor after the other.

    Args:
        like: a tensor of the same shape and dtype.
        owner: the stream for which it was allocated.
    """

    def __init__(self, like: Tensor, owner: Stream) -> None:
        self.values = torch.full_like(like, 99, device="cpu")
        self.owner = owner
        self.memory = Memory("memory of the device")
        self.users: list[Stream] = []
        """Other streams that the allocator was told of."""


class SimulatedStreams:
    """See ``fastload.device.streams.Streams``."""

    def __init__(self) -> None:
        self.host = Clock()
        self.copies = Stream("copy", self.host)
        self.transforms = Stream("transform", self.host)
        self.compute = Stream("compute", self.host)
        self._current = self.compute
        self._free: list[tuple[Block, list[Event]]] = []
        self._block_of: dict[int, Block] = {}
        self.num_blocks = 0

    def holds(self, leaf: Tensor) -> bool:
        return id(leaf) in self._block_of

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def to_device(self, leaf: Tensor) -> Tensor:
        assert self._current is self.copies
        return self.made(leaf)  # from page-locked memory, which torch keeps

    def object_to_device(self, leaf: PackedSequence) -> PackedSequence:
        indices = leaf.sorted_indices, leaf.unsorted_indices
        moved = [None if one is None else self.to_device(one) for one in indices]
        return PackedSequence(self.to_device(leaf.data), leaf.batch_sizes, *moved)

    def _allocated(self, like: Tensor) -> tuple[Tensor, Block]:
        """Return a tensor on the device for the current stream, and the block that it lies in."""
        block = self._allocate(like)
        given = block.values.view(block.values.shape)
        self._block_of[id(given)] = block
        weakref.finalize(given, self._freed, id(given))
        return given, block

    def _allocate(self, like: Tensor) -> Block:
        for place, (block, events) in enumerate(self._free):
            fits = block.values.shape == like.shape and block.values.dtype == like.dtype
            if fits and block.owner is self._current and all(event._stream.done >= event._place for event in events):
                del self._free[place]
                for event in events:  # the allocator has seen them come
                    self._current.clock.join(event.clock)
                return block
        self.num_blocks += 1
        return Block(like, self._current)

    def _freed(self, key: int) -> None:
        block = self._block_of.pop(key)
        self._free.append((block, [Event(stream) for stream in block.users]))
        block.users = []

    def copy_into(self, place: Tensor, leaf: Tensor) -> None:
        self.work(lambda values: values, leaf, into=place)

    def work(self, change: Callable[[Tensor], Tensor], leaf: Tensor, into: Tensor | None = None) -> Tensor:
        """Queue work on the current stream that reads a tensor and writes another one, which is returned."""
        source = self._block_of[id(leaf)]
        if into is None:
            into, target = self._allocated(leaf)
        else:
            target = self._block_at(into)
        self._current.access(source.memory, writes=False)
        self._current.access(target.memory, writes=True)
        self._current.launch(lambda: target.values.copy_(change(source.values)))
        return into

    def made(self, like: Tensor) -> Tensor:
        """Return a tensor on the device that has been filled, on the current stream."""
        given, block = self._allocated(like)
        values = like.clone()
        self._current.access(block.memory, writes=True)
        self._current.launch(lambda: block.values.copy_(values))
        return given

    def _block_at(self, place: Tensor) -> Block:
        """Return the block of a fixed place, which was allocated by torch; it is never given back."""
        found = self._block_of.get(id(place))
        if found is None:
            found = self._block_of[id(place)] = Block(place, self._current)
            found.values = place.view(place.shape)
            weakref.finalize(place, self._block_of.pop, id(place))
        return found

    def mark(self, stream: Stream) -> Event:
        return Event(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait(event)

    def note_use(self, leaf: Tensor, stream: Stream) -> None:
        self._block_of[id(leaf)].users.append(stream)

    def kernel(self, leaf: Tensor, then: Callable[[Tensor], Any] = lambda _: None) -> None:
        """Queue work of the user's on a tensor, which it does not keep alive."""
        found = self._block_of.get(id(leaf))
        if found is None:
            values = leaf
        else:
            self.compute.access(found.memory, writes=False)
            values = found.values
        self.compute.launch(lambda: then(values))
