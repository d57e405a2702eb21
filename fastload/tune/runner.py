"""Measures a loader with other settings: runs a copy for a slice of time, and compares its first batches.

In: the user's loader, and settings. Out: slices. Each slice begins with the same seed and with a copy of dataset,
samplers and functions, so that it loads the same batches as every other slice, independently of them.
"""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch.utils.data import BatchSampler, IterableDataset

from ..base import compat
from ..engine.fusing import possible_plan
from ..errors import ConfigError
from ..keys.seeding import ORDER, Keys, seed_global_generators
from ..sampling.sampler_generators import generators_kept
from ..verification.copies import Parts, copied
from ..verification.hashing import BatchPrint, print_batch
from ..verification.record import first_difference, undisturbed
from ..work import slots_in_flight
from .search import Slice
from .settings import Setting
from .usage import memory, processor_seconds, scheduled_seconds

_SEED = 0
# Batches that are compared in each slice, if they take no more than this fraction of it; and in the long comparison.
_COMPARED = 4
_COMPARING = 0.25
_CHECKED = 64
# Slices of time that a whole epoch may take.
_LONGEST = 4
# After a wait of this length, no batch was ready.
_WAIT_S = 0.001
# If a copy takes longer, the dataset is shared from then on.
_COPY_S = 0.3
# For loaders with workers and no timeout of their own, so that nothing hangs.
_TIMEOUT_S = 60.0
# Samples of a batch where processor time is measured: several batches, as the first is not measured.
_BATCH = 16


def setting_of(loader: Any) -> Setting:
    """Return the present setting of a :class:`fastload.DataLoader`."""
    return Setting(
        num_workers=loader.num_workers,
        worker_method=loader.worker_method,
        prefetch_factor=loader.prefetch_factor,
        fuse=loader.fuse,
        seeding=loader.seeding,
        chunk_size=loader.chunk_size,
        resident=loader.resident,
    )


def refused(loader: Any) -> list[tuple[str, Any]]:
    """Return the values of arguments that a loader refuses, or that change nothing."""
    found: list[tuple[str, Any]] = []
    for name, value in (
        *(("fuse", level) for level in ("auto", True)),
        *(("seeding", way) for way in ("sample", "torch")),
        *(("resident", place) for place in ("host", "device")),
    ):
        twin = copy.copy(loader)
        vars(twin)[name] = value
        try:
            twin._check_own_arguments()
        except ConfigError:
            found.append((name, value))
    plan = possible_plan(loader)
    if isinstance(plan, str) or not plan.fused:
        found.append(("fuse", True))
    return found


