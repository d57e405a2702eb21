"""One batch from the host to a device: what is copied, on which stream, and what is done with it there.

Nothing here blocks, but :meth:`Backlog.make_room`.

NOTE [Three streams]
Copies have a stream of their own, so that the copy of a batch does not wait for the transform of the one before. The
transform stream waits for the event behind a batch's copy, and the compute stream for the event behind its transform.
The other direction: a tensor's memory goes back to the allocator for the stream that it was allocated on when its last
reference goes, which is before the kernels of other streams have read it. So the allocator is told of each stream that
reads a tensor of another one (``record_stream``), and waits for it. Fixed buffers are never freed: there are as many as
batches that are not consumed, at most, so the one whose turn it is has been consumed. That does not hold where a new
iteration has dropped what was ahead. So when it is asked for its first batch (until then the user may work with the one
before) the transform stream waits for all that was handed out.

And the host's side: a copy from page-locked memory is still reading it when the call has returned. So a host batch is
kept until the event behind its copy has come, which is asked, not waited for.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..base.nesting import Key, leaves_of, map_leaves, moves, paths_of, tensors_at, tensors_in
from ..errors import ConfigError, DatasetError
from ..transforms.batches import OnBatch
from ..transforms.draws import Draws
from . import ranges
from .streams import Streams, copies_async, has_record_stream, keep_in_children


class Moved(NamedTuple):
    """A batch on its way to a device."""

    made: Any
    copied: torch.Event | None = None
    """Behind its copy; None: there are no streams."""
    event: torch.Event | None = None
    """Behind its transform."""


def check_kept(batch: Any, keep_on_host: Collection[Key]) -> None:
    """Raise a ConfigError if a batch has not the parts that stay on the host."""
    paths = set(paths_of(batch))
    if missing := {str(key) for key in keep_on_host} - paths:
        raise ConfigError(
            f"keep_on_host names {', '.join(map(repr, sorted(missing)))}, which the batch does not have; it has "
            f"{', '.join(map(repr, sorted(paths))) or 'no parts'}"
        )


class Mover:
    """Moves batches to a device: what is copied, how it lies there, and what is done with it.

    Args as of ``prefetch``, and:
        streams: of the device; None: everything happens at once, in order.
        transform: what is done with a batch on the device: (batch, its draws) -> batch.
        num_buffers: batches are put into this many fixed places in turn; 0: each has memory of its own.
        reads: tensors of the device that the transform reads beside the batch.
    """

    def __init__(
        self,
        device: torch.device,
        streams: Streams | None,
        *,
        keep_on_host: Collection[Key] = (),
        channels_last: bool = False,
        transform: OnBatch | None = None,
        num_buffers: int = 0,
        reads: Sequence[Tensor] = (),
    ) -> None:
        self.device = device
        self.streams = streams
        self._kept = frozenset(str(key) for key in keep_on_host)
        self._channels_last = channels_last
        self._transform = transform
        first: dict[str, Any] = {}
        self._buffers: list[_Buffers] = [_Buffers(first) for _ in range(num_buffers)]
        self._turn = 0
        self._filled: torch.Event | None = None
        """Behind the last work on the fixed places of an iteration that has ended."""
        self._reads = reads
        self._idle_backlog: Backlog | None = None
        """Backlog of an iteration that has ended: the next one shares its bound."""
        self._transforms = transform is not None or channels_last or num_buffers > 0
        self._user: weakref.ref[Any] | None = None
        self._checked = not self._kept
        self._pid = os.getpid()
        keep_in_children(self)

    def check_process(self) -> None:
        """Raise a RuntimeError in a process that was forked since the device was used."""
        if self.streams is not None and self._pid != os.getpid():
            raise RuntimeError(
                f"{self.device} was used by process {self._pid} before it was forked, and cannot be used in the forked "
                f"process {os.getpid()}; start that one with the 'spawn' method, and make the loader there"
            )

    def begin(self, user: object) -> Backlog:
        """An iteration begins to use this; return what counts its batches. With fixed places there is one at a time."""
        self.check_process()
        if self._buffers:
            if self._user is not None and self._user() not in (None, user):
                raise RuntimeError(
                    "fixed_buffers=True allows one iteration at a time: the previous one has not ended, and the next "
                    "one would overwrite its batches; end it first"
                )
            self._user = weakref.ref(user)
        streams = None if self.streams is None else self.streams.begin()
        if streams is not None:
            if self._filled is not None:  # by streams that may have been others
                streams.wait(streams.transforms, self._filled)
            for tensor in filter(streams.holds, self._reads):
                streams.note_use(tensor, streams.transforms)  # given back on any stream
        backlog, self._idle_backlog = self._idle_backlog, None
        return (Backlog() if backlog is None else backlog).begin(streams)

    def end(self, user: object, backlog: Backlog) -> None:
        """An iteration has ended; another one may have begun since."""
        if self._user is not None and self._user() is user:
            self._user = None
        self._idle_backlog = backlog
        streams = backlog.streams
        if streams is not None and self._pid == os.getpid():
            if self._buffers:
                self._filled = streams.mark(streams.transforms)
            backlog.streams = None
            streams.end()

    def move(self, batch: Any, draws: Draws | None, streams: Streams | None) -> Moved:
        """Begin to move a batch of the host; ``draws`` are for the transform, ``streams`` of the iteration."""
        if streams is not None and torch.is_inference_mode_enabled():
            # What is made ahead of time may be asked for, and trained on, outside of it.
            with torch.inference_mode(False), torch.no_grad():
                return self._move(batch, draws, streams)
        return self._move(batch, draws, streams)

    def _move(self, batch: Any, draws: Draws | None, streams: Streams | None) -> Moved:
        if not self._checked:
            check_kept(batch, self._kept)
            self._checked = True
        if streams is None:
            batch = map_leaves(batch, self._object_to_device, self._kept)
            return Moved(self._made(map_leaves(batch, self._to_device, self._kept), draws))
        # Other objects are moved on the compute stream: which tensors they hold, to be recorded, is not known.
        batch = map_leaves(batch, lambda leaf: leaf if copies_async(leaf) else self._object_to_device(leaf), self._kept)
        there = any(map(streams.holds, self._tensors(batch)))
        with streams.on(streams.copies), ranges.stage("copy"):
            batch = map_leaves(batch, self._to_device, self._kept)
            copied = streams.mark(streams.copies)
        if not (self._transforms or there):
            return Moved(batch, copied, copied)
        if there:
            streams.wait(streams.transforms, streams.mark(streams.compute))
        streams.wait(streams.transforms, copied)
        for leaf in self._tensors(batch, recorded=True):
            streams.note_use(leaf, streams.transforms)
        with streams.on(streams.transforms):
            made = self._made(batch, draws)
            return Moved(made, copied, streams.mark(streams.transforms))

    def _tensors(self, batch: Any, *, recorded: bool = False) -> list[Any]:
        """Return the tensors of a batch, also those inside of its other leaves; ``recorded``: see :meth:`_used`."""
        found: list[Any] = []

        def note(leaf: Any) -> Any:
            found.extend(self._used(leaf) if recorded else tensors_in(leaf))
            return leaf

        map_leaves(batch, note, self._kept)
        return found

    def _used(self, leaf: Any) -> Iterable[Any]:
        """Return a leaf's tensors on the device, which the allocator is to know of; an object that tells it itself."""
        assert self.streams is not None
        if copies_async(leaf) and has_record_stream(leaf):
            return (leaf,)
        return filter(self.streams.holds, tensors_in(leaf))

    def _made(self, batch: Any, draws: Draws | None) -> Any:
        with ranges.stage("transform") if self._transforms else contextlib.nullcontext():
            return self._transformed(batch, draws)

    def _transformed(self, batch: Any, draws: Draws | None) -> Any:
        made = batch
        if self._channels_last:
            made = map_leaves(made, _channels_last, self._kept)
        if self._transform is not None:
            try:
                made = self._transform(made, draws)
            except StopIteration as error:  # in a loop it would end the epoch without a word
                raise DatasetError(
                    "batch_transform raised StopIteration, which would end the epoch early; raise another error"
                ) from error
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
            return self.streams.object_to_device(leaf) if self.streams is not None and copies_async(leaf) else leaf
        if self.streams is None:
            return leaf.to(self.device)
        return leaf if self.streams.holds(leaf) else self.streams.to_device(leaf)

    def lend(self, made: Any, event: Any, has_it: Any) -> Any:
        """Let the user's stream have a batch, or views of it, unless it is the one that has it; return that stream."""
        if self.streams is None:
            return None
        stream = self.streams.compute
        # `!=` of torch's streams is false beside None.
        if has_it is None or stream != has_it:
            self.streams.wait(stream, event)
            for _, part in leaves_of(made, moves):
                for leaf in self._used(part):
                    self.streams.note_use(leaf, stream)
        return stream


