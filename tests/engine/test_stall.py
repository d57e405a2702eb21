"""Steps by a clock of the test's own, and what they make in numbers and words."""

from __future__ import annotations

import copy
import pickle

import pytest

from fastload.engine import steps
from fastload.engine.stall import Loads, Totals, WorkerTimes, last_line, numbers, over_ranks, percent
from fastload.engine.steps import Steps

MS = 1_000_000
LOADS = Loads(num_workers=2, cores=8, is_ours=True, persistent_workers=False)


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
    return Totals.of(steps.sums, steps.device)


def parts(found: dict[str, float]) -> float:
    return sum(found.get(f"data/{name}", 0.0) for name in ("startup", "read", "cpu", "cores", "workers", "here"))


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


def test_no_step_makes_no_numbers():
    assert numbers(Totals(), num_workers=2, batch_size=4) == {}


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


@pytest.mark.parametrize(
    ("cpu", "queue", "expected"),
    [
        (0.0, 0.0, {"read": 0.5, "cpu": 0.0, "cores": 0.0}),
        (0.25, 0.0, {"read": 0.25, "cpu": 0.25, "cores": 0.0}),
        (0.6, 0.2, {"read": 0.0, "cpu": 0.375, "cores": 0.125}),
    ],
)
def test_the_waiting_for_workers_is_divided_by_what_they_did(cpu, queue, expected):
    window = Totals(10, 100 * MS, workers_ns=50 * MS)
    workers = WorkerTimes(round(200 * MS * cpu), round(200 * MS * queue), 200 * MS)
    found = numbers(window, num_workers=2, batch_size=None, workers=workers)
    assert {name: found[f"data/{name}"] for name in expected} == pytest.approx(expected)
    assert parts(found) == pytest.approx(found["data/share"])


def test_by_the_devices_clock_the_parts_are_scaled_to_its_share():
    window = Totals(10, 100 * MS, workers_ns=60 * MS, here_ns=20 * MS, idle_ns=10 * MS, busy_ns=90 * MS)
    found = numbers(window, num_workers=2, batch_size=None)
    assert found["data/share"] == pytest.approx(0.1)
    assert found["data/workers"] == pytest.approx(0.075)
    assert parts(found) == pytest.approx(0.1)


def test_over_ranks_there_are_means_and_the_worst_rank():
    ranks = {
        0: {"data/share": 0.1, "data/samples_per_s": 100.0, "data/read": 0.1},
        1: {"data/share": 0.7, "data/samples_per_s": 50.0},
        2: {},
    }
    assert over_ranks(ranks) == pytest.approx(
        {
            "data/share": 0.4,
            "data/samples_per_s": 75.0,
            "data/read": 0.05,
            "data/worst_share": 0.7,
            "data/worst_rank": 1.0,
            "data/ranks": 2.0,
        }
    )
    assert over_ranks({0: ranks[0]}) == ranks[0]
    assert over_ranks({0: {}, 1: {}}) == {}


@pytest.mark.parametrize(
    ("stage", "loads", "blamed", "fix"),
    [
        ("read", {}, "reading", "Fix: worker_threads=16"),
        ("read", {"is_ours": False}, "reading", "Fix: fastload.DataLoader with worker_threads=16"),
        ("cpu", {}, "the CPU", "Fix: num_workers=4, cheaper transforms"),
        ("cpu", {"cores": 2}, "the CPU", "Fix: cheaper transforms"),
        ("cores", {}, "too few cores", "Fix: fewer workers"),
        ("startup", {}, "startup", "Fix: persistent_workers=True"),
        ("startup", {"persistent_workers": True}, "startup", "Fix: longer epochs"),
        ("here", {"num_workers": 0}, "next()", "Fix: num_workers=4"),
        ("here", {}, "next()", "Fix: device="),
        ("workers", {"is_ours": False}, "slower than the loop", "fastload.DataLoader in place of torch's"),
    ],
)
def test_the_last_line_names_the_stage_and_the_fix(stage, loads, blamed, fix):
    given = {**{name: getattr(LOADS, name) for name in LOADS.__dataclass_fields__}, **loads}
    line = last_line({"data/share": 0.5, "data/here": 0.01, f"data/{stage}": 0.49}, Loads(**given), by_device=False)
    assert line.startswith("50 % of the step was lost to data (by the host's clock). To blame: ")
    assert blamed in line.partition("To blame")[2]
    assert fix in line


def test_workers_that_mostly_wait_for_a_core_are_too_many():
    line = last_line({"data/share": 0.5, "data/cpu": 0.26, "data/cores": 0.24}, LOADS, by_device=False)
    assert "too few cores" in line


def test_the_last_line_of_a_loader_that_keeps_up_changes_nothing():
    line = last_line({"data/share": 0.04, "data/read": 0.04}, LOADS, by_device=True)
    assert line == (
        "4 % of the step was lost to data (by the device's clock). The loader keeps up: more workers would not help"
    )


def test_the_last_line_has_the_worst_rank():
    found = over_ranks({0: {"data/share": 0.2, "data/read": 0.2}, 3: {"data/share": 0.6, "data/read": 0.6}})
    assert ", on average of 2 ranks; the most on rank 3: 60 %. " in last_line(found, LOADS, by_device=False)


def test_without_a_step_the_last_line_says_so():
    assert "no step was measured" in last_line({}, LOADS, by_device=False)


def test_shares_are_told_in_percent():
    assert percent(0.126) == "13 %"
