"""A source that gathers batches from resident data, and transforms them, where the data are. There are no workers.

::

    index batches ─> [several at once] ─rows─> gather ─> batch_transform ─> one batch after the other

NOTE [Several batches at once]
A batched transform costs a few hundred microseconds on the host, whatever it is given. Its result for a sample depends
on nothing but the sample's key, so the transforms of this package are given as many batches at once as make that cost
small, up to the whole epoch on a device, and the user is given views of the result. Partners of mixing transforms are
neighbours at even places, which they stay behind batches of even sizes. Other callables get one batch at a time, and so
does everything behind samplers of the user's, which may look at what the loop has done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import observe
from ..device.batch_keys import BatchKeys
from ..device.columns import Columns, RowDraws, Rows, bytes_of, rows_of, split
from ..device.prefetch import DeviceAhead, DeviceArguments, mover_of
from ..device.streams import keep_in_children
from ..sampling.epochs import EpochWork
from ..stages import Source, Stage
from ..transforms.base import Transform
from ..transforms.draws import Draws
from ..work import GRACE, Batch, Shard
from .runtime import LoaderRuntime

# Bytes that are transformed at once, or made of them: on the CPU so many that its caches are of use.
_AT_ONCE_ON_HOST = 1 << 20
_AT_ONCE_ON_DEVICE = 1 << 26

_OURS = "fastload.transforms."


class _RowBatch(NamedTuple):
    """A batch that is to be gathered."""

    rows: Rows
    draws: Draws


class _RowBatches(Stage):
    """The batches to be gathered next, as the stage before the device.

    ``away``: batches are made on the host, and go to a device afterwards. ``in_pairs``: a batch of an odd size is the
    last of those that are given at once.
    """

    def __init__(
        self,
        work: EpochWork,
        columns: Columns,
        keys: BatchKeys,
        watch: observe.Watch | None,
        iteration: int,
        *,
        away: bool,
        in_pairs: bool,
    ) -> None:
        self._work, self._row = work, work.first_row
        self._columns, self._keys = columns, keys
        self._watch, self._iteration, self._num_drawn = watch, iteration, 0
        self._away, self._in_pairs = away, in_pairs
        self.at_once = 1
        """Samples that are given at once, if they are of several batches."""
        # What an interrupt leaves is there for the next time.
        self._indices_read: Any = None
        self._found: list[_RowBatch] = []
        self._num_rows = 0
        """Rows of the batches found."""
        self._error: Exception | None = None
        self._ended = False

    def next(self, wait: bool = True) -> Batch:
        """See :class:`~fastload.stages.Stage`. Several batches at once are the parts of one."""
        found = self._found
        while not self._ended and self._error is None and self._has_room():
            since = 0 if self._watch is None else time.perf_counter_ns()
            try:
                found.append(self._next())
                self._num_rows += len(found[-1].rows)
            except StopIteration:
                self._ended = True
                continue
            except Exception as raised:
                self._error = raised  # in its own place, behind these
            if observe.listener is not None and since:
                task, rows = (self._iteration, self._num_drawn, 0), () if self._error is not None else found[-1].rows
                observe.listener.dispatched(task, rows, 0, since, time.perf_counter_ns() - since)
                self._num_drawn += 1
        if self._watch is not None:
            self._watch.begin()  # drawing is no part of the task
        if found:
            loaded = self.loaded(found)
            self._found, self._num_rows = [], 0
            return loaded
        if self._error is not None:
            error, self._error = self._error, None
            return Batch(error=error)
        raise StopIteration

    def _has_room(self) -> bool:
        found = self._found
        if not found:
            return True
        last = len(found[-1].rows)
        return self._num_rows + last <= self.at_once and not (self._in_pairs and last % 2)

    def _next(self) -> _RowBatch:
        if self._indices_read is None:
            self._indices_read = next(self._work.index_batches)
        indices = self._indices_read
        if not hasattr(indices, "__len__"):
            indices = self._indices_read = list(indices)
        try:
            if not len(indices):
                raise IndexError("an index batch without indices has no samples to collate")
            rows = rows_of(indices, len(self._columns))
            position = self._work.shard.position(self._row)
            draws = self._keys.draws(Batch(epoch=self._work.epoch, position=position, indices=indices))
        except Exception:
            self._advance(len(indices))
            raise
        self._advance(len(indices))  # not where an interrupt came
        return _RowBatch(rows, draws)

    def _advance(self, num_rows: int) -> None:
        self._row += num_rows
        self._indices_read = None

    def loaded(self, parts: list[_RowBatch]) -> Batch:
        """Return what the device stage is to be given for some batches."""
        rows: Any = torch.from_numpy(np.concatenate([batch.rows for batch in parts]))
        draws = Draws.joined([batch.draws for batch in parts])
        host_leaves = self._columns.host_leaves(rows)
        batch = Batch(data=self._columns.gathering(self._watch)(rows, host_leaves) if self._away else rows)
        batch.draws = RowDraws(draws, None if self._away else host_leaves, self._watch)
        batch.parts = parts
        return batch


class ResidentSource(Source):
    """See the module, and :class:`~fastload.stages.Source`. It contains its own device stage.

    ``keys_of`` returns what names the samples of an epoch, by its shard. ``may_look_ahead``: whether the sampler may be
    asked for more than the next batch.
    """

    is_resident = takes_arrays = True
    holds_something = False

    def __init__(
        self,
        columns: Columns,
        arguments: DeviceArguments,
        runtime: LoaderRuntime,
        keys_of: Callable[[Shard], BatchKeys],
        *,
        may_look_ahead: bool,
    ) -> None:
        self._columns = columns
        self._arguments = arguments
        self._counts = runtime.counts
        self._keys_of = keys_of
        self._mover = mover_of(arguments, runtime, columns=columns)
        self._bytes_at_once = _bytes_at_once(arguments, self._mover.device) if may_look_ahead else 0
        self._stage: DeviceAhead | None = None
        keep_in_children(self)

    def begin(self, work: EpochWork, upcoming: EpochWork | None = None) -> None:
        self.iteration, self._num_given = next(observe.numbers), 0
        self._watch = None if observe.listener is None else observe.listener.watch(0)
        self._source = _RowBatches(
            work,
            self._columns,
            self._keys_of(work.shard),
            self._watch,
            self.iteration,
            away=self._mover.device != self._columns.device,
            in_pairs=getattr(self._arguments.batch_transform, "mixes", False),
        )
        # Without streams nothing runs beside the user's loop, so nothing is made ahead of it.
        depth = 0 if self._mover.streams is None else self._arguments.prefetch_to_device
        self._stage = DeviceAhead(self._source, self._mover, depth)
        self._given: Iterator[Batch] = iter(())
        self._singly: deque[Any] = deque()

    def next(self, wait: bool = True) -> Batch:
        if self._stage is None:
            raise StopIteration
        if self._watch is not None:
            self._watch.begin()
        batch = next(self._given, None)
        while batch is None:
            self._given = self._made(self._stage)
            batch = next(self._given, None)
        if self._watch is not None:
            self._watch.end(self.iteration, self._num_given, 0)
            if observe.listener is not None:
                observe.listener.given(self, self.iteration, self._num_given, batch.error is not None)
            self._num_given += 1
        return batch

    def _made(self, stage: DeviceAhead) -> Iterator[Batch]:
        """Return the next batches, at least one."""
        if self._singly:
            made = stage.move_now(self._source.loaded([self._singly[0]]))
            self._singly.popleft()  # an interrupt leaves it
        else:
            made = stage.next()
            if made.error is not None and len(made.parts) > 1:
                self._singly.extend(made.parts)  # so that only those are lost in which it happens again
                return self._made(stage)
        return iter((made,)) if made.error is not None else self._parts(made)

    def _parts(self, made: Batch) -> Iterator[Batch]:
        """Yield the batches that were made at once, each when it is asked for."""
        sizes = [len(batch.rows) for batch in made.parts]
        if self._bytes_at_once:  # the first batch tells how much is made of a sample
            sample_bytes = max(bytes_of(made.data) // sum(sizes), self._columns.num_bytes // len(self._columns), 1)
            self._source.at_once = self._bytes_at_once // sample_bytes
        shape = None if made.draws is None else made.draws.shape
        parts = split(made.data, sizes) if len(sizes) > 1 else [made.data]
        stream = None
        lend, count, event = self._mover.lend, self._counts.count, made.event
        for size, batch, part in zip(sizes, made.parts, parts, strict=True):
            stream = lend(part, event, stream)  # the user may have another one by now
            if shape is not None and shape.num != size:
                shape = shape._replace(num=size)
            draws = batch.draws
            draws.shape = shape
            count(size, None)
            given = Batch(data=part)
            given.draws = draws
            yield given

    def close(self, grace: float = GRACE) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()
            self._given = iter(())
            self._singly.clear()
            del self._source, self._mover, self._columns


def _bytes_at_once(arguments: DeviceArguments, device: torch.device) -> int:
    """Return how many bytes are transformed at once; 0: one batch. See NOTE [Several batches at once]."""
    transform = arguments.batch_transform
    if not isinstance(transform, Transform) or arguments.fixed_buffers:
        return 0
    members = [member for member in transform.modules() if isinstance(member, Transform)]
    if not all(type(member).__module__.startswith(_OURS) for member in members):
        return 0
    return _AT_ONCE_ON_HOST if device.type == "cpu" else _AT_ONCE_ON_DEVICE
