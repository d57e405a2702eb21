"""Whether a loader without a seed gives the batches of torch's class, bit for bit, and how fast both are.

The two classes get the same dataset, arguments and states of the global generators, and are run in turns: torch's class
for an epoch, then fastload's, which stops at the first batch that differs. Then torch's class is run once more, which
tells a dataset that differs from run to run from a defect here.

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
from .hashing import BatchHashes, digest_of, hash_batch, value_at
from .record import Record, closing, first_difference, note_of_pickles
from .report import Difference, Equality
from .stages import TransformStage, find_stages, label_of, without
from .subject import Edit, Subject

_NUM_EPOCHS = 2
_LEAST_S = 0.1
"""What takes less in all is not timed."""
_ENOUGH_S = 6.0
_MOST_ROUNDS = 10
"""Epochs are timed until both classes together have taken so long, or so many of each have been."""
_GENERATORS = ("random", "NumPy", "torch", "the loader's generator")
_NAMED = ("num_workers", "worker_method", "multiprocessing_context", "persistent_workers")
"""Arguments that are part of a pipeline's name, where they are given."""


class _Side:
    """One of the two classes: its loader, and the states of the global generators as it left them."""

    def __init__(self, name: str, loader: Any) -> None:
        self.name, self._loader = name, loader
        seed_global_generators(Keys(0, 0, ORDER).key(0))
        self._states = _global_states()

    def batches(self, epoch: int, number: int) -> Iterator[Any]:
        """Yield so many batches of the next epoch, at most."""
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        torch.default_generator.set_state(self._states[2])
        for holder in (self._loader.sampler, self._loader.batch_sampler):
            if callable(getattr(holder, "set_epoch", None)):
                holder.set_epoch(epoch)
        iterator: Any = iter(self._loader)
        try:
            for _ in range(number):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                yield batch
        finally:
            if not self._loader.persistent_workers and hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()  # of an epoch that was not finished
            del iterator
            self._states = _global_states()

    def generators(self) -> list[bytes]:
        """Return a hash of the state of each generator, after an epoch."""
        own = self._loader.generator
        return [digest_of(state) for state in (*self._states, *([] if own is None else [own.get_state()]))]


def _global_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


@dataclass
class _Epoch:
    """What one of the classes gave in an epoch."""

    batches: list[BatchHashes] = field(default_factory=list)
    generators: list[bytes] = field(default_factory=list)
    error: BaseException | None = None
    place: Difference | None = None
    """Where it differs from what it was compared with; there it ends."""
    value: str = ""
    """What it has at that place, or at the one that was asked for."""
    out_of_time: bool = False
    ended: bool = False
    """Whether it came to its end, before the number of batches and the time."""


