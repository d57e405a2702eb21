"""The measurements of settings, and the result of a search, as a table and as JSON.

Pure; rich is imported only for a table.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..base.console import plain_table, section
from ..measurement.numbers import stages_in_words
from ..profiling.schema import Interval
from .settings import TuneSetting, as_call, as_options, workers_in_words

OTHER_AUGMENTATION = "other augmentation"


def median_interval(values: Sequence[float]) -> Interval:
    """Return the median with its 95 % interval, by the order of the values alone: no distribution is assumed.

    Each value lies below the true median as often as above. So the k-th smallest lies above it as rarely as k - 1 or
    fewer of n coins show heads; k is the largest for which that is at most 2.5 %. With fewer than six values there is
    none, and the interval is from the least to the greatest: 94 % for five, 88 % for four, 75 % for three.

    Args:
        values: at least one.
    """
    ordered = sorted(values)
    number = len(ordered)
    place, probability = 0, 0.5**number
    while place < (number - 1) // 2:
        probability += math.comb(number, place + 1) * 0.5**number
        if probability > 0.025:
            break
        place += 1
    return Interval(statistics.median(ordered), ordered[place], ordered[-1 - place])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """How the batches of a setting compare with the present ones."""

    differs: str = ""
    """Place where batches differ for no known reason; empty: nowhere."""
    augmentation: str = ""
    """Place where batches differ because other random numbers are drawn; empty: nowhere."""
    because: str = ""
    """Why other random numbers are drawn, if any are; empty: the setting draws the same."""
    as_torch: bool = False
    """True if the batches are those that torch's loader draws with as many workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One measurement of a setting."""

    rate: float
    """Samples per second (batches, where samples cannot be counted)."""
    first_s: float
    """Seconds from ``iter()`` to the first batch."""
    cpu_s: float | None = None
    """Processor time per sample, of this process and the workers; None where the system does not say."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Where the time of loading went, as shares: those of ``DataLoader.statistics().stages_s``."""
    others: float | None = None
    """Processors that other programs used meanwhile; None as above."""
    crowded: bool = False
    """True if they left none free."""
    memory: int | None = None
    """Bytes that this process and the workers use, beyond what this process used before; None as above."""
    found: Compared = Compared()
    """How its first batches compare."""


@dataclass(slots=True)
class Trial:
    """A setting and its measurements."""

    setting: TuneSetting
    slices: list[Slice] = field(default_factory=list)
    found: Compared = Compared()
    """How its batches compare; a difference that was found once stays."""
    failed: str = ""
    speedup: float = 1.0
    """Its speed relative to the present setting, from slices that were measured in turns."""
    gain: Interval | None = None
    """The same with its interval, from the pairs of slices at the end."""

    @property
    def rate(self) -> Interval | None:
        """Samples per second; None if it could not be measured."""
        return median_interval([one.rate for one in self.slices]) if self.slices else None

    @property
    def eligible(self) -> bool:
        """True if it may be recommended: measured, and with the present batches, or torch's for its workers."""
        others = bool(self.found.augmentation) and not self.found.as_torch
        return bool(self.slices) and not (self.found.differs or others or self.failed)

    def learn(self, found: Compared) -> None:
        """Take over what a comparison has found."""
        before = self.found
        differs, augmentation = before.differs or found.differs, before.augmentation or found.augmentation
        self.found = replace(found, differs=differs, augmentation=augmentation)


