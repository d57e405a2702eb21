"""Steps by a clock of the test's own, and what they make in numbers and words."""

from __future__ import annotations

import copy
import pickle

import pytest

from fastload.engine import steps
from fastload.engine.stall import Totals, in_words, numbers, over_ranks
from fastload.engine.steps import Steps

MS = 1_000_000


class Clock:
    """In whole nanoseconds."""

    now = 0

    def advance(self, seconds: float) -> None:
        self.now += round(1e9 * seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steps, "_now", lambda: clock.now)
    return clock


def run(counted: Steps, clock: Clock, waits: list[float], loop: float, *, of_workers: float = 1.0) -> None:
    """Take batches after these waits, of which workers have a share; the loop takes as long after each. Seconds."""
    waited = 0
    for wait in waits:
        counted.ask(waited)
        clock.advance(wait)
        waited += round(1e9 * wait * of_workers)
        counted.give(waited, ready=3)
        clock.advance(loop)
    counted.ask(waited)
    counted.end()


def totals_of(steps: Steps) -> Totals:
    return Totals(*steps.sums)


def test_a_step_is_a_wait_and_the_loop_after_it(clock):
    counted = Steps()
    counted.begin(2 * MS)
    run(counted, clock, [0.010, 0.004, 0.004], loop=0.006, of_workers=0.75)
    assert totals_of(counted) == Totals(
        steps=3, total_ns=38 * MS, startup_ns=12 * MS, workers_ns=6 * MS, here_ns=2 * MS, ready=9, ready_steps=3
    )


def test_the_step_that_is_interrupted_by_something_else_does_not_count(clock):
    counted = Steps()
    for seconds in (0.001, 60.0, 0.001):
        counted.ask()
        clock.advance(0.002)
        counted.give()
        clock.advance(seconds)
        if seconds == 60.0:
            counted.skip()
    counted.ask()
    totals = totals_of(counted)
    assert (totals.steps, totals.total_ns) == (2, 6 * MS)


def test_what_happens_between_epochs_is_no_step(clock):
    counted = Steps()
    for _ in range(2):
        run(counted, clock, [0.001, 0.001], loop=0.001)
        clock.advance(100.0)
        counted.begin(0)
    assert totals_of(counted).total_ns == 8 * MS
    assert totals_of(counted).startup_ns == 2 * MS


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_the_counts_begins_at_zero(clock, again):
    counted = Steps()
    run(counted, clock, [0.001], loop=0.001)
    assert totals_of(counted) != Totals()
    assert totals_of(again(counted)) == Totals()


def test_the_parts_make_up_the_share_of_the_step_that_is_lost():
    window = Totals(10, 100 * MS, startup_ns=10 * MS, workers_ns=30 * MS, here_ns=5 * MS, ready=20, ready_steps=10)
    found = numbers(window, num_workers=2, batch_size=8)
    assert found == pytest.approx(
        {
            "data/share": 0.45,
            "data/samples_per_s": 800.0,
            "data/batches_ready": 2.0,
            "data/startup": 0.10,
            "data/here": 0.05,
            "data/workers": 0.30,
        }
    )
    assert all(type(value) is float for value in found.values())


def test_what_is_not_known_is_left_out():
    found = numbers(Totals(10, 100 * MS, here_ns=5 * MS), num_workers=0, batch_size=None)
    assert set(found) == {"data/share", "data/startup", "data/here"}


def test_sums_are_added_and_subtracted_field_by_field():
    one, other = Totals(*range(7)), Totals(*range(10, 17))
    assert one.plus(other).since(other) == one


def test_over_ranks_there_are_means_and_the_worst_rank():
    ranks = [
        {"data/share": 0.1, "data/samples_per_s": 100.0},
        {"data/share": 0.7, "data/samples_per_s": 50.0},
        {},
    ]
    assert over_ranks(ranks) == pytest.approx(
        {
            "data/share": 0.4,
            "data/samples_per_s": 75.0,
            "data/worst_share": 0.7,
            "data/worst_rank": 1.0,
            "data/ranks": 2.0,
        }
    )
    assert over_ranks(ranks[:1]) == ranks[0]
    assert over_ranks([{}, {}]) == {}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            {"data/share": 0.5, "data/here": 0.01, "data/startup": 0.0, "data/workers": 0.49},
            "50 % of the step was lost to data (by the host's clock): 49 % waiting for workers, 1 % in next() itself. "
            "`fastload profile` on the script names the stage to blame, and the fix",
        ),
        (
            {"data/share": 0.04, "data/workers": 0.04},
            "4 % of the step was lost to data (by the host's clock). The loader keeps up: more workers would not help",
        ),
        (numbers(Totals(), num_workers=2, batch_size=4), "no step was measured, so nothing can be said of what"),
    ],
)
def test_words_name_the_parts_the_largest_first(found, words):
    assert in_words(found).startswith(words)
