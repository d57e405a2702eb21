"""How a loader works with its dataset and arguments, and why, in words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler

from ..base import gil, overrides
from ..base.copied_lists import copied_lists
from ..base.memory import in_words
from ..base.retry import Retry
from ..base.worker_kinds import WORKER_KINDS
from ..device.streams import device_or_cpu
from ..keys import seeding
from ..late.scope import late_module
from ..measurement.numbers import stages_in_words
from ..spec import Decisions, Spec
from ..transforms import proof
from . import tables
from .fusing import plan_of
from .runtime import LoaderRuntime
from .statistics import Statistics, statistics_of

# Failed samples that are listed.
_LISTED = 5


def facts_of(decisions: Decisions, runtime: LoaderRuntime) -> list[tuple[str, str]]:
    """Return what was decided: names and words; a name is empty where the words go on."""
    asked, statistics = decisions.asked, statistics_of(decisions, runtime)
    facts = _Facts(decisions, asked, statistics)
    lines: list[tuple[str, str]] = []
    if asked.resident is not None:
        lines.append(("resident", _resident(asked.resident, statistics, runtime.resident)))
    if asked.fuse is True:
        lines += facts.fusion()
    lines += facts.workers()
    if decisions.num_workers and decisions.worker_method == "multiprocessing" and asked.resident is None:
        lines += [("memory", words) for words in copied_lists(asked.dataset)]
    lines.append(("order", facts.order()))
    lines.append(("seeding", facts.seeding()))
    slow = seeding.slow_seeding_reason() if decisions.seeded else None
    if slow is not None:
        lines.append(("", f"it takes 7 µs a sample in place of 1 µs: {slow}"))
    lines += [("", f"not seeded, though samples draw from it: {name}") for name in list(runtime.counts.unseeded)]
    for number, words in enumerate(facts.images()):
        lines.append(("" if number else "images", words))
    for library in ("torchcodec.decoders", "decord"):
        if library in sys.modules and asked.resident is None and not facts.is_fused:
            words = f"frames that samples decode by {library} are decoded as with torch's loader"
            lines.append(("video", f"{words}; `fastload profile --level 2` measures their share, and says what helps"))
    if asked.device is not None:
        lines.append(("device", f"{asked.device}, {asked.prefetch_to_device} batches ahead"))
    if asked.batch_transform is not None:
        name = getattr(asked.batch_transform, "__name__", asked.batch_transform)
        lines.append(("transform", f"of whole batches: {name}"))
    if asked.has_device_stage:
        lines += [("kernel", words) for words in proof.in_words(device_or_cpu(asked.device))]
    if asked.on_error != "raise":
        lines += _failures(asked.on_error, asked.max_errors, statistics, runtime.counts.failures)
    if statistics.batches:
        slots = f"; {statistics.slots} buffers of up to {in_words(statistics.slot_bytes)}" if statistics.slots else ""
        lines.append(("so far", f"{statistics.batches} batches, {statistics.samples} samples{slots}"))
        if statistics.stages_s:
            lines.append(("time", stages_in_words(statistics.stages_s)))
        lines += [("slower", f"{n} batches: {reason}") for reason, n in statistics.without_layout_reason.items()]
    if asked.cache is not None and not (overrides.ON or facts.is_fused):
        lines.append(("cache", f"{asked.cache}: nothing is kept, since Pillow decodes whole images"))
    elif asked.cache is not None:
        lines.append(("cache", _cache(asked.cache, asked.cache_size, statistics, runtime.cache)))
        if statistics.not_kept:
            lines.append(("", f"of other images files were read: {_most_first(statistics.not_kept)}"))
    if statistics.decoded:
        lines.append(("decoded", _most_first(statistics.decoded)))
    return lines


class _Facts(NamedTuple):
    """Says what was decided."""

    decisions: Decisions
    asked: Spec
    statistics: Statistics

    def fusion(self) -> Iterator[tuple[str, str]]:
        """Yield the plan of ``fuse=True``."""
        plan = plan_of(self.asked.dataset, self.decisions.unfused_reason)
        for number, words in enumerate(str(plan).splitlines()):
            yield "" if number else "fusion", words
        if plan.reads_files:
            from ..images.decoder import decoder_in_words

            yield "decoder", decoder_in_words()

    @property
    def is_fused(self) -> bool:
        """True if the samples are made by a fused plan."""
        return self.asked.fuse is True and plan_of(self.asked.dataset, self.decisions.unfused_reason).fused

    def images(self) -> Iterator[str]:
        """Yield how the images are decoded that the dataset opens itself; nothing where it has no library for them."""
        asked, libraries = self.asked, {"PIL.Image", *overrides.MODULES}
        if sys.modules.keys().isdisjoint(libraries):
            return
        if self.is_fused:
            return
        if asked.fuse is False:
            yield "decoded whole by Pillow, as fuse=False asks"
            return
        if "PIL.Image" in sys.modules:
            reason = late_module("opener").unavailable_reason()
            files = "JPEG and PNG files that a sample opens through Pillow"
            yield (
                f"{files} are decoded when their pixels are needed, and only those that crops keep"
                if reason is None
                else f"decoded whole by Pillow: {reason}"
            )
        if not sys.modules.keys().isdisjoint(overrides.MODULES):
            yield from late_module("arrays").in_words()
            yield from overrides.in_words()

    def workers(self) -> Iterator[tuple[str, str]]:
        """Yield which workers there are, and how work is divided among them."""
        decisions, asked, statistics = self
        if statistics.resident is not None:
            yield "workers", "none: batches are gathered inside next()"
            return
        if asked.brings_source:
            yield "workers", f"none of the loader's: {type(asked.dataset).__name__}.fastload_source gives whole batches"
            return
        if decisions.num_workers == 0:
            yield "workers", "none: samples are loaded inside next()"
            return
        in_next = tables.in_words(asked.dataset, decisions.size_in_next)
        if in_next is not None:
            yield "workers", in_next
            return
        words = WORKER_KINDS[decisions.worker_method].counted(decisions.num_workers)
        if decisions.threads_alone:
            words += " (worker_threads, without processes)"
        elif decisions.worker_threads > 1:
            words += f", {decisions.worker_threads} samples at a time in each"
        if statistics.remote:
            words += f" ({statistics.remote['workers']} running)"
        if asked.persistent_workers:
            words += ", kept between epochs"
        if decisions.has_threads and gil.IS_FREE_THREADED:
            words += "; the GIL is on (see PYTHON_GIL)" if gil.is_on() else ", without the GIL"
        if statistics.start_method and not decisions.has_threads:
            if asked.worker_method != "ray":
                words += f", started by {statistics.start_method}; batches come by {statistics.transport}"
            words += f"; the dataset is {statistics.dataset_pickled}"
        yield "workers", words
        if decisions.seeded and (decisions.has_threads or decisions.worker_threads > 1) and overrides.ON:
            from ..workers import routing

            yield from (("", words) for words in overrides.told("functions that draw", routing.OVERRIDES))
        if statistics.start_method == "forkserver":
            from ..workers.spawn_start import why_each_imports_torch

            why = why_each_imports_torch()
            if why is not None:
                yield "", why
        if decisions.whole_batch_reason:
            yield "work unit", f"the whole batch: {decisions.whole_batch_reason}"
        else:
            size = statistics.chunk_size or "a few"
            yield "work unit", f"chunks of {size} samples, taken by whichever worker is free"
        if decisions.assigned and asked.in_order:
            yield "assignment", "batch i to worker i % num_workers, as torch"
        bound = "num_workers x prefetch_factor"
        if decisions.worker_threads > 1 or decisions.threads_alone:
            bound = "prefetch_factor for each worker, or as many samples for each of its threads"
        most = f"at most {statistics.slots_in_flight} batches ({bound})"
        yield "in flight", f"{most}, {'in order' if asked.in_order else 'as they are completed'}"

    def order(self) -> str:
        """Return where the order comes from."""
        asked, known = self.asked, self.decisions.known
        if asked.iterable:
            return "the IterableDataset's"
        if known is None:
            outer = asked.batch_sampler
            own = asked.sampler if outer is None or type(outer) is BatchSampler else outer
            return f"that of {type(own).__name__}"
        shard, name = known.shard, known.order.name
        words = "shuffled by the seed" if name == "keyed" else name
        if shard.num_ranks > 1:
            words += f", the share of rank {shard.rank} of {shard.num_ranks}"
        if self.decisions.order_seed is None:
            return words
        words += "; each iteration is the next epoch, also without set_epoch()"
        ahead = asked.overlap_epochs and asked.persistent_workers
        return words + (", the next one begins while this one ends" if ahead else "")

    def seeding(self) -> str:
        """Return where the samples have their random numbers from."""
        decisions = self.decisions
        if self.asked.iterable:
            return "torch's: a stream for each worker, since an IterableDataset has no sample ids"
        if not decisions.assigned and not decisions.seeded:
            return "none: the dataset is known to draw nothing, so every batch is torch's, bit for bit"
        if decisions.keyed_by is None:
            streams = "a stream for each worker" if decisions.num_workers else "the generators of this process"
            return f"torch's: {streams}, so every batch is torch's, bit for bit"
        name, why = "index" if decisions.ids_are_indices else "position in the epoch", decisions.keyed_by
        words = f"each sample, by its {name}, since {why} asks for it: not as torch, but alike for any workers"
        return words if decisions.sample_seed is not None else f"{words}; torch draws its seed, since none was given"


def _failures(on_error: str, max_errors: int, statistics: Statistics, failures: Any) -> Iterator[tuple[str, str]]:
    if isinstance(on_error, Retry):
        waits = ", ".join(f"{wait:g}" for wait in on_error.waits())
        yield "on error", f"a sample that cannot be loaded is tried again after {waits} s"
    if on_error != "retry":
        done = "left out of their batches" if on_error == "skip" else "replaced by others"
        yield "on error", f"samples that cannot be loaded are {done}; at most {max_errors} in an epoch"
    if statistics.failed_samples:
        last = list(failures.recent)[-_LISTED:]
        yield "failed", f"{statistics.failed_samples} samples so far; the last {len(last)}:"
        yield from (("", str(failed)) for failed in last)


def _resident(asked: str, statistics: Statistics, data: Any) -> str:
    if data is None:
        return f"{asked}: the dataset is read once, when the first iteration begins"
    why = "".join(f"; {reason}" for reason in data.fallback_reasons)
    if data.columns is None:
        return f"no: the dataset is loaded anew in each epoch{why}"
    where = "the host" if statistics.resident == "cpu" else statistics.resident
    return f"{len(data.columns):,} samples on {where}, {in_words(statistics.resident_bytes)}{why}"


def _most_first(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items(), key=lambda one: -one[1]))


def _cache(asked: Any, size: Any, statistics: Statistics, records: Any) -> str:
    words = f"{asked}: half-decoded JPEG files (coefficients) are kept from the first epoch on"
    if size is not None:
        words += ", on the disk, for later runs too"
    if records is None:
        return words
    if records.num_ranks > 1:
        words += f", for the {records.num_ranks} ranks of this machine together"
    taken, size = in_words(statistics.cached_bytes), in_words(records.store.size)
    full = "; it is full, and other files are read in each epoch" if statistics.cache_is_full else ""
    return f"{words}; of {statistics.cached_files:,} files so far, {taken} of {size}{full}"
