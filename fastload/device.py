"""Batches of the host to batches of a device, ahead of time, on streams of their own.

::

    host batches ─> copy (copy stream) ─> transform (transform stream) ─> [depth batches ahead] ─> training loop
         ▲                │ event: copied            │ event: made                                     │
         └─ host memory free ┘                       compute stream waits for it        event: consumed ┘

In: batches in order, from any iterator. Out: the same batches with their tensors on the device.

NOTE [Three streams]
Copies have a stream of their own, so that the copy of a batch does not wait for the transform of the one before. The
transform stream waits for the event behind a batch's copy, and the compute stream for the event behind its transform.
The other direction: a tensor's memory goes back to the allocator for the stream that it was allocated on when its last
reference goes, which is before the kernels of other streams have read it. So the allocator is told of each stream that
reads a tensor of another one (``record_stream``), and waits for it. Fixed buffers are never freed: there are as many as
batches that are not consumed, at most, so the one whose turn it is has been. What an iteration before has left, the
transform stream waits for when the next one begins.

And the host's side: a copy from page-locked memory is still reading it when the call has returned. So a host batch is
kept until the event behind its copy has come, which is asked, not waited for.

NOTE [Back-pressure]
The host queues work faster than the device does it, and memory that the device is still to read cannot be used again.
So batch ``k`` is copied only when the device has done all work that was queued with batch ``k - (depth + 2)``: behind
each batch an event of the compute stream is recorded when the user asks for the next one. What is copied ahead of the
user's demand waits for his next call where that event has not come. The host itself waits for it only where the batch
that is asked for has not been copied: the user is then ``depth + 1`` steps ahead of the device, which has enough to do.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .errors import ConfigError, DatasetError, LoadTimeout, NotReady
from .nesting import Key, copied_but_tensors, leaves_of, map_leaves, moves, paths_of, tensors_at, tensors_in
from .sampling import as_integer
from .streams import Event, Streams, device_of, streams_of


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


class Moved(NamedTuple):
    """A batch on its way to a device."""

    made: Any
    copied: Event | None = None
    """Behind its copy; None: there are no streams."""
    event: Event | None = None
    """Behind its transform."""


class Mover:
    """Moves batches to a device: what is copied, how it lies there, and what is done with it.

    Args:
        device: where to.
        streams: its streams; None: everything happens at once, in order.
        keep_on_host: paths of parts that stay where they are (``"lengths"``, ``1``, ``"meta.lengths"``).
        channels_last: four-dimensional tensors lie NHWC in memory, on the device.
        transform: what is done with a batch on the device: (batch, its draws) -> batch.
        num_buffers: batches are put into this many fixed places in turn; 0: each has memory of its own.
    """

    def __init__(
        self,
        device: torch.device,
        streams: Streams | None,
        *,
        keep_on_host: Collection[Key] = (),
        channels_last: bool = False,
        transform: Callable[[Any, Any], Any] | None = None,
        num_buffers: int = 0,
    ) -> None:
        self.device = device
        self.streams = streams
        self._kept = frozenset(str(key) for key in keep_on_host)
        self._channels_last = channels_last
        self._transform = transform
        first: dict[str, Any] = {}
        self._buffers: list[_Buffers] = [_Buffers(first) for _ in range(num_buffers)]
        self._turn = 0
        self._handed_out = False
        self._unconsumed: deque[Event] = deque()
        """Behind the batches that were handed out, while they have not come."""
        self._transforms = transform is not None or channels_last or num_buffers > 0
        self._user: weakref.ref[Any] | None = None
        self._checked = not self._kept

    def begin(self, user: object) -> None:
        """A stage begins to use this.

        Raises:
            RuntimeError: another one does, and there are fixed places.
        """
        if self._buffers:
            if self._user is not None and self._user() not in (None, user):
                raise RuntimeError(
                    "with fixed_buffers=True one iteration at a time: the one before is not over, and its batches lie "
                    "where the next ones would; end it first"
                )
            self._user = weakref.ref(user)
        self.asked()
        if self.streams is not None:  # what the user has made for the transform until now
            self.streams.transforms_wait(self.streams.mark_compute())
            for event in self._unconsumed:  # of another stream of the user's, perhaps
                self.streams.transforms_wait(event)

    def end(self) -> None:
        """The stage has ended."""
        self._user = None

    def move(self, batch: Any, draws: Any, *, borrowed: bool = False) -> Moved:
        """Begin to move a batch.

        Args:
            batch: of the host.
            draws: for the transform.
            borrowed: see :class:`Loaded`: what stays on the host is copied.
        """
        if torch.is_inference_mode_enabled():
            # It may be used outside of it, by whoever asks for the next batch.
            with torch.inference_mode(False), torch.no_grad():
                return self._move(batch, draws, borrowed)
        return self._move(batch, draws, borrowed)

    def _move(self, batch: Any, draws: Any, borrowed: bool) -> Moved:
        if not self._checked:
            self._check_paths(batch)
        if borrowed:
            batch = copied_but_tensors(batch, self._kept)
        # What is no tensor is moved on the compute stream: nobody could tell the allocator of all that is inside of it.
        batch = map_leaves(batch, self._object_to_device, self._kept)
        streams = self.streams
        if streams is None:
            return Moved(self._made(map_leaves(batch, self._to_device, self._kept), draws))
        there = [leaf for leaf in _leaves_in(batch, self._kept) if streams.holds(leaf)]
        with streams.beside():
            batch = map_leaves(batch, self._to_device, self._kept)
            copied = streams.mark_copies()
        if not self._transforms:
            return Moved(batch, copied, copied)
        if there:
            streams.transforms_wait(streams.mark_compute())
        streams.transforms_wait(copied)
        for leaf in _leaves_in(batch, self._kept):
            streams.used_by_transforms(leaf)
        with streams.transforming():
            made = self._made(batch, draws)
            return Moved(made, copied, streams.mark_transforms())

    def mark(self) -> Event | None:
        """Return an event behind all copies that were begun so far; None where there are no streams."""
        return None if self.streams is None else self.streams.mark_copies()

    def _check_paths(self, batch: Any) -> None:
        paths = set(paths_of(batch))
        if missing := self._kept - paths:
            raise ConfigError(
                f"keep_on_host names {', '.join(map(repr, sorted(missing)))}, and the batch has "
                f"{', '.join(map(repr, sorted(paths))) or 'no parts'}"
            )
        self._checked = True

    def _made(self, batch: Any, draws: Any) -> Any:
        made = batch
        if self._channels_last:
            made = map_leaves(made, _channels_last, self._kept)
        if self._transform is not None:
            try:
                made = self._transform(made, draws)
            except StopIteration as error:  # in a loop it would end the epoch without a word
                raise DatasetError("the batch transform raised StopIteration, which would end the iteration") from error
        if not self._buffers:
            return made
        buffers = self._buffers[self._turn]
        if self.streams is not None:
            filled = buffers.fill(made, self.streams.copy_into, self.streams.holds)
        else:
            kept = {id(leaf) for leaf in tensors_at(batch, self._kept)}
            filled = buffers.fill(made, Tensor.copy_, lambda leaf: id(leaf) not in kept)
        self._turn = (self._turn + 1) % len(self._buffers)
        return filled

    def _object_to_device(self, leaf: Any) -> Any:
        return leaf if isinstance(leaf, Tensor) else leaf.to(self.device)

    def _to_device(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if self.streams is None:
            return leaf.to(self.device)
        return leaf if self.streams.holds(leaf) else self.streams.to_device(leaf)

    def hand_out(self, made: Any, event: Any) -> Any:
        """Let the user's stream have a batch."""
        self.asked()
        if self.streams is not None:
            self.streams.compute_waits(event)
        self._handed_out = True
        self._used(made)
        return made

    def lend(self, part: Any, event: Any) -> None:
        """Let the user's stream, which may be another one now, have a part of a batch that was handed out before."""
        if self.streams is not None:
            self.streams.compute_waits(event)
        self._used(part)

    def _used(self, made: Any) -> None:
        if self.streams is not None:
            for leaf in tensors_in(made):
                if self.streams.holds(leaf):
                    self.streams.used_by_compute(leaf)

    def asked(self) -> None:
        """The user asks for the next batch: what he has queued with the last one is all there will be."""
        if self._handed_out and self.streams is not None:
            self._unconsumed.append(self.streams.mark_compute())
        self._handed_out = False

    def has_room(self, limit: int) -> bool:
        """Return whether fewer batches than this were handed out and are not consumed. Never blocks."""
        while self._unconsumed and self._unconsumed[0].query():
            self._unconsumed.popleft()
        return len(self._unconsumed) < limit

    def make_room(self, limit: int) -> None:
        """Block until :meth:`has_room`."""
        while not self.has_room(limit):
            self._unconsumed[0].synchronize()