class Backlog:
    """Batches of one iteration that were handed out and that the device has not consumed: an event behind each.

    See NOTE [Back-pressure] in prefetch.py. Not thread-safe: each iteration has its own.
    """

    def __init__(self) -> None:
        self.streams: Streams | None = None
        """Streams of the iteration; None: there are none, or it has ended."""
        self.given_to: Any = None
        """The stream that has the batch handed out last; None: the user has asked for another one since."""
        self._events: deque[torch.Event] = deque()
        self._begins = True

    def begin(self, streams: Streams | None) -> Backlog:
        """Go on for a new iteration, which has these streams."""
        self.streams = streams
        self._begins = True
        return self

    def asked(self) -> None:
        """Note that the user asks for the next batch: an event is recorded behind the work queued with the last one."""
        streams = self.streams
        if streams is None:
            return
        if self.given_to is not None:
            self._events.append(streams.mark(self.given_to))
            self.given_to = None
        if self._begins:
            streams.wait(
                streams.transforms, streams.mark(streams.compute)
            )  # what the user has made for the transform until now
            for event in self._events:  # see NOTE [Three streams]
                streams.wait(streams.transforms, event)
            self._begins = False

    def has_room(self, limit: int) -> bool:
        """Return whether fewer batches than this were handed out and are not consumed. Never blocks."""
        while self._events and self._events[0].query():
            self._events.popleft()
        return len(self._events) < limit

    def make_room(self, limit: int) -> None:
        """Block until :meth:`has_room`."""
        while not self.has_room(limit):
            self._events[0].synchronize()


class _Buffers:
    """A fixed place for one batch on the device."""

    def __init__(self, first: dict[str, Any]) -> None:
        self._first = first
        """The batches' layout, by their tensors' paths, for all places; set by the first batch."""
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


def _channels_last(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.ndim == 4:
        return leaf.contiguous(memory_format=torch.channels_last)
    return leaf


def _in_words(layout: dict[str, Any]) -> str:
    return ", ".join(f"{path or 'the batch'}: {shape} of {dtype}" for path, (shape, dtype, _) in layout.items())
