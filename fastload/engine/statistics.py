"""Decisions and counters of a loader, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.data import IterableDataset

from ..cache.records import NOT_KEPT
from ..measurement.numbers import Steps, stages_s, stall_of
from ..spec import Decisions
from ..work import Counts
from .runtime import LoaderRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Counters of a loader over all its iterations: see ``DataLoader.statistics``."""

    batches: int
    """Batches given to the loop; with ``device`` or ``batch_transform`` also those that are ready for it there."""
    samples: int
    """Samples in them; with ``batch_size=None`` or an IterableDataset: batches."""
    num_workers: int
    """The argument."""
    worker_method: str
    """``multiprocessing``, ``thread`` or ``ray``; ``inline`` without workers."""
    start_method: str | None
    """How workers were started: ``fork``, ``spawn``, ``forkserver``, ``thread`` or ``ray``; None before the first
    iteration."""
    transport: str | None
    """How results come back: ``shared memory``, ``pipes``, ``memory`` (threads), ``ray``; None before any batch."""
    dataset_pickled: str | None
    """How workers got the dataset: ``inherited``, ``shared``, ``pickled once for all workers``, ``pickled for each
    worker``."""
    chunk_size: int
    """Samples in the last task. 0 if tasks are whole batches (an IterableDataset, ``batch_size=None``, a custom
    ``collate_fn``), or without workers."""
    slots_in_flight: int
    """The most batches that may be in flight: ``num_workers * prefetch_factor``; with ``worker_threads`` more."""
    max_in_flight: int
    """The most batches that were."""
    slots: int
    """Buffers for batches of the current or last iteration, including those that the loop holds."""
    slot_bytes: int
    """Size of the largest buffer, in bytes."""
    batches_without_layout: int
    """Batches that were pickled, or collated in your process, since their samples have no fixed layout."""
    without_layout_reason: dict[str, int]
    """The reasons, with the number of batches of each."""
    sample_ms: float | None
    """Measured cost of a sample in a worker, in milliseconds."""
    resident: str | None
    """The device that has the resident data, ``cpu`` for the host; None: there are none, or not yet."""
    resident_bytes: int
    """Size of the resident data, in bytes."""
    failed_samples: int
    """Samples that could not be loaded, and were left out or replaced (``on_error``)."""
    decoded: dict[str, int]
    """Numbers of decoded images. With ``fuse="auto"``: ``"only what crops keep"``, ``"whole"``, ``"at once (REASON)"``
    (by Pillow). With ``fuse=True``: ``"native"``, ``"torchvision"``, ``"pillow"``, ``"pillow (REASON)"`` (left to
    Pillow). ``", from coefficients"`` is added for packs of coefficients, and with ``fuse=True`` for the cache; else
    ``", kept in the cache"`` and later ``", from the cache"``; ``", from pixels"`` with ``fuse=True`` for packs of
    pixels. Images of dropped tasks are included."""
    cached_files: int
    """Files whose coefficients are in the cache, or of which it is known that they have none; in a folder those of
    earlier runs too."""
    not_kept: dict[str, int]
    """Number of images decoded from files although there is a cache, by the reason why it does not have them.
    Counted in each epoch. Files of other formats than JPEG and PNG are left to their libraries, and not counted."""
    cache_folder: str | None
    """Where the cache is; None: in memory, or there is none."""
    cached_bytes: int
    """Bytes of memory, or of the disk, that the cache takes."""
    cache_is_full: bool
    """True if a file has found no room in it, or in the memory that is left."""
    remote: dict[str, int]
    """Counters of Ray's workers in the current (or last) iteration; empty without them. ``"workers"``: running now;
    ``"lost"``: workers lost; ``"tasks"``: tasks done; ``"made_again"``: tasks repeated after a loss; ``"bytes"``:
    received through Ray's object store."""
    stages_s: dict[str, float]
    """Where the time went, in seconds of all workers together; {} before the first batch. ``"read"``: samples waited
    for files, a server or a lock (among threads also for the GIL); ``"queue"``: for a core that others had;
    ``"decode"``: images, by fastload's decoders; ``"transform"``: all else in a sample; ``"collate"``. With workers
    also ``"transport"``: batches were sent, and put together in ``next()``; ``"wait"``: ``next()`` waited for workers.
    Stages are measured on a task every 20 ms, for less than 1 % of the time, and scaled to the time of all tasks."""
    stall: dict[str, float]
    """Time that the loop's steps lost to data, by the host's clock; empty before the second step. ``"data/share"``:
    share of the step, the sum of ``"data/startup"`` (first batch of an epoch), ``"data/workers"`` (waiting for them)
    and ``"data/here"`` (work in ``next()`` itself); ``"data/samples_per_s"``; ``"data/batches_ready"``:
    complete batches behind the one that was given. Numbers for trackers: ``fastload.callbacks`` logs the same of the
    steps between two logs, over ranks."""


def statistics_of(decisions: Decisions, runtime: LoaderRuntime) -> Statistics:
    """Return the statistics of a ``fastload.DataLoader``, given its decisions and what it keeps."""
    counts, measured = runtime.counts, runtime.measured
    cached = None if runtime.cache is None else runtime.cache.store.contents()
    samples = samples_of_step(decisions.asked.dataset, decisions.asked.batch_size, counts)
    columns = None if runtime.resident is None else runtime.resident.columns
    return Statistics(
        batches=counts.batches,
        samples=counts.samples,
        num_workers=decisions.num_workers,
        worker_method=decisions.worker_method if decisions.num_workers else "inline",
        start_method=runtime.start_method,
        transport=runtime.transport,
        dataset_pickled=runtime.job_pickled,
        chunk_size=counts.chunk_size,
        slots_in_flight=decisions.batches_ahead,
        max_in_flight=counts.max_in_flight,
        slots=0 if runtime.slots is None else runtime.slots.book.num_slots,
        slot_bytes=0 if runtime.slots is None else runtime.slots.slot_bytes,
        batches_without_layout=sum(counts.reasons.values()),
        without_layout_reason=dict(counts.reasons),
        sample_ms=None if measured.sample_ns is None else measured.sample_ns / 1e6,
        resident=None if columns is None else str(columns.device),
        resident_bytes=0 if columns is None else columns.num_bytes,
        failed_samples=0 if counts.failures is None else counts.failures.total,
        decoded={name: number for name, number in counts.decoded.items() if not name.startswith(NOT_KEPT)},
        cached_files=0 if cached is None else cached.entries,
        not_kept={
            name.removeprefix(NOT_KEPT): number for name, number in counts.decoded.items() if name.startswith(NOT_KEPT)
        },
        cache_folder=None if runtime.cache is None else runtime.cache.folder,
        cached_bytes=0 if cached is None else cached.taken_bytes,
        cache_is_full=cached is not None and cached.is_full,
        remote=runtime.remote(),
        stages_s=stages_s(measured),
        stall=stall_of(Steps(*measured.steps), num_workers=decisions.num_workers, batch_size=samples),
    )


def samples_of_step(dataset: object, batch_size: int | None, counts: Counts) -> float | None:
    """Return the samples of a step, on average; None: unknown."""
    # Of an IterableDataset whole batches are counted.
    if isinstance(dataset, IterableDataset) or not counts.batches:
        return batch_size
    return counts.samples / counts.batches
