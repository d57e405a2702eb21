"""Checks that a loader without a seed gives the batches of torch's class, bit for bit, and times both.

The two classes get the same dataset, arguments and states of the global generators, and are run in turns: torch's class
for an epoch, then fastload's. If they differ, torch's class is run once more, which tells a dataset that differs from
run to run from a defect here.

Further epochs of each class are timed, since hashing takes time of its own, and the first run reads files that the
second one then finds in memory.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ..base.interrupts import raise_if_interrupted
from ..base.terminal_bar import TerminalBar
from ..errors import one_line
from ..keys.seeding import ORDER, Keys, seed_global_generators
from ..measurement.rate import Stopwatch
from ..spec import decisions_of
from .culprit import culprit_in
from .hashing import BatchHashes, digest_of, hash_batch
from .record import Record, closing, first_difference, note_of_pickles
from .report import Check, Culprit, Difference
from .stages import TransformStage, find_stages, label_of, without
from .subject import Edit, Subject

_NUM_EPOCHS = 2
_LEAST_S = 0.1
"""Shorter runs, in seconds, are not timed."""
_ENOUGH_S = 6.0
_MOST_ROUNDS = 10
"""Epochs are timed until both classes together have taken so long, or so many of each have been."""
_GENERATORS = ("random", "NumPy", "torch", "the loader's generator")
_NAMED = ("num_workers", "worker_method", "multiprocessing_context", "persistent_workers")
"""Arguments that are part of a pipeline's name, where they are given."""


def _batches(loader: Any, epoch: int, number: int) -> Iterator[Any]:
    """Yield so many batches of an epoch, at most; the states of the global generators are those of the epoch."""
    seed_global_generators(Keys(0, epoch, ORDER).key(0))
    for holder in (loader.sampler, loader.batch_sampler):
        if callable(getattr(holder, "set_epoch", None)):
            holder.set_epoch(epoch)
    iterator: Any = iter(loader)
    try:
        for _ in range(number):
            try:
                batch = next(iterator)
            except StopIteration:
                return
            yield batch
            del batch
            raise_if_interrupted()
    finally:
        if not loader.persistent_workers and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()  # of an epoch that was not finished


def _generators(loader: Any) -> list[bytes]:
    """Return a hash of the state of each generator."""
    states = [random.getstate(), np.random.get_state(), torch.default_generator.get_state()]
    own = loader.generator
    return [digest_of(state) for state in (*states, *([] if own is None else [own.get_state()]))]


@dataclass
class _Epoch:
    """Batches that one of the classes gave in an epoch."""

    batches: list[BatchHashes] = field(default_factory=list)
    generators: list[bytes] = field(default_factory=list)
    error: BaseException | None = None
    is_cut: bool = False
    """True if the time was over before the number of batches."""
    has_ended: bool = False
    """True if it came to its end before that."""


