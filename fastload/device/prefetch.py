"""Batches of the host to batches of a device, ahead of time, on streams of their own.

::

    host batches ─> copy (copy stream) ─> transform (transform stream) ─> [depth batches ahead] ─> training loop
         ▲                │ event: copied            │ event: made                                     │
         └─ host memory free ┘                       compute stream waits for it        event: consumed ┘

NOTE [Back-pressure]
The host queues work faster than the device does it, and memory that the device is still to read cannot be used again.
So batch ``k`` is copied only when the device has done all work that was queued with batch ``k - (depth + 2)``: behind
each batch an event of the compute stream is recorded when the user asks for the next one. A copy ahead of the user's
demand is postponed to the next call where that event has not come. The host waits for it only where the batch that is
asked for has not been copied: the user is then ``depth + 1`` steps ahead of the device, which has enough to do.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..base.checks import check_count, check_flag, check_paths, check_transform
from ..base.nesting import Key
from ..errors import ConfigError, LoadTimeout, NotReady
from ..stages import Stage
from ..transforms.batches import on_batches
from ..transforms.draws import Draws
from ..work import Batch
from . import ranges
from .moving import Backlog, Mover
from .streams import device_of, device_or_cpu, keep_in_children, streams_of

if TYPE_CHECKING:
    from .columns import Columns


class DeviceAhead:
    """Copies the next batches of another stage to the device ahead of time: see ``stages.Stage``.

    ``depth``: batches on the device beyond the one handed out; ``draws_of``: returns the randomness of a batch's
    transform; None: the source sets it. Holds the host's memory of a batch until its copy is done, and no longer.
    """

    def __init__(
        self, source: Stage, mover: Mover, depth: int, draws_of: Callable[[Batch], Draws] | None = None
    ) -> None:
        self._source = source
        self._mover = mover
        self._depth = depth
        self._draws_of = draws_of
        self._most_on_device = depth + 2
        """Batches that were copied and are not consumed. See NOTE [Back-pressure]."""
        self._ready: deque[Batch | None] = deque()
        """None: there are no more."""
        self._host: deque[tuple[torch.Event, Any]] = deque()
        self._unmoved: Batch | None = None
        self._begun = False
        self._ended = False
        self._pid = os.getpid()
        self._backlog: Backlog | None = mover.begin(self)
        """None: the iteration has ended."""
        keep_in_children(self)

    def next(self, wait: bool = True) -> Batch:
        """Return the next batch, on the device. Blocks for the host's part, and where the device is far behind.

        Errors of copies and transforms are in their batches.
        """
        if self._backlog is None:
            raise StopIteration
        self._mover.check_process()
        self._backlog.asked()
        self._let_go()
        if not self._ready:
            self._take(wait)
        if self._begun:
            self._fill()
        self._begun = True  # the first batch does not wait for the others
        batch = self._ready.popleft()
        if batch is None:
            self._end()
            raise StopIteration
        return self._hand_out(batch)

    def num_ready(self) -> int:
        """Return how many batches are complete: on the device, or on its way there, and before."""
        return sum(batch is not None for batch in self._ready) + (self._source.num_ready() or 0)

    def _hand_out(self, batch: Batch) -> Batch:
        if batch.error is None:
            assert self._backlog is not None
            self._backlog.given_to = self._mover.lend(batch.data, batch.event, None)
        return batch

    def move_now(self, batch: Batch) -> Batch:
        """Return a batch that does not come from the source, on the device; it was not copied ahead of time."""
        assert self._backlog is not None
        self._backlog.asked()
        self._make_room()
        self._move(batch)
        return self._hand_out(batch)

    def _fill(self) -> None:
        while len(self._ready) <= self._depth and not self._ended:
            assert self._backlog is not None
            if not self._backlog.has_room(self._most_on_device - len(self._ready)):
                return
            try:
                self._take(wait=False)
            except NotReady:
                return
            except LoadTimeout:
                if not self._ready:
                    raise
                return

    def _take(self, wait: bool) -> None:
        if self._unmoved is None:
            try:
                with ranges.stage("wait_for_host_batch" if wait else "look_for_host_batch"):
                    self._unmoved = self._source.next(wait)
            except (NotReady, LoadTimeout):
                raise
            except StopIteration:
                self._ended = True
                self._ready.append(None)
                return
            except Exception as error:  # behind the batches before it
                self._unmoved = Batch(error=error)
        batch = self._unmoved  # an interrupt leaves it for the next time
        if batch.error is None:
            self._make_room()
            if self._draws_of is not None:
                batch.draws = self._draws_of(batch)
            self._move(batch)
        self._ready.append(batch)
        self._unmoved = None

    def _move(self, batch: Batch) -> None:
        host, draws = batch.data, batch.draws
        assert self._backlog is not None
        assert draws is None or isinstance(draws, Draws)
        try:
            moved = self._mover.move(host, draws, self._backlog.streams)
        except Exception as error:
            copied = self._copies_so_far()  # some of it may be on its way
            batch.error, batch.data = error, None
        else:
            copied = moved.copied
            batch.data, batch.event = moved.made, moved.event
        if copied is not None:
            self._host.append((copied, host))

    def _make_room(self) -> None:
        assert self._backlog is not None
        self._backlog.make_room(self._most_on_device - len(self._ready))

    def _copies_so_far(self) -> torch.Event | None:
        """Return an event behind all copies that were begun; None where there are no streams."""
        streams = None if self._backlog is None else self._backlog.streams
        return None if streams is None else streams.mark(streams.copies)

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
        if self._unmoved is not None and (event := self._copies_so_far()) is not None:
            event.synchronize()  # an interrupt may have left it half moved
        self._unmoved = None
        self._ready.clear()
        while self._host:
            self._host[0][0].synchronize()
            self._host.popleft()


class Prefetched:
    """An iterable of batches on a device, copied ahead of time: see ``fastload.prefetch``."""

    def __init__(self, iterable: Iterable[Any], mover: Mover, depth: int) -> None:
        self.iterable = iterable
        self.device = mover.device
        self._mover = mover
        self._depth = depth

    def __iter__(self) -> Iterator[Any]:
        ahead = DeviceAhead(_Plain(iter(self.iterable)), self._mover, self._depth)
        return _PrefetchedIterator(ahead)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # its own error, where it has no length


class _PrefetchedIterator:
    def __init__(self, ahead: DeviceAhead) -> None:
        self._ahead = ahead

    def __iter__(self) -> _PrefetchedIterator:
        return self

    def __next__(self) -> Any:
        return self._ahead.next().result()

    def close(self) -> None:
        """End it; what is ahead is dropped."""
        self._ahead.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # the names that closing reads may be gone, and the system ends all copies
            self._ahead.close()


class _Plain(Stage):
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def next(self, wait: bool = True) -> Batch:
        try:
            return Batch(data=next(self._iterator))
        except StopIteration:
            raise
        except Exception as error:
            return Batch(error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArguments:
    """How batches get to a device, and what is done with them there: arguments of the loader."""

    device: Any
    prefetch_to_device: int
    keep_on_host: Collection[str | int]
    channels_last: bool
    fixed_buffers: bool
    batch_transform: Callable[[Any], Any] | None


class KeepsMover(Protocol):
    """Keeps a mover for the next iteration."""

    mover: tuple[tuple[object, ...], Mover] | None
    """Arguments that the mover was built from, and the mover."""


def mover_of(arguments: DeviceArguments, kept: KeepsMover, *, columns: Columns | None = None) -> Mover:
    """Return what moves batches to the device and transforms them: the same one as long as it is made from the same.

    ``columns``: resident data that batches are gathered from.
    """
    num_buffers = arguments.prefetch_to_device + 2 if arguments.fixed_buffers else 0
    lie = arguments.device, arguments.keep_on_host, arguments.channels_last
    made_from = (*lie, num_buffers, arguments.batch_transform, columns)
    known = kept.mover  # the same fixed places for all iterations
    if known is None or any(one is not other for one, other in zip(known[0], made_from, strict=True)):
        device = device_or_cpu(arguments.device)
        transform = None if arguments.batch_transform is None else on_batches(arguments.batch_transform)
        there = columns is not None and columns.device == device
        streams = streams_of(device)
        if columns is not None:
            transform = columns.transform(transform)
        mover = Mover(
            device,
            streams,
            # Resident columns already have the requested memory format.
            keep_on_host=() if there else arguments.keep_on_host,
            channels_last=arguments.channels_last and not there,
            transform=transform,
            num_buffers=num_buffers,
            reads=() if columns is None else tuple(columns.tensors()),
        )
        kept.mover = known = made_from, mover
    return known[1]


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
    """Copy the batches of any iterable to a device ahead of time, while the steps before them run.

    Copies and the transform run on separate streams. At most ``depth + 3`` batches are on the device: the host waits
    for it only if the loop is more than ``depth + 1`` steps ahead. Objects with their own ``to`` are copied on your
    stream, unless they have ``pin_memory`` and ``record_stream`` too. Memory that is not page-locked is first copied
    to page-locked memory of torch, which ``pin_memory=True`` avoids. With a ``fastload.DataLoader`` use its argument
    ``device``: it copies from its own buffers, and its state stays exact.

    Args:
        iterable: gives batches: tensors in any nesting of dicts, lists, tuples and named tuples. Other objects are
            copied by their ``to`` if they have one, otherwise they stay as they are.
        device: ``"cuda"``, ``"cuda:1"``, or another device; ``"cpu"``: the same without a copy.
        depth: batches on the device in addition to the current one; at least 1.
        transform: a function of a batch, called for each on the device, on a separate stream.
        keep_on_host: parts that are not copied, by their path: ``("lengths",)``, ``(1,)``, ``("meta.lengths",)``.
        channels_last: whether four-dimensional tensors get torch's channels-last format on the device.
        fixed_buffers: whether batches use ``depth + 2`` fixed buffers in turn, for CUDA graphs. A batch is then valid
            until the next one is requested, and all must have the same shapes.

    Returns:
        An iterable of the batches on the device. It can be iterated again if ``iterable`` can.

    Raises:
        ConfigError: an argument is out of its range, or there is no such device.

    Examples:
        >>> import fastload, torch
        >>> batches = [torch.zeros(4, 3), torch.ones(4, 3)]
        >>> for batch in fastload.prefetch(batches, "cpu"):
        ...     print(batch.mean().item())
        0.0
        1.0
    """
    where = device_of(device)
    depth = check_count("depth", depth)
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise ConfigError(f"prefetch takes an iterable of batches, got {iterable!r}")
    check_transform("transform", transform)
    check_flag("channels_last", channels_last)
    check_flag("fixed_buffers", fixed_buffers)
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
