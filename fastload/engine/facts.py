"""How a loader works with its dataset and arguments, and why, in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler

from ..arguments import FusingArguments, WorkerArguments
from ..base import gil, overrides
from ..base.copied_lists import copied_lists
from ..base.memory import in_words
from ..base.retry import Retry
from ..base.worker_kinds import WORKER_KINDS
from ..device.streams import device_or_cpu
from ..keys import seeding
from ..late.samples import late_module
from ..measurement.numbers import stages_in_words
from ..spec import Spec, part
from ..transforms import proof
from ..work import brings_source
from . import tables
from .fusing import plan_of
from .kept import Kept
from .statistics import Statistics, statistics_of

# Failed samples that are listed.
_LISTED = 5


def facts_of(spec: Spec, kept: Kept) -> list[tuple[str, str]]:
    """Return what was decided for a spec: names and words; a name is empty where the words go on."""
    lines = facts(spec, statistics_of(part(spec, WorkerArguments), kept), kept)
    if spec.fuse is True:
        plan = plan_of(part(spec, FusingArguments))
        table = str(plan).splitlines()
        place = int(spec.resident is not None)
        fusion = [("fusion", table[0]), *(("", line) for line in table[1:])]
        if plan.reads_files:
            from ..images.decoder import decoder_in_words

            fusion.append(("decoder", decoder_in_words()))
        lines[place:place] = fusion
    return lines


def facts(spec: Spec, statistics: Statistics, kept: Kept) -> list[tuple[str, str]]:
    """Return what was decided, all but the fusion: names and words."""
    lines: list[tuple[str, str]] = []
    if spec.resident is not None:
        lines.append(("resident", _resident(spec.resident, statistics, kept.resident)))
    lines += _workers(spec, statistics)
    if spec.num_workers and spec.worker_method == "multiprocessing" and spec.resident is None:
        lines += [("memory", str(found)) for found in copied_lists(spec.dataset)]
    lines.append(("order", _order(spec)))
    lines.append(("seeding", _seeding(spec)))
    slow = seeding.slow_because() if spec.seeded else None
    if slow is not None:
        lines.append(("", f"it takes 7 µs a sample in place of 1 µs: {slow}"))
    lines += [("", f"not seeded, though samples draw from it: {name}") for name in list(kept.counts.unseeded)]
    for number, words in enumerate(_images(part(spec, FusingArguments))):
        lines.append(("" if number else "images", words))
    if spec.device is not None:
        lines.append(("device", f"{spec.device}, {spec.prefetch_to_device} batches ahead"))
    if spec.batch_transform is not None:
        name = getattr(spec.batch_transform, "__name__", spec.batch_transform)
        lines.append(("transform", f"of whole batches: {name}"))
    if spec.device is not None or spec.batch_transform is not None:
        lines += [("kernel", words) for words in proof.in_words(device_or_cpu(spec.device))]
    if spec.on_error != "raise":
        lines += _failures(spec.on_error, spec.max_errors, statistics, kept.counts.failures)
    if statistics.batches:
        slots = f"; {statistics.slots} buffers of up to {in_words(statistics.slot_bytes)}" if statistics.slots else ""
        lines.append(("so far", f"{statistics.batches} batches, {statistics.samples} samples{slots}"))
        if statistics.stages_s:
            lines.append(("time", stages_in_words(statistics.stages_s)))
        lines += [("no layout", f"{n} batches: {reason}") for reason, n in statistics.without_layout_reason.items()]
    if spec.cache is not None:
        lines.append(("cache", _cache(spec.cache, spec.cache_size, statistics, kept.cache)))
        if statistics.not_kept:
            lines.append(("", f"of other images files were read: {_most_first(statistics.not_kept)}"))
    if statistics.decoded:
        lines.append(("decoded", _most_first(statistics.decoded)))
    return lines


def _images(arguments: FusingArguments) -> Iterator[str]:
    """Yield how the images are decoded that the dataset opens itself; nothing where it has no library for them."""
    libraries = {"PIL.Image", *overrides.MODULES}
    if sys.modules.keys().isdisjoint(libraries) or (arguments.fuse is True and plan_of(arguments).fused):
        return
    if arguments.fuse is False:
        yield "decoded at once, as fuse=False asks"
        return
    if "PIL.Image" in sys.modules:
        reason = late_module("opener").why_not()
        late = "JPEG and PNG files that a sample opens through Pillow are decoded late, as far as their pixels are used"
        yield late if reason is None else f"decoded at once: {reason}"
    if not sys.modules.keys().isdisjoint(overrides.MODULES):
        yield from late_module("arrays").in_words(arguments.dataset)
        yield from overrides.in_words()


def _workers(spec: Spec, statistics: Statistics) -> Iterator[tuple[str, str]]:
    if statistics.resident is not None:
        yield "workers", "none: batches are gathered inside next()"
        return
    if brings_source(spec.dataset):
        yield "workers", f"none of the loader's: {type(spec.dataset).__name__}.fastload_source gives whole batches"
        return
    if spec.num_workers == 0:
        yield "workers", "none: samples are loaded inside next()"
        return
    in_next = tables.in_words(spec)
    if in_next is not None:
        yield "workers", in_next
        return
    words = WORKER_KINDS[spec.worker_method].counted(spec.num_workers)
    if spec.threads_alone:
        words += " (worker_threads, without processes)"
    elif spec.worker_threads > 1:
        words += f", {spec.worker_threads} samples at a time in each"
    if statistics.remote:
        running, sharing = statistics.remote["workers"], statistics.remote["sharing_memory"]
        words += f" ({running} running, {sharing} of them sharing memory)"
    if spec.persistent_workers:
        words += ", kept between epochs"
    if spec.has_threads and gil.IS_FREE_THREADED:
        words += "; the GIL is on (see PYTHON_GIL)" if gil.is_on() else ", without the GIL"
    if statistics.start_method and not spec.has_threads:
        if spec.worker_method != "ray":
            way = "through shared memory" if statistics.transport == "packets" else f"over {statistics.transport}"
            words += f", started by {statistics.start_method}; batches come {way}"
        words += f"; dataset {statistics.dataset_pickled}"
    yield "workers", words
    if statistics.start_method == "forkserver":
        from ..workers.fork_server import why_each_imports_torch

        why = why_each_imports_torch()
        if why is not None:
            yield "", why
    if spec.uncut_reason:
        yield "work unit", f"the whole batch: {spec.uncut_reason}"
    else:
        yield "work unit", f"chunks of {statistics.chunk_size or 'a few'} samples, taken by whichever worker is free"
    if spec.assigned and spec.in_order:
        yield "assignment", "batch i to worker i % num_workers, as torch"
    bound = "num_workers x prefetch_factor"
    if spec.worker_threads > 1 or spec.threads_alone:
        bound = "prefetch_factor for each worker, or as many samples for each of its threads"
    most = f"at most {statistics.slots_in_flight} batches ({bound})"
    yield "in flight", f"{most}, {'in order' if spec.in_order else 'as they are completed'}"


def _order(spec: Spec) -> str:
    known = spec.known
    if spec.iterable:
        return "the IterableDataset's"
    if known is None:
        outer = spec.batch_sampler
        own = spec.sampler if outer is None or type(outer) is BatchSampler else outer
        return f"that of {type(own).__name__}"
    shard, name = known.rows.shard, known.rows.order.name
    words = "shuffled by the seed" if name == "keyed" else name
    if shard.num_ranks > 1:
        words += f", the share of rank {shard.rank} of {shard.num_ranks}"
    if spec.order_seed is None:
        return words
    words += "; each iteration is the next epoch, also without set_epoch()"
    ahead = spec.overlap_epochs and spec.persistent_workers
    return words + (", the next one begins while this one ends" if ahead else "")


def _seeding(spec: Spec) -> str:
    if spec.iterable:
        return "torch's: a stream for each worker, since an IterableDataset has no sample ids"
    if not spec.assigned and not spec.seeded:
        return "none: the dataset is known to draw nothing, so every batch is torch's, bit for bit"
    if spec.keyed_by is None:
        streams = "a stream for each worker" if spec.num_workers else "the generators of this process"
        return f"torch's: {streams}, so every batch is torch's, bit for bit"
    name = "index" if spec.ids_are_indices else "position in the epoch"
    words = f"each sample, by its {name}, since {spec.keyed_by} asks for it: not as torch, but alike for any workers"
    return words if spec.sample_seed is not None else f"{words}; without a seed from torch's base seed"


def _failures(on_error: str, max_errors: int, statistics: Statistics, failures: Any) -> Iterator[tuple[str, str]]:
    if isinstance(on_error, Retry):
        waits = ", ".join(f"{wait:g}" for wait in on_error.waits())
        yield "on error", f"a sample that cannot be loaded is tried again after {waits} s"
    if on_error != "retry":
        done = "left out of their batches" if on_error == "skip" else "replaced by others, which their keys choose"
        yield "on error", f"samples that cannot be loaded are {done}; at most {max_errors} in an epoch"
    if statistics.failed_samples:
        last = list(failures.recent)[-_LISTED:]
        yield "failed", f"{statistics.failed_samples} samples so far; the last {len(last)}:"
        yield from (("", str(failed)) for failed in last)


def _resident(asked: str, statistics: Statistics, data: Any) -> str:
    if data is None:
        return f"{asked}: the dataset is read once, when the first iteration begins"
    why = "".join(f"; {reason}" for reason in data.refused)
    if data.columns is None:
        return f"no: the dataset is loaded anew in each epoch{why}"
    where = "the host" if statistics.resident == "cpu" else statistics.resident
    return f"{len(data.columns):,} samples on {where}, {in_words(statistics.resident_bytes)}{why}"


def _most_first(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items(), key=lambda one: -one[1]))


def _cache(asked: Any, size: Any, statistics: Statistics, records: Any) -> str:
    words = f"{asked}: coefficients of JPEG files are kept from the first epoch on"
    if size is not None:
        words += ", on the disk, for later runs too"
    if records is None:
        return words
    if records.num_ranks > 1:
        words += f", for the {records.num_ranks} ranks of this machine together"
    taken, size = in_words(statistics.cached_bytes), in_words(records.store.size)
    full = "; it is full, and other files are read in each epoch" if statistics.cache_is_full else ""
    return f"{words}; of {statistics.cached_files:,} files so far, {taken} of {size}{full}"
