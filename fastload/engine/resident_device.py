"""The rows of resident data, and what is drawn for them, made on the device that has the data.

::

    (epoch, rows from, to) ─> on the transform stream: order ─rows─> gather ─> batch_transform, drawn for there

In: how many rows an epoch has. Out: the batches of ``resident_source`` with the same samples and parameters; the host
computes neither. Where something of an epoch is not the device's to make, ``made_there`` says no, and the host does it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from ..device.batch_keys import BatchKeys
from ..device.columns import Columns, RowDraws
from ..device.streams import keep_in_children
from ..sampling.epochs import KnownBatches
from ..sampling.order import Keyed
from ..stages import EpochWork, Stage
from ..transforms.base import Transform
from ..transforms.device_draws import EpochState, available, draws_there
from ..transforms.draws import Draws
from ..work import Batch


def made_there(known: KnownBatches | None, work: EpochWork, keys: BatchKeys, columns: Columns, transform: Any) -> bool:
    """Return whether a device can make the rows and draws of an epoch: see the module."""
    if known is None or known.batch_size is None or type(known.rows.order) is not Keyed or work.first_row:
        return False
    if not columns.all_there or not keys.by_index or not (transform is None or isinstance(transform, Transform)):
        return False
    shard = work.shard
    apart = shard.global_batch_size is None or shard.num_ranks == 1
    return apart and shard.tail != "pad" and draws_there(transform) and available(columns.device)


class _Span(NamedTuple):
    """A batch: consecutive rows of an epoch, and what its parameters come from."""

    rows: range
    draws: Draws


class DeviceRows(Stage):
    """What is to be gathered next, as the stage before the device. Nothing is done for it on the host.

    Args:
        work: of the epoch.
        known: its batches.
        keys: names the samples of each batch.
        columns: the data.
    """

    def __init__(self, work: EpochWork, known: KnownBatches, keys: BatchKeys, columns: Columns) -> None:
        assert isinstance(known.rows.order, Keyed)
        assert known.batch_size is not None
        self._order, self._shard, self._size = known.rows.order, work.shard, known.batch_size
        self._end = min(work.shard.num_rows, known.num_batches * self._size)
        self._row = 0
        self._epoch = work.epoch
        self._key, self._epochs = keys.of_epoch(work.epoch)
        self._columns = columns
        self._state: EpochState | None = None
        self.at_once = 1
        """Samples that are given at once, if they are of several batches."""
        keep_in_children(self)

    @property
    def sample_bytes(self) -> int:
        """What a sample takes in memory."""
        return self._columns.num_bytes // max(len(self._columns), 1)

    def next(self, wait: bool = True) -> Batch:
        """See :class:`~fastload.stages.Stage`. Several batches at once are the parts of one."""
        if self._row >= self._end:
            raise StopIteration
        end = min(self._end, self._row + max(1, self.at_once // self._size) * self._size)
        starts = range(self._row, end, self._size)
        loaded = self.loaded([self._span(start, min(start + self._size, end)) for start in starts])
        self._row = end
        return loaded

    def loaded(self, parts: list[_Span]) -> Batch:
        """Return what the device stage is to be given for some batches."""
        rows = range(parts[0].rows.start, parts[-1].rows.stop)
        batch = Batch(data=functools.partial(self.rows_there, rows))
        batch.draws = _LaterDraws(self, rows)
        batch.parts = parts
        return batch

    def _span(self, start: int, stop: int) -> _Span:
        rows = range(start, stop)
        return _Span(rows, _LaterDraws(self, rows))

    def state(self) -> EpochState:
        """Return what is next, on the device; made on the first call, on the current stream."""
        if self._state is None:
            permutation = self._order.of(self._epoch)
            state = EpochState(permutation, self._columns.device)
            state.begin(permutation, self._key, self._shard.position(0), self._shard.stride)
            self._state = state  # not before: where that fails, the next batch tries again
        return self._state

    def rows_there(self, rows: range) -> tuple[torch.Tensor, Draws]:
        """Return the dataset's indices, [n], int64, and the draws of these samples: ``Columns.transform`` calls it."""
        state = self.state()
        indices = state.rows(rows.start, len(rows))
        return indices, state.draws(indices)

    def draws_of(self, rows: range) -> Draws:
        """Return the draws of some rows, by the host."""
        ids = self._order.at(self._epoch, self._shard.positions(rows.start, len(rows)))
        return Draws(self._key, ids, epochs=self._epochs)


class _LaterDraws(RowDraws):
    """The draws of some rows, for who asks on the host: their indices are computed then."""

    def __init__(self, source: DeviceRows, rows: range) -> None:
        self._of = source, rows
        self.shape, self.host_leaves, self.watch = None, {}, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_of":
            raise AttributeError(name)
        source, rows = self._of
        shape = self.shape
        vars(self).update(vars(source.draws_of(rows)), shape=shape)
        return vars(self)[name]

    def __len__(self) -> int:
        return len(self._of[1])
