"""Result of ``iter(loader)``: one epoch over a loader, or with persistent workers one epoch after the other.

It has the stages built, and is the only writer of where the epoch is (:class:`~fastload.sampling.epochs.Progress`).
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from .. import observe
from ..base import compat
from ..errors import LoadTimeout
from ..sampling.beginning import (
    begun,
    next_work,
    order_states,
    seeded,
    shard_of,
    upcoming,
    with_index_batches,
)
from ..sampling.epochs import Epochs, EpochWork, Progress, Sampling
from ..spec import decisions_of, part
from ..stages import Source
from ..work import GRACE
from ..workers.deferred_sigint import DeferredSigint
from .build import Builder, Pipeline
from .runtime import LoaderRuntime


class Iteration(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """See the module. torch's base draws the base seed, asks the sampler for its iterator and warns as torch does.

    It does not keep the loader.
    """

    def __init__(self, loader: compat.TorchDataLoader[Any], epochs: Epochs, runtime: LoaderRuntime) -> None:
        self._pipeline: Pipeline | None = None
        self._base_seed: int | None = 0  # until torch has drawn it
        self._interrupted = False
        self._iterations = 0
        self._epochs, self._runtime = epochs, runtime
        self._serve(loader)
        # Before torch draws: if they are refused, the generators are as they were.
        self.is_resident = self._builder.resident() is not None
        """True if data are resident, so that there are no workers whatever ``num_workers`` says."""
        self._begin_next(loader, is_first=True)
        self._runtime.iterators.add(self)

    def _serve(self, loader: compat.TorchDataLoader[Any]) -> None:
        decisions = decisions_of(loader)
        self._asked, self._builder = decisions.asked, Builder(decisions, self._runtime)
        self._sampling = part(decisions, Sampling)

    def _reset(self, loader: compat.TorchDataLoader[Any], first_iter: bool = False) -> None:
        """Begin the next epoch with the same workers."""
        self._serve(loader)
        pipeline = self._pipeline
        if pipeline is not None and not self._builder.can_continue(pipeline):
            if pipeline.source.pid in (None, os.getpid()):  # after a fork they are the parent's
                self._shutdown_workers()
            self._pipeline = None
        self._begin_next(loader, is_first=False)

    def _begin_next(self, loader: Any, *, is_first: bool) -> None:
        """Begin the next epoch; if that fails, the loader is as it was, without workers."""
        before = self._epochs.saved()
        try:  # no context manager, see InlineSource
            sampling, work = self._sampling, next_work(self._sampling, self._epochs)
            # Without workers torch asks the sampler for one iterator, before it draws the base seed; with workers for
            # another one after that.
            has_workers = sampling.num_workers > 0
            generators = {} if has_workers else order_states(sampling, work)
            if is_first:
                work = begun(sampling, work, lambda: self._begin_as_torch(loader))
            work = replace(
                work,
                shard=shard_of(sampling.sampler, work.known, self._rank, self._world_size),
                # Without a seed the base seed stays for the life of the workers, as torch's does: count iterations.
                epoch=self._iterations if sampling.order_seed is None else work.number,
                base_seed=self._base_seed,
                shared_seed=self._shared_seed,
                generators=order_states(sampling, work) if has_workers else generators,
            )
            self._begin(loader, seeded(sampling, work))
        except BaseException:
            self._epochs.restore(before)
            self._shutdown_workers()
            raise

    def _begin_as_torch(self, loader: Any) -> None:
        super().__init__(loader)
        if not self._sampling.num_workers:
            if self._timeout != 0:  # in torch's words, though its constructor checks it
                raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
            if compat.is_data_pipe(self._dataset):
                torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)

    def _begin(self, loader: Any, work: EpochWork) -> None:
        since = time.perf_counter_ns()
        sampling = self._sampling
        self._base_seed, self._iterations = work.base_seed, work.epoch + 1
        if self._pipeline is None:  # between the two times that torch asks the sampler for an iterator
            # torch 2.6 names no device, and means CUDA.
            pin_device = (self._pin_memory_device or "cuda") if self._pin_memory else None
            self._pipeline = self._builder.build(work, (self._rank, self._world_size), pin_device)
        pipeline, source = self._pipeline, self._pipeline.source
        if source.workers:
            self._workers = source.workers  # under the name of torch's iterators
        if sampling.num_workers:
            with compat.pipe_lock:
                super()._reset(loader)
        self.is_resident = source.is_resident
        given = self._sampler_iter
        if sampling.iterable:
            from .replicas import asked

            given = asked(given, self._epochs)
        work = with_index_batches(sampling, work, given, arrays=source.takes_arrays)
        indices = work.index_batches
        if source.is_resident and sampling.num_workers:  # a worker would have been given its first batch by now
            indices = itertools.chain(list(itertools.islice(indices, 1)), indices)
        failures = None if self._asked.on_error == "raise" else self._runtime.counts.failures
        if failures is not None:
            failures = failures.begin(work.number, self._asked.max_errors)
        work = replace(work, index_batches=indices, shared_seed=self._shared_seed, failures=failures)
        pipeline.begin(work, upcoming(sampling, work.number) if self._asked.overlap_epochs else None)
        self._raise_sampler_error(source)
        progress = Progress(work)
        if sampling.iterable:
            from .replicas import replicas_of

            progress.replicas = replicas_of(sampling, work, source)
        if sampling.ours is not None and not self._asked.this_rank_only:
            from .state import compare_with_ranks

            compare_with_ranks(sampling, progress)  # while the workers load
        self._progress = self._epochs.last = progress
        self._runtime.measured.epoch_begins(time.perf_counter_ns() - since)
        if observe.listener is not None:
            observe.listener.begun(self, loader, source.iteration, since)

    def _raise_sampler_error(self, source: Source) -> None:
        """Raise an error of torch's samplers now, as torch does: a later ``next()`` cannot mend it."""
        error = source.first_error()
        samplers = (self._sampling.sampler, self._sampling.index_sampler)
        if error is not None and all(type(sampler).__module__ == compat.SAMPLER_MODULE for sampler in samplers):
            raise error

    def __next__(self) -> Any:
        """Return the next batch, as torch's base does; its record for profilers takes 6 us, in Python."""
        if self._dataset_kind == compat.ITERABLE or not compat.is_next_plain():
            return super().__next__()
        with compat.RecordFunctionFast(self._profile_name):  # for those who trace all of the process
            data = self._next_data()
            self._num_yielded += 1
            return data

    def _next_data(self) -> Any:
        measured, counts = self._runtime.measured, self._runtime.counts
        measured.next_begins()
        if counts.unseeded and not counts.has_warned:
            from ..keys.own_generators import tell_of

            tell_of(counts)  # before a batch is taken: where warnings are errors, none is lost
        data = self._next_batch()
        measured.next_ends(None if self._pipeline is None else self._pipeline.last.num_ready())
        return data

    def _next_batch(self) -> Any:
        pipeline = self._pipeline
        if pipeline is None:
            raise StopIteration
        source = pipeline.source
        if source.pid is not None and source.pid != os.getpid():
            raise RuntimeError(
                f"this iterator belongs to process {source.pid}, and so do its workers; after a fork, begin a new "
                "iteration with iter(loader)"
            )
        progress = self._progress
        if self._interrupted:
            # torch continues after an interrupted batch. The next call of next() skips that batch; until then a saved
            # state still includes it.
            progress.note_skipped()
            self._interrupted = False
        try:
            batch = pipeline.last.next()
            source.received()
        except StopIteration:
            progress.finished = True
            self._runtime.measured.epoch_ends()
            if source.holds_something and not self._persistent_workers:
                self._shutdown_workers()
            raise
        except LoadTimeout:
            raise
        except Exception:
            if source.broken:
                self._shutdown_workers(grace=0)  # the error does not wait for workers that are stuck
            raise
        except BaseException:
            # With workers an interrupt may have come between taking a result and noting it.
            if source.holds_something:
                self._shutdown_workers()
            self._interrupted = source.skips_interrupted
            raise
        if batch.error is None or (isinstance(batch.error, Exception) and not source.broken):
            progress.note(batch)
        else:  # no error of a batch: it ends the iteration
            self._shutdown_workers(grace=0 if source.broken else GRACE)
        data = batch.result()
        return data if pipeline.finish is None else pipeline.finish(data)

    @property
    def source(self) -> Source:
        """The first stage of the epoch that has begun."""
        assert self._pipeline is not None
        return self._pipeline.source

    def _shutdown_workers(self, grace: float = GRACE) -> None:
        """End the workers, and drop what is ahead. The name is torch's, and other libraries call it."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.holds_nothing or (pipeline.source.holds_something and compat.exits()):
            return
        self._pipeline = None
        pipeline.close(grace)

    def __del__(self, exits: Callable[[], bool] = compat.exits) -> None:
        # Bound here, since this module's names may be gone by then.
        pipeline = getattr(self, "_pipeline", None)
        if pipeline is not None and pipeline.source.holds_something and not exits():
            with DeferredSigint(finalizing=True):
                self._shutdown_workers()
