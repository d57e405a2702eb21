"""Checks that a loader without a seed gives the batches of torch's class, bit for bit, and times both.

The two classes get the same dataset, arguments and states of the global generators. If they differ, torch's class is
run once more, which tells a dataset that differs from run to run from a defect here.

Further epochs of each class are timed, since hashing takes time of its own, and the first run reads files that the
second one then finds in memory.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..base.terminal_bar import TerminalBar
from ..errors import one_line
from ..spec import decisions_of
from .culprit import culprit_in
from .hashing import Hashes, digest_of, hashed
from .record import Record, closing, epoch_of, first_difference, note_of_pickles
from .report import Check, Culprit, Difference
from .stages import TransformStage, find_stages, label_of
from .subject import Subject

_NUM_EPOCHS = 2
_LEAST_S = 0.1
"""Shorter runs, in seconds, are not timed."""
_ENOUGH_S = 6.0
_MOST_ROUNDS = 10
"""Epochs are timed until both classes together have taken so long, or so many of each have been."""
_NAMED = ("num_workers", "worker_method", "multiprocessing_context", "persistent_workers")
"""Arguments that are part of a pipeline's name, where they are given."""


def _batches(loader: Any, epoch: int, number: int) -> Generator[Any, None, None]:
    """Yield so many batches of an epoch, at most; the global generators and samplers are those of the epoch."""
    for holder in (loader.sampler, loader.batch_sampler):
        if callable(getattr(holder, "set_epoch", None)):
            holder.set_epoch(epoch)
    return epoch_of(loader, 0, epoch, number)


def _generators(loader: Any) -> dict[str, bytes]:
    """Return a hash of the state of each generator."""
    states: dict[str, Any] = {"random": random.getstate(), "NumPy": np.random.get_state()}
    states["torch"] = torch.default_generator.get_state()
    if loader.generator is not None:
        states["the loader's generator"] = loader.generator.get_state()
    return {name: digest_of(state) for name, state in states.items()}


@dataclass
class _Epoch:
    """Batches that one of the classes gave in an epoch."""

    batches: list[Hashes] = field(default_factory=list)
    generators: dict[str, bytes] = field(default_factory=dict)
    error: BaseException | None = None
    is_cut: bool = False
    """True if the time was over before the number of batches."""
    is_over: bool = False
    """True if it came to its end, or to an error, before that."""


