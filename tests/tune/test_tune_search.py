"""The search, with a loader that is made of numbers: no clock, no processes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present_setting import PRESENT

from fastload.errors import ConfigError
from fastload.tune.search import Outcome, Search, Slice, median_interval
from fastload.tune.settings import Machine, Setting


@dataclass
class Made:
    """Measures settings by a formula, with noise; each slice takes a second of its own clock."""

    speed: Callable[[Setting], float]
    noise: float = 0.0
    differs: Callable[[Setting], str] = lambda setting: ""
    checked: Callable[[Setting], str] = lambda setting: ""
    slice_s: float = 0.5
    now: float = 0.0
    seen: list[Setting] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def measure(self, setting: Setting) -> Slice:
        self.now += self.slice_s
        self.seen.append(setting)
        rate = self.speed(setting) * self.draw.lognormvariate(0, self.noise)
        return Slice(rate=rate, first_s=0.1, differs=self.differs(setting))

    def check(self, setting: Setting) -> str:
        self.now += self.slice_s
        return self.checked(setting)

    def search(self, seconds: float = 30.0, present: Setting = PRESENT) -> Outcome:
        return Search(present, self, Machine(processors=2), seconds, lambda: self.now).run()


def threads_are_faster(setting: Setting) -> float:
    return 100.0 * (1.7 if setting.worker_method == "thread" else 1.0)


def test_what_is_faster_is_recommended_with_its_gain():
    outcome = Made(threads_are_faster, noise=0.03).search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"worker_method": "thread"}
    assert outcome.best.gain is not None
    assert outcome.best.gain.low <= 1.7 <= outcome.best.gain.high


def test_gains_of_several_stages_are_joined():
    def speed(setting: Setting) -> float:
        return threads_are_faster(setting) * (2.0 if setting.fuse == "auto" else 1.0) * setting.num_workers

    outcome = Made(speed, noise=0.02).search()
    assert outcome.best is not None
    wanted = {"fuse": "auto", "worker_method": "thread", "num_workers": 4}
    assert outcome.best.setting.changes(PRESENT) == wanted
    assert outcome.best.speedup == pytest.approx(6.8, rel=0.1)


def test_where_all_are_alike_noise_recommends_nothing():
    recommended = 0
    for number in range(60):
        made = Made(lambda setting: 100.0, noise=0.15, draw=random.Random(number))
        recommended += made.search().best is not None
    assert recommended <= 2


def test_faster_settings_with_other_batches_are_told_and_not_recommended():
    def differs(setting: Setting) -> str:
        return "the values differ" if setting.fuse else ""

    made = Made(lambda setting: 300.0 if setting.fuse else threads_are_faster(setting), differs=differs)
    outcome = made.search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"worker_method": "thread"}
    assert max(outcome.trials, key=lambda trial: trial.speedup).differs == "the values differ"


def test_a_difference_that_only_the_long_comparison_finds_leads_back_to_the_setting_before():
    def speed(setting: Setting) -> float:
        return threads_are_faster(setting) * (2.0 if setting.fuse == "auto" else 1.0)

    made = Made(speed, checked=lambda setting: "batch 9" if setting.worker_method == "thread" else "")
    outcome = made.search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"fuse": "auto"}
    assert [trial.differs for trial in outcome.trials if trial.setting.worker_method == "thread"].count("batch 9") == 1


def test_a_setting_that_fails_is_kept_with_its_reason_and_the_others_are_tried():
    def speed(setting: Setting) -> float:
        if setting.resident is not None:
            raise ConfigError("the dataset is random. Do this\nand more")
        if setting.seeding == "torch":
            raise ZeroDivisionError("by zero")
        return threads_are_faster(setting)

    outcome = Made(speed).search()
    failed = {trial.failed for trial in outcome.trials if trial.failed}
    assert failed == {"the dataset is random", "ZeroDivisionError: by zero"}
    assert outcome.best is not None


def test_an_error_of_the_present_setting_is_raised():
    def speed(setting: Setting) -> float:
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        Made(speed).search()


def test_a_loader_that_never_repeats_itself_recommends_nothing():
    draw = random.Random(1)
    outcome = Made(threads_are_faster, differs=lambda setting: f"batch {draw.random()}").search()
    assert outcome.best is None
    assert outcome.present.differs


@given(st.floats(0.1, 20.0), st.floats(1.0, 60.0))
def test_the_time_is_kept_as_far_as_slices_allow(slice_s, seconds):
    made = Made(threads_are_faster, slice_s=slice_s)
    outcome = made.search(seconds)
    # The first slices, one candidate of the first two stages with the best before it, the batches and three pairs.
    assert made.now <= max(1.25 * seconds, 12 * slice_s) + 2 * slice_s
    assert outcome.best is not None


def test_what_is_much_faster_is_recommended_though_slices_take_most_of_the_time():
    def speed(setting: Setting) -> float:
        return threads_are_faster(setting) * (6.0 if setting.fuse == "auto" else 1.0)

    made = Made(speed, slice_s=3.0)
    outcome = made.search(30.0)
    assert outcome.best is not None
    assert outcome.best.gain is not None
    assert outcome.best.gain.low > 5
    assert outcome.not_tried > 0, "what would have left no time for the comparison"
    assert made.now <= 1.25 * 30.0


VALUES = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40)


@given(VALUES)
def test_the_interval_holds_the_median_and_lies_among_the_values(values):
    found = median_interval(values)
    assert found.value == statistics.median(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


@pytest.mark.parametrize(("number", "place"), [(1, 0), (5, 0), (6, 0), (9, 1), (15, 3), (30, 9)])
def test_so_many_values_are_left_out_at_each_end(number, place):
    # As tables of the sign test have it, for 95 %.
    values = [float(one) for one in range(number)]
    found = median_interval(values)
    assert (found.low, found.high) == (place, number - 1 - place)


def test_it_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(0)
    held = 0
    for _ in range(400):
        found = median_interval([draw.lognormvariate(0, 1) for _ in range(12)])
        held += found.low <= 1.0 <= found.high
    assert held >= 0.93 * 400
