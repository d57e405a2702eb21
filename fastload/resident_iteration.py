"""One pass over resident data: no workers; each batch is gathered, and transformed, where the data are.

::

    index batches ─> [several at once] ─rows─> gather ─> batch_transform ─> one batch after the other

In: a loader and its :class:`~fastload.resident.Columns`. Out: the batches that the loader would give without them, in
the same order, with the same parameters of the batch transform.

NOTE [Several batches at once]
A batched transform costs a few hundred microseconds on the host, whatever it is given. Its result for a sample depends
on nothing but the sample's key, so the transforms of this package are given as many batches at once as make that cost
small, up to the whole epoch on a device, and the user is given views of the result. Partners of mixing transforms are
neighbours at even places, which they stay behind batches of even sizes. Other callables get one batch at a time, and so
does everything behind samplers of the user's, which may look at what the loop has done.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from . import compat, observe
from .agreement import compare_ranks
from .batch_keys import BatchKeys
from .device import DeviceAhead, Loaded
from .errors import NotReady
from .moving import Mover
from .passes import Pass, our_sampler
from .plan import Origin
from .resident import Columns, Rows, bytes_of, rows_of, split
from .resuming import base_seed_drawn, batch_keys, index_batches, note_randomness, order_states, shard_of
from .shard import Shard
from .streams import keep_in_children
from .transforms.base import Transform
from .transforms.draws import Draws

# Bytes of the data that are transformed at once: on the CPU so many that its caches are of use, elsewhere many more.
_AT_ONCE_ON_HOST = 1 << 20
_AT_ONCE_ON_DEVICE = 1 << 26

_OURS = f"{__package__}.transforms."


class _Batch(NamedTuple):
    """What is to be gathered."""

    rows: Rows
    draws: Draws


class _Drawn(NamedTuple):
    """Indices that were drawn: see :class:`fastload.observe.Item`."""

    iteration: int
    batch_id: int
    chunk_id: int
    indices: Any


class _Heard:
    """Tells a listener how the batches of a pass come about.

    Args:
        listener: who listens.
    """

    def __init__(self, listener: observe.Listener) -> None:
        self._listener = listener
        self.iteration = next(observe.numbers)
        self.watch = listener.watch(0)
        self._num_drawn = 0
        self._num_given = 0

    def drawn(self, indices: Any, since: int) -> None:
        """The indices of the next batch were drawn, or there was an error in their place."""
        item = _Drawn(self.iteration, self._num_drawn, 0, indices)
        self._listener.dispatched(item, None, since, time.perf_counter_ns() - since)
        self._num_drawn += 1

    def given(self, iterator: Any, failed: bool) -> None:
        """The next batch was made, or failed."""
        self.watch.end(self.iteration, self._num_given, 0)
        self._listener.given(iterator, self.iteration, self._num_given, failed)
        self._num_given += 1


class Gather:
    """Gathers batches on the mover's device, as the transform of a :class:`~fastload.device.Mover`.

    Args:
        columns: the data.
        then: the batch transform, a function of (batch, draws); None: there is none.
    """

    def __init__(self, columns: Columns, then: Callable[[Any, Draws], Any] | None) -> None:
        self._columns = columns
        self._then = then

    def __call__(self, rows: Any, draws: Any) -> Any:
        """Return a batch on the device, given what :class:`_Batches` loads."""
        own, host_leaves, watch = draws
        if host_leaves is not None:
            rows = _gathering(self._columns, watch)(rows, host_leaves)
        if self._then is None:
            return rows
        return (self._then if watch is None else watch.transform("batch_transform", self._then))(rows, own)


def _gathering(columns: Columns, watch: observe.Watch | None) -> Callable[..., Any]:
    return columns.batch if watch is None else watch.collate(columns.batch)


class _Batches:
    """What is to be gathered next, as a source of the device stage.

    Args:
        indices: index batches.
        columns: the data.
        keys: names the samples of each batch.
        epoch: enters the keys.
        shard: of this rank.
        first_row: samples of this rank that were loaded before.
        away: batches are made on the host, and go to a device afterwards.
        at_once: samples that are given at once, if they are of several batches.
        in_pairs: a batch of an odd size is the last of those that are given at once.
        heard: is told what is done; None: nobody listens.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        columns: Columns,
        keys: BatchKeys,
        epoch: int,
        shard: Shard,
        first_row: int,
        *,
        away: bool,
        at_once: int,
        in_pairs: bool,
        heard: _Heard | None,
    ) -> None:
        self._indices = indices
        self._columns = columns
        self._keys = keys
        self._epoch = epoch
        self._shard = shard
        self._row = first_row
        self._away = away
        self.at_once = at_once
        """Samples that are given at once, if they are of several batches."""
        self._in_pairs = in_pairs
        self._heard = heard
        # What an interrupt leaves is there for the next time.
        self._indices_read: Any = None
        self._found: list[_Batch] = []
        self._num_rows = 0
        """Of those found."""
        self._error: Exception | None = None
        self._ended = False

    def next(self) -> Loaded:
        """See :class:`~fastload.device.Source`."""
        found = self._found
        while not self._ended and self._error is None and self._has_room():
            since = 0 if self._heard is None else time.perf_counter_ns()
            try:
                found.append(self._next())
                self._num_rows += len(found[-1].rows)
            except StopIteration:
                self._ended = True
                continue
            except Exception as raised:
                self._error = raised  # in its own place, behind these
            if self._heard is not None:
                self._heard.drawn(() if self._error is not None else found[-1].rows, since)
        if self._heard is not None:
            self._heard.watch.begin()  # drawing is no part of the task
        if found:
            loaded = self.loaded(found)
            self._found, self._num_rows = [], 0
            return loaded
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def next_nowait(self) -> Loaded:
        """See :class:`~fastload.device.Source`."""
        raise NotReady

    def _has_room(self) -> bool:
        found = self._found
        if not found:
            return True
        last = len(found[-1].rows)
        return self._num_rows + last <= self.at_once and not (self._in_pairs and last % 2)

    def _next(self) -> _Batch:
        if self._indices_read is None:
            self._indices_read = next(self._indices)
        indices = self._indices_read
        if not hasattr(indices, "__len__"):
            indices = self._indices_read = list(indices)
        try:
            if not len(indices):
                raise IndexError("an index batch without indices has no samples to collate")
            rows = rows_of(indices, len(self._columns))
            draws = self._keys.draws(Origin(self._epoch, self._shard.position(self._row), indices))
        except Exception:
            self._advance(len(indices))
            raise
        self._advance(len(indices))
        return _Batch(rows, draws)

    def _advance(self, num_rows: int) -> None:
        self._row += num_rows
        self._indices_read = None

    @property
    def sample_bytes(self) -> int:
        """What a sample takes in memory."""
        return self._columns.num_bytes // max(len(self._columns), 1)

    def loaded(self, batches: list[_Batch]) -> Loaded:
        """Return what the device stage is to be given for some batches."""
        rows = torch.from_numpy(np.concatenate([batch.rows for batch in batches]))
        draws = Draws.joined([batch.draws for batch in batches])
        host_leaves = self._columns.host_leaves(rows)
        watch = None if self._heard is None else self._heard.watch
        if not self._away:
            return Loaded(rows, (draws, host_leaves, watch), batches)
        return Loaded(_gathering(self._columns, watch)(rows, host_leaves), (draws, None, watch), batches)


