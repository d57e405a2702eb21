"""Whether a loader without a seed gives the batches of torch's class, bit for bit, and how fast both are.

In: a subject. Out: an :class:`Equality`. The two classes get the same dataset, arguments and states of the global
generators, and are run in turns: torch's class for an epoch, then fastload's, which stops at the first batch that
differs. Then torch's class is run once more, which tells a dataset that differs from run to run from a defect here.

One more epoch of each class is timed, since hashing takes time of its own, and the first run reads files that the
second one then finds in memory.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..base.interrupts import raise_if_interrupted
from ..base.terminal_bar import TerminalBar
from ..errors import one_line
from ..keys.seeding import ORDER, Keys, seed_global_generators
from .culprit import culprit_in
from .hashing import BatchHashes, digest_of, hash_batch, summary_at
from .record import Record, closing, first_difference, pickled_kinds, undisturbed
from .report import Difference, Equality, counted
from .stages import TransformStage, find_stages, without
from .subject import Edit, Subject

_NUM_EPOCHS = 2
_LEAST_S = 0.1
"""What takes less in all is not timed."""
_ENOUGH_S = 6.0
_MOST_ROUNDS = 10
"""Epochs are timed until both classes together have taken so long, or so many of each have been."""
_LINE_S = 10.0
"""Seconds between two lines of progress within an epoch."""
_GENERATORS = ("random", "NumPy", "torch", "the loader's generator")

_BY_ENTROPY = (
    "it draws from something that no seed reaches: the system's entropy, the clock, a generator made without a seed "
    "(np.random.default_rng()), the order of threads or of a set"
)
_REMEDY = (
    "draw from the global generators (random, numpy.random, torch), or make a generator from a draw of theirs, so that "
    "a seed of the script reaches it"
)


class _Side:
    """One of the two classes: its loader, and the states of the global generators as it left them."""

    def __init__(self, name: str, loader: Any, subject: Subject) -> None:
        self.name = name
        self._loader, self._subject = loader, subject
        seed_global_generators(Keys(0, 0, ORDER).key(0))
        self._states = _global_states()

    def batches(self, epoch: int, number: int) -> Iterator[Any]:
        """Yield so many batches of the next epoch, at most."""
        _set_global_states(self._states)
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

    def hashes(self, batch: Any) -> BatchHashes:
        return hash_batch(batch, by_sample=self._subject.collates_by_default)

    def digests_of_generators(self) -> list[bytes]:
        """Return a hash of the state of each generator, after an epoch."""
        own = self._loader.generator
        return [digest_of(state) for state in (*self._states, *([] if own is None else [own.get_state()]))]


def _global_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _set_global_states(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])


class _Epoch:
    """What torch's class gave in an epoch."""

    def __init__(self) -> None:
        self.batches: list[BatchHashes] = []
        self.generators: list[bytes] = []
        self.error: BaseException | None = None
        self.ended = False
        """Whether it was not stopped by the number of batches or the time."""


def compare(subject: Subject, *, batches: int, time_limit: float, bar: TerminalBar, prints_lines: bool) -> Equality:
    """Compare the first batches of two epochs with those of torch's class, and time both.

    Blocking: for about ``time_limit`` seconds; the batch that is being waited for then is taken.
    """
    with undisturbed():
        return _Comparison(subject, batches, time_limit, bar, prints_lines).run()


