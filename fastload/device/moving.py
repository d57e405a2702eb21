"""One batch from the host to a device: what is copied, on which stream, and what is done with it there.

Nothing here blocks, but :meth:`Mover.make_room`.

NOTE [Three streams]
Copies have a stream of their own, so that the copy of a batch does not wait for the transform of the one before. The
transform stream waits for the event behind a batch's copy, and the compute stream for the event behind its transform.
The other direction: a tensor's memory goes back to the allocator for the stream that it was allocated on when its last
reference goes, which is before the kernels of other streams have read it. So the allocator is told of each stream that
reads a tensor of another one (``record_stream``), and waits for it. Fixed buffers are never freed: there are as many as
batches that are not consumed, at most, so the one whose turn it is has been consumed. That does not hold where a new
iteration has dropped what was ahead. So when it is asked for its first batch (until then the user may work with the one
before) the transform stream waits for all that was handed out.

The host's side is torch's: what is copied lies in page-locked memory of its allocator, which does not give it again
while a copy reads it.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..base.nesting import Key, leaves_of, map_leaves, moves, paths_of, tensors_at, tensors_in
from ..errors import ConfigError, DatasetError
from ..transforms.batches import OnBatch
from ..work import Batch
from . import ranges
from .streams import Streams, copies_async, has_record_stream, keep_in_children


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
        self.given_to: Any = None
        """The stream that has the batch handed out last; None: the user has asked for another one since."""
        self._unconsumed: deque[torch.Event] = deque()
        """Events behind the work on each batch that was handed out and that the device has not consumed."""
        self._kept = frozenset(str(key) for key in keep_on_host)
        self._checked = not self._kept
        self._channels_last = channels_last
        self._transform = transform
        self._buffers: list[dict[str, Tensor]] = [{} for _ in range(num_buffers)]
        """Fixed places, by the paths of tensors in a batch."""
        self._layout: dict[str, Any] = {}
        """Layout of the batches in fixed places, which the first one sets."""
        self._turn = 0
        self._user: weakref.ref[Any] | None = None
        """The iteration that has the fixed places."""
        self._pid = os.getpid()
        if streams is not None:
            for tensor in filter(streams.holds, reads):
                streams.note_use(tensor, streams.transforms)  # given back on any stream
        keep_in_children(self)

    def check_process(self) -> None:
        """Raise a RuntimeError in a process that was forked since: see NOTE [Forked processes] in streams.py."""
        if self.streams is not None and self._pid != os.getpid():
            raise RuntimeError(
                f"{self.device} was used by process {self._pid} before it was forked, and cannot be used in the forked "
                f"process {os.getpid()}; start that one with the 'spawn' method, and make the loader there"
            )

    def begin(self, user: object) -> None:
        """An iteration begins to use this. With fixed places there is one at a time."""
        self.check_process()
        if self._buffers:
            if self._user is not None and self._user() not in (None, user):
                raise RuntimeError(
                    "fixed_buffers=True allows one iteration at a time: the previous one has not ended, and the next "
                    "one would overwrite its batches; end it first"
                )
            self._user = weakref.ref(user)

    def end(self, user: object) -> None:
        """An iteration has ended; another one may have begun since."""
        if self._user is not None and self._user() is user:
            self._user = None

    def asked(self, *, is_first: bool) -> None:
        """Note that the user asks for the next batch, or for the first one of an iteration."""
        streams = self.streams
        if streams is None:
            return
        if self.given_to is not None:
            self._unconsumed.append(streams.mark(self.given_to))
            self.given_to = None
        if is_first:  # what the user has made for the transform until now; and see NOTE [Three streams]
            for event in (streams.mark(streams.compute), *self._unconsumed):
                streams.wait(streams.transforms, event)

    def has_room(self, limit: int) -> bool:
        """Return whether fewer batches than this were handed out and are not consumed. Never blocks."""
        while self._unconsumed and self._unconsumed[0].query():
            self._unconsumed.popleft()
        return len(self._unconsumed) < limit

    def make_room(self, limit: int) -> None:
        """Block until :meth:`has_room`."""
        while not self.has_room(limit):
            self._unconsumed[0].synchronize()

    def move(self, batch: Batch) -> None:
        """Begin to move a batch of the host, in place. An error becomes the batch's."""
        if self.streams is not None and torch.is_inference_mode_enabled():
            # What is made ahead of time may be asked for, and trained on, outside of it.
            with torch.inference_mode(False), torch.no_grad():
                return self.move(batch)
        try:
            batch.data, batch.event = self._moved(batch.data, batch.draws)
        except Exception as error:
            batch.error, batch.data = error, None
        return None

    def _moved(self, batch: Any, draws: Any) -> tuple[Any, torch.Event | None]:
        """Return a batch on the device, and the event behind it; None where there are no streams."""
        if not self._checked:
            check_kept(batch, self._kept)
            self._checked = True
        streams = self.streams
        if streams is None:
            return self._transformed(map_leaves(batch, lambda leaf: leaf.to(self.device), self._kept), draws), None
        # Other objects are moved on the compute stream: which tensors they hold, to be recorded, is not known.
        batch = map_leaves(batch, lambda leaf: leaf if _is_copied(leaf) else leaf.to(self.device), self._kept)
        there = any(streams.holds(tensor) for leaf in self._leaves(batch) for tensor in tensors_in(leaf))
        with streams.on(streams.copies), ranges.stage("copy"):
            batch = map_leaves(batch, self._copied, self._kept)
            copied = streams.mark(streams.copies)
        if self._transform is None and not (self._channels_last or self._buffers or there):
            return batch, copied
        if there:
            streams.wait(streams.transforms, streams.mark(streams.compute))
        streams.wait(streams.transforms, copied)
        self._note_use(self._leaves(batch), streams.transforms)
        with streams.on(streams.transforms):
            made = self._transformed(batch, draws)
            return made, streams.mark(streams.transforms)

    def _copied(self, leaf: Any) -> Any:
        assert self.streams is not None
        if not _is_copied(leaf):
            return leaf
        if not isinstance(leaf, Tensor):
            return self.streams.object_to_device(leaf)
        return leaf if self.streams.holds(leaf) else self.streams.to_device(leaf)

    def _leaves(self, batch: Any) -> list[Any]:
        """Return the leaves of a batch, but for those that stay on the host."""
        found: list[Any] = []

        def note(leaf: Any) -> Any:
            found.append(leaf)
            return leaf

        map_leaves(batch, note, self._kept)
        return found

    def _note_use(self, leaves: Iterable[Any], stream: Any) -> None:
        """Tell the allocator that a stream reads the leaves' tensors; an object that can tells it itself."""
        assert self.streams is not None
        for leaf in leaves:
            if copies_async(leaf) and has_record_stream(leaf):
                self.streams.note_use(leaf, stream)
            else:
                for tensor in filter(self.streams.holds, tensors_in(leaf)):
                    self.streams.note_use(tensor, stream)

    def _transformed(self, batch: Any, draws: Any) -> Any:
        if self._transform is None and not (self._channels_last or self._buffers):
            return batch
        with ranges.stage("transform"):
            made = map_leaves(batch, in_channels_last, self._kept) if self._channels_last else batch
            if self._transform is not None:
                try:
                    made = self._transform(made, draws)
                except StopIteration as error:  # in a loop it would end the epoch without a word
                    raise DatasetError(
                        "batch_transform raised StopIteration, which would end the epoch early; raise another error"
                    ) from error
            return self._in_fixed_place(made, batch) if self._buffers else made

    @torch.inference_mode(False)
    @torch.no_grad()
    def _in_fixed_place(self, made: Any, batch: Any) -> Any:
        """Copy what was made of a batch to the fixed place whose turn it is, but for what stays on the host."""
        copy_into: Callable[[Tensor, Tensor], Any] = Tensor.copy_ if self.streams is None else self.streams.copy_into
        kept = {id(leaf) for leaf in tensors_at(batch, self._kept)}
        leaves = [(path, leaf) for path, leaf in leaves_of(made, moves) if moves(leaf)]
        mine = {
            path: leaf
            for path, leaf in leaves
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.device == self.device
            if id(leaf) not in kept
        }
        layout = {path: (tuple(leaf.shape), leaf.dtype, leaf.device) for path, leaf in mine.items()}
        self._layout = self._layout or layout
        if layout != self._layout:
            raise ConfigError(
                "with fixed_buffers=True all batches must have the same shapes and dtypes, got "
                f"{_in_words(layout)} after {_in_words(self._layout)}; drop_last=True leaves a short last batch out"
            )
        places = self._buffers[self._turn]
        for path, leaf in mine.items():
            if path not in places:
                places[path] = torch.empty_like(leaf)
            copy_into(places[path], leaf)
        self._turn = (self._turn + 1) % len(self._buffers)
        paths = iter([path for path, _ in leaves])
        return map_leaves(made, lambda leaf: places.get(next(paths), leaf))

    def lend(self, data: Any, event: Any, lent_to: Any = None) -> Any:
        """Let the user's stream have a batch, or views of it, unless they are lent to it; return that stream."""
        streams = self.streams
        if streams is None:
            return None
        stream = self.given_to = streams.compute
        # `!=` of torch's streams is false beside None.
        if lent_to is None or stream != lent_to:
            streams.wait(stream, event)
            self._note_use((leaf for _, leaf in leaves_of(data, moves)), stream)
        return stream


def _is_copied(leaf: Any) -> bool:
    """Return whether a leaf is copied on the stream of copies."""
    return isinstance(leaf, Tensor) or copies_async(leaf)


def in_channels_last(leaf: Any) -> Any:
    """Return a batch of images in that memory format, and any other leaf as it is."""
    if isinstance(leaf, Tensor) and leaf.ndim == 4:
        return leaf.contiguous(memory_format=torch.channels_last)
    return leaf


def _in_words(layout: dict[str, Any]) -> str:
    return ", ".join(f"{path or 'the batch'}: {shape} of {dtype}" for path, (shape, dtype, _) in layout.items())
