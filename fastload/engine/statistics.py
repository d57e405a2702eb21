"""What a loader decided and did, as plain data.

In: a loader's counters. Out: :class:`Statistics`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..spec import Spec
from ..work import slots_in_flight
from .sources import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a loader did in its life so far, over all its iterations. See :meth:`DataLoader.statistics`."""

    batches: int
    """Batches handed to the user; with ``device`` or ``batch_transform`` those too that wait for him there."""
    samples: int
    """Samples in them (batches, without auto-collation or for an IterableDataset)."""
    num_workers: int
    worker_method: str
    """``inline``, ``multiprocessing`` or ``thread``."""
    start_method: str | None
    """How workers were started: ``fork``, ``spawn``, ``forkserver``, or ``thread``; None before the first iteration."""
    transport: str | None
    """``packets``, ``pipes``, or ``memory`` for threads; None before the first iteration."""
    dataset_pickled: str | None
    """``inherited``, ``once for all workers``, ``for each worker``, or ``shared`` with threads."""
    chunk_size: int
    """Samples of the task made last: all of its batch, where the whole batch is the unit. 0 where tasks are not made of
    counted samples: an IterableDataset, ``batch_size=None``, a custom ``collate_fn``, no workers."""
    slots_in_flight: int
    """The bound on batches under way."""
    max_in_flight: int
    """The most that there were."""
    slots: int
    """Buffers that the current (or last) iteration made, those the user holds included."""
    slot_bytes: int
    """Size of the largest of them, in bytes."""
    page_locked: bool | None
    """Whether the device copies from the slots themselves. False: through page-locked memory of torch's, one copy more
    on the host; :meth:`DataLoader.explain` says why. None before the first batch, and where nothing is copied from
    slots to a device."""
    batches_without_layout: int
    """Batches that were pickled or collated in the user's process, since their samples have no fixed layout."""
    without_layout_reason: dict[str, int]
    """Why, with the number of batches."""
    sample_ms: float | None
    """Measured cost of a sample in a worker, in milliseconds."""
    resident: str | None
    """The device that resident data are on, ``cpu`` on the host; None: there are none, or not yet."""
    resident_bytes: int
    """Their size."""
    failed_samples: int
    """Samples that could not be loaded, and were left out or replaced."""
    decoded: dict[str, int]
    """Images that were decoded from files. By ``fuse="auto"``: ``"late, in part"``, ``"late, whole"``, and ``"at once
    (...)"``: by Pillow, for this reason. By ``fuse=True``, what decoded them: ``"native"``, ``"torchvision"``,
    ``"pillow"``; ``"pillow (...)"``: left to Pillow, for this reason. Of packed coefficients: ``"late, in part, from
    coefficients"``, ``"native, from coefficients"`` and so on. Those of workers are counted as their chunks come
    in, those of chunks that were dropped as well."""
    waited_s: float
    """Time that ``next()`` waited for workers, in seconds."""


def statistics_of(spec: Spec, runtime: Runtime) -> Statistics:
    """Return the statistics of a :class:`fastload.DataLoader`, given its arguments and what it keeps."""
    for iterator in list(runtime.iterators):
        iterator._note(runtime)
    counts = runtime.counts
    columns = None if runtime.resident is None else runtime.resident.columns
    return Statistics(
        batches=counts.batches,
        samples=counts.samples,
        num_workers=spec.num_workers,
        worker_method=spec.worker_method if spec.num_workers else "inline",
        start_method=runtime.start_method,
        transport=runtime.transport,
        dataset_pickled=runtime.job_pickled,
        chunk_size=counts.chunk_size,
        slots_in_flight=slots_in_flight(spec.num_workers, spec.prefetch_factor or 0),
        max_in_flight=counts.max_in_flight,
        slots=runtime.num_slots,
        slot_bytes=runtime.slot_bytes,
        page_locked=None if runtime.page_lock is None else runtime.page_lock.outcome,
        batches_without_layout=counts.without_layout,
        without_layout_reason=dict(counts.reasons),
        sample_ms=None if runtime.book.sample_ns is None else runtime.book.sample_ns / 1e6,
        resident=None if columns is None else str(columns.device),
        resident_bytes=0 if columns is None else columns.num_bytes,
        failed_samples=0 if counts.failures is None else counts.failures.total,
        decoded=dict(counts.decoded),
        waited_s=counts.waited_ns / 1e9,
    )
