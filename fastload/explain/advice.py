"""Changes that make a loader's samples cheaper, measured on a few of them: the end of ``fastload explain``.

In: a loader. Out: changes with their gains, and the transform that takes most of a sample. Samples are loaded without
workers, by copies, and their processor time is measured: that takes about a second, and other processes disturb it
little. Stages are recorded in one worker, if the loader has any. What depends on workers (threads, their number) is
left to ``fastload tune``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from ..base.interrupts import raise_if_interrupted
from ..base.terminal_bar import TerminalBar
from ..errors import ConfigError
from ..loader import DataLoader
from ..tune.runner import Runner, refused, setting_of
from ..tune.search import Compared
from ..tune.settings import STAGES, Machine, Setting, candidates

SAMPLES = 64
"""Samples that are measured in each round (whole batches of a stream)."""
_ROUNDS = 2
# The least gain that is reported: of the slowest round with a change over the fastest without it.
_WORTH = 1.1
# The time limit of a round.
_LONGEST_S = 3.0


def advice_for(loader: DataLoader[Any]) -> Iterator[str]:
    """Measure what changes of ``fuse`` and ``cache`` bring, with copies of the loader; yield lines.

    Blocking: while a few hundred samples are made, or for some seconds at most; with a bar on standard error where that
    is a terminal.
    """
    runner = Runner(loader, slice_s=_LONGEST_S, check_s=0.0, read_s=0.0)
    try:
        yield from _advice(loader, runner)
    finally:
        runner.close()


def _advice(loader: DataLoader[Any], runner: Runner) -> Iterator[str]:
    present = setting_of(loader).having(num_workers=0, resident=None)
    machine = Machine(processors=1, left_out=frozenset(refused(loader)))
    found = [one for stage in STAGES[:2] for one in candidates(stage, present, machine)]
    live = [present, *(one for one in found if one.resident is None)]
    times: dict[Setting, list[float]] = {one: [] for one in live}
    compared: dict[Setting, Compared] = {}
    with TerminalBar() as bar:
        bar.begin(_ROUNDS * len(live))
        for number in range(_ROUNDS):
            for setting in live if number % 2 == 0 else live[::-1]:
                raise_if_interrupted()
                bar.describe(f"measuring {SAMPLES} samples: {setting.in_words(present)}")
                try:
                    cpu_s, made, compared[setting] = runner.processor_time(setting, SAMPLES)
                except ConfigError:
                    if setting == present:
                        raise
                    continue
                finally:
                    bar.advance()
                times[setting].append(cpu_s)
    before = times.pop(present)
    unit = "sample" if runner.unit == "samples" else "batch"
    cost = f"{statistics.median(before) * 1e3:.3g} ms of processor time per {unit}"
    yield f"now: {cost} (measured on {made}, without workers)"
    yield from runner.dominant()
    worth = [setting for setting, found in times.items() if found and 0.0 < _WORTH * max(found) <= min(before)]
    for setting in sorted(worth, key=lambda setting: statistics.median(times[setting])):
        (name, value), *_ = setting.changes(present).items()
        factor = statistics.median(before) / statistics.median(times[setting])
        yield f"{name}={value!r}: {factor:.1f} times as fast; {_batches(compared[setting])}"
        if name == "cache" and runner.cache_note:
            yield runner.cache_note
    if not worth:
        yield "other values of fuse and cache gain less than 10 %"
    yield "fastload tune also tries worker_method, num_workers, seed, chunk_size, resident and prefetch_factor"


def _batches(found: Compared) -> str:
    if found.differs:
        return f"other batches ({found.differs})"
    if found.augmentation:
        return f"other augmentation ({found.augmentation}), since {found.because}"
    return "these batches draw nothing, and are equal" if found.because else "the same batches"