class _Buffers:
    """A fixed place for one batch on the device.

    Args:
        first: the batches' layout, by their tensors' paths, for all places; set by the first batch.
    """

    def __init__(self, first: dict[str, Any]) -> None:
        self._first = first
        self._places: dict[str, Tensor] = {}

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(self, made: Any, copy_into: Callable[[Tensor, Tensor], Any], belongs: Callable[[Tensor], bool]) -> Any:
        """Copy a batch here and return it as it lies here. Tensors that do not belong here stay where they are."""
        leaves = [(path, leaf) for path, leaf in leaves_of(made, moves) if moves(leaf)]
        mine = {
            path: leaf
            for path, leaf in leaves
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided and belongs(leaf)
        }
        layout = {path: (tuple(leaf.shape), leaf.dtype, leaf.device) for path, leaf in mine.items()}
        if not self._first:
            self._first.update(layout)
        if layout != self._first:
            raise ConfigError(
                "with fixed_buffers=True all batches must have the same shapes and dtypes, got "
                f"{_in_words(layout)} after {_in_words(self._first)}; drop_last=True leaves a short last batch out"
            )
        for path, leaf in mine.items():
            if path not in self._places:
                self._places[path] = torch.empty_like(leaf)
            copy_into(self._places[path], leaf)
        paths = iter([path for path, _ in leaves])
        return map_leaves(made, lambda leaf: self._places.get(next(paths), leaf))


