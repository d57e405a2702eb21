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
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .. import observe
from ..device.batch_keys import BatchKeys
from ..device.columns import Columns, Together, bytes_of, rows_of
from ..device.prefetch import DeviceAhead, DeviceArguments, mover_of
from ..device.streams import keep_in_children
from ..sampling.epochs import EpochWork
from ..stages import Source, Stage
from ..transforms.base import Transform
from ..work import GRACE, Batch, Shard
from .runtime import LoaderRuntime

# Bytes that are transformed at once, or made of them: on the CPU so many that its caches are of use.
_AT_ONCE_ON_HOST = 1 << 20
_AT_ONCE_ON_DEVICE = 1 << 26

_OURS = "fastload.transforms."


class _RowBatches(Stage):
    """The batches to be made next, with what they are gathered from, as the stage before the device.

    ``away``: batches are gathered on the host, and go to a device afterwards. ``in_pairs``: a batch of an odd size is
    the last of those that are made at once.
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
        """Samples that are made at once, if they are of several batches."""
        # What an interrupt leaves is there for the next time.
        self._indices_read: Any = None
        self._found: list[Batch] = []
        """Batches to be made at once, whose data are rows; an error is the last, or alone."""
        self._ended = False

    def next(self, wait: bool = True) -> Batch:
        """See :class:`~fastload.stages.Stage`. The draws of what is returned are a :class:`Together`."""
        while not self._ended and self._has_room():
            since = 0 if self._watch is None else time.perf_counter_ns()
            try:
                self._found.append(self._read())
            except StopIteration:
                self._ended = True
                break
            except Exception as error:
                self._found.append(Batch(error=error))  # in its own place, behind these
            if observe.listener is not None and since:
                task, batch = (self._iteration, self._num_drawn, 0), self._found[-1]
                rows = () if batch.error is not None else batch.data
                observe.listener.dispatched(task, rows, 0, since, time.perf_counter_ns() - since)
                self._num_drawn += 1
        if self._watch is not None:
            self._watch.begin()  # drawing is no part of the task
        if not self._found:
            raise StopIteration
        batches = [batch for batch in self._found if batch.error is None]
        loaded = self._loaded(batches) if batches else self._found[0]
        self._found = self._found[max(1, len(batches)) :]
        return loaded

    def _has_room(self) -> bool:
        if not self._found:
            return True
        last = self._found[-1]
        if last.error is not None or (self._in_pairs and len(last.data) % 2):
            return False
        return sum(len(batch.data) for batch in self._found) + len(last.data) <= self.at_once

    def _read(self) -> Batch:
        """Return the next batch, to be made, or the error in its place; an error of the sampler is raised."""
        if self._indices_read is None:
            self._indices_read = next(self._work.index_batches)
        indices = self._indices_read
        if not hasattr(indices, "__len__"):
            indices = self._indices_read = list(indices)
        batch = Batch(epoch=self._work.epoch, indices=indices)
        try:
            if not len(indices):
                raise IndexError("an index batch without indices has no samples to collate")
            batch.data = rows_of(indices, len(self._columns))
            batch.position = self._work.position_of(indices, self._row)
            batch.draws = self._keys.draws(batch)
        except Exception as error:
            batch.error, batch.data = error, None
        self._row += len(indices)
        self._indices_read = None  # not where an interrupt came
        return batch

    def _loaded(self, batches: list[Batch]) -> Batch:
        """Return what the device stage is to be given for some batches."""
        rows: Any = torch.from_numpy(np.concatenate([batch.data for batch in batches]))
        host_leaves = self._columns.host_leaves(rows)
        loaded = Batch(data=(rows, host_leaves))
        if self._away:
            loaded.data = self._columns.gathering(self._watch)(rows, host_leaves)
        loaded.draws = Together(batches, self._watch)
        return loaded


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
        self._made: deque[Batch] = deque()
        self._lent_to: Any = None
        """The stream that what was made at once is lent to."""

    def next(self, wait: bool = True) -> Batch:
        if self._stage is None:
            raise StopIteration
        if self._watch is not None:
            self._watch.begin()
        if not self._made:
            self._made.extend(self._parts(self._stage.next()))
        batch = self._made.popleft()
        if batch.error is None:
            self._lent_to = self._mover.lend(batch.data, batch.event, self._lent_to)
            self._counts.count(len(batch.indices), None)
        if self._watch is not None:
            self._watch.end(self.iteration, self._num_given, 0)
            if observe.listener is not None:
                observe.listener.given(self, self.iteration, self._num_given, batch.error is not None)
            self._num_given += 1
        return batch

    def _parts(self, made: Batch) -> Sequence[Batch]:
        """Return the batches that were made at once."""
        if not isinstance(made.draws, Together):  # an error of the sampler
            return [made]
        batches = made.draws.batches
        for batch in batches:
            if made.error is not None or len(batches) == 1:
                batch.data, batch.error = made.data, made.error
            batch.event = made.event
        if self._bytes_at_once and made.error is None:  # the first batch tells how much is made of a sample
            num_samples = sum(len(batch.indices) for batch in batches)
            sample_bytes = max(bytes_of(made.data) // num_samples, self._columns.num_bytes // len(self._columns), 1)
            self._source.at_once = self._bytes_at_once // sample_bytes
        self._lent_to = self._mover.given_to
        return batches

    def close(self, grace: float = GRACE) -> None:
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()
            self._made.clear()
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
