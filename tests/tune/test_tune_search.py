"""The search, with a loader that is made of numbers: no clock, no processes."""

from __future__ import annotations

import ast
import dataclasses
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fastload.base import console
from fastload.errors import ConfigError
from fastload.tune.report import Compared, Slice, Trial, TuneReport, median_interval
from fastload.tune.search import Search
from fastload.tune.settings import STAGES, Machine, TuneSetting, as_call, as_options, candidates

PRESENT = TuneSetting(
    num_workers=2, worker_method="multiprocessing", prefetch_factor=2, fuse=False, chunk_size=None, resident=None
)


@dataclass
class Made:
    """Measures settings by a formula, with noise; each slice takes a second of its own clock."""

    speed: Callable[[TuneSetting], float]
    noise: float = 0.0
    cpu_s: float | Callable[[TuneSetting], float] | None = None
    stages: dict[str, float] = field(default_factory=dict)
    differs: Callable[[TuneSetting], str] = lambda setting: ""
    checked: Callable[[TuneSetting], Compared] = lambda setting: Compared()
    drawn: Callable[[TuneSetting], Compared] = lambda setting: Compared()
    others: float = 0.0
    """Processors that other programs use; they crowd this one out, if there are any."""
    slice_s: float = 0.5
    now: float = 0.0
    seen: list[TuneSetting] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def measure(self, setting: TuneSetting) -> Slice:
        self.now += self.slice_s
        self.seen.append(setting)
        rate = self.speed(setting) * self.draw.lognormvariate(0, self.noise)
        found = dataclasses.replace(self.drawn(setting), differs=self.differs(setting))
        cpu_s = self.cpu_s(setting) if callable(self.cpu_s) else self.cpu_s
        crowd = {"others": self.others, "crowded": True} if self.others else {}
        return Slice(rate=rate, first_s=0.1, cpu_s=cpu_s, stages=self.stages, found=found, **crowd)

    def check(self, setting: TuneSetting) -> Compared:
        self.now += self.slice_s
        return self.checked(setting)

    def search(self, seconds: float = 30.0, present: TuneSetting = PRESENT) -> TuneReport:
        report = TuneReport(present=Trial(present))
        Search(report, self, Machine(processors=2), seconds, lambda: self.now).run()
        return report


def threads_are_faster(setting: TuneSetting) -> float:
    return 100.0 * (1.7 if setting.worker_method == "thread" else 1.0)


def test_gains_of_several_stages_are_joined():
    def speed(setting: TuneSetting) -> float:
        return threads_are_faster(setting) * (2.0 if setting.fuse == "auto" else 1.0) * setting.num_workers

    outcome = Made(speed, noise=0.02).search()
    assert outcome.best is not None
    wanted = {"fuse": "auto", "worker_method": "thread", "num_workers": 4}
    assert outcome.best.setting.changes(PRESENT) == wanted
    assert outcome.best.gain is not None
    assert outcome.best.gain.low <= 6.8 <= outcome.best.gain.high
    assert outcome.best.speedup == pytest.approx(6.8, rel=0.1)


@pytest.mark.parametrize(
    ("cpu_s", "read", "threads"),
    [(0.001, 0.9, {1, 4, 16, 64}), (0.001, 0.2, {1}), (0.02, 0.9, {1}), (None, 0.9, {1, 4, 16, 64})],
    ids=["workers wait", "they have nothing to do", "they wait for the GIL", "a system that says less"],
)
def test_several_samples_at_a_time_are_tried_where_workers_wait(cpu_s, read, threads):
    def speed(setting: TuneSetting) -> float:
        return 100.0 * min(setting.worker_threads, 20)

    made = Made(speed, noise=0.02, cpu_s=cpu_s, stages={"read": read, "transform": 1 - read})
    outcome = made.search()
    assert {one.worker_threads for one in made.seen} == threads
    if len(threads) > 1:
        assert outcome.best is not None
        assert outcome.best.setting.changes(PRESENT)["worker_threads"] in (16, 64)
    else:
        assert outcome.best is None


@pytest.mark.parametrize("queue", [0.9, 0.0])  # the share of the wait for a core; 0: the system does not tell it
def test_waiting_for_a_core_is_no_waiting_for_storage_and_a_larger_share_of_crowded_cores_is_no_gain(queue):
    def speed(setting: TuneSetting) -> float:
        return 50.0 * setting.num_workers * setting.worker_threads

    made = Made(speed, cpu_s=0.002, stages={"queue": queue, "read": 0.9 - queue, "transform": 0.1}, others=1.5)
    outcome = made.search()
    assert {one.worker_threads for one in made.seen} == {1}
    assert max(one.num_workers for one in made.seen) == 4
    assert outcome.best is None
    assert outcome.verdict() == "nothing is recommended: no setting with the same batches was faster in every round"
    assert any("other programs used 1.5 processors" in note for note in outcome.all_notes())