class Comparison:
    """Compares the first batches of two epochs with those of torch's class, and times both.

    Takes about ``time_limit`` seconds; the batch that is being waited for then is taken.
    """

    def __init__(self, subject: Subject, batches: int, time_limit: float, bar: TerminalBar) -> None:
        self._subject, self._most, self._bar = subject, batches, bar
        self._end = time.monotonic() + time_limit
        self._found = Equality(pipeline=_pipeline(subject))
        self._made: list[_Epoch] = []
        """Of torch's class."""

    def run(self) -> Equality:
        """Compare and time. Blocking."""
        subject, found = self._subject, self._found
        self._bar.begin(4 * _NUM_EPOCHS * self._most)
        with closing(subject.torchs_loader()) as torchs, closing(subject.same_loader()) as same:
            sides = _Side("torch", torchs), _Side("fastload", same)
            equal = True
            while equal and found.num_epochs < _NUM_EPOCHS:
                equal = self._compare(*sides, found.num_epochs)
                found.num_epochs += 1
            if equal and found.num_batches:
                self._time(*sides)
        subject.notes += note_of_pickles([made.batches for made in self._made])
        if found.difference is not None:
            self._explain(found.difference)
        return found

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _steps(self, side: _Side, what: str, epoch: int, number: int, seconds: float) -> Iterator[Any]:
        """Yield batches until so many were given or so many seconds are over, and show the progress."""
        begun = time.monotonic()
        self._bar.describe(f"{side.name}, {what}")
        batches = side.batches(epoch, number)
        try:
            for batch in batches:
                raise_if_interrupted()
                yield batch
                del batch
                self._bar.advance()
                if time.monotonic() - begun >= seconds:
                    break
        finally:
            batches.close()  # type: ignore[attr-defined] # it is a generator

    def _epoch(
        self,
        side: _Side,
        what: str,
        epoch: int,
        number: int,
        seconds: float,
        beside: Sequence[BatchHashes] = (),
        at: Difference | None = None,
    ) -> _Epoch:
        """Run an epoch until it differs from ``beside``; ``at``: the place of which the value is told."""
        made, end = _Epoch(), time.monotonic() + seconds
        try:
            for batch in self._steps(side, what, epoch, number, seconds):
                count, hashes = len(made.batches), hash_batch(batch, by_sample=self._subject.collates_by_default)
                place = first_difference([[beside[count]]], [[hashes]]) if count < len(beside) else None
                told = place if at is None else at if count == at.batch else None
                if told is not None:
                    made.value = value_at(batch, told.leaf, told.row)
                del batch
                if place is not None:
                    made.place = replace(place, epoch=epoch, batch=count)
                    break
                made.batches.append(hashes)
            is_short = len(made.batches) < number and made.place is None
            made.out_of_time = is_short and time.monotonic() >= end
            made.ended = is_short and not made.out_of_time
        except (Exception, SystemExit) as error:  # of the user's code, or of workers that died
            made.error = error
        made.generators = side.generators()
        return made

    def _compare(self, torchs: _Side, ours: _Side, epoch: int) -> bool:
        """Compare an epoch of both classes; return whether all of it was compared, and is equal."""
        found, what = self._found, f"epoch {epoch + 1} of {_NUM_EPOCHS}"
        # As many as fastload's class had, or shall have, in each epoch.
        number = len(self._made[0].batches) if epoch and not self._made[0].ended else self._most
        expected = self._epoch(torchs, what, epoch, number, self._left() / 5)
        self._made.append(expected)
        # One more than torch's class had, where it came to its end or an error.
        number = len(expected.batches) + (expected.ended or expected.error is not None)
        actual = self._epoch(ours, what, epoch, number, max(self._left() / 2, 1.0), beside=expected.batches)
        count = min(len(actual.batches), len(expected.batches))
        found.num_batches += count
        found.difference, found.fastload_value = actual.place, actual.value
        if actual.place is None and (
            words := self._what_differs(expected, actual, f"at batch {count} of epoch {epoch}")
        ):
            found.difference = Difference(words, epoch, count, None, "")
        return found.difference is None and not found.error and not actual.out_of_time

    def _what_differs(self, torchs: _Epoch, ours: _Epoch, where: str) -> str:
        """Return what differs though all batches of both are equal."""
        theirs, own = torchs.error, ours.error
        is_lost = own is None and self._subject.given["on_error"] != "raise"
        if theirs is not None and (is_lost or isinstance(own, type(theirs))):  # nothing differs, but it ends here
            self._found.error = f"the dataset raises, {where}: {one_line(theirs)}"
            return ""
        if theirs is not None or own is not None:
            said = ["nothing" if error is None else one_line(error) for error in (own, theirs)]
            return f"fastload raises {said[0]}, and torch's class {said[1]}"
        if ours.out_of_time:
            return ""
        if (more := len(ours.batches) - len(torchs.batches)) != 0:
            return f"the number of batches differs, fastload has {'more' if more > 0 else 'fewer'}"
        states = zip(_GENERATORS, torchs.generators, ours.generators, strict=False)
        differing = [name for name, one, other in states if one != other]
        words = "after these batches the state of the generators differs"
        return f"{words}: {', '.join(differing)}" if differing else ""

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _explain(self, place: Difference) -> None:
        """Run torch's class once more up to the difference, and say what it comes from."""
        found, subject = self._found, self._subject
        keyed_by = decisions_of(subject.same_loader()).keyed_by
        if not self._repeats(place):
            found.verdict = "not repeatable"
            found.causes = self._stages(place, subject.torchs_loader)
        elif keyed_by is not None:
            found.verdict = "other augmentation"
            found.causes = [
                f"{keyed_by} gives each sample random numbers of its own, in place of torch's streams; leave it out "
                "for torch's bits, or verify with a seed that these are the same however the loader is run"
            ]
        else:
            found.verdict = "different"
            again = "torch's class gives the same in two runs, so fastload is at fault: please report it"
            found.causes = [again, *self._stages(place, subject.same_loader)]

    def _stages(self, place: Difference, other_loader: Callable[[Edit], Any]) -> list[str]:
        """Name the transform without which, and those after it, torch's class and another loader agree, by halving."""

        def differs(removed: Sequence[TransformStage]) -> bool | None:
            made: list[Record] = []
            for make in (self._subject.torchs_loader, other_loader):
                with closing(make(lambda dataset: without(dataset, removed))) as loader:
                    side, epochs = _Side("", loader), range(place.epoch + 1)
                    try:
                        made.append([[*side.batches(one, place.batch + 1)] for one in epochs])
                    except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                        return None
            raise_if_interrupted()
            return first_difference(*made) is not None

        if self._left() < 0 or not find_stages(self._subject.dataset) or not differs([]):
            return []
        return [str(culprit_in(self._subject.dataset, differs))]

    def _repeats(self, place: Difference) -> bool:
        """Run torch's class again, and return whether it gives the same up to this place."""
        with closing(self._subject.torchs_loader()) as loader:
            side = _Side("torch", loader)
            for epoch, first in enumerate(self._made):
                at = place if epoch == place.epoch else None
                number = len(first.batches) + first.ended if at is None else min(place.batch + 1, len(first.batches))
                what = f"once more, epoch {epoch + 1}"
                again = self._epoch(side, what, epoch, number, math.inf, beside=first.batches, at=at)
                self._found.torch_value = again.value
                if again.place is not None or len(again.batches) < min(number, len(first.batches)):
                    return False
                if at is None and again.generators != first.generators:
                    return False
        return True

    # -- timing --------------------------------------------------------------------------------------------------------

    def _time(self, torchs: _Side, ours: _Side) -> None:
        """Time further epochs, in turns: torch's class, fastload's, and where there is time for it both again."""
        found, number, rounds = self._found, len(self._made[0].batches), 0
        totals = {"torch": 0.0, "fastload": 0.0}
        spent = 0.0
        while spent < _ENOUGH_S and rounds < _MOST_ROUNDS and (not rounds or 1.2 * spent / rounds < self._left()):
            for side in (torchs, ours) if rounds % 2 == 0 else (ours, torchs):
                epoch, watch = _NUM_EPOCHS + rounds, Stopwatch()
                for _ in self._steps(side, f"timed, epoch {epoch + 1}", epoch, number, math.inf):
                    pass
                totals[side.name] += watch.rate(number).seconds
            rounds += 1
            spent = sum(totals.values())
        if min(totals.values()) >= _LEAST_S:
            found.torch_rate, found.fastload_rate = (number * rounds / seconds for seconds in totals.values())


def _pipeline(subject: Subject) -> str:
    """Return the pipeline in a few words."""
    words = [subject.name]
    transforms = [type(stage.transform).__qualname__ for stage in find_stages(subject.dataset)]
    if transforms:
        words.append("with " + ", ".join(transforms[:6]) + (", ..." if len(transforms) > 6 else ""))
    words += [f"{name}={label_of(value)}" for name in _NAMED if (value := subject.given.get(name))]
    return ", ".join(words)