def _leaves_in(batch: Any, kept: frozenset[str]) -> list[Tensor]:
    """Return the tensors of a batch, and those inside of its other leaves, but for what stays on the host."""
    found: list[Tensor] = []

    def note(leaf: Any) -> Any:
        found.extend(tensors_in(leaf))
        return leaf

    map_leaves(batch, note, kept)
    return found


def _channels_last(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.ndim == 4:
        return leaf.contiguous(memory_format=torch.channels_last)
    return leaf


def _in_words(layout: dict[str, Any]) -> str:
    return ", ".join(f"{path or 'the batch'}: {shape} of {dtype}" for path, (shape, dtype, _) in layout.items())


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
        mover.begin(self)

    def next(self) -> Any:
        """Return the next batch, on the device. Blocks for the host's part, and where the device is far behind.

        Raises:
            Exception: as the source does, at the same place; or what the copy or transform raised.
        """
        self._mover.asked()
        self._let_go()
        if not self._ready:
            if self._ended:
                self._mover.end()
                raise StopIteration
            self._take(self._source.next)
        if self._begun:
            self._fill()
        self._begun = True  # the first batch does not wait for the others
        moved, self.last = self._ready.popleft()
        self.last_event = None
        if isinstance(moved, BaseException):
            try:
                raise moved
            finally:
                del moved  # or its traceback would hold a frame that holds it
        self.last_event = moved.event
        return self._mover.hand_out(moved.made, moved.event)

    def _fill(self) -> None:
        while len(self._ready) <= self._depth and not self._ended:
            if not self._mover.has_room(self._most_on_device - len(self._ready)):
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
                self._mover.end()
                self._ready.append(_Ready(error))
                return
            except Exception as error:
                self._ready.append(_Ready(error))
                return
        loaded = self._unmoved  # an interrupt leaves it for the next time
        self._mover.make_room(self._most_on_device - len(self._ready))
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

    def _hold(self, event: Event | None, batch: Any) -> None:
        if event is not None:
            self._host.append((event, batch))

    def _let_go(self) -> None:
        while self._host and self._host[0][0].query():
            self._host.popleft()

    def drop(self) -> None:
        """Forget what is under way, for a new iteration. Waits for the copies that are."""
        self._forget()
        self._begun = self._ended = False
        self._mover.begin(self)

    def close(self) -> None:
        """Forget everything. Waits for the copies that are under way, since they read the host's memory."""
        try:
            self._forget()
        finally:
            self._ended = True
            self._mover.end()

    def _forget(self) -> None:
        if self._pid != os.getpid():  # a child, which has no device; its parent keeps what is being copied
            self._host.clear()
        elif self._unmoved is not None and (event := self._mover.mark()) is not None:
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

    Copies go over a side stream, and no call here waits for the device, but for sparse and nested tensors and for
    objects with a ``to`` of their own, which are copied on your stream. What is not page-locked is copied through
    page-locked memory of torch's allocator, so ``pin_memory=True`` saves that. For a :class:`fastload.DataLoader`
    its own argument ``device`` is better: it copies from its slots, and its state says what the loop was given.

    Args:
        iterable: of batches: tensors, nested in dicts, lists, tuples and named tuples as they may be; other objects
            that have ``to``, as ``PackedSequence``; what has not stays as it is.
        device: ``"cuda"``, ``"cuda:1"``, ..., or ``"cpu"``: the same, without a copy.
        depth: batches on the device beyond the one given out; at least 1. Also how far ``iterable`` is asked ahead.
        transform: what is done with each batch on the device, on the side stream.
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