def test_a_setting_that_computes_less_is_recommended_on_crowded_cores_by_that():
    def less(setting: TuneSetting) -> float:
        return 2.0 if setting.fuse == "auto" else 1.0

    stages = {"queue": 0.9, "read": 0.0, "transform": 0.1}
    made = Made(
        lambda one: 50.0 * one.num_workers * less(one), cpu_s=lambda one: 0.002 / less(one), stages=stages, others=1.5
    )
    outcome = made.search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"fuse": "auto"}
    assert outcome.best.speedup == pytest.approx(2.0)


def test_where_all_are_alike_noise_recommends_nothing():
    recommended = 0
    for number in range(60):
        made = Made(lambda setting: 100.0, noise=0.15, draw=random.Random(number))
        recommended += made.search().best is not None
    assert recommended <= 2


def test_faster_settings_with_other_batches_are_told_and_not_recommended():
    def differs(setting: TuneSetting) -> str:
        return "the values differ" if setting.fuse else ""

    made = Made(lambda setting: 300.0 if setting.fuse else threads_are_faster(setting), differs=differs)
    outcome = made.search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"worker_method": "thread"}
    assert max(outcome.trials, key=lambda trial: trial.speedup).found.differs == "the values differ"


def test_a_difference_that_only_the_long_comparison_finds_leads_back_to_the_setting_before():
    def checked(setting: TuneSetting) -> Compared:
        return Compared(differs="batch 9" if setting.worker_method == "thread" else "")

    outcome = Made(lambda one: threads_are_faster(one) * (2.0 if one.fuse == "auto" else 1.0), checked=checked).search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"fuse": "auto"}
    threads = [trial.found.differs for trial in outcome.trials if trial.setting.worker_method == "thread"]
    assert threads.count("batch 9") == 1


def test_a_setting_that_fails_is_kept_with_its_reason_and_the_others_are_tried():
    def speed(setting: TuneSetting) -> float:
        if setting.resident is not None:
            raise ConfigError("the dataset is random. Do this\nand more")
        if setting.seed is not None:
            raise ZeroDivisionError("by zero")
        return threads_are_faster(setting)

    with pytest.raises(ZeroDivisionError):
        Made(speed).search(present=PRESENT.having(seed=1))

    made = Made(speed)
    outcome = made.search()
    assert max(Counter(one for one in made.seen if one.seed is not None or one.resident).values()) == 1
    failed = {trial.failed for trial in outcome.trials if trial.failed}
    assert failed == {"the dataset is random", "ZeroDivisionError: by zero"}
    assert outcome.best is not None


@given(st.floats(0.1, 20.0), st.floats(1.0, 60.0))
@example(3.0, 30.0)  # slices take most of the time
@example(0.99999, 9.5)  # as many slices as there may be, summed in another order
def test_the_time_is_kept_as_far_as_slices_allow(slice_s, seconds):
    made = Made(threads_are_faster, slice_s=slice_s)
    outcome = made.search(seconds)
    # The first slices, one candidate of the first two stages with the best before it, the batches and three pairs.
    assert made.now <= max(1.25 * seconds, 12 * slice_s) + 2 * slice_s + 1e-9
    assert outcome.best is not None


@pytest.mark.parametrize(("number", "place"), [(1, 0), (5, 0), (6, 0), (9, 1), (15, 3), (30, 9)])
def test_so_many_values_are_left_out_at_each_end(number, place):
    # As tables of the sign test have it, for 95 %.
    values = [float(one) for one in range(number)]
    found = median_interval(values[::-1])
    assert (found.low, found.value, found.high) == (place, statistics.median(values), number - 1 - place)


# -- settings ----------------------------------------------------------------------------------------------------------


SETTINGS = st.builds(
    lambda number, **others: PRESENT.having(num_workers=number, **others),
    st.integers(0, 8),
    worker_method=st.sampled_from(["multiprocessing", "thread"]),
    fuse=st.sampled_from([False, True, "auto"]),
    seed=st.sampled_from([None, 1, 7]),
    chunk_size=st.sampled_from([None, "batch", 3]),
    resident=st.sampled_from([None, "host"]),
    cache=st.sampled_from([None, "auto", "64GiB"]),
)


@given(SETTINGS, st.integers(1, 64))
def test_each_candidate_is_another_setting_and_comes_once(best, processors):
    for stage in STAGES:
        found = candidates(stage, best, Machine(processors=processors))
        assert best not in found
        assert len({*found}) == len(found)
        for one in found:
            assert (one.prefetch_factor is None) == (one.num_workers == 0)
            if best.num_workers:
                assert one.num_workers, "without workers nothing is loaded beside the training step"


