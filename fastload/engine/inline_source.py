"""Without workers: batches are made in ``next()``.

The user's generators are as before after each batch.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from .. import observe
from ..errors import NothingLeft, NotReady
from ..keys.library_generators import LibraryGenerators
from ..keys.preserving import SavedStates
from ..keys.seeding import GlobalSeeder, place
from ..sampling.epochs import EpochWork
from ..stages import Source
from ..work import Batch, Replica
from ..workers.fetch import Fetcher
from ..workers.samples import Job
from .runtime import LoaderRuntime


class InlineSource(Source):
    """See :class:`~fastload.stages.Source`.

    ``repeats_interrupted``: whether a batch that was interrupted is made again, since it was not asked for by the user.
    """

    holds_something = False

    def __init__(
        self, job: Job, runtime: LoaderRuntime, *, repeats_interrupted: bool = False, is_resident: bool = False
    ) -> None:
        self._job = job
        self.is_resident = is_resident
        self._counts, self._measured = runtime.counts, runtime.measured
        self.skips_interrupted = not repeats_interrupted
        roots = (job.dataset, job.collate_fn) if job.seed is not None else ()
        self._libraries = LibraryGenerators(*roots, then=GlobalSeeder())
        self._fetcher = Fetcher(job, 0, "", self._libraries)
        self._may_draw = job.seed is not None or job.streams

    def begin(self, work: EpochWork, upcoming: EpochWork | None = None) -> None:
        self.iteration = next(observe.numbers)
        self._work = work
        self._indices = work.index_batches
        self._row = work.first_row
        self._paced = work.paced
        self._num_made = 0 if work.replicas is None else work.replicas["batches"][0]
        self._num_given = self._num_empty = 0

    def next(self, wait: bool = True) -> Batch:
        if not wait and self._paced:
            raise NotReady
        while True:
            try:
                batch = self._load()
            except NothingLeft:
                self._num_empty += 1
                continue
            except Exception as error:
                if isinstance(error, StopIteration):
                    raise
                batch = Batch(error=error, replica=self._replica(failed=True))
            except BaseException:
                if self.skips_interrupted:
                    self._note_given(failed=True)
                raise
            self._note_given(failed=batch.error is not None)
            batch.num_empty, self._num_empty = self._num_empty, 0
            return batch

    def _note_given(self, *, failed: bool) -> None:
        if observe.listener is not None:
            observe.listener.given(self, self.iteration, self._num_given, failed)
        self._num_given += 1

    def _next_index(self) -> Any:
        listener = observe.listener
        if listener is None:
            return next(self._indices)
        since = time.perf_counter_ns()
        index = next(self._indices)
        task = self.iteration, self._num_given, 0
        listener.dispatched(task, index, 0, since, time.perf_counter_ns() - since)
        return index

    def _load(self) -> Batch:
        index = self._next_index()
        auto_collation, iterable = self._job.auto_collation, self._job.iterable
        if auto_collation and hasattr(index, "__iter__") and not hasattr(index, "__len__"):
            index = list(index)  # its samples are to be counted
        num_rows = len(index) if auto_collation and hasattr(index, "__len__") else 1
        position = self._work.position_of(index, self._row)
        self._row += num_rows
        self._num_made += 1
        batch = Batch(epoch=self._work.epoch, position=self._num_made - 1 if iterable else position)
        try:
            batch.data = self._fetch(index, position)
            batch.left_out = self._note_failures()
        except NothingLeft:
            self._note_failures()
            raise
        except Exception:
            raise
        except BaseException:
            if not self.skips_interrupted:
                self._indices = itertools.chain([index], self._indices)
                self._row -= num_rows
                self._num_made -= 1
            raise
        batch.replica = self._replica(failed=False)
        if batch.replica is None:
            batch.indices = index
        self._counts.count(1 if iterable else num_rows - len(batch.left_out), None)
        return batch

    def _replica(self, *, failed: bool) -> Replica | None:
        replica = self._fetcher.replica
        return None if replica is None else Replica(0, replica.state(failed=failed), self._num_made)

    def _note_failures(self) -> list[int]:
        """Record which samples of a batch failed; return the rows of those that are left out.

        Raises:
            DatasetError: they are too many.
        """
        failures = self._fetcher.samples.failures
        if failures and self._work.failures is not None:
            self._work.failures.note(failures)
        return [failure.row for failure in failures if failure.substitute is None]

    def _fetch(self, index: Any, position: int) -> Any:
        # No context managers around the user's code: they write into what is raised, which a frozen class forbids.
        saved = None if self._job.seed is None else SavedStates()
        self._libraries.adopt()
        outer = place.get() if self._may_draw else None
        if outer is not None and outer[1] is None:  # else it is that of a sample which asks for this batch
            outer = None
        own = self._fetcher.own_generators
        if own is not None:
            own.begin()
        watch, clock = self._fetcher.watch, self._fetcher.clock
        if watch is not None:
            watch.begin()
        if self._measured.asked_ns >= clock.next_ns:
            clock.begin(time.perf_counter_ns())
        try:
            return self._fetcher.fetch(index, self._work.epoch, position)
        finally:
            if clock.is_on:
                self._measured.add_task(0, clock.end(time.perf_counter_ns()))
            if watch is not None:
                watch.end(self.iteration, self._num_given, 0)
            if outer is not None:
                place.set(outer)
            elif self._may_draw and (here := place.get()) is not None:
                here[1] = None
            self._libraries.release()
            if saved is not None:
                saved.restore()
            if own is not None:
                self._counts.unseeded.update(dict.fromkeys(own.end()))
            decoded = self._fetcher.samples.decoded()
            if decoded:
                self._counts.count_decoded(decoded)
