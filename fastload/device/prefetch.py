"""Batches of the host to batches of a device, ahead of time, on streams of their own.

::

    host batches ─> copy (copy stream) ─> transform (transform stream) ─> [depth batches ahead] ─> training loop
                           │ event: copied            │ event: made                                     │
                           └──────────────────────────┘ compute stream waits for it      event: consumed ┘

NOTE [Back-pressure]
The host queues work faster than the device does it, and memory that the device is still to read cannot be used again.
So batch ``k`` is copied only when the device has done all work that was queued with batch ``k - (depth + 2)``: behind
each batch an event of the compute stream is recorded when the user asks for the next one. A copy ahead of the user's
demand is postponed to the next call where that event has not come. The host waits for it only where the batch that is
asked for has not been copied: the user is then ``depth + 1`` steps ahead of the device, which has enough to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..base.checks import check_count, check_flag, check_paths, check_transform
from ..base.nesting import Key
from ..errors import ConfigError, LoadTimeout, NotReady
from ..stages import Stage
from ..transforms.batches import on_batches
from ..transforms.draws import Draws
from ..work import Batch
from . import ranges
from .moving import Mover
from .streams import device_of, device_or_cpu, keep_in_children, streams_of

if TYPE_CHECKING:
    from .columns import Columns


class DeviceAhead:
    """Copies the next batches of another stage to the device ahead of time: see ``stages.Stage``.

    ``depth``: batches on the device beyond the one handed out; ``draws_of``: returns the randomness of a batch's
    transform; None: the source sets it.
    """

    def __init__(
        self, source: Stage, mover: Mover, depth: int, draws_of: Callable[[Batch], Draws] | None = None
    ) -> None:
        self._source = source
        self._mover = mover
        self._depth = depth
        self._draws_of = draws_of
        self._ready: deque[Batch] = deque()
        self._unmoved: Batch | None = None
        """The source's last batch, where an interrupt left it."""
        self._begun = self._ended = False
        mover.begin(self)
        keep_in_children(self)

    def next(self, wait: bool = True) -> Batch:
        """Return the next batch, on the device. Blocks for the host's part, and where the device is far behind.

        Errors of copies and transforms are in their batches.
        """
        self._mover.check_process()
        self._mover.asked(is_first=not self._begun)
        if not self._ready and not self._ended:
            self._take(wait)
        if self._begun:  # the first batch does not wait for the others
            self._fill()
        self._begun = True
        if not self._ready:
            self._mover.end(self)
            raise StopIteration
        batch = self._ready.popleft()
        if batch.error is None:
            self._mover.lend(batch.data, batch.event)
        return batch

    def num_ready(self) -> int:
        """Return how many batches are complete: on the device, or on its way there, and before."""
        return len(self._ready) + (self._source.num_ready() or 0)

    def _fill(self) -> None:
        while len(self._ready) <= self._depth and not self._ended and self._mover.has_room(self._room()):
            try:
                self._take(wait=False)
            except (NotReady, LoadTimeout):
                return

    def _room(self) -> int:
        """Return how many batches may be handed out and not consumed: see NOTE [Back-pressure]."""
        return self._depth + 2 - len(self._ready)

    def _take(self, wait: bool) -> None:
        if self._unmoved is None:
            try:
                with ranges.stage("wait_for_host_batch" if wait else "look_for_host_batch"):
                    self._unmoved = self._source.next(wait)
            except (NotReady, LoadTimeout):
                raise
            except StopIteration:
                self._ended = True
                return
            except Exception as error:  # behind the batches before it
                self._unmoved = Batch(error=error)
        batch = self._unmoved
        if batch.error is None:
            self._mover.make_room(self._room())
            if self._draws_of is not None:
                batch.draws = self._draws_of(batch)
            self._mover.move(batch)
        self._ready.append(batch)
        self._unmoved = None

    def drop(self) -> None:
        """Forget what is under way, for a new iteration."""
        self._ready, self._unmoved = deque(), None  # not emptied: see NOTE [Forked processes] in streams.py
        self._begun = self._ended = False
        self._mover.begin(self)

    def close(self) -> None:
        """Forget everything."""
        self._ready, self._unmoved = deque(), None
        self._ended = True
        self._mover.end(self)


class Prefetched:
    """An iterable of batches on a device, copied ahead of time: see ``fastload.prefetch``."""

    def __init__(self, iterable: Iterable[Any], mover: Mover, depth: int) -> None:
        self.iterable = iterable
        self.device = mover.device
        self._mover = mover
        self._depth = depth

    def __iter__(self) -> Iterator[Any]:
        return _PrefetchedIterator(_Plain(iter(self.iterable)), self._mover, self._depth)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # its own error, where it has no length


class _PrefetchedIterator(DeviceAhead):
    def __iter__(self) -> _PrefetchedIterator:
        return self

    def __next__(self) -> Any:
        return self.next().result()


class _Plain(Stage):
    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def next(self, wait: bool = True) -> Batch:
        return Batch(data=next(self._iterator))


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
    made_from = arguments, columns
    if kept.mover is not None and kept.mover[0] == made_from:
        return kept.mover[1]  # with the same fixed places
    device = device_or_cpu(arguments.device)
    keep_on_host, channels_last = arguments.keep_on_host, arguments.channels_last
    transform = None if arguments.batch_transform is None else on_batches(arguments.batch_transform)
    reads: list[Tensor] = []
    if columns is not None:
        gathers, reads = columns.device == device, columns.tensors()
        transform = columns.on_batches(
            transform, gathers=gathers, channels_last=channels_last, keep_on_host=keep_on_host
        )
        if gathers:
            keep_on_host, channels_last = (1,), False
    mover = Mover(
        device,
        streams_of(device),
        keep_on_host=keep_on_host,
        channels_last=channels_last,
        transform=transform,
        num_buffers=arguments.prefetch_to_device + 2 if arguments.fixed_buffers else 0,
        reads=reads,
    )
    kept.mover = made_from, mover
    return mover


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
    to page-locked memory of torch, which ``pin_memory=True`` avoids; page-locked memory that is not torch's must not be
    written again before the batch is used. With a ``fastload.DataLoader`` use its argument ``device``: its state stays
    exact.

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
