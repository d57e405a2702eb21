"""Measures a loader with other settings: runs a copy for a slice of time, and compares its first batches.

Each slice begins with the same seed and epoch, and with a copy of dataset, samplers and functions, so that it loads the
same batches as every other slice, independently of them.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

import torch
from torch.utils.data import RandomSampler

from ..base.memory import in_words
from ..cache import shared
from ..cache.ranks import words_of_run
from ..engine.fusing import plan_of
from ..errors import ConfigError
from ..keys.seeding import ORDER, Keys, seed_global_generators
from ..loader import DataLoader
from ..measurement.numbers import work_shares
from ..measurement.rate import Rate, Stopwatch, memory
from ..sampling.sampler_generators import generators_kept
from ..spec import decisions_of, sampling_of, served_as, spec_of
from ..verification.hashing import Hashes, hashed
from ..verification.rebuilding import Copies, arguments_of, build
from ..verification.record import first_difference, undisturbed
from .report import Compared, Slice
from .settings import SEED, WORKER_THREADS, TuneSetting
from .survival import how_it_died

_SEED = 0
_NOTHING_KEPT = "no JPEG file of its samples can be kept"
# Batches that are compared in each slice, if they take no more than this fraction of it; and in the long comparison.
_COMPARED = 4
_COMPARING = 0.25
_CHECKED = 64
# Slices of time that a cache is filled for: with it, a slice reads more samples.
_FILLING = 4
# Slices of time that a whole epoch may take.
_LONGEST = 4
# After a wait of this length, no batch was ready.
_WAIT_S = 0.001
# If a copy takes longer, the dataset is shared from then on.
_COPY_S = 0.3
# For loaders with workers and no timeout of their own, so that nothing hangs.
_TIMEOUT_S = 60.0


def name_of(loader: DataLoader[Any]) -> str:
    """Return a loader's dataset and batches, in words."""
    words = sized(type(loader.dataset).__name__, loader.dataset)
    if loader.batch_size is not None:
        return f"{words}, batches of {loader.batch_size}"
    return words if loader.batch_sampler is None else f"{words}, batches of {type(loader.batch_sampler).__name__}"


def sized(name: str, dataset: Any) -> str:
    """Return a dataset's name and its number of samples, if it has one."""
    try:
        return f"{name}, {len(dataset):,} samples"
    except Exception:  # an iterable dataset, or whatever the user's raises
        return name


def setting_of(loader: DataLoader[Any]) -> TuneSetting:
    """Return the present setting of a loader."""
    return TuneSetting(**{one.name: getattr(loader, one.name) for one in fields(TuneSetting)})


def left_out(loader: DataLoader[Any]) -> list[tuple[str, Any]]:
    """Return the values of arguments that change nothing, or that are not this loader's alone."""
    found: list[tuple[str, Any]] = []
    if words_of_run() is not None:  # a cache would be that of all ranks
        found.append(("cache", "auto"))
    decisions = decisions_of(loader)
    asked = decisions.asked
    if not plan_of(asked.dataset, decisions.unfused_reason).fused:
        found.append(("fuse", True))
    if not decisions.assigned or asked.iterable or asked.seeding is not None:
        found.append(("seed", SEED))
    if decisions.assigned:  # batches are not cut anyway
        found += [("chunk_size", None), ("chunk_size", "batch")]
    if asked.iterable or asked.seeding == "torch":
        found += [("worker_threads", number) for number in WORKER_THREADS]
    return found