class Runner:
    """Runs copies of a loader.

    Args:
        loader: a :class:`fastload.DataLoader`; it is not changed.
        slice_s: seconds of a slice, without its start.
        check_s: seconds of the long comparison, for each of the two settings.
        read_s: the longest time to read the dataset once, for ``resident``.
    """

    def __init__(self, loader: Any, slice_s: float, check_s: float, read_s: float) -> None:
        self._loader = loader
        self._slice_s, self._check_s, self._read_s = slice_s, check_s, read_s
        self._rate = 0.0
        self._by_sample = loader._auto_collation and compat.collates_by_default(loader.collate_fn)
        self._reference: list[BatchPrint] = []
        self._sharing = False
        self._kept: dict[Setting, Any] = {}
        self.notes: list[str] = []
        self.unit = "samples" if loader.batch_size is not None or self._by_sample else "batches"

    def close(self) -> None:
        """Release resident data."""
        for twin in self._kept.values():
            twin.close()
        self._kept.clear()

    def measure(self, setting: Setting) -> Slice:
        """Measure a slice. The batches of all others are compared with those of the first one.

        Raises:
            ConfigError: the loader refuses this setting, or returns no batch.
            Exception: of the user's code.
        """
        self._check_read(setting)
        with self._running(setting) as twin:
            before = memory()
            begun = time.perf_counter()
            iterator = iter(twin)
            batch = next(iterator, None)
            first_s = time.perf_counter() - begun
            if batch is None:
                raise ConfigError("the loader returns no batch")
            prints = self._printed(itertools.chain([batch], iterator), _COMPARED, _COMPARING * self._slice_s)
            differs = self._compare(prints)
            rows = self._loader.batch_size or sum(one.num_samples for one in prints) / len(prints)
            timed = self._timed(twin, iterator)
            held = memory()
        number = timed.batches * rows
        self._rate = max(self._rate, number / timed.seconds)
        return Slice(
            rate=number / timed.seconds,
            first_s=first_s,
            cpu_s=None if timed.cpu_s is None else timed.cpu_s / number,
            blocked_s=None if timed.blocked_s is None else timed.blocked_s / number,
            queued_s=None if timed.queued_s is None else timed.queued_s / number,
            memory=None if held is None or before is None else max(0, held - before),
            differs=differs,
        )

    def processor_time(self, setting: Setting, number: int) -> tuple[float, int, str]:
        """Load samples without workers, after a few others, with one torch thread as in a worker.

        Returns:
            Their processor time, in seconds per sample; their number, smaller in a small dataset; and where they
            differ from those of the first call.

        Raises:
            Exception: as :meth:`measure`.
        """
        with self._running(setting) as twin, _one_thread():
            if self._loader._auto_collation and not isinstance(self._loader.dataset, IterableDataset):
                rows = min(self._loader.batch_size or _BATCH, _BATCH)
                some = list(itertools.islice(_indices(twin), number + rows))
                rows = min(rows, max(1, len(some) // 2))
                number = len(some) - rows
                vars(twin).update(sampler=some, batch_sampler=BatchSampler(some, rows, drop_last=False))
            else:
                rows = self._loader.batch_size or 1
            iterator = iter(twin)
            prints = self._printed(iterator, 1, 0.0)
            begun, before = time.perf_counter(), time.process_time()
            batches: list[Any] = []
            for batch in itertools.islice(iterator, max(1, -(-number // rows))):
                batches.append(batch)
                if time.perf_counter() - begun > self._slice_s:
                    break
            cpu_s = time.process_time() - before
            prints += self._printed(iter(batches), len(batches), self._slice_s)
        if not batches:
            raise ConfigError(f"the loader returns {'a single' if prints else 'no'} batch")
        made = min(len(batches) * rows, max(1, number))
        return cpu_s / made, made, self._compare(prints)

    def check(self, setting: Setting) -> str:
        """Compare the batches of about ``check_s`` seconds; return where they differ, empty if nowhere."""
        if len(self._reference) < _CHECKED:
            present = setting_of(self._loader)
            with self._running(present) as twin:
                longer = self._printed(iter(twin), _CHECKED, self._check_s)
            if len(longer) > len(self._reference):
                self._reference = longer
        with self._running(setting) as twin:
            return self._compare(self._printed(iter(twin), len(self._reference), 2 * self._check_s))

    def _check_read(self, setting: Setting) -> None:
        if setting.resident is None or setting in self._kept or not self._rate:
            return
        seconds = len(self._loader.dataset) / self._rate
        if seconds > self._read_s:
            raise ConfigError(f"not tried, since reading the whole dataset once would take about {seconds:,.0f} s")

    # -- what is run --------------------------------------------------------------------------------------------------

    @contextmanager
    def _running(self, setting: Setting) -> Iterator[Any]:
        """Yield a copy of the loader with a setting; stop its workers at the end."""
        twin = self._kept.get(setting)
        if twin is None:
            twin = self._twin(setting)
        with undisturbed(), generators_kept(twin):
            seed_global_generators(Keys(_SEED, 0, ORDER).key(0))
            try:
                yield twin
            except BaseException:
                twin.close()
                raise
        if setting.resident is None:
            twin.close()
        else:  # its data are read only once; each slice begins with the same epoch
            twin._epochs = self._loader._epochs.copied()
            self._kept[setting] = twin

    def _twin(self, setting: Setting) -> Any:
        twin = copy.copy(self._loader)
        number = setting.num_workers
        vars(twin).update(self._parts())
        vars(twin).update(
            num_workers=number,
            worker_method=setting.worker_method,
            prefetch_factor=setting.prefetch_factor,
            fuse=setting.fuse,
            seeding=setting.seeding,
            chunk_size=setting.chunk_size,
            resident=setting.resident,
            timeout=(self._loader.timeout or _TIMEOUT_S) if number else 0,
            persistent_workers=self._loader.persistent_workers and number > 0,
            _alone=True,
        )
        twin._epochs.resume = None
        twin._check_own_arguments()
        return twin

    def _parts(self) -> dict[str, Any]:
        parts = {one.name: vars(self._loader)[one.name] for one in fields(Parts)}
        if self._sharing:
            return parts
        begun = time.perf_counter()
        try:
            made = copied(Parts(**parts))
        except Exception as error:  # whatever the user's class raises
            self._share(f"cannot be copied ({type(error).__name__}: {error})")
            return parts
        if time.perf_counter() - begun > _COPY_S:
            self._share("takes long to copy")
        return {name: getattr(made, name) for name in parts}

    def _share(self, reason: str) -> None:
        self._sharing = True
        self.notes.append(f"the dataset {reason}, so all runs share it: what one changes affects the next")

    # -- what is compared ---------------------------------------------------------------------------------------------

    def _printed(self, batches: Iterator[Any], number: int, seconds: float) -> list[BatchPrint]:
        """Hash up to ``number`` batches within some seconds, at least one."""
        begun = time.perf_counter()
        prints = []
        for batch in itertools.islice(batches, number):
            prints.append(print_batch(batch, by_sample=self._by_sample))
            if time.perf_counter() - begun > seconds:
                break
        return prints

    def _compare(self, prints: list[BatchPrint]) -> str:
        if not self._reference:
            self._reference = prints
        number = min(len(prints), len(self._reference))
        place = first_difference([self._reference[:number]], [prints[:number]])
        if place is None:
            return ""
        words = [f"batch {place.batch}"]
        words += [f"sample {place.row} in it"] if place.row is not None else []
        words += [f"leaf {place.leaf}"] if place.leaf else []
        return f"{place.what}: {', '.join(words)}"

    # -- what is timed ------------------------------------------------------------------------------------------------

    def _timed(self, twin: Any, iterator: Iterator[Any]) -> _Timed:
        """Load batches for the time of a slice.

        In long epochs, batches that are ready at the beginning are not counted; short epochs are counted whole, with
        their start.
        """
        ahead = slots_in_flight(twin.num_workers, twin.prefetch_factor or 0)
        if not self._is_short(ahead):
            _drain(iterator, ahead)
            threads = _sample_threads(twin, iterator)
            before, scheduled, begun = processor_seconds(), scheduled_seconds(threads), time.perf_counter()
            number, seconds = _count(iterator, begun, self._slice_s)
            if number >= 2:
                cpu_s, after = _less(processor_seconds(), before), scheduled_seconds(threads)
                if not threads or scheduled is None or after is None:
                    return _Timed(number, seconds, cpu_s)
                ran, queued = after[0] - scheduled[0], after[1] - scheduled[1]
                return _Timed(number, seconds, cpu_s, max(0.0, len(threads) * seconds - ran - queued), queued)
        before, begun, total = processor_seconds(), time.perf_counter(), 0
        while total == 0 or time.perf_counter() - begun < self._slice_s:
            number, seconds = _count(iter(twin), begun, _LONGEST * self._slice_s)
            if not number:
                raise ConfigError("the loader returns no batch in its second epoch")
            total += number
        return _Timed(total, seconds, _less(processor_seconds(), before))

    def _is_short(self, ahead: int) -> bool:
        try:
            return len(self._loader) < 2 * ahead + 2 * _COMPARED
        except TypeError:  # a stream
            return False


class _Timed(NamedTuple):
    """The result of a slice, as :class:`~.search.Slice`, but for all batches together."""

    batches: int
    seconds: float
    cpu_s: float | None
    blocked_s: float | None = None
    queued_s: float | None = None


def _sample_threads(loader: Any, iterator: Any) -> list[int]:
    """Return the native ids of the threads of this process that load the samples."""
    if not loader.num_workers:
        return [threading.get_native_id()]  # a Thread object does not know it after a fork
    return [worker.native_id for worker in iterator._workers] if loader.worker_method == "thread" else []


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch's operations on one thread: several would spend processor time waiting for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _indices(loader: Any) -> Iterator[Any]:
    """Yield the indices of a loader's sampler."""
    return itertools.chain.from_iterable(loader.batch_sampler)


def _drain(iterator: Iterator[Any], most: int) -> None:
    """Take the batches that are ready."""
    for _ in range(most):
        begun = time.perf_counter()
        if next(iterator, None) is None or time.perf_counter() - begun > _WAIT_S:
            return


def _count(iterator: Iterator[Any], begun: float, seconds: float) -> tuple[int, float]:
    """Load batches until ``seconds`` after ``begun``, at least two, or to the end; return their number and the time."""
    number = 0
    for _ in iterator:
        number += 1
        if number >= 2 and time.perf_counter() - begun >= seconds:
            break
    return number, time.perf_counter() - begun


def _less(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


__all__ = ["Runner", "refused", "setting_of"]