class ResidentIterator(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """A pass over resident data; with ``persistent_workers``, one pass after the other.

    There are no workers, but the order and the keys are those that there would be with them.
    """

    has_workers = False
    """Whatever ``num_workers`` says."""

    def __init__(self, loader: Any, columns: Columns) -> None:
        begun: Pass = loader._begin_pass()
        # Without workers torch asks the sampler for one iterator, before it draws the base seed.
        before = None if loader.num_workers else order_states(loader, begun)
        with base_seed_drawn(loader, begun):
            super().__init__(loader)
        keep_in_children(self)
        self._iterations = 0
        self._begin(loader, begun, columns, before)
        loader._runtime.iterators.add(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._shutdown_workers()
        begun: Pass = loader._begin_pass()
        try:
            self._begin(loader, begun, loader._columns(), None)
        except BaseException:
            loader._not_begun(begun)
            raise

    def _begin(self, loader: Any, begun: Pass, columns: Columns, before: dict[str, Any] | None) -> None:
        since = time.perf_counter_ns()
        listener = observe.listener
        self._heard = None if listener is None else _Heard(listener)
        epoch = note_randomness(loader, begun, self, self._iterations, before)
        self._iterations = begun.key_epoch + 1
        self._pass = begun
        self._counts = loader._runtime.counts
        if loader.num_workers:
            super()._reset(loader)
        indices, first_row = index_batches(loader, begun, self, arrays=True)
        if loader.num_workers:  # a worker would have been given its first batch by now
            indices = itertools.chain(list(itertools.islice(indices, 1)), indices)
        shard = shard_of(loader, begun, self)
        self._mover: Mover = loader._mover(columns)
        self._source = _Batches(
            indices,
            columns,
            batch_keys(loader, shard, self._base_seed),
            epoch,
            shard,
            first_row,
            away=self._mover.device != columns.device,
            at_once=1,
            in_pairs=getattr(loader.batch_transform, "mixes", False),
            heard=self._heard,
        )
        self._bytes_at_once = _bytes_at_once(loader, begun, self._mover.device)
        self._pins = self._pin_memory and loader.device is None
        # Where nothing is done beside the user's loop, nothing is done ahead of it.
        depth = 0 if self._mover.streams is None else loader.prefetch_to_device
        self._stage: DeviceAhead | None = DeviceAhead(self._source, self._mover, depth, patient=True)
        self._given: Iterator[tuple[int, Any, Draws]] = iter(())
        self._singly: deque[_Batch] = deque()
        if not loader._alone:
            compare_ranks(our_sampler(loader), loader.state_dict())
        if listener is not None and self._heard is not None:
            listener.begun(self, loader, self._heard.iteration, since)

    def _next_data(self) -> Any:
        if self._stage is None:
            raise StopIteration
        begun, heard = self._pass, self._heard
        if heard is not None:
            heard.watch.begin()
        try:
            given = next(self._given, None)
            while given is None:
                self._given = self._made(self._stage)
                given = next(self._given, None)
        except StopIteration:
            begun.finished = True
            raise
        except Exception:
            begun.delivered += 1  # the error stood in a batch's place
            if heard is not None:
                heard.given(self, failed=True)
            raise
        if heard is not None:
            heard.given(self, failed=False)
        num_samples, batch, begun.draws = given
        begun.delivered += 1
        self._counts.count(num_samples, None)
        return compat.pin_memory(batch, self._pin_memory_device) if self._pins else batch

    def _made(self, stage: DeviceAhead) -> Iterator[tuple[int, Any, Draws]]:
        """Return the next batches, at least one, with their sizes and draws."""
        if self._singly:
            loaded = self._source.loaded([self._singly[0]])
            try:
                made = stage.move_now(loaded)
            except Exception:
                self._singly.popleft()  # an interrupt leaves it
                raise
            self._singly.popleft()
            return self._parts(made, stage.last_event, loaded)
        try:
            made = stage.next()
        except StopIteration:
            raise
        except Exception:
            last = stage.last
            if last is None or len(last.note) == 1:
                raise
            self._singly.extend(last.note)  # so that only those are lost in which it happens again
            return self._made(stage)
        assert stage.last is not None
        return self._parts(made, stage.last_event, stage.last)

    def _parts(self, made: Any, event: Any, loaded: Loaded) -> Iterator[tuple[int, Any, Draws]]:
        """Yield the batches that were made at once, with their sizes and draws, each when it is asked for."""
        batches: list[_Batch] = loaded.note
        sizes = [len(batch.rows) for batch in batches]
        if self._bytes_at_once:
            # Both what is read and what is made of it count; the first batch tells.
            largest = max(bytes_of(made) // sum(sizes), self._source.sample_bytes, 1)
            self._source.at_once = self._bytes_at_once // largest
        shape = loaded.draws[0].shape
        parts = split(made, sizes) if len(sizes) > 1 else [made]
        stream = None
        for size, batch, part in zip(sizes, batches, parts, strict=True):
            stream = self._mover.lend(part, event, stream)  # the user may have another one by now
            batch.draws.shape = None if shape is None else shape._replace(num=size)
            yield size, part, batch.draws

    def _note(self, runtime: Any) -> None:
        """Nothing that is not counted as it happens."""

    def _shutdown_workers(self) -> None:
        """There are none; what is ahead is dropped, and the data are let go of."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.close()
            self._given = iter(())
            self._singly.clear()
            del self._source, self._mover


def _bytes_at_once(loader: Any, begun: Pass, device: torch.device) -> int:
    """Return how many bytes are transformed at once; 0: one batch. See NOTE [Several batches at once]."""
    transform = loader.batch_transform
    if not isinstance(transform, Transform) or loader.fixed_buffers:
        return 0
    members = [member for member in transform.modules() if isinstance(member, Transform)]
    if not all(type(member).__module__.startswith(_OURS) for member in members):
        return 0
    samplers = (loader.sampler, loader.batch_sampler)
    if begun.known is None and any(type(sampler).__module__ != compat.SAMPLER_MODULE for sampler in samplers):
        return 0  # it may look at what the loop has done with the batch before
    return _AT_ONCE_ON_HOST if device.type == "cpu" else _AT_ONCE_ON_DEVICE


__all__ = ["Gather", "ResidentIterator"]
