"""Verdicts: by their rules from made-up steps, and of real scripts of which the answer is known."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiled import record_in_fork
from test_blame import rank_of as one_rank
from test_blame import ranks, step_of, task_of

from fastload.profiling.analyze import analyze
from fastload.profiling.blame import BlamedStep
from fastload.profiling.dominant import dominant
from fastload.profiling.reader import read_trace
from fastload.profiling.schema import Analysis, Interval, RankAnalysis, Verdict
from fastload.profiling.trace import Rank, Sample, Span, StageSpan, TaskSpan, Trace, TracedBatch, TracedStep
from fastload.profiling.verdict import Facts, Judgement, ratio_interval
from fastload.profiling.workers import stages_of

MS = 1_000_000


def facts_of(**values: Any) -> Facts:
    fields: dict[str, Any] = {
        "clock": "host",
        "cores": 8,
        "total_workers": 2,
        "wanted": 8.0,
        "method": "process",
        "probe_p50_ns": None,
        "dominant": None,
        "hottest": None,
        "unusual": [],
        "overhead": None,
        "held_up_by": None,
    }
    return Facts(**{**fields, **values})


def judge(steps: Sequence[BlamedStep], facts: Facts) -> Verdict:
    return Judgement(steps, facts).verdict()


def steps_of(number: int = 60, loop_ms: int = 10, unusual: float = 0.0, **parts_ms: float) -> list[BlamedStep]:
    """Return steps that all lost the same; underscores in the names of states stand for hyphens."""
    parts = {state.replace("_", "-"): round(ms * MS) for state, ms in parts_ms.items()}
    stall = sum(parts.values())
    made = []
    for place in range(number):
        batch = TracedBatch(number=place, drawn=None, sampler_ns=None)
        step = TracedStep(place, 0, 0, Span(0, stall), batch, [], False, loop_ms * MS)
        made.append(
            BlamedStep(step, stall + loop_ms * MS, stall, parts, round(unusual * stall), round(unusual * stall))
        )
    return made


@pytest.mark.parametrize(
    ("parts", "facts", "cause"),
    [
        ({"read": 8, "sample": 2}, {}, "read"),
        ({"read": 2, "stage:Decode": 5, "sample": 3}, {}, "cpu"),
        ({"collate": 8, "transport": 1}, {}, "cpu"),
        ({"sampler": 8, "transport": 3}, {}, "sampler"),
        ({"transport": 6, "sample": 3}, {}, "transport"),
        ({"main-thread": 6, "sample": 3}, {}, "transport"),
        ({"pin": 6, "sample": 3}, {}, "pin"),
        ({"startup": 6, "sample": 3}, {}, "startup"),
        ({"run_queue": 6, "sample": 3}, {"cores": 2, "total_workers": 8}, "oversubscribed"),
        ({"run_queue": 6, "sample": 3}, {"cores": 2, "total_workers": 8, "wanted": 0.5}, "cpu"),
        ({"run_queue": 6, "read": 3, "sample": 0.3}, {"cores": 2, "total_workers": 0}, "read"),
        ({"run_queue": 6, "read": 3, "sample": 0.3}, {"cores": 2, "total_workers": 8}, "read"),
        ({"run_queue": 6, "sample": 3}, {"cores": 2, "total_workers": 2}, "cpu"),
        ({"run_queue": 2, "sample": 6}, {"cores": 2, "total_workers": 3}, "cpu"),
        ({"run_queue": 2, "read": 6}, {"cores": 2, "total_workers": 8}, "read"),
        ({"gil": 5, "sample": 4}, {"method": "thread", "probe_p50_ns": 5 * MS}, "gil"),
        ({"read": 8, "sample": 1}, {"method": "thread", "probe_p50_ns": 5 * MS}, "read"),
        ({"sample": 8}, {"method": "process", "probe_p50_ns": 5 * MS}, "cpu"),
        ({"sample": 0.2}, {}, "compute"),
        ({"run_queue": 0.4, "transport": 0.3}, {}, "compute"),
        ({"run_queue": 0.4, "transport": 0.3, "sample": 0.1}, {}, "cpu"),
    ],
)
def test_the_cause_is_what_most_of_the_stall_speaks_for(parts, facts, cause):
    assert judge(steps_of(**parts), facts_of(**facts)).cause == cause


def test_the_order_is_to_blame_before_what_the_late_batch_was_at_and_severity_follows_the_share():
    assert judge(steps_of(read=10, unusual=0.5), facts_of()).cause == "head-of-line"
    assert judge(steps_of(read=10, unusual=0.2), facts_of()).cause == "read"
    found = {ms: judge(steps_of(loop_ms=100, read=ms), facts_of()).severity for ms in (1, 10, 50)}
    assert found == {1: "none", 10: "moderate", 50: "severe"}


@pytest.mark.parametrize(
    ("steps", "facts", "why"),
    [
        (steps_of(29, read=10), {}, "29 steady steps"),
        (steps_of(60, read=10), {"overhead": 0.03}, "3.0 %"),
        (steps_of(59, loop_ms=10) + steps_of(1, read=200), {}, "the stall is between"),
    ],
)
def test_there_is_no_verdict_where_the_data_are_thin(steps, facts, why):
    found = judge(steps, facts_of(**facts))
    assert found.cause is None
    assert why in found.sentence


def test_a_device_that_is_fed_may_wait_for_copies_or_for_its_main_thread():
    copied, starved = steps_of(), steps_of()
    for one in copied:
        one.step.copy_ns = 2 * MS
    for one in starved:
        one.step.loop_runnable_ns = MS
    assert judge(copied, facts_of(clock="device")).cause == "copy"
    assert judge(starved, facts_of(clock="device")).cause == "launch-starved"
    assert judge(starved, facts_of(clock="host")).cause == "compute"
    for one in copied:
        one.step.copy_ns = 0
    assert judge(copied, facts_of(clock="device")).cause == "compute"


def test_waits_that_other_programs_cause_are_not_blamed_on_the_loader():
    steps = steps_of(loop_ms=30, transport=3)
    assert judge(steps, facts_of()).cause == "transport"
    for one in steps:
        one.step.loop_cpu_ns, one.step.loop_runnable_ns = MS // 10, MS
    found = judge(steps, facts_of())
    assert found.cause == "compute"
    assert any("quiet machine" in line for line in found.evidence)
    assert judge(steps, facts_of(total_workers=20)).cause == "transport", "its own workers may have them"
    for one in steps:
        one.step.loop_cpu_ns = 20 * MS
    assert judge(steps, facts_of()).cause == "transport", "the main thread gets a core"


def test_the_interval_holds_the_value_and_grows_with_the_spread():
    even = ratio_interval([10.0] * 60, [20.0] * 60)
    assert even == Interval(0.5, 0.5, 0.5)
    found = ratio_interval([1.0] * 30 + [30.0] * 30, [11.0] * 30 + [40.0] * 30)
    assert found.low < found.value < found.high


# -- ranks ------------------------------------------------------------------------------------------------------------


def rank_of(number: int | None, waits_ms: list[int], loops_ms: list[int]) -> Rank:
    steps, at = [], 0
    for place, (wait, loop) in enumerate(zip(waits_ms, loops_ms, strict=True)):
        begun, at = at, at + wait * MS
        task = TaskSpan(begun, at, 0, 1, begun, at, wait * MS, 0)
        batch = TracedBatch(number=place, drawn=None, sampler_ns=None, tasks=[task], iterator=0, loader=0)
        steps.append(TracedStep(place, 0, 0, Span(begun, at), batch, [], False, loop * MS))
        at += loop * MS
    return Rank(number, 100 + (number or 0), 8, {0: {"num_workers": 1}}, steps, [])


def trace_of(*of: Rank, warmup: int = 0) -> Trace:
    return Trace(list(of), ["train.py"], {}, {"python": "3.13.0"}, warmup, hooks_ns=1e3)


def later(rank: Rank, ms: int) -> Rank:
    late = ms * MS
    steps = [replace(one, wait=Span(one.wait.begun + late, one.wait.ended + late)) for one in rank.steps]
    return replace(rank, steps=steps, process=rank.process + 1)


def by_turns(number: int) -> Rank:
    waits = [30 * ((place % 9 < 5) == (number == 0)) + 1 for place in range(60)]
    return rank_of(number, waits, [60 - wait for wait in waits])


QUICK, SLOW = rank_of(None, [1] * 60, [39] * 60), rank_of(None, [30] * 60, [10] * 60)
RANKS: dict[str, tuple[list[Rank], str | None]] = {
    "the one that is late": (
        [rank_of(0, [1] * 50, [49] * 50), rank_of(1, [40] * 50, [10] * 50), rank_of(2, [1] * 50, [49] * 50)],
        "rank 1",
    ),
    "none that are late together": ([rank_of(number, [40] * 50, [1] * 50) for number in (0, 1)], None),
    "none that are late by turns, even one more often": ([by_turns(0), by_turns(1)], None),
    "a process without a rank": ([QUICK, later(SLOW, 1)], "process 101"),
    "no program that runs after another one": ([QUICK, later(SLOW, 2400)], None),
    "no program at its own pace": ([rank_of(None, [1] * 60, [9] * 60), later(SLOW, 1)], None),
}


@pytest.mark.parametrize("case", RANKS)
def test_of_several_ranks_one_that_the_others_wait_for_is_named(case):
    traced, late = RANKS[case]
    found = analyze(trace_of(*traced))
    said = {line.partition(" gets its")[0] for rank in found.ranks for line in rank.verdict.evidence if "late" in line}
    assert said == ({late} if late else set())
    assert (found.culprit is None) == (not (late or "").startswith("rank"))


def stalled(
    *, worker_ms: tuple[int, ...] = (40, 40), number: int = 60, waits_ms: Sequence[int] = (), **task: Any
) -> Rank:
    """Return a rank of which each wait is that of its batch; ``worker_ms``: what a batch of each worker takes."""
    waits = waits_ms or worker_ms
    rank = rank_of(None, [waits[place % len(waits)] for place in range(number)], [2] * number)
    rank.loaders = {0: {"num_workers": len(worker_ms)}}
    for place, step in enumerate(rank.steps):
        (one,) = step.batch.tasks
        one.worker = place % len(worker_ms)
        one.samples = [Sample(one.begun, one.ended, place, 1, [])]
        for name, value in task.items():
            setattr(one, name, value(one) if callable(value) else value)
    return rank


def blurred(share: float) -> Any:
    """Return samples of which a transform takes a share."""

    def samples(task: TaskSpan) -> list[Sample]:
        until = task.begun + int(share * task.ns)
        stage = StageSpan(task.begun, until, "GaussianBlur", until - task.begun)
        return [Sample(task.begun, task.ended, 0, 1, [stage])]

    return samples


def test_a_transform_that_takes_most_of_the_workers_time_is_the_headline():
    (rank,) = analyze(trace_of(stalled(samples=blurred(0.88)))).ranks
    assert rank.verdict.cause == "cpu"
    assert rank.verdict.sentence.startswith("Limited by GaussianBlur: it takes 88 % of the workers' time")
    (rank,) = analyze(trace_of(stalled(samples=blurred(0.4)))).ranks
    assert rank.verdict.sentence.startswith("Limited by the CPU")
    hot = dominant({"GaussianBlur": 0.88, "sample": 0.12})
    verdict = judge(steps_of(run_queue=6, sample=3), facts_of(cores=2, total_workers=8, dominant=hot))
    assert verdict.cause == "oversubscribed"
    assert "more workers will not help, a cheaper GaussianBlur will (88 % of the workers' time)" in verdict.sentence


def test_a_fix_against_the_transform_that_takes_most_of_a_sample_is_named():
    found = analyze(trace_of(stalled(samples=blurred(0.88))))
    (rank,) = found.ranks
    stage = dominant(rank.workers.stages_ms)
    assert stage is not None
    assert stage.stage == "GaussianBlur"
    assert stage.share == pytest.approx(0.88)
    assert "a cheaper GaussianBlur" in [fix.title for fix in found.fixes]


def test_samples_that_a_dataset_makes_at_once_share_the_times_of_their_stages():
    rank = stalled(samples=lambda task: [replace(*blurred(0.75)(task), weight=4)], num_samples=4)
    tasks = [task for step in rank.steps for task in step.batch.tasks]
    assert stages_of(tasks) == pytest.approx({"GaussianBlur": 7.5, "sample": 2.5})


def test_waiting_for_a_core_is_no_part_of_a_stage_wherever_it_was_waited():
    """Of 40 ms a task computes 10, of these 8 in its transform, and waits for a core during the rest."""

    def half(task: TaskSpan) -> list[Sample]:
        (sample,) = blurred(0.5)(task)
        sample.stages[0].cpu_ns = 8 * MS
        return [sample]

    rank = stalled(samples=half, cpu_ns=10 * MS, runnable_ns=30 * MS)
    tasks = [task for step in rank.steps for task in step.batch.tasks]
    assert stages_of(tasks) == pytest.approx({"GaussianBlur": 8.0, "sample": 2.0})


def test_the_level_that_was_recorded_is_not_recommended():
    rank = stalled()
    for level, found in ((None, True), (1, True), (2, False)):
        rank.level = level
        (line,) = [line for line in analyze(trace_of(rank)).ranks[0].verdict.evidence if "workers' time" in line]
        assert ("--level 2 shows which transform" in line) == found
        assert ("--level 2 found no stage" in line) != found


def test_a_worker_that_is_slow_at_all_of_its_samples_is_named_and_one_with_stragglers_is_not():
    (one,) = analyze(trace_of(stalled(worker_ms=(10, 10, 40)))).ranks
    assert (one.workers.slowest, one.workers.slowest_over_median) == (2, pytest.approx(4.0))
    # Of worker 1, each tenth sample takes 40 times as long as others: five times as long in the mean.
    times = [400 if place % 20 == 1 else 10 for place in range(20)]
    (one,) = analyze(trace_of(stalled(worker_ms=(10, 10), number=120, waits_ms=times))).ranks
    assert one.workers.slowest_over_median == pytest.approx(1.0)
    assert not any(line.startswith("worker") for line in one.verdict.evidence)


# -- what is odd ------------------------------------------------------------------------------------------------------


def unsound(value: Any, place: str = "") -> list[str]:
    """Return which numbers in JSON are below zero, or none."""
    if isinstance(value, dict):
        return [found for key, one in value.items() for found in unsound(one, f"{place}.{key}")]
    if isinstance(value, list):
        return [found for one in value for found in unsound(one, place)]
    is_sound = not isinstance(value, int | float) or value >= 0
    return [] if is_sound and value != math.inf else [f"{place}: {value}"]


@given(one=ranks(), other=ranks(), alone=st.booleans(), warmup=st.integers(0, 4))
@settings(max_examples=30)
def test_whatever_was_recorded_comes_to_something_with_no_number_below_zero(one, other, alone, warmup):
    found = analyze(trace_of(*([one] if alone else [one, other]), warmup=warmup))
    assert unsound(json.loads(found.to_json())) == []
    for rank in found.ranks:
        lost = sum(rank.blame_ms.values())
        assert lost == pytest.approx(rank.stall.value * rank.step_ms.value, abs=1e-6) or lost > rank.step_ms.value
        assert rank.stall.low <= rank.stall.value <= rank.stall.high <= 1.0


def test_samples_that_stand_for_others_and_take_no_time_share_their_tasks():
    steps = []
    for number in range(60):
        begun = number * 20 * MS
        task = task_of(begun, begun + 10 * MS, num_samples=16, samples=[Sample(begun, begun, 0, 16)])
        steps.append(step_of(number, begun, begun + 10 * MS, [task], loop_ns=10 * MS))
    tasks = [task for step in steps for task in step.batch.tasks]
    assert sum(stages_of(tasks).values()) == pytest.approx(10 / 16)


def test_a_stall_of_which_nothing_is_known_has_no_verdict():
    steps = [step_of(number, number * 20 * MS, (number * 20 + 10) * MS, [], loop_ns=10 * MS) for number in range(60)]
    (rank,) = analyze(trace_of(one_rank(steps))).ranks
    assert rank.blame_ms == {"other": pytest.approx(10.0)}
    assert rank.verdict.cause is None
    assert rank.verdict.sentence.startswith("No verdict: the cause of 100 % of the stall is unknown")


def with_validation(number: int, work_ms: float, loop_ms: float, every: int, wait_ms: float) -> Rank:
    """Return a run with one worker where after every so many steps another loader is waited for, and 60 ms follow."""
    steps: list[TracedStep] = []
    at = made = 0
    for place in range(number):
        free, made = made, max(made, at - int(loop_ms * MS)) + int(work_ms * MS)
        task = task_of(max(free, made - int(work_ms * MS)), made, cpu_ns=0)
        begun, at = at, max(at, made)
        steps.append(step_of(len(steps), begun, at, [task], loop_ns=int(loop_ms * MS)))
        at += int(loop_ms * MS)
        if place % every == every - 1:
            begun, at = at, at + int(wait_ms * MS)
            batch = TracedBatch(
                number=0, drawn=None, sampler_ns=None, tasks=[task_of(begun, at)], iterator=99, loader=1
            )
            steps.append(TracedStep(len(steps), 1, 99, Span(begun, at), batch, [], True, 60 * MS))
            at += 60 * MS
    torchs = {"engine": "torch", "torchs": True, "num_workers": 1, "dataset": "a.Train"}
    return replace(one_rank(steps), loaders={0: torchs, 1: {"num_workers": 0, "dataset": "a.Val"}})


def test_a_validation_within_a_pass_is_a_part_of_its_loop():
    """After each 25th step 100 ms go into a validation. 30 ms of work and 10 of loop: two workers make 15."""
    found = analyze(trace_of(with_validation(100, 30.0, 10.0, 25, 40.0), warmup=8))
    assert found.costs is not None
    number = found.ranks[0].num_steps
    validations = number // 26 + 1
    assert found.costs.loop_ms == pytest.approx(
        ((number - validations) * 10.0 + validations * 100.0) / number, rel=0.02
    )
    assert found.costs.batch_ms == pytest.approx(30.0 * (number - validations) / number, rel=0.02)
    (more,) = [fix for fix in found.fixes if fix.title.startswith("num_workers")]
    assert more.change.splitlines()[1].endswith("  # of Train")


def test_of_several_loaders_the_one_that_was_waited_for_is_named_and_changed():
    rank = with_validation(100, 10.0, 20.0, 4, 150.0)
    (found,) = analyze(trace_of(rank, warmup=5)).ranks
    assert found.loader["dataset"] == "a.Val"
    assert "100 % of the stall is waiting for the loader of Val" in found.verdict.evidence


# -- real scripts -----------------------------------------------------------------------------------------------------

KIT = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info


def spin(ms):
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


class Made(Dataset):
    def __init__(self, number, get):
        self.number, self.get = number, get
        self.samples = [(f"{index}.jpg", 0) for index in range(number)]

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return self.get(index)


def train(loader, ms, passes=1):
    for _ in range(passes):
        for batch in loader:
            time.sleep(ms / 1e3)
"""

