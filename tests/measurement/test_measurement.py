"""Steps by a clock of the test's own, and what they make in numbers and words."""

from __future__ import annotations

import pytest

from fastload.measurement import measurement
from fastload.measurement.measurement import Measurement
from fastload.measurement.numbers import (
    Steps,
    over_ranks,
    stages_in_words,
    stages_s,
    stall_in_words,
    stall_of,
    work_shares,
)

MS = 1_000_000


class Clock:
    """In whole nanoseconds."""

    now = 0

    def advance(self, seconds: float) -> None:
        self.now += round(1e9 * seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(measurement, "_now", lambda: clock.now)
    return clock


def run(counted: Measurement, clock: Clock, waits: list[float], loop: float, *, of_workers: float = 1.0) -> None:
    """Take batches after these waits, of which workers have a share; the loop takes as long after each. Seconds."""
    for wait in waits:
        counted.next_begins()
        clock.advance(wait)
        counted.waited_ns += round(1e9 * wait * of_workers)
        counted.next_ends(ready=3)
        clock.advance(loop)
    counted.next_begins()
    counted.epoch_ends()


def steps_of(measured: Measurement) -> Steps:
    return Steps(*measured.steps)


def test_a_step_is_a_wait_and_the_loop_after_it(clock):
    counted = Measurement()
    counted.epoch_begins(2 * MS)
    run(counted, clock, [0.010, 0.004, 0.004], loop=0.006, of_workers=0.75)
    assert steps_of(counted) == Steps(
        number=3, total_ns=38 * MS, startup_ns=12 * MS, workers_ns=6 * MS, here_ns=2 * MS, ready=9, ready_steps=3
    )


def test_the_step_that_is_interrupted_by_something_else_does_not_count(clock):
    counted = Measurement()
    for seconds in (0.001, 60.0, 0.001):
        counted.next_begins()
        clock.advance(0.002)
        counted.next_ends()
        clock.advance(seconds)
        if seconds == 60.0:
            counted.skip_step()
    counted.next_begins()
    totals = steps_of(counted)
    assert (totals.number, totals.total_ns) == (2, 6 * MS)


def test_what_happens_between_epochs_is_no_step(clock):
    counted = Measurement()
    for _ in range(2):
        run(counted, clock, [0.001, 0.001], loop=0.001)
        clock.advance(100.0)
        counted.epoch_begins(0)
    assert steps_of(counted).total_ns == 8 * MS
    assert steps_of(counted).startup_ns == 2 * MS


def test_the_parts_make_up_the_share_of_the_step_that_is_lost():
    window = Steps(10, 100 * MS, startup_ns=10 * MS, workers_ns=30 * MS, here_ns=5 * MS, ready=20, ready_steps=10)
    found = stall_of(window, num_workers=2, batch_size=8)
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
        (stall_of(Steps(), num_workers=2, batch_size=4), "no step was measured, so nothing can be said of what"),
    ],
)
def test_words_name_the_parts_the_largest_first(found, words):
    assert stall_in_words(found).startswith(words)


# -- stages ------------------------------------------------------------------------------------------------------------


def test_stages_that_were_measured_stand_for_the_time_of_all_tasks():
    measured = Measurement()
    measured.add_task(400 * MS, (10 * MS, 20 * MS, 30 * MS, 30 * MS, 10 * MS, 5 * MS))
    measured.add_task(600 * MS, None)
    measured.waited_ns, measured.steps[4] = 250 * MS, 50 * MS
    found = stages_s(measured)
    assert found == pytest.approx(
        {"read": 0.1, "queue": 0.2, "decode": 0.3, "transform": 0.3, "collate": 0.1, "transport": 0.1, "wait": 0.25}
    )
    assert list(work_shares(found)) == ["decode", "transform", "queue", "read", "collate"]
    assert stages_in_words(found) == (
        "loading: decode 30 %, transform 30 %, waiting for a core 20 %, read 10 %, collate 10 %; "
        "sending batches took 0.1 s; the loop waited 0.25 s for workers"
    )


def test_without_workers_the_time_in_next_is_that_of_loading():
    measured = Measurement()
    assert stages_s(measured) == {}
    measured.add_task(0, (0, 0, 0, 30 * MS, 10 * MS, 0))
    measured.steps[2], measured.steps[4] = 100 * MS, 300 * MS
    found = stages_s(measured)
    assert found == pytest.approx({"read": 0, "queue": 0, "decode": 0, "transform": 0.3, "collate": 0.1})
    assert stages_in_words(found) == "loading: transform 75 %, collate 25 %"


def test_the_cost_of_a_sample_is_mostly_that_of_the_last_ones():
    measured = Measurement()
    measured.add_samples(1000, 10)
    assert measured.sample_ns == 100
    for _ in range(50):
        measured.add_samples(50_000, 10)
    assert measured.sample_ns == pytest.approx(5000, rel=0.01)