@given(SETTINGS, SETTINGS)
def test_the_line_to_paste_makes_the_setting_of_the_present_one(present, wanted):
    changes = wanted.changes(present)
    call = ast.parse(as_call(changes).replace("..., ", "").replace("...", "")).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    read = {one.arg: ast.literal_eval(one.value) for one in call.value.keywords if one.arg is not None}
    assert read == changes
    assert present.having(**read) == wanted


def test_all_that_was_asked_for_is_tried():
    present, machine = PRESENT.having(fuse="auto"), Machine(processors=2)
    found = [one.changes(present) for stage in STAGES for one in candidates(stage, present, machine)]
    assert {name for changes in found for name in changes} == {
        *("num_workers", "worker_method", "prefetch_factor", "fuse", "seed", "chunk_size", "resident", "cache")
    }


INLINE = PRESENT.having(num_workers=0)
# A stage, the present setting, facts of the machine, and what is tried in words.
TRIED: list[tuple[int, TuneSetting, dict[str, Any], list[str]]] = [
    (0, PRESENT, {"left_out": frozenset([("fuse", True), ("resident", "host")])}, ['2 processes, fuse="auto"']),
    (1, INLINE, {"waits": True}, [f"2 processes, worker_threads={number}" for number in (16, 4, 64)]),
    (3, INLINE, {"processors": 4}, ["4 processes", "4 threads"]),
    (5, PRESENT, {}, [f"2 processes, {one}" for one in ("prefetch_factor=4", "seed=1", 'chunk_size="batch"')]),
    (
        5,
        PRESENT,
        {"left_out": frozenset([("chunk_size", "batch")])},
        ["2 processes, prefetch_factor=4", "2 processes, seed=1"],
    ),
    (5, PRESENT.having(seed=7), {}, ["2 processes, prefetch_factor=4", '2 processes, chunk_size="batch"']),
]


def test_a_stage_tries_what_a_loader_may_gain_from_and_not_what_is_left_out():
    for stage, present, facts, expected in TRIED:
        found = candidates(STAGES[stage], present, Machine(**{"processors": 2, **facts}))
        assert [one.in_words(present) for one in found] == expected


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"worker_method": "thread", "fuse": True}, "--worker-method=thread --fuse"),
        ({"fuse": False, "chunk_size": 4}, "--fuse=false --chunk-size=4"),
        ({"num_workers": 4, "fuse": True}, None),
        ({"chunk_size": None}, None),
    ],
)
def test_options_of_fastload_run_are_given_where_there_are_some_for_all(changes, options):
    assert as_options(changes) == options


# -- reports -----------------------------------------------------------------------------------------------------------


KEYS = Compared(augmentation="the values differ: batch 0", because="seed=1 gives each sample its own")
STREAMS = Compared(augmentation="the values differ: batch 0", because="each worker has a stream", as_torch=True)
NONE_DRAWN = Compared(because="worker_method='thread' gives each sample its own")


def trial(
    rate: float,
    speedup: float = 1.0,
    differs: str = "",
    number: int = 2,
    drawn: Compared = Compared(),  # noqa: B008 # it is frozen
    **changes: object,
) -> Trial:
    slices = [
        Slice(rate=rate * (1 + 0.1 * one), first_s=0.012, cpu_s=25e-6, memory=5 << 20, stages={"read": 1.0})
        for one in range(number)
    ]
    made = Trial(PRESENT.having(**changes), slices, Compared(differs=differs), speedup=speedup)
    made.learn(drawn)
    return made


def report(outcome: TuneReport, **arguments: object) -> TuneReport:
    return dataclasses.replace(
        outcome,
        **{
            "subject": "train_loader, images, train.py:3",
            "unit": "samples",
            "processors": 2,
            "seconds": 30.4,
            "command": "train.py --epochs 3",
            **arguments,  # type: ignore[arg-type]
        },
    )


@pytest.fixture
def found() -> TuneReport:
    best = trial(2345.6, 2.3, worker_method="thread")
    best.gain = median_interval([2.2, 2.3, 2.4])
    others = trial(9000, 9.0, seed=1, number=1, drawn=KEYS)
    failed = Trial(PRESENT.having(resident="host"), failed="the dataset is random")
    return TuneReport(present=trial(1000), trials=[others, best, failed], best=best)


def said(made: TuneReport, capsys: pytest.CaptureFixture[str]) -> list[str]:
    console.show(made.table())
    return capsys.readouterr().out.splitlines()


