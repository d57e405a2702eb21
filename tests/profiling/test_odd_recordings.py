"""Recordings that are odd: what they come to is sound, or is said not to be known."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiled import Numbers
from test_blame import MS, rank_of, ranks, step_of, task_of
from test_reader import recording
from torch.utils.data import DataLoader

import fastload
from fastload.profiling.analyze import analyze
from fastload.profiling.reader import read_trace
from fastload.profiling.ring import Kind, Ring
from fastload.profiling.trace import Rank, Sample, Span, Trace, TracedBatch, TracedStep
from fastload.profiling.workers import stages_of


def trace_of(*of: Rank, warmup: int = 0) -> Trace:
    return Trace(list(of), ["train.py"], {}, {"python": "3.13.0"}, warmup, hooks_ns=1e3)


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
        task = task_of(begun, begun + 10 * MS, num_samples=16, samples=[Sample(begun, begun, 0, 0, 16)])
        steps.append(step_of(number, begun, begun + 10 * MS, [task], loop_ns=10 * MS))
    tasks = [task for step in steps for task in step.batch.tasks]
    assert sum(stages_of(tasks).values()) == pytest.approx(10 / 16)


def test_a_stall_of_which_nothing_is_known_has_no_verdict():
    steps = [step_of(number, number * 20 * MS, (number * 20 + 10) * MS, [], loop_ns=10 * MS) for number in range(60)]
    (rank,) = analyze(trace_of(rank_of(steps))).ranks
    assert rank.blame_ms == {"other": pytest.approx(10.0)}
    assert rank.verdict.cause is None
    assert rank.verdict.sentence.startswith("No verdict: the cause of 100 % of the stall is unknown")


# -- passes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ends", "cause"), [(True, "startup"), (False, "compute")])
def test_the_start_of_a_pass_whose_end_nobody_knows_is_no_share_of_it(ends, cause):
    """A start of a second, and 60 steps of 10 ms; the loader has no length."""
    begin = 1000 * MS
    steps = [step_of(0, 0, begin, [], startup=[Span(-MS, 0)], first=True, loop_ns=10 * MS)]
    for number in range(1, 80):
        begun = begin + number * 10 * MS
        steps.append(step_of(number, begun, begun, [task_of(begun - MS, begun)], loop_ns=10 * MS))
    if ends:
        steps[-1].ending = Span(begin + 10**10, begin + 10**10)
    (rank,) = analyze(trace_of(rank_of(steps), warmup=5)).ranks
    assert rank.verdict.cause == cause


# -- several loaders --------------------------------------------------------------------------------------------------


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
    torchs = {"engine": "torch", "torchs": True, "num_workers": 1, "dataset": "a.Train", "length": 400}
    return dataclasses.replace(rank_of(steps), loaders={0: torchs, 1: {"num_workers": 0, "dataset": "a.Val"}})


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
    assert more.change.splitlines()[1].endswith("  # of Train with 400 samples")


def test_of_several_loaders_the_one_that_was_waited_for_is_named_and_changed():
    rank = with_validation(100, 10.0, 20.0, 4, 150.0)
    (found,) = analyze(trace_of(rank, warmup=5)).ranks
    assert found.loader["dataset"] == "a.Val"
    assert "100 % of the stall is waiting for the loader of Val" in found.verdict.evidence


# -- processes that do not meet ---------------------------------------------------------------------------------------


def later(rank: Rank, ms: int) -> Rank:
    late = ms * MS
    steps = [dataclasses.replace(one, wait=Span(one.wait.begun + late, one.wait.ended + late)) for one in rank.steps]
    return dataclasses.replace(rank, steps=steps, process=rank.process + 1)


def even(wait_ms: int | list[int], loop_ms: int | list[int]) -> Rank:
    """Return a rank of 60 steps."""
    steps = []
    at = 0
    for number in range(60):
        wait, loop = (ms if isinstance(ms, int) else ms[number] for ms in (wait_ms, loop_ms))
        begun, ended = at, at + wait * MS
        at = ended + loop * MS
        steps.append(step_of(number, begun, ended, [task_of(begun, ended, cpu_ns=0)], loop_ns=loop * MS))
    return rank_of(steps)


def test_a_program_that_runs_after_another_one_or_at_its_own_pace_does_not_hold_it_up():
    quick, slow = even(1, 39), even(30, 10)
    assert "process 2 gets its batches late, and the ranks wait for each other" in (
        analyze(trace_of(quick, later(slow, 1))).ranks[0].verdict.evidence
    )
    for apart in (analyze(trace_of(quick, later(slow, 2400))), analyze(trace_of(even(1, 9), later(slow, 1)))):
        assert not any("late" in line for line in apart.ranks[0].verdict.evidence)


def test_ranks_that_are_late_by_turns_hold_nobody_up_even_if_one_is_more_often():
    late, early = [30 * (place % 9 < 5) + 1 for place in range(60)], [30 * (place % 9 >= 5) + 1 for place in range(60)]
    one, other = (even(waits, [60 - wait for wait in waits]) for waits in (late, early))
    for one_rank, number in ((one, 0), (other, 1)):
        one_rank.rank = number
    assert analyze(trace_of(one, other)).culprit is None


# -- what is heard ----------------------------------------------------------------------------------------------------


def test_a_loader_that_a_dataset_makes_for_itself_begins_no_pass_of_the_loop(tmp_path):
    """No workers: in the second wait the dataset makes a loader of its own."""
    records = [
        (Kind.EPOCH, 0, 0, 10, 0, 5),
        (Kind.WAIT, 1, 12, 20, 0, 0),
        (Kind.WAIT, 1, 30, 60, 0, 1),
        (Kind.EPOCH, 0, 32, 34, 1, 6),
        (Kind.WAIT, 1, 70, 71, 0, 2),
    ]
    (rank,) = read_trace(recording(tmp_path, records)).ranks
    assert [step.loop_ns for step in rank.steps] == [10, 10, None]
    assert [step.startup for step in rank.steps] == [[Span(0, 10)], [], []]


def ring_of(folder: Path, thread: int, records: list[tuple[int, ...]], capacity: int = 1000, pid: int = 7) -> None:
    ring = Ring(str(folder / f"{pid}-1-{thread}.ring"), capacity, is_main=thread == pid)
    for kind, small, begun, ended, *numbers in records:
        ring.write(kind, 0, small, begun, ended, *numbers)


def test_what_a_thread_that_fetches_ahead_does_is_its_own_work(tmp_path):
    folder = recording(tmp_path, [(Kind.PROBE, 0, 0, 1, 0)])
    inline = [
        (Kind.EPOCH, 0, 0, 10, 0, 5),
        (Kind.WORK, 0, 13, 19, -1, -1, 5, 0, 0),
        (Kind.WAIT, 1, 12, 20, 0, 0),
        (Kind.WAIT, 1, 30, 31, 0, 1),
    ]
    ring_of(tmp_path, 9, inline)
    trace = read_trace(folder)
    (task,) = trace.ranks[0].steps[0].batch.tasks
    assert (task.worker, task.arrived) == (-1, 19)
    assert "the loop behind a thread" in trace.missing


def test_loaders_that_are_made_anew_for_each_pass_keep_their_numbers(tmp_path):
    class Other(Numbers):
        pass

    with fastload.profile(folder=tmp_path) as recorded:
        for _ in range(2):
            list(DataLoader(Numbers(), 4))
            list(DataLoader(Other(), 6))
        one, two = DataLoader(Numbers(), 12), DataLoader(Numbers(), 12)
        list(zip(one, two, strict=True))
    (rank,) = recorded.trace().ranks
    assert [step.loader for step in rank.steps] == [0, 0, 0, 1, 1] * 2 + [2, 3]
