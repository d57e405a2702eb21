"""What ``iter(loader)`` gives: one epoch over a loader, or with persistent workers one epoch after the other.

It has the stages built, and is the only writer of where the epoch is (:class:`~fastload.sampling.epochs.Epoch`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .. import observe
from ..base import compat
from ..errors import LoadTimeout
from ..sampling.epochs import Epoch, Epochs, Sampling, shard_of
from ..sampling.samplers import EpochSampler
from ..spec import Spec, part, spec_of
from ..stages import EpochWork, Source
from ..work import GRACE
from ..workers.held_interrupts import HeldInterrupts
from .build import Builder, Pipeline
from .kept import Kept

if TYPE_CHECKING:
    from .resuming import EpochStart


class Iteration(compat.BaseIterator):  # type: ignore[misc]  # torch's private base
    """See the module. torch's base draws the base seed, asks the sampler for its iterator and warns as torch does.

    It does not keep the loader.
    """

    def __init__(self, loader: compat.TorchDataLoader[Any], spec: Spec, epochs: Epochs, kept: Kept) -> None:
        self._pipeline: Pipeline | None = None
        self._base_seed = 0  # until torch has drawn it
        self._interrupted = False
        self._iterations = 0
        self._epochs, self._kept = epochs, kept
        sampling = self._serve(spec)
        # Before torch draws: if they are refused, the generators are as they were.
        self.is_resident = self._builder.resident() is not None
        """Whether it has no workers whatever ``num_workers`` says, since its data are resident."""
        epoch = self._epochs.begin(sampling)
        try:
            # Without workers torch asks the sampler for one iterator, before it draws the base seed.
            before = None if sampling.num_workers else _order_states(sampling, epoch)
            start = _start_of(sampling, epoch, self._epochs)
            with contextlib.nullcontext() if start is None else start.base_seed_drawn():
                super().__init__(loader)
            if not sampling.num_workers:
                if self._timeout != 0:  # in torch's words, though its constructor checks it
                    raise AssertionError("_SingleProcessDataLoaderIter requires timeout == 0")
                if compat.is_data_pipe(self._dataset):
                    torch.utils.data.graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
            self._begin(loader, epoch, start, before)
        except BaseException:
            self._epochs.undo(epoch)
            self._shutdown_workers()
            raise
        self._kept.iterators.add(self)

    def _serve(self, spec: Spec) -> Sampling:
        self._spec, self._builder = spec, Builder(spec, self._kept)
        self._sampling = part(spec, Sampling)
        return self._sampling

    def _reset(self, loader: compat.TorchDataLoader[Any], first_iter: bool = False) -> None:
        """Begin the next epoch with the same workers."""
        sampling = self._serve(spec_of(loader))
        pipeline = self._pipeline
        if pipeline is not None and not self._builder.can_continue(pipeline):
            if pipeline.source.pid in (None, os.getpid()):  # after a fork they are the parent's
                self._shutdown_workers()
            self._pipeline = None
        epoch = self._epochs.begin(sampling)
        try:
            self._begin(loader, epoch, _start_of(sampling, epoch, self._epochs), None)
        except BaseException:
            self._epochs.undo(epoch)
            self._shutdown_workers()
            raise

    def _begin(self, loader: Any, epoch: Epoch, start: EpochStart | None, before: dict[str, Any] | None) -> None:
        since = time.perf_counter_ns()
        sampling = self._sampling
        # Without a seed the base seed stays for the life of the workers, as torch's does: count iterations.
        self._note_randomness(epoch, start, before)
        self._iterations = epoch.key_epoch + 1
        self._epoch = epoch
        epoch.shard = shard_of(sampling.sampler, epoch, self._rank, self._world_size)
        epoch.shared_seed = self._shared_seed
        if self._pipeline is None:
            self._pipeline = self._built(epoch)
        pipeline = self._pipeline
        if sampling.num_workers:
            with compat.pipe_lock:
                super()._reset(loader)  # torch asks a sampler for an iterator twice at the first iteration; so do we
            epoch.shared_seed = self._shared_seed  # torch has drawn another one
        self.is_resident = is_resident = pipeline.source.is_resident
        # What torch's part asked the sampler for. One of ours would look up its epoch when it is first asked: another
        # one, if that has been set meanwhile.
        indices, first_row, arrays = self._sampler_iter, 0, pipeline.source.takes_arrays
        if start is not None:
            indices, first_row = start.index_batches(indices, arrays=arrays)
        elif epoch.known is not None and isinstance(sampling.epoch_owner, EpochSampler):
            indices = epoch.known.batches(epoch.number, arrays=arrays)
        if is_resident and sampling.num_workers:  # a worker would have been given its first batch by now
            indices = itertools.chain(list(itertools.islice(indices, 1)), indices)
        work = self._work(epoch, indices, first_row)
        pipeline.begin(work, self._upcoming(epoch))
        epoch.empty_batches = work.empty_batches
        self._raise_sampler_error(pipeline.source)
        if start is not None:
            start.begin_replicas(pipeline.source)
        if start is not None and not self._spec.this_rank_only:
            start.compare_ranks()  # while the workers load
        self._kept.measured.epoch_begins(time.perf_counter_ns() - since)
        if observe.listener is not None:
            observe.listener.begun(self, loader, pipeline.source.iteration, since)

    def _note_randomness(self, epoch: Epoch, start: EpochStart | None, before: dict[str, Any] | None) -> None:
        """Note what an epoch's randomness comes from, in a resumed one the state.

        ``before`` has the generators' states from before torch drew the base seed. None: with workers the sampler is
        asked for another iterator.
        """
        sampling = self._sampling
        epoch.generators = _order_states(sampling, epoch) if before is None else before
        epoch.draws_base_seed = before is not None
        key_epoch = self._iterations
        if start is not None:
            self._base_seed, key_epoch = start.randomness(self._base_seed, key_epoch)
        epoch.base_seed = self._base_seed
        epoch.key_epoch = epoch.number if sampling.order_seed is not None else key_epoch

    def _built(self, epoch: Epoch) -> Pipeline:
        # torch 2.6 names no device, and means CUDA.
        pin_device = (self._pin_memory_device or "cuda") if self._pin_memory else None
        pipeline = self._builder.build(epoch, (self._rank, self._world_size), pin_device)
        if pipeline.source.workers:
            self._workers = pipeline.source.workers  # under the name of torch's iterators
        return pipeline

    def _work(self, epoch: Epoch, indices: Iterator[Any], first_row: int) -> EpochWork:
        replicas = epoch.resume.workers if epoch.resume is not None else None
        failures = None if self._spec.on_error == "raise" else self._kept.counts.failures
        return EpochWork(
            index_batches=indices,
            epoch=epoch.key_epoch,
            shard=epoch.shard,
            first_row=first_row,
            identity=(epoch.number, epoch.known),
            shared_seed=epoch.shared_seed,
            paced=self._sampling.assigned or (epoch.known is None and self._sampling.order_seed is None),
            first_worker=replicas["next"] if replicas is not None else 0,
            replica_batches=replicas["batches"] if replicas is not None else (),
            failures=None if failures is None else failures.begin(epoch.number, self._spec.max_errors),
        )

    def _upcoming(self, epoch: Epoch) -> EpochWork | None:
        """Return the next epoch, where it is certain and its workers will be there."""
        sampling, known = self._sampling, self._sampling.known
        overlaps = self._spec.overlap_epochs and sampling.persistent_workers
        if not overlaps or known is None or sampling.order_seed is None or sampling.assigned:
            return None
        number = epoch.number + 1
        return EpochWork(
            index_batches=known.batches(number), epoch=number, shard=known.rows.shard, identity=(number, known)
        )

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
        measured, counts = self._kept.measured, self._kept.counts
        measured.next_begins()
        if counts.unseeded and not counts.has_told:
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
        epoch = self._epoch
        # torch continues after an interrupted batch. The next call of next() skips that batch; until then a saved state
        # still includes it.
        epoch.delivered += self._interrupted
        self._interrupted = False
        try:
            batch = pipeline.last.next()
            source.received()
        except StopIteration:
            epoch.finished = True
            self._kept.measured.epoch_ends()
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
            epoch.note(batch)
        else:  # no error of a batch: it ends the iteration
            self._shutdown_workers(grace=0 if source.broken else GRACE)
        data = batch.result()
        return data if pipeline.finish is None else pipeline.finish(data)

    @property
    def base_seed(self) -> int:
        """Seeds samples where the loader has no seed."""
        return int(self._base_seed)

    @property
    def source(self) -> Source:
        """The first stage of the epoch that has begun."""
        assert self._pipeline is not None
        return self._pipeline.source

    def note_workers(self) -> None:
        """Note what statistics say of workers."""
        if self._pipeline is not None:
            self._pipeline.source.note()

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
            with HeldInterrupts(finalizing=True):
                self._shutdown_workers()


def _order_states(sampling: Sampling, epoch: Epoch) -> dict[str, Any]:
    """Return the states of the generators that an epoch's order comes from; {} where it comes from keys alone."""
    if epoch.resume is None and epoch.known is not None and sampling.order_seed is not None:
        return {}
    from ..sampling.sampler_generators import generator_states

    return generator_states(sampling)


def _start_of(sampling: Sampling, epoch: Epoch, epochs: Epochs) -> EpochStart | None:
    """Return how an epoch begins; None: as most do."""
    may_draw_ahead = epoch.known is None and sampling.order_seed is not None
    is_plain = epoch.resume is None and not sampling.iterable and not may_draw_ahead
    if is_plain and sampling.ours is None and not sampling.unskipped[1]:
        return None
    from .resuming import EpochStart

    return EpochStart(sampling, epoch, epochs)
