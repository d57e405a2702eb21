"""Batches of the host to batches of a device, ahead of time, on streams of their own.

::

    host batches ─> copy (copy stream) ─> transform (transform stream) ─> [depth batches ahead] ─> training loop
         ▲                │ event: copied            │ event: made                                     │
         └─ host memory free ┘                       compute stream waits for it        event: consumed ┘

In: batches in order, from any iterator. Out: the same batches with their tensors on the device.

NOTE [Back-pressure]
The host queues work faster than the device does it, and memory that the device is still to read cannot be used again.
So batch ``k`` is copied only when the device has done all work that was queued with batch ``k - (depth + 2)``: behind
each batch an event of the compute stream is recorded when the user asks for the next one. A copy ahead of the user's
demand is postponed to the next call where that event has not come. The host waits for it only where the batch that is
asked for has not been copied: the user is then ``depth + 1`` steps ahead of the device, which has enough to do.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from .errors import ConfigError, LoadTimeout, NotReady
from .moving import Backlog, Moved, Mover
from .nesting import Key
from .sampling import as_integer
from .streams import Event, device_of, keep_in_children, streams_of


class Loaded(NamedTuple):
    """A batch of the host, with what its maker says of it."""

    batch: Any
    draws: Any = None
    """For the transform."""
    note: Any = None
    """For its maker, who finds it in :attr:`DeviceAhead.last` when the batch is given out."""
    borrowed: bool = False
    """Whether it lies in page-locked memory that is used again once the batch is dropped."""


class Source(Protocol):
    """Where host batches come from."""

    def next(self) -> Loaded:
        """Return the next batch. Blocks."""

    def next_nowait(self) -> Loaded:
        """Return the next batch if it is complete; else raise :class:`NotReady`."""


class _Ready(NamedTuple):
    """A batch that waits for its turn, or the error in its place."""

    moved: Moved | BaseException
    loaded: Loaded | None = None
    """What it was made from, without the batch."""


class DeviceAhead:
    """Takes host batches from a source and has the next ones on the device before they are asked for.

    Args:
        source: see :class:`Source`.
        mover: see :class:`Mover`.
        depth: batches on the device beyond the one handed out.
        patient: whether the source is asked for batches that are not ready, to have ``depth`` of them. For sources
            that make a batch only when they are asked.

    Holds the host's memory of a batch until its copy is done, and no longer.
    """

    def __init__(self, source: Source, mover: Mover, depth: int, *, patient: bool) -> None:
        self._source = source
        self._mover = mover
        self._depth = depth
        self._most_on_device = depth + 2
        """Batches that were copied and are not consumed. See NOTE [Back-pressure]."""
        self._patient = patient
        self._ready: deque[_Ready] = deque()
        self._host: deque[tuple[Event, Any]] = deque()
        self._unmoved: Loaded | None = None
        self.last: Loaded | None = None
        """What the batch given out last was made from, or the one in whose place an error was raised; without the
        batch."""
        self.last_event: Any = None
        """The one behind it."""
        self._begun = False
        self._ended = False
        self._pid = os.getpid()
        self._backlog: Backlog | None = mover.begin(self)
        """None: the iteration has ended."""
        keep_in_children(self)

    def next(self) -> Any:
        """Return the next batch, on the device. Blocks for the host's part, and where the device is far behind.

        Raises:
            Exception: as the source does, at the same place; or what the copy or transform raised.
        """
        if self._backlog is None:
            raise StopIteration
        self._mover.check_process()
        self._backlog.asked()
        self._let_go()
        if not self._ready:
            self._take(self._source.next)
        if self._begun:
            self._fill()
        self._begun = True  # the first batch does not wait for the others
        moved, self.last = self._ready.popleft()
        self.last_event = None
        if isinstance(moved, BaseException):
            if isinstance(moved, StopIteration):
                self._end()
            try:
                raise moved
            finally:
                del moved  # or its traceback would hold a frame that holds it
        return self._hand_out(moved)

    def _hand_out(self, moved: Moved) -> Any:
        self.last_event = moved.event
        assert self._backlog is not None
        self._backlog.given_to(self._mover.lend(moved.made, moved.event, None))
        return moved.made

    def move_now(self, loaded: Loaded) -> Any:
        """Return a batch that does not come from the source, on the device; it was not copied ahead of time.

        Raises:
            Exception: what the copy or transform raised.
        """
        assert self._backlog is not None
        self._backlog.asked()
        self._make_room()
        moved = self._mover.move(loaded.batch, loaded.draws, borrowed=loaded.borrowed)
        self._hold(moved.copied, loaded.batch)
        return self._hand_out(moved)

    def _fill(self) -> None:
        while len(self._ready) <= self._depth and not self._ended:
            assert self._backlog is not None
            if not self._backlog.has_room(self._most_on_device - len(self._ready)):
                return
            try:
                self._take(self._source.next if self._patient else self._source.next_nowait)
            except NotReady:
                return
            except LoadTimeout:
                if not self._ready:
                    raise
                return

    def _take(self, take: Callable[[], Any]) -> None:
        if self._unmoved is None:
            try:
                self._unmoved = take()
            except (NotReady, LoadTimeout):
                raise
            except StopIteration as error:
                self._ended = True
                self._ready.append(_Ready(error))
                return
            except Exception as error:
                self._ready.append(_Ready(error))
                return
        loaded = self._unmoved  # an interrupt leaves it for the next time
        self._make_room()
        noted = loaded._replace(batch=None)
        try:
            moved = self._mover.move(loaded.batch, loaded.draws, borrowed=loaded.borrowed)
        except Exception as error:
            self._hold(self._mover.mark(), loaded.batch)  # some of it may be on its way
            self._ready.append(_Ready(error, noted))
        else:
            self._hold(moved.copied, loaded.batch)
            self._ready.append(_Ready(moved, noted))
        self._unmoved = None

    def _make_room(self) -> None:
        assert self._backlog is not None
        self._backlog.make_room(self._most_on_device - len(self._ready))

    def _hold(self, event: Event | None, batch: Any) -> None:
        if event is not None:
            self._host.append((event, batch))

    def _let_go(self) -> None:
        while self._host and self._host[0][0].query():
            self._host.popleft()

    def drop(self) -> None:
        """Forget what is under way, for a new iteration. Waits for the copies that are."""
        self._forget()
        self._end()
        self._begun = self._ended = False
        self._backlog = self._mover.begin(self)

    def close(self) -> None:
        """Forget everything. Waits for the copies that are under way, since they read the host's memory."""
        try:
            self._forget()
        finally:
            self._ended = True
            self._end()

    def _end(self) -> None:
        backlog, self._backlog = self._backlog, None
        if backlog is not None:
            self._mover.end(self, backlog)

    def _forget(self) -> None:
        if self._pid != os.getpid():  # see NOTE [Forked processes] in streams.py
            self._ready, self._host = deque(), deque()
            self._unmoved = self._backlog = None
            return
        if self._unmoved is not None and (event := self._mover.mark()) is not None:
            event.synchronize()  # an interrupt may have left it half moved
        self._unmoved = None
        self._ready.clear()
        while self._host:
            self._host[0][0].synchronize()
            self._host.popleft()