class Runner:
    """Runs copies of a loader.

    A slice takes ``slice_s`` without its start, the long comparison ``check_s`` for each of the two settings, reading
    the dataset once, for ``resident``, ``read_s`` at most.
    """

    def __init__(self, loader: DataLoader[Any], slice_s: float, check_s: float, read_s: float) -> None:
        self._arguments = {**arguments_of(loader), "timeout": loader.timeout or _TIMEOUT_S}
        self._spec = spec_of(loader)
        self._present = setting_of(loader)
        size = getattr(loader.batch_sampler, "batch_size", None)
        self._rows = size if isinstance(size, int) else None
        """Samples in a batch; None: not known."""
        # With fewer, other numbers of workers would seem to draw the same: each one's first batch is the same.
        self._compared = max(_COMPARED, self._present.num_workers + 1)
        self._slice_s, self._check_s, self._read_s = slice_s, check_s, read_s
        self._rate = 0.0
        self._reference: list[Hashes] = []
        self._keyed: dict[int | None, list[Hashes]] = {}
        """Seed of the keys -> batches of the present setting with such keys."""
        self._kept: dict[TuneSetting, DataLoader[Any]] = {}
        self._has_kept = True if self._present.cache is not None else None
        """True if there are files in the cache, False if none could be kept; None: it was not filled yet."""
        self._survived: set[TuneSetting] = set()
        self._had_cache = shared.is_asked_for()
        self.notes: list[str] = []
        self._copies = Copies(self.notes, _COPY_S)
        self.unit = "batches" if self._rows is None else "samples"

    def close(self) -> None:
        """Release resident data, and a cache that was only tried."""
        for twin in self._kept.values():
            twin.close()
        self._kept.clear()
        if not self._had_cache:
            shared.forget()

    def measure(self, setting: TuneSetting) -> Slice:
        """Measure a slice. The batches of all others are compared with those of the first one.

        A cache is filled before: what counts is how fast later epochs are.

        Raises:
            ConfigError: the loader refuses this setting, or returns no batch.
            Exception: of the user's code.
        """
        self._check_read(setting)
        self._survive(setting)
        self._fill_before(setting)
        with self._running(setting) as twin:
            before = memory()
            begun = time.perf_counter()
            iterator = iter(twin)
            batch = next(iterator, None)
            first_s = time.perf_counter() - begun
            if batch is None:
                raise ConfigError(
                    "the loader returns no batch: is its dataset empty, or smaller than a batch that drop_last drops?"
                )
            hashes = self._hashed(itertools.chain([batch], iterator), self._compared, _COMPARING * self._slice_s)
            rows = self._rows or 1
            rate = self._timed(twin, iterator)
            held = memory()
            stages = work_shares(twin.statistics().stages_s)
        per_s = rate.per_s * rows
        self._rate = max(self._rate, per_s)
        return Slice(
            rate=per_s,
            first_s=first_s,
            cpu_s=None if rate.cpu_s is None else rate.cpu_s / (rate.number * rows),
            stages=stages,
            others=rate.others,
            crowded=rate.is_crowded,
            memory=None if held is None or before is None else max(0, held - before),
            found=self._compare(setting, hashes),
        )

    def check(self, setting: TuneSetting) -> Compared:
        """Compare the batches of about ``check_s`` seconds."""
        if len(self._reference) < _CHECKED:
            with self._running(self._present) as twin:
                longer = self._hashed(iter(twin), _CHECKED, self._check_s)
            if len(longer) > len(self._reference):
                self._reference = longer
        found = self._compare(setting, self._first(setting, len(self._reference)))
        if found.augmentation and found.as_torch:
            # With keys its workers must give the same as the present ones.
            keyed = self._first(setting, len(self._reference), seeding="sample")
            if difference := _difference(self._under_keys(None, len(keyed)), keyed):
                return Compared(differs=difference)
        return found

    def _check_read(self, setting: TuneSetting) -> None:
        if setting.resident is None or setting in self._kept or not self._rate:
            return
        seconds = len(self._arguments["dataset"]) / self._rate
        if seconds > self._read_s:
            raise ConfigError(f"not tried, since reading the whole dataset once would take about {seconds:,.0f} s")

    def _fill_before(self, setting: TuneSetting) -> None:
        """Keep files in the cache of a setting, once."""
        if setting.cache is None or self._has_kept:
            return
        if self._has_kept is False:
            raise ConfigError(_NOTHING_KEPT)
        until = time.perf_counter() + _FILLING * self._slice_s
        with self._running(setting) as twin:
            for _ in twin:
                if time.perf_counter() > until:
                    break
        contents = shared.contents()
        self._has_kept = contents is not None and contents.entry_bytes > 0
        if contents is None or not self._has_kept:
            raise ConfigError(_NOTHING_KEPT)
        taken = contents.entry_bytes / contents.entries
        with contextlib.suppress(Exception):  # whatever the user's len() raises
            words = f"for its {len(self._arguments['dataset']):,} samples"
            taken *= len(self._arguments["dataset"])
            self.notes.append(
                f"cache={setting.cache!r} was measured as it is from the second epoch on; it takes about "
                f"{in_words(taken)} {words}, and {in_words(shared.size_of_auto() + contents.taken_bytes)} can be had"
            )

    def _survive(self, setting: TuneSetting) -> None:
        """Try a setting whose workers are threads in a child first, once: what ends it would end this process too.

        Raises:
            ConfigError: a signal ended the child, or it gave no batch in time.
        """
        if setting in self._survived or setting == self._present or setting.worker_method != "thread":
            return

        def load() -> None:
            torch.set_num_threads(1)  # a fork has no other threads of the pool
            with self._running(setting, device=None, pin_memory=False) as twin:
                _count(iter(twin), time.perf_counter() + self._slice_s)

        if died := how_it_died(load, self._arguments["timeout"] + _LONGEST * self._slice_s):
            raise ConfigError(died)
        self._survived.add(setting)

    # -- what is run --------------------------------------------------------------------------------------------------

    @contextmanager
    def _running(self, setting: TuneSetting, **changes: Any) -> Iterator[DataLoader[Any]]:
        """Yield a copy of the loader with a setting, at its first epoch; stop its workers at the end."""
        with undisturbed():
            twin = self._kept.get(setting)
            if twin is None:
                twin = build({**self._copies.of(self._arguments), **asdict(setting), **changes})
            try:
                with generators_kept(sampling_of(twin)):
                    twin.set_epoch(0)
                    seed_global_generators(Keys(_SEED, 0, ORDER).key(0))
                    yield twin
                    if setting.resident is not None:  # its data are read only once
                        self._kept[setting] = twin
            finally:
                if self._kept.get(setting) is not twin:
                    twin.close()

    # -- what is compared ---------------------------------------------------------------------------------------------

    def _hashed(self, batches: Iterator[Any], number: int, seconds: float) -> list[Hashes]:
        """Hash up to ``number`` batches within some seconds, but always one more than the present workers."""
        begun = time.perf_counter()
        hashes = []
        for batch in itertools.islice(batches, number):
            hashes.append(hashed(batch))
            if len(hashes) > self._present.num_workers and time.perf_counter() - begun > seconds:
                break
        return hashes

    def _first(self, setting: TuneSetting, number: int, **changes: Any) -> list[Hashes]:
        """Hash the first batches of a setting, up to a number, within some seconds."""
        with self._running(setting, **changes) as twin:
            return self._hashed(iter(twin), number, 2 * self._check_s)

    def _under_keys(self, seed: int | None, number: int) -> list[Hashes]:
        """Return the first batches of the present setting, if each sample has a key; ``seed``: of the keys."""
        if len(self._keyed.get(seed, ())) < number:
            keys = {"seeding": "sample"} if seed is None else {"seed": seed}
            self._keyed[seed] = self._first(self._present, number, **keys)
        return self._keyed[seed]

    def _compare(self, setting: TuneSetting, hashes: list[Hashes]) -> Compared:
        """Compare batches with the first ones of the present setting; those are measured first."""
        self._reference = self._reference or hashes
        difference = _difference(self._reference, hashes)
        now, then = (served_as(self._spec, **asdict(one)) for one in (self._present, setting))
        draws, is_fused = then.random_source, then.asked.fuse is True
        if draws is None or now.random_source in (None, draws):
            return Compared(differs=difference)
        if setting.seed != self._present.seed and isinstance(self._spec.sampler, RandomSampler):
            difference = difference or "the order, which the seed shuffles too"
        if then.keyed_by is None:
            because = "each worker has a random stream of its own, as in torch"
            return Compared(augmentation=difference, because=because, as_torch=now.keyed_by is None)
        if difference and not is_fused:
            # Workers may do more to samples than give them other random numbers.
            wrong = _difference(self._under_keys(then.sample_seed, len(hashes)), hashes)
            if wrong:
                return Compared(differs=wrong)
        because = f"{then.keyed_by} gives each sample random numbers of its own"
        if is_fused != (now.asked.fuse is True):
            because = "fuse=True draws the parameters of transforms by itself"
        return Compared(augmentation=difference, because=because)

    # -- what is timed ------------------------------------------------------------------------------------------------

    def _timed(self, twin: DataLoader[Any], iterator: Iterator[Any]) -> Rate:
        """Load batches for the time of a slice; return how fast they came.

        In long epochs, batches that are ready at the beginning are not counted; short epochs are counted whole, with
        their start.
        """
        ahead = twin.statistics().slots_in_flight
        try:
            short = len(twin) < 2 * ahead + 2 * self._compared
        except TypeError:  # a stream
            short = False
        if not short:
            _drain(iterator, ahead)
            watch = Stopwatch()
            if (number := _count(iterator, watch.begun + self._slice_s)) >= 2:
                return watch.rate(number)
        watch, total = Stopwatch(), 0
        while total == 0 or time.perf_counter() - watch.begun < self._slice_s:
            number = _count(iter(twin), watch.begun + _LONGEST * self._slice_s)
            if not number:
                raise ConfigError("the loader returns no batch in its second epoch")
            total += number
        return watch.rate(total)


def _difference(reference: list[Hashes], hashes: list[Hashes]) -> str:
    """Return where the batches that both have differ first; empty: nowhere."""
    number = min(len(hashes), len(reference))
    difference = first_difference([reference[:number]], [hashes[:number]])
    return "" if difference is None else str(difference)


def _drain(iterator: Iterator[Any], most: int) -> None:
    for _ in range(most):
        begun = time.perf_counter()
        if next(iterator, None) is None or time.perf_counter() - begun > _WAIT_S:
            return


def _count(iterator: Iterator[Any], until: float) -> int:
    """Load batches until a time, at least two, or to the end; return their number."""
    number = 0
    for _ in iterator:
        number += 1
        if number >= 2 and time.perf_counter() >= until:
            break
    return number