SCRIPTS: dict[str, tuple[str, str]] = {
    "slow reads": ("read", "def get(i): time.sleep(0.005); return i\ntrain(DataLoader(Made(192, get), 4, WORKERS), 2)"),
    "busy samples": ("cpu", "def get(i): spin(4); return i\ntrain(DataLoader(Made(192, get), 4, WORKERS), 2)"),
    "slow sampler": (
        "sampler",
        "class Slow(Sampler):\n    def __init__(self): pass\n    def __len__(self): return 192\n"
        "    def __iter__(self):\n        for i in range(192): time.sleep(0.004); yield i\n"
        "def get(i): return i\ntrain(DataLoader(Made(192, get), 4, sampler=Slow(), WORKERS), 2)",
    ),
}
WITH_WORKERS: dict[str, tuple[str, str]] = {
    "big pickles": (
        "transport",
        "big = [str(i) for i in range(100_000)]\ndef get(i): return big\ndef keep(batch): return batch\n"
        "train(DataLoader(Made(90, get), 2, WORKERS, collate_fn=keep), 2)",
    ),
    "one slow sample in fifty": (
        "head-of-line",
        "def get(i): time.sleep(0.2 if i % 50 == 7 else 0.001); return i\n"
        "train(DataLoader(Made(360, get), 6, WORKERS), 4)",
    ),
    "one slow worker": (
        "head-of-line",
        "def get(i): time.sleep(0.02 if get_worker_info().id else 0.001); return i\n"
        "train(DataLoader(Made(192, get), 4, WORKERS), 4)",
    ),
    "a busy loop": ("compute", "def get(i): return i\ntrain(DataLoader(Made(40, get), 1, WORKERS), 80)"),
    "many short passes": (
        "startup",
        "def get(i): return i\ndef wake(worker): time.sleep(0.1)\n"
        "train(DataLoader(Made(24, get), 4, WORKERS, worker_init_fn=wake), 4, 8)",
    ),
}
OURS: dict[str, tuple[str, str]] = {
    "fastload, threads that compute in Python": (
        "gil",
        "import fastload\ndef get(i): spin(4); return i\n"
        "train(fastload.DataLoader(Made(192, get), 4, WORKERS, worker_method='thread'), 2)",
    ),
}
CASES = [
    *((name, cause, body, workers) for name, (cause, body) in SCRIPTS.items() for workers in (0, 2)),
    *((name, cause, body, 2) for name, (cause, body) in (WITH_WORKERS | OURS).items()),
    ("more workers than cores", "oversubscribed", SCRIPTS["busy samples"][1], 4 * len(os.sched_getaffinity(0))),
]