class Comparison:
    """Compares the first batches of two epochs with those of torch's class, and times both.

    Takes about ``time_limit`` seconds; the batch that is being waited for then is taken.
    """

    def __init__(self, subject: Subject, batches: int, time_limit: float, bar: TerminalBar) -> None:
        self._subject, self._most, self._bar = subject, batches, bar
        self._end = time.monotonic() + time_limit

    def run(self) -> Check:
        """Compare and time. Blocking."""
        subject, begun = self._subject, time.monotonic()
        check = Check(name="torch's class", setting="", verdict="equal")
        self._bar.begin(4 * _NUM_EPOCHS * self._most)
        with closing(subject.torchs_loader()) as torchs, closing(subject.same_loader()) as same:
            expected = self._run(torchs, "torch", [self._most] * _NUM_EPOCHS, self._left() * 2 / 5)
            # One more where torch's class has given all: to see that this one is over there too.
            numbers = [len(one.batches) + one.is_over for one in expected]
            actual = self._run(same, "fastload", numbers, max(self._left() / 2, 1.0))
            equal, error = self._compare(check, expected, actual)
            count = sum(equal)
            if count and not error and check.difference is None and not any(one.is_cut for one in actual):
                check.speedup = self._time(torchs, same, len(expected[0].batches))
        subject.notes += note_of_pickles([one.batches for one in expected])
        batches = "1 batch" if count == 1 else f"{count} batches"
        check.setting = f"{batches} of {'one epoch' if len(equal) == 1 else 'two epochs'}"
        if check.difference is not None:
            self._explain(check, check.difference, expected)
        elif not count:
            check.verdict, check.reason = "error", f"nothing was compared: {error or 'the loader returns no batch'}"
        elif error:
            check.verdict, check.reason = "error", f"{check.setting} equal torch's, bit for bit; then {error}"
        check.seconds = time.monotonic() - begun
        return check

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _run(self, loader: Any, who: str, numbers: Sequence[int], seconds: float) -> list[_Epoch]:
        """Run a loader for so many batches of each epoch, until an error, or until its time is over."""
        made: list[_Epoch] = []
        for epoch, number in enumerate(numbers):
            self._bar.describe(f"{who}, epoch {epoch + 1} of {len(numbers)}")
            made.append(self._epoch(loader, epoch, number, time.monotonic() + seconds / len(numbers)))
            if made[-1].error is not None:
                break
        return made

    def _epoch(self, loader: Any, epoch: int, number: int, until: float) -> _Epoch:
        made, batches = _Epoch(), _batches(loader, epoch, number)
        try:
            for batch in batches:
                made.batches.append(hashed(batch))
                del batch
                self._bar.advance()
                if time.monotonic() >= until:
                    made.is_cut = len(made.batches) < number
                    break
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            made.error = error
        finally:
            batches.close()
        made.is_over = len(made.batches) < number and not made.is_cut
        made.generators = _generators(loader)
        return made

    def _compare(self, check: Check, expected: list[_Epoch], actual: list[_Epoch]) -> tuple[list[int], str]:
        """Give a check the first difference; return how many batches of each epoch are equal, and an error of both."""
        equal: list[int] = []
        for epoch, (torchs, ours) in enumerate(zip(expected, actual, strict=False)):
            count = min(len(ours.batches), len(torchs.batches))
            place = first_difference([torchs.batches[:count]], [ours.batches[:count]])
            equal.append(count if place is None else place.batch or 0)
            is_lost = ours.error is None and self._subject.given["on_error"] != "raise"
            if place is not None:
                check.difference = replace(place, epoch=epoch)
            elif ours.is_cut:
                break
            elif torchs.error is not None and (is_lost or isinstance(ours.error, type(torchs.error))):
                return equal, f"the dataset raises, at batch {count} of epoch {epoch}: {one_line(torchs.error)}"
            elif what := _how_ends_differ(torchs, ours):
                check.difference = Difference(what, epoch, count)
            if check.difference is not None:
                break
        return equal, ""

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _explain(self, check: Check, place: Difference, expected: list[_Epoch]) -> None:
        """Run torch's class once more up to the difference, and say what it comes from."""
        subject = self._subject
        keyed_by = decisions_of(subject.same_loader()).keyed_by
        numbers = [len(one.batches) + (one.is_over and one.error is None) for one in expected[: place.epoch + 1]]
        with closing(subject.torchs_loader()) as loader:
            again = self._run(loader, "torch once more", numbers, math.inf)
        repeats = [one.batches for one in again] == [one.batches for one in expected[: place.epoch + 1]]
        before = slice(place.epoch)
        if not repeats or [one.generators for one in again[before]] != [one.generators for one in expected[before]]:
            check.verdict = "not repeatable"
            check.culprit = self._culprit(place, subject.torchs_loader)
        elif keyed_by is not None:
            check.verdict = "other augmentation"
            check.reason = (
                f"{keyed_by} gives each sample random numbers of its own, in place of torch's streams; leave it out "
                "for torch's bits, or verify with a seed that these are the same however the loader is run"
            )
        else:
            check.verdict = "different"
            check.reason = "torch's class gives the same in two runs, so fastload is at fault: please report it"
            check.culprit = self._culprit(place, subject.same_loader)

    def _culprit(self, place: Difference, other_loader: Callable[..., Any]) -> Culprit | None:
        """Name the transform without which, and those after it, torch's class and another loader agree, by halving."""
        subject, number = self._subject, (place.batch or 0) + 1

        def differs(removed: Sequence[TransformStage]) -> bool | None:
            made: list[Record] = []
            for make in (subject.torchs_loader, other_loader):
                with closing(make("samples", removed)) as loader:
                    try:
                        epochs = [[*_batches(loader, one, number)] for one in range(place.epoch + 1)]
                    except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                        return None
                made.append([[sample for batch in epoch for sample in batch] for epoch in epochs])
            return first_difference(made[0], made[1]) is not None

        if self._left() < 0 or not find_stages(subject.dataset) or not differs([]):
            return None
        return culprit_in(subject.dataset, differs)

    # -- timing --------------------------------------------------------------------------------------------------------

    def _time(self, torchs: Any, ours: Any, number: int) -> float:
        """Return how many times as fast as torch's class fastload's is, in further epochs in turns; 0: too short."""
        rounds, spent = 0, 0.0
        sides, totals = [("torch", torchs), ("fastload", ours)], {"torch": 0.0, "fastload": 0.0}
        while spent < _ENOUGH_S and rounds < _MOST_ROUNDS and (not rounds or 1.2 * spent / rounds < self._left()):
            for name, loader in sides:
                self._bar.describe(f"{name}, timed, epoch {rounds + 1}")
                begun = time.perf_counter()
                for _ in _batches(loader, _NUM_EPOCHS + rounds, number):
                    self._bar.advance()
                totals[name] += time.perf_counter() - begun
            sides.reverse()
            rounds += 1
            spent = sum(totals.values())
        if min(totals.values()) < _LEAST_S:
            return 0.0
        rates = {name: number * rounds / seconds for name, seconds in totals.items()}
        self._subject.notes.append(
            f"timed: torch {rates['torch']:.3g}, fastload {rates['fastload']:.3g} batches a second"
        )
        return rates["fastload"] / rates["torch"]


def _how_ends_differ(torchs: _Epoch, ours: _Epoch) -> str:
    """Return what differs after the batches that both classes gave; empty: nothing."""
    if torchs.error is not None or ours.error is not None:
        said = ["nothing" if error is None else one_line(error) for error in (ours.error, torchs.error)]
        return f"fastload raises {said[0]}, and torch's class {said[1]}"
    if (more := len(ours.batches) - len(torchs.batches)) != 0:
        return f"the number of batches differs, fastload has {'more' if more > 0 else 'fewer'}"
    differing = [name for name, state in torchs.generators.items() if ours.generators[name] != state]
    words = "after these batches the state of the generators differs"
    return f"{words}: {', '.join(differing)}" if differing else ""


def pipeline_of(subject: Subject) -> str:
    """Return the pipeline of a comparison in a few words."""
    words = [subject.name]
    transforms = [type(stage.transform).__qualname__ for stage in find_stages(subject.dataset)]
    if transforms:
        words.append("with " + ", ".join(transforms[:6]) + (", ..." if len(transforms) > 6 else ""))
    words += [f"{name}={label_of(value)}" for name in _NAMED if (value := subject.given.get(name))]
    return ", ".join(words)