@dataclass(slots=True, kw_only=True)
class TuneReport:
    """Result of ``fastload tune``."""

    present: Trial
    trials: list[Trial] = field(default_factory=list)
    """All others."""
    best: Trial | None = None
    """The recommended trial; None: the present setting stays."""
    runner_up: Trial | None = None
    """The fastest trial, if it is not recommended; its ``gain`` says why."""
    not_tried: int = 0
    """Number of candidates that there was no time for."""
    interrupted: int = 0
    """The signal that has ended the search too early; 0: none."""
    subject: str = ""
    """The loader, for a person."""
    command: str = ""
    """The script and its arguments, for ``fastload run``; empty for an object."""
    unit: str = "samples"
    """``samples``, or ``batches``."""
    processors: int = 1
    seconds: float = 0.0
    """The time it took."""
    notes: list[str] = field(default_factory=list)

    def recommended(self) -> dict[str, Any]:
        """Return the arguments to change, with their values; empty if nothing is recommended."""
        return self.best.setting.changes(self.present.setting) if self.best is not None else {}

    def without_an_edit(self) -> str | None:
        """Return the command that makes the changes without an edit of the script; None if there is none."""
        changes = self.recommended()
        options = as_options(changes) if changes and self.command else None
        return None if options is None else f"fastload run {options} {self.command}"

    def to_json(self) -> str:
        """Return everything as JSON: the fields, and what is recommended."""
        found = asdict(self) | {
            "version": 2,
            "recommended": self.recommended(),
            "line": as_call(self.recommended()) if self.best is not None else None,
            "command": self.without_an_edit(),
            "verdict": self.verdict(),
            "notes": self.all_notes(),
        }
        return json.dumps(found, indent=1, allow_nan=False)

    def verdict(self) -> str:
        """Return the result in one sentence."""
        if self.best is not None and self.best.gain is not None:
            return f"{_times(self.best.gain)} as fast as now{_with_batches(self.best)}"
        if self.interrupted:
            return "nothing is recommended: interrupted before the last comparison"
        if self.present.found.differs:
            return (
                "nothing is recommended: the loader gives other batches each time, even with one seed "
                f"({self.present.found.differs}), so nothing can be compared; fastload verify finds the stage"
            )
        runner_up = self.runner_up
        if runner_up is None:
            return "nothing is recommended: no setting with the same batches was faster in every round"
        words = runner_up.setting.in_words(self.present.setting)
        if not runner_up.eligible:
            found = runner_up.found.differs or runner_up.found.augmentation
            why = f"failed ({runner_up.failed})" if runner_up.failed else f"gives other batches ({found})"
            return f"nothing is recommended: in the last comparison, {words} {why}"
        assert runner_up.gain is not None
        return f"nothing is recommended: {words} was {_times(runner_up.gain)} as fast, which may be noise"

    def all_notes(self) -> list[str]:
        """Return what a reader should know of how it was measured."""
        present = self.present.slices
        made = [stages_in_words(present[-1].stages)] if present and present[-1].stages else []
        made += [*self._about_other_programs(), *self.notes]
        if self.not_tried or (self.runner_up is not None and self.runner_up.eligible):
            left = f"{self.not_tried} settings were not tried; " if self.not_tried else ""
            made.append(f"{left}more time may help: --seconds {max(60, math.ceil(0.3 * self.seconds) * 10)}")
        best = self.best or self.present
        faster_still = "faster still" if self.best is not None else "faster"
        other = [trial for trial in self.trials if _batches(trial) == OTHER_AUGMENTATION]
        faster = [trial for trial in other if trial.speedup > 1.05 * best.speedup]
        made += [
            f"{trial.setting.in_words(self.present.setting)} is {faster_still}, but with other augmentation "
            f"({trial.found.augmentation}), since {trial.found.because}; use it if that is acceptable"
            for trial in sorted(faster, key=lambda trial: -trial.speedup)[:2]
        ]
        return made

    def _about_other_programs(self) -> list[str]:
        """Return a note if the processors were not free for what was measured."""
        slices = [one for trial in [self.present, *self.trials] for one in trial.slices]
        if not any(one.crowded for one in slices):
            return []
        used = statistics.median(one.others for one in slices if one.others is not None)
        return [
            f"other programs used {used:.1f} processors meanwhile, and none was free: a setting that is faster only by "
            "taking more from them is not recommended; tune again on a quiet machine"
        ]

    def table(self) -> Any:
        """Return a rich renderable: a row for each setting, and below it what is recommended."""
        from rich.console import Group
        from rich.text import Text

        present = self.present.setting
        numbers = (f"{self.unit}/s", "", "x", "first\nbatch", "CPU\neach", "memory")
        right = [{"header": name, "justify": "right", "no_wrap": True} for name in numbers]
        rows = plain_table(["", {"header": "setting", "overflow": "fold"}, *right, "batches"])
        measured = [trial for trial in [self.present, *self.trials] if trial.slices]
        # Those with the same batches first, the fastest first.
        for trial in sorted(measured, key=lambda trial: (not trial.eligible, -trial.speedup)):
            words = trial.setting.in_words(present)
            mark, style = " ", "" if trial.eligible else "dim"
            if trial is self.best:
                mark, style = "▶", "bold green"
            elif trial is self.present:
                words, style = f"{words}  (present)", "bold"
            rows.add_row(*(Text(word, style) for word in (mark, words, *_numbers(trial))))
        parts: list[Any] = [
            Text(self.subject, "bold"),
            Text(f"{self.processors} processors, {self.seconds:.0f} s", "dim"),
            Text(""),
            rows,
            Text(""),
        ]
        if self.best is None:
            parts.append(Text(self.verdict(), "bold"))
        else:
            line = Text(as_call(self.recommended()), "cyan")
            parts.append(section(Text(self.verdict(), "bold green"), [line], indent=4))
            command = self.without_an_edit()
            if command is not None:
                parts.append(section(Text("or, without editing the script:"), [Text(command, "cyan")], indent=4))
        failed = [f"{trial.setting.in_words(present)}: {trial.failed}" for trial in self.trials if trial.failed]
        for title, lines in (("not possible", failed), ("notes", self.all_notes())):
            if lines:
                parts += [Text(""), section(title, lines)]
        return Group(*parts)


def _numbers(trial: Trial) -> Iterator[str]:
    rate = trial.rate
    assert rate is not None
    yield _rate(rate.value)
    yield f"[{_rate(rate.low)} - {_rate(rate.high)}]" if len(trial.slices) > 1 else ""
    yield f"{trial.speedup:.2f}"
    yield _duration(statistics.median(one.first_s for one in trial.slices))
    cpu = [one.cpu_s for one in trial.slices if one.cpu_s is not None]
    yield _duration(statistics.median(cpu)) if cpu else "-"
    held = [one.memory for one in trial.slices if one.memory is not None]
    yield f"{max(held) / 2**20:,.0f} MiB" if held else "-"
    yield _batches(trial)


def _batches(trial: Trial) -> str:
    """Return how a setting's batches compare with the present ones, in a few words."""
    if trial.found.differs:
        return "differ"
    if trial.found.augmentation:
        return f"torch's {_with_workers(trial)}" if trial.found.as_torch else OTHER_AUGMENTATION
    return "same so far" if trial.found.because else "same"


def _with_batches(best: Trial) -> str:
    """Return which batches a recommended setting gives, for the end of a sentence."""
    if not best.found.because:
        return ", with the same batches"
    since = f"since {best.found.because}"
    if best.found.augmentation:
        return f", with torch's batches {_with_workers(best)}: the augmentation is another than now, {since}"
    return f"; the batches that were compared are equal and draw nothing, others may not be, {since}"


def _with_workers(trial: Trial) -> str:
    return f"with {workers_in_words(trial.setting)}" if trial.setting.num_workers else "without workers"


def _times(gain: Interval) -> str:
    return f"{gain.value:.2f} times [{gain.low:.2f} - {gain.high:.2f}]"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1 or unit == "µs":
            break
    return f"{seconds * scale:.3g} {unit}"