class Prefetched:
    """An iterable whose batches are on a device, ahead of time. See :func:`prefetch`."""

    def __init__(self, iterable: Iterable[Any], mover: Mover, depth: int) -> None:
        self.iterable = iterable
        self.device = mover.device
        self._mover = mover
        self._depth = depth

    def __iter__(self) -> Iterator[Any]:
        ahead = DeviceAhead(_Plain(iter(self.iterable)), self._mover, self._depth, patient=True)
        return _Iteration(ahead)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # its own error, where it has no length


class _Iteration:
    """One pass over a prefetched iterable."""

    def __init__(self, ahead: DeviceAhead) -> None:
        self._ahead = ahead

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        return self._ahead.next()

    def close(self) -> None:
        """End it; what is ahead is dropped."""
        self._ahead.close()

    def __del__(self) -> None:
        self._ahead.close()


class _Plain:
    """An iterator as a :class:`Source`."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def next(self) -> Loaded:
        return Loaded(next(self._iterator))

    def next_nowait(self) -> Loaded:
        raise NotReady


def prefetch(
    iterable: Iterable[Any],
    device: torch.device | str | int,
    depth: int = 2,
    transform: Callable[[Any], Any] | None = None,
    *,
    keep_on_host: Collection[Key] = (),
    channels_last: bool = False,
    fixed_buffers: bool = False,
) -> Prefetched:
    """Return an iterable that gives the batches of another one on a device, copied while the steps before them run.

    Copies and the transform have streams of their own. A call waits for the device only where the loop is more than
    ``depth + 1`` steps ahead of it, so that at most ``depth + 3`` batches lie there; and for sparse and nested tensors
    and objects with a ``to`` of their own, which are copied on your stream. What is not page-locked is copied through
    page-locked memory of torch's allocator, so ``pin_memory=True`` saves that. For a :class:`fastload.DataLoader`
    its own argument ``device`` is better: it copies from its slots, and its state says what the loop was given.

    Args:
        iterable: of batches: tensors, nested in dicts, lists, tuples and named tuples as they may be; other objects
            that have ``to``, as ``PackedSequence``; what has not stays as it is.
        device: ``"cuda"``, ``"cuda:1"``, ..., or ``"cpu"``: the same, without a copy.
        depth: batches on the device beyond the one given out; at least 1. Also how far ``iterable`` is asked ahead.
        transform: what is done with each batch on the device, on a stream of its own.
        keep_on_host: parts that stay on the host, by their path: ``("lengths",)``, ``(1,)``, ``("meta.lengths",)``.
        channels_last: four-dimensional tensors get torch's channels-last format on the device.
        fixed_buffers: all batches are in the same ``depth + 2`` places in turn, for CUDA graphs. Such a batch is valid
            until the next one is asked for, and all must have the same shapes.

    Raises:
        ConfigError: an argument is out of its range, or the device is not there.
    """
    where = device_of(device)
    depth = check_count("depth", depth)
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise ConfigError(f"prefetch takes an iterable of batches, got {iterable!r}")
    if transform is not None and (not callable(transform) or isinstance(transform, type)):
        raise ConfigError(f"transform must be callable with a batch, and no class, got {transform!r}")
    for name, value in (("channels_last", channels_last), ("fixed_buffers", fixed_buffers)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be True or False, got {value!r}")
    applied = None if transform is None else lambda batch, _: transform(batch)
    mover = Mover(
        where,
        streams_of(where),
        keep_on_host=check_paths("keep_on_host", keep_on_host),
        channels_last=channels_last,
        transform=applied,
        num_buffers=depth + 2 if fixed_buffers else 0,
    )
    return Prefetched(iterable, mover, depth)


def check_count(name: str, count: Any) -> int:
    """Return a number of things.

    Raises:
        ConfigError: it is no integer of at least 1.
    """
    number = as_integer(count)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(f"{name} must be an integer of at least 1, got {name}={count!r}")
    return number


def check_paths(name: str, paths: object) -> tuple[Key, ...]:
    """Check paths into a batch.

    Raises:
        ConfigError: these are not keys and places.
    """
    if isinstance(paths, str) or not isinstance(paths, Collection):
        raise ConfigError(f"{name} must be a collection of keys or places, as ('lengths',), got {name}={paths!r}")
    for path in paths:
        if isinstance(path, bool) or not isinstance(path, (str, int)):
            raise ConfigError(f"{name} must hold keys or places, as 'lengths' or 1, got {path!r}")
    return tuple(paths)


__all__ = ["DeviceAhead", "Loaded", "Mover", "Prefetched", "Source", "check_count", "check_paths", "prefetch"]