class Comparison:
    """Compares the first batches of two epochs with those of torch's class, and times both.

    Takes about ``time_limit`` seconds; the batch that is being waited for then is taken.
    """

    def __init__(self, subject: Subject, batches: int, time_limit: float, bar: TerminalBar) -> None:
        self._subject, self._most, self._bar = subject, batches, bar
        self._end = time.monotonic() + time_limit
        self._made: list[_Epoch] = []
        """Epochs of torch's class."""
        self._count = 0
        """Batches that are equal."""
        self._difference: Difference | None = None
        self._error = ""
        """Error that the dataset raises with both classes."""

    def run(self) -> Check:
        """Compare and time. Blocking."""
        subject, begun = self._subject, time.monotonic()
        check = Check(name="torch's class", setting="", verdict="equal")
        self._bar.begin(4 * _NUM_EPOCHS * self._most)
        with closing(subject.torchs_loader()) as torchs, closing(subject.same_loader()) as same:
            goes_on = True
            while goes_on and len(self._made) < _NUM_EPOCHS:
                goes_on = self._compare(torchs, same, len(self._made))
            if goes_on and self._count:
                check.speedup = self._time(torchs, same)
        subject.notes += note_of_pickles([made.batches for made in self._made])
        batches = "1 batch" if self._count == 1 else f"{self._count} batches"
        check.setting = f"{batches} of {'one epoch' if len(self._made) == 1 else 'two epochs'}"
        if self._difference is not None:
            check.difference = self._difference
            self._explain(check, self._difference)
        elif not self._count:
            check.verdict = "error"
            check.reason = f"nothing was compared: {self._error or 'the loader returns no batch'}"
        elif self._error:
            check.verdict = "error"
            check.reason = f"{check.setting} equal torch's, bit for bit; then {self._error}"
        check.seconds = time.monotonic() - begun
        return check

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _epoch(self, loader: Any, what: str, epoch: int, number: int, seconds: float) -> _Epoch:
        """Run an epoch until so many batches were given, or so many seconds are over."""
        made, until = _Epoch(), time.monotonic() + seconds
        self._bar.describe(what)
        batches = _batches(loader, epoch, number)
        try:
            for batch in batches:
                made.batches.append(hash_batch(batch, by_sample=self._subject.collates_by_default))
                del batch
                self._bar.advance()
                if time.monotonic() >= until:
                    break
            is_short = len(made.batches) < number
            made.is_cut = is_short and time.monotonic() >= until
            made.has_ended = is_short and not made.is_cut
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            made.error = error
        finally:
            batches.close()  # type: ignore[attr-defined] # it is a generator
        made.generators = _generators(loader)
        return made

    def _compare(self, torchs: Any, ours: Any, epoch: int) -> bool:
        """Compare an epoch of both classes; return whether all of it was compared, and is equal."""
        what = f"epoch {epoch + 1} of {_NUM_EPOCHS}"
        # As many as fastload's class had, or shall have, in each epoch.
        number = len(self._made[0].batches) if epoch and not self._made[0].has_ended else self._most
        expected = self._epoch(torchs, f"torch, {what}", epoch, number, self._left() / 5)
        self._made.append(expected)
        # One more than torch's class had, where it came to its end or an error.
        number = len(expected.batches) + (expected.has_ended or expected.error is not None)
        actual = self._epoch(ours, f"fastload, {what}", epoch, number, max(self._left() / 2, 1.0))
        count = min(len(actual.batches), len(expected.batches))
        place = first_difference([expected.batches[:count]], [actual.batches[:count]])
        if place is None and (words := self._what_differs(expected, actual, f"at batch {count} of epoch {epoch}")):
            place = Difference(words, epoch, count, None, "")
        if place is not None:
            self._difference = replace(place, epoch=epoch)
        self._count += count if place is None else place.batch
        return place is None and not self._error and not actual.is_cut

    def _what_differs(self, torchs: _Epoch, ours: _Epoch, where: str) -> str:
        """Return what differs though all batches of both are equal."""
        theirs, own = torchs.error, ours.error
        is_lost = own is None and self._subject.given["on_error"] != "raise"
        if theirs is not None and (is_lost or isinstance(own, type(theirs))):  # nothing differs, but it ends here
            self._error = f"the dataset raises, {where}: {one_line(theirs)}"
            return ""
        if theirs is not None or own is not None:
            said = ["nothing" if error is None else one_line(error) for error in (own, theirs)]
            return f"fastload raises {said[0]}, and torch's class {said[1]}"
        if ours.is_cut:
            return ""
        if (more := len(ours.batches) - len(torchs.batches)) != 0:
            return f"the number of batches differs, fastload has {'more' if more > 0 else 'fewer'}"
        states = zip(_GENERATORS, torchs.generators, ours.generators, strict=False)
        differing = [name for name, one, other in states if one != other]
        words = "after these batches the state of the generators differs"
        return f"{words}: {', '.join(differing)}" if differing else ""

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _explain(self, check: Check, place: Difference) -> None:
        """Run torch's class once more up to the difference, and say what it comes from."""
        subject = self._subject
        keyed_by = decisions_of(subject.same_loader()).keyed_by
        if not self._repeats(place):
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

    def _culprit(self, place: Difference, other_loader: Callable[[Edit], Any]) -> Culprit | None:
        """Name the transform without which, and those after it, torch's class and another loader agree, by halving."""

        def differs(removed: Sequence[TransformStage]) -> bool | None:
            made: list[Record] = []
            for make in (self._subject.torchs_loader, other_loader):
                with closing(make(lambda dataset: without(dataset, removed))) as loader:
                    try:
                        made.append([[*_batches(loader, one, place.batch + 1)] for one in range(place.epoch + 1)])
                    except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                        return None
            return first_difference(*made) is not None

        if self._left() < 0 or not find_stages(self._subject.dataset) or not differs([]):
            return None
        return culprit_in(self._subject.dataset, differs)

    def _repeats(self, place: Difference) -> bool:
        """Run torch's class again, and return whether it gives the same up to this place."""
        with closing(self._subject.torchs_loader()) as loader:
            for epoch, first in enumerate(self._made):
                is_before = epoch < place.epoch
                number = len(first.batches) + (is_before and first.has_ended)
                again = self._epoch(loader, f"torch once more, epoch {epoch + 1}", epoch, number, math.inf)
                if first_difference([first.batches], [again.batches]) is not None:
                    return False
                if is_before and again.generators != first.generators:
                    return False
        return True

    # -- timing --------------------------------------------------------------------------------------------------------

    def _time(self, torchs: Any, ours: Any) -> float:
        """Return how many times as fast as torch's class fastload's is, in further epochs in turns; 0: too short."""
        number, rounds = len(self._made[0].batches), 0
        totals = {"torch": 0.0, "fastload": 0.0}
        spent = 0.0
        while spent < _ENOUGH_S and rounds < _MOST_ROUNDS and (not rounds or 1.2 * spent / rounds < self._left()):
            sides = (("torch", torchs), ("fastload", ours))
            for name, loader in sides if rounds % 2 == 0 else reversed(sides):
                epoch, watch = _NUM_EPOCHS + rounds, Stopwatch()
                self._bar.describe(f"{name}, timed, epoch {epoch + 1}")
                for _ in _batches(loader, epoch, number):
                    self._bar.advance()
                totals[name] += watch.rate(number).seconds
            rounds += 1
            spent = sum(totals.values())
        if min(totals.values()) < _LEAST_S:
            return 0.0
        rates = {name: number * rounds / seconds for name, seconds in totals.items()}
        self._subject.notes.append(
            f"timed: torch {rates['torch']:.3g}, fastload {rates['fastload']:.3g} batches a second"
        )
        return rates["fastload"] / rates["torch"]


def pipeline_of(subject: Subject) -> str:
    """Return the pipeline of a comparison in a few words."""
    words = [subject.name]
    transforms = [type(stage.transform).__qualname__ for stage in find_stages(subject.dataset)]
    if transforms:
        words.append("with " + ", ".join(transforms[:6]) + (", ..." if len(transforms) > 6 else ""))
    words += [f"{name}={label_of(value)}" for name in _NAMED if (value := subject.given.get(name))]
    return ", ".join(words)