def recorded(folder: Path, body: str, workers: int) -> Analysis:
    """Record a script of which ``WORKERS`` stands for the number of workers; return what the recording comes to."""
    body = textwrap.indent(body.replace("WORKERS", f"num_workers={workers}"), "    ")
    record_in_fork(folder, f"{KIT}\n\nif __name__ == '__main__':\n{body}\n", warmup=5)
    return analyze(read_trace(str(folder)))


def told(rank: RankAnalysis) -> str:
    """Return what to look at if a verdict is wrong."""
    return "\n".join([rank.verdict.sentence, *rank.verdict.evidence, str(rank.blame_ms), str(rank.workers)])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cause", "body", "workers"), CASES, ids=[f"{case[0]}, {case[3]}" for case in CASES])
def test_the_verdict_on_a_script_of_which_the_answer_is_known(name, cause, body, workers, tmp_path):
    (rank,) = recorded(tmp_path, body, workers).ranks
    assert rank.verdict.cause == cause, told(rank)
    lost = sum(rank.blame_ms.values())
    assert rank.blame_ms.get("other", 0.0) <= 0.05 * lost
    assert lost == pytest.approx(rank.stall.value * rank.step_ms.value, rel=1e-6)
    assert rank.workers.number == workers
    files = [sample.file or sample.index for sample in rank.slow_samples]
    assert len(files) == len(set(files)), "a sample of several epochs is listed once"
    if name == "one slow sample in fifty":
        slowest = rank.slow_samples[:5]
        assert {sample.index for sample in slowest} <= {i for i in range(360) if i % 50 == 7}
        assert [sample.file for sample in slowest] == [f"{sample.index}.jpg" for sample in slowest]