def test_the_table_has_a_row_for_each_setting_the_recommended_one_first_and_others_last(found, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    lines = said(report(found), capsys)
    rows = [" ".join(line.split()) for line in lines]
    at = rows.index("▶ 2 threads 2,463 [2,346 - 2,580] 2.30 12 ms 25 µs 5 MiB same")
    assert rows[at + 1] == "2 processes (present) 1,050 [1,000 - 1,100] 1.00 12 ms 25 µs 5 MiB same"
    assert rows[at + 2].startswith("2 processes, seed=1 9,000 9.00 12 ms")
    assert rows[at + 2].endswith("other augmentation")
    assert "2.30 times [2.20 - 2.40] as fast as now, with the same batches" in rows
    assert '    DataLoader(..., worker_method="thread")' in lines
    assert "    fastload run --worker-method=thread train.py --epochs 3" in lines
    assert '  2 processes, resident="host": the dataset is random' in lines
    said_of_it = "2 processes, seed=1 is faster still, but with other augmentation (the values differ: batch 0), since"
    assert any(said_of_it in row for row in rows)


def test_the_json_says_the_same(found):
    read = json.loads(report(found).to_json())
    assert read["recommended"] == {"worker_method": "thread"}
    assert read["line"] == 'DataLoader(..., worker_method="thread")'
    assert read["command"] == "fastload run --worker-method=thread train.py --epochs 3"
    assert read["best"]["gain"] == {"value": 2.3, "low": 2.2, "high": 2.4}
    assert [one["rate"] for one in read["present"]["slices"]] == [1000, 1100]
    assert [one["found"]["augmentation"] for one in read["trials"]] == ["the values differ: batch 0", "", ""]
    assert [one["found"]["differs"] for one in read["trials"]] == ["", "", ""]
    assert read["trials"][2]["slices"] == []
    assert json.loads(report(found, command="").to_json())["command"] is None


@pytest.mark.parametrize(
    ("drawn", "number", "verdict", "word"),
    [
        (Compared(), 4, ", with the same batches", "same"),
        (
            STREAMS,
            4,
            ", with torch's batches with 4 processes: the augmentation is another than now, since each worker has a",
            "torch's with 4 processes",
        ),
        (STREAMS, 0, ", with torch's batches without workers: the augmentation", "torch's without workers"),
        (NONE_DRAWN, 4, "; the batches that were compared are equal and draw nothing, others may", "same so far"),
    ],
)
def test_which_batches_a_recommended_setting_gives_is_said(drawn, number, verdict, word, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    best = trial(3000, 3.0, drawn=drawn, num_workers=number)
    best.gain = median_interval([3.0])
    assert best.eligible
    made = report(TuneReport(present=trial(1000), trials=[best], best=best))
    assert made.verdict().removeprefix("3.00 times [3.00 - 3.00] as fast as now").startswith(verdict)
    (row,) = (line for line in said(made, capsys) if line.startswith("▶"))
    assert row.endswith(word)


def test_other_augmentation_is_recommended_only_where_torch_has_the_same_with_these_workers():
    def drawn(setting: TuneSetting) -> Compared:
        if setting.seed is not None or setting.worker_method == "thread":
            return KEYS
        return STREAMS if setting.num_workers != PRESENT.num_workers else Compared()

    def speed(setting: TuneSetting) -> float:
        return threads_are_faster(setting) * (3.0 if setting.seed is not None else 1.0) * setting.num_workers

    outcome = Made(speed, noise=0.02, drawn=drawn, checked=drawn).search()
    assert outcome.best is not None
    assert outcome.best.setting.changes(PRESENT) == {"num_workers": 4}
    (seeded,) = (trial for trial in outcome.trials if trial.setting.seed == 1)
    assert seeded.setting.num_workers == 4
    assert seeded.speedup > 2.5 * outcome.best.speedup
    made = report(outcome)
    assert any(note.startswith("4 processes, seed=1 is faster still, but with other") for note in made.all_notes())
    assert "same batches" not in made.verdict()


@pytest.mark.parametrize(
    ("runner_up", "message"),
    [
        (None, "no setting with the same batches was faster in every round"),
        ("noise", "4 processes was 1.10 times [0.90 - 1.20] as fast, which may be noise"),
        ("differs", "in the last comparison, 4 processes gives other batches (batch 3)"),
    ],
)
def test_where_nothing_is_recommended_the_reason_is_said(runner_up, message):
    outcome = TuneReport(present=trial(1000))
    if runner_up is not None:
        outcome.runner_up = trial(1100, 1.1, num_workers=4, differs="batch 3" if runner_up == "differs" else "")
        outcome.runner_up.gain = median_interval([0.9, 1.1, 1.2])
    made = report(outcome)
    assert made.verdict() == f"nothing is recommended: {message}"
    assert made.recommended() == {}
    assert ("more time may help: --seconds 100" in made.all_notes()) == (runner_up == "noise")


def test_a_loader_that_never_repeats_itself_is_told_so_and_nothing_is_recommended():
    draw = random.Random(1)
    made = report(Made(threads_are_faster, differs=lambda setting: f"batch {draw.random()}").search())
    assert made.recommended() == {}
    assert "gives other batches each time, even with one seed (batch 0." in made.verdict()
    assert "fastload verify" in made.verdict()
