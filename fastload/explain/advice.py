"""Changes that make a loader's samples cheaper, measured on a few of them: the end of ``fastload explain``.

In: a loader. Out: changes with their gains. Samples are loaded without workers, by copies, and their processor time is
measured: that takes about a second, and other processes disturb it little. What depends on workers (threads, their
number) is left to ``fastload tune``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..loader import DataLoader
from ..tune.runner import Runner, refused, setting_of
from ..tune.settings import STAGES, Machine, Setting, candidates

SAMPLES = 64
"""Samples that are measured in each round (whole batches of a stream)."""
_ROUNDS = 2
# The least gain that is reported.
_WORTH = 1.1
# The time limit of a round.
_LONGEST_S = 3.0


class Gain(NamedTuple):
    """The effect of a change."""

    change: str
    """As an argument: ``fuse=True``."""
    factor: float
    """Processor time of a sample before, divided by that after."""
    differs: str
    """Where its batches differ from the present ones; empty: nowhere."""


def advice_for(loader: DataLoader[Any]) -> Iterator[str]:
    """Measure what changes of ``fuse`` and ``seeding`` bring; yield lines for a person.

    Args:
        loader: stays as it is; copies of it load the samples.

    Raises:
        Exception: what the dataset raises.

    Blocking: while a few hundred samples are made, or for some seconds at most.
    """
    runner = Runner(loader, slice_s=_LONGEST_S, check_s=0.0, read_s=0.0)
    present = setting_of(loader).having(num_workers=0, resident=None)
    machine = Machine(processors=1, left_out=frozenset(refused(loader)))
    live = [present, *(one for one in candidates(STAGES[0], present, machine) if one.resident is None)]
    times: dict[Setting, list[float]] = {one: [] for one in live}
    differ: dict[Setting, str] = {}
    for number in range(_ROUNDS):
        for setting in live if number % 2 == 0 else live[::-1]:
            try:
                cpu_s, made, differs = runner.processor_time(setting, SAMPLES)
            except ConfigError:
                if setting == present:
                    raise
                continue
            times[setting].append(cpu_s)
            differ[setting] = differ.get(setting) or differs
    before = times.pop(present)
    unit = "sample" if runner.unit == "samples" else "batch"
    cost = f"{statistics.median(before) * 1e3:.3g} ms of processor time per {unit}"
    yield f"now: {cost} (measured on {made}, without workers)"
    tried = {}
    for setting, found in times.items():
        (name, value), *_ = setting.changes(present).items()
        tried[f"{name}={value!r}"] = found, differ.get(setting, "")
    worth = gains(before, tried)
    for change, factor, differs in worth:
        same = "the same batches" if not differs else f"other batches under the same seed ({differs})"
        yield f"{change}: {factor:.1f} times as fast; {same}"
    if not worth:
        yield "other values of fuse and seeding gain less than 10 %"
    yield "fastload tune also tries worker_method, num_workers, chunk_size, resident and prefetch_factor"


def gains(before: Sequence[float], tried: Mapping[str, tuple[Sequence[float], str]]) -> list[Gain]:
    """Return the changes worth making, the largest gain first.

    Args:
        before: processor seconds a sample in each round, as the loader is now.
        tried: by change, the seconds in each round (none: the loader refuses it), and where its batches differ.

    A change is worth making if its slowest round is faster than the fastest round before it by a tenth.
    """
    found = [
        Gain(change, statistics.median(before) / statistics.median(after), differs)
        for change, (after, differs) in tried.items()
        if after and 0.0 < _WORTH * max(after) <= min(before)
    ]
    return sorted(found, key=lambda gain: -gain.factor)