class _Comparison:
    def __init__(self, subject: Subject, batches: int, time_limit: float, bar: TerminalBar, prints_lines: bool) -> None:
        self._subject, self._most, self._bar, self._prints_lines = subject, batches, bar, prints_lines
        self._begun = time.monotonic()
        self._time_limit = time_limit
        self._found = Equality(pipeline=_pipeline(subject))
        self._made: list[_Epoch] = []
        self._stopped = False
        """Whether the last epoch was stopped by the time."""

    def run(self) -> Equality:
        found = self._found
        self._bar.begin(4 * _NUM_EPOCHS * self._most)
        with (
            closing(self._subject.torchs_loader()) as torchs,
            closing(self._subject.same_loader()) as same,
        ):
            torch_side, our_side = _Side("torch", torchs, self._subject), _Side("fastload", same, self._subject)
            complete = True
            for epoch in range(_NUM_EPOCHS):
                made = self._of_torch(torch_side, epoch)
                self._made.append(made)
                complete = self._of_fastload(our_side, epoch, made)
                found.num_epochs = epoch + 1
                if not complete:
                    break
            if complete and found.num_batches:
                self._time(torch_side, our_side)
        found.pickled = sorted(pickled_kinds([made.batches for made in self._made]))
        if found.difference is not None:
            self._explain()
        return found

    # -- comparing -----------------------------------------------------------------------------------------------------

    def _left(self) -> float:
        return self._begun + self._time_limit - time.monotonic()

    def _steps(self, side: _Side, what: str, epoch: int, number: int, seconds: float) -> Iterator[Any]:
        """Yield batches until so many were given or so many seconds are over, and show the progress."""
        begun = told = time.monotonic()
        self._stopped = False
        self._bar.describe(f"{side.name}, {what}")
        count = 0
        batches = side.batches(epoch, number)
        try:
            for batch in batches:
                raise_if_interrupted()
                count += 1
                yield batch
                del batch
                self._bar.advance()
                now = time.monotonic()
                if now - told >= _LINE_S:
                    told = now
                    self._tell(f"{side.name}, {what}: {counted(count)} so far")
                if now - begun >= seconds:
                    self._stopped = count < number
                    break
        finally:
            batches.close()  # type: ignore[attr-defined] # it is a generator
        self._tell(f"{side.name}, {what}: {counted(count)} ({time.monotonic() - begun:.1f} s)")

    def _tell(self, words: str) -> None:
        if self._prints_lines:
            print(f"fastload verify: {words}", file=sys.stderr, flush=True)

    def _of_torch(self, side: _Side, epoch: int) -> _Epoch:
        made = _Epoch()
        # As many as fastload's class had, or shall have, in each epoch.
        number = len(self._made[0].batches) if epoch and not self._made[0].ended else self._most
        try:
            for batch in self._steps(side, f"epoch {epoch + 1} of {_NUM_EPOCHS}", epoch, number, self._left() / 5):
                made.batches.append(side.hashes(batch))
            made.ended = len(made.batches) < number and not self._stopped
        except (Exception, SystemExit) as error:  # of the user's code
            made.error = error
        self._found.out_of_time |= self._stopped
        made.generators = side.digests_of_generators()
        return made

    def _of_fastload(self, side: _Side, epoch: int, made: _Epoch) -> bool:
        """Compare fastload's batches with torch's; return whether all were compared."""
        found, count, error = self._found, 0, None
        # One more than torch's class had, where it came to its end or an error.
        number = len(made.batches) + (made.ended or made.error is not None)
        what = f"epoch {epoch + 1} of {_NUM_EPOCHS}"
        try:
            for batch in self._steps(side, what, epoch, number, max(self._left() / 2, 1.0)):
                hashes = side.hashes(batch)
                if count == len(made.batches):
                    if made.error is not None:
                        break
                    words = "the number of batches differs, fastload has more"
                    found.difference = Difference(words, epoch, count, None, "")
                    return False
                place = first_difference([[made.batches[count]]], [[hashes]])
                if place is not None:
                    found.difference = replace(place, epoch=epoch, batch=count)
                    found.fastload_value = summary_at(batch, place.leaf, place.row)
                    return False
                count += 1
                found.num_batches += 1
                del batch
        except (Exception, SystemExit) as raised:  # of the user's code, or of workers that died
            error = raised
        if made.error is not None or error is not None:
            return self._of_errors(epoch, count, made.error, error)
        if self._stopped:
            found.out_of_time = True
            return False
        if count < len(made.batches):
            words = f"the number of batches differs, {count} instead of {len(made.batches)}"
            found.difference = Difference(words, epoch, count, None, "")
            return False
        differing = [
            name
            for name, one, other in zip(_GENERATORS, made.generators, side.digests_of_generators(), strict=False)
            if one != other
        ]
        if differing:
            words = f"after these batches the state of the generators differs: {', '.join(differing)}"
            found.difference = Difference(words, epoch, count, None, "")
        return not differing

    def _of_errors(self, epoch: int, count: int, torchs: BaseException | None, ours: BaseException | None) -> bool:
        found = self._found
        if torchs is not None and ours is not None and not isinstance(ours, type(torchs)):
            words = f"fastload raises {one_line(ours)}, torch's class {one_line(torchs)}"
            found.difference = Difference(words, epoch, count, None, "")
        elif torchs is not None and (ours is not None or self._subject.given["on_error"] != "raise"):
            words = "both classes raise" if ours is not None else "torch's class raises"
            found.error = f"{words}, at batch {count} of epoch {epoch}: {one_line(torchs)}"
        elif torchs is not None:
            found.difference = Difference(f"only torch's class raises {one_line(torchs)}", epoch, count, None, "")
        elif ours is not None:
            found.difference = Difference(f"only fastload raises {one_line(ours)}", epoch, count, None, "")
        return False

    # -- explaining ----------------------------------------------------------------------------------------------------

    def _explain(self) -> None:
        """Run torch's class once more up to the difference, and say what it probably comes from."""
        found, subject = self._found, self._subject
        place = found.difference
        assert place is not None
        repeatable = self._repeats(place)
        keyed_by = subject.spec.keyed_by
        if repeatable is False:
            found.verdict = "not repeatable"
            found.causes = [*self._stages(place, subject.torchs_loader), f"{_BY_ENTROPY}; {_REMEDY}"]
        elif keyed_by is not None:
            found.verdict = "other augmentation"
            found.causes = [
                f"{keyed_by} gives each sample random numbers of its own, in place of torch's streams; leave it out "
                "for torch's bits, or verify with a seed that these are the same however the loader is run"
            ]
        else:
            found.verdict = "different"
            again = "torch's class gives the same in two runs, so fastload is at fault: please report it"
            if repeatable is None:
                again = "there was no time to run torch's class again up to here: raise the time limit"
            found.causes = [again, *self._stages(place, subject.same_loader)]

    def _stages(self, place: Difference, other_loader: Callable[[Edit], Any]) -> list[str]:
        """Name the transform without which, and those after it, torch's class and another loader agree, by halving."""

        def differs(removed: Sequence[TransformStage]) -> bool | None:
            made: list[Record] = []
            for make in (self._subject.torchs_loader, other_loader):
                with closing(make(lambda dataset: without(dataset, removed))) as loader:
                    side = _Side("without the last transforms", loader, self._subject)
                    epochs = range(place.epoch + 1)
                    try:
                        made.append(
                            [[side.hashes(one) for one in side.batches(epoch, place.batch + 1)] for epoch in epochs]
                        )
                    except (Exception, SystemExit):  # a later stage, or the dataset, needs what was taken out
                        return None
            raise_if_interrupted()
            return first_difference(*made) is not None

        if self._left() < 0 or not find_stages(self._subject.dataset) or not differs([]):
            return []
        found = culprit_in(self._subject.dataset, differs, "")
        return [f"{'first stage that differs' if found.certain else 'where to look'}: {found.stage} ({found.place})"]

    def _repeats(self, place: Difference) -> bool | None:
        """Run torch's class again, and return whether it gives the same up to this place; None: it was not reached."""
        with closing(self._subject.torchs_loader()) as loader:
            side = _Side("torch", loader, self._subject)
            for epoch, first in enumerate(self._made):
                last = epoch == place.epoch
                length = len(first.batches)
                number = min(place.batch + 1, length) if last else length + first.ended
                count = 0
                try:
                    what = f"once more, epoch {epoch + 1}"
                    for batch in self._steps(side, what, epoch, number, max(self._left(), 10.0)):
                        if last and count == place.batch:
                            self._found.torch_value = summary_at(batch, place.leaf, place.row)
                        if first_difference([[first.batches[count]]], [[side.hashes(batch)]]) is not None:
                            return False
                        count += 1
                except (Exception, SystemExit):  # of the user's code
                    return first.error is not None and count == len(first.batches)
                if self._stopped:
                    return None
                if count < min(number, length) or (not last and side.digests_of_generators() != first.generators):
                    return False
        return True

    # -- timing --------------------------------------------------------------------------------------------------------

    def _time(self, torchs: _Side, ours: _Side) -> None:
        """Time further epochs, in turns: torch's class, fastload's, and where there is time for it both again."""
        found = self._found
        number = len(self._made[0].batches)
        totals = {"torch": 0.0, "fastload": 0.0}
        epoch, begun = _NUM_EPOCHS, time.monotonic()
        order = [torchs, ours]
        while True:
            for side in order:
                taken, seconds = self._timed(side, epoch, number)
                if not found.timed_epochs and side is torchs:
                    number = taken
                totals[side.name] += seconds
            found.timed_epochs += 1
            epoch += 1
            order.reverse()
            spent, rounds = time.monotonic() - begun, found.timed_epochs
            if spent >= _ENOUGH_S or rounds == _MOST_ROUNDS or 1.2 * spent / rounds > self._left():
                break
        if min(totals.values()) >= _LEAST_S:
            found.timed_batches = number
            in_all = number * found.timed_epochs
            found.torch_rate, found.fastload_rate = in_all / totals["torch"], in_all / totals["fastload"]

    def _timed(self, side: _Side, epoch: int, number: int) -> tuple[int, float]:
        # The first epoch of torch's class says how many batches the others have.
        seconds, count = float("inf") if self._found.timed_epochs else max(self._left() / 3, 1.0), 0
        begun = time.perf_counter()
        for _ in self._steps(side, f"timed, epoch {epoch + 1}", epoch, number, seconds):
            count += 1
        return count, time.perf_counter() - begun


def _pipeline(subject: Subject) -> str:
    """Return the pipeline in a few words."""
    given = subject.given
    words = [subject.name]
    transforms = [type(stage.transform).__qualname__ for stage in find_stages(subject.dataset)]
    if transforms:
        words.append("with " + ", ".join(transforms[:6]) + (", ..." if len(transforms) > 6 else ""))
    number = given["num_workers"]
    words.append("no workers" if not number else "1 worker" if number == 1 else f"{number} workers")
    if given["worker_method"] != "multiprocessing":
        words.append(f"worker_method={given['worker_method']!r}")
    context = given.get("multiprocessing_context")
    if number and context is not None:
        words.append(context if isinstance(context, str) else context.get_start_method())
    if given.get("persistent_workers"):
        words.append("persistent")
    return ", ".join(words)
