"""Verdicts, evidence and fixes of made-up steps, ranks and traces."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_blame import check_parts, ranks, step_of, task_of
from test_blame import rank_of as one_rank

from fastload.profiling.analyze import analyze
from fastload.profiling.blame import BlamedStep
from fastload.profiling.dominant import Dominant
from fastload.profiling.perfetto import trace_json
from fastload.profiling.schema import Analysis, Cause, Interval, Verdict
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


def steps_of(
    number: int = 60, loop_ms: int = 10, unusual: float = 0.0, of_step: Mapping[str, int] = {}, **parts_ms: float
) -> list[BlamedStep]:
    """Return steps that all lost the same; underscores in the names of states stand for hyphens."""
    parts = {state.replace("_", "-"): round(ms * MS) for state, ms in parts_ms.items()}
    stall = sum(parts.values())
    made = []
    for place in range(number):
        batch = TracedBatch(number=place, drawn=None, sampler_ns=None)
        step = replace(TracedStep(place, 0, 0, Span(0, stall), batch, [], False, loop_ms * MS), **of_step)
        made.append(
            BlamedStep(step, stall + loop_ms * MS, stall, parts, round(unusual * stall), round(unusual * stall))
        )
    return made


FEW_CORES = {"cores": 2, "total_workers": 8}
LATE_THREADS = {"method": "thread", "probe_p50_ns": 5 * MS}
NO_CORE = {"loop_cpu_ns": MS // 10, "loop_runnable_ns": MS}
BLUR = Dominant(stage="GaussianBlur", share=0.88)
WAITING, COPIED = {"loop_runnable_ns": MS}, {"copy_ns": 2 * MS}
JUDGED: list[tuple[list[BlamedStep], dict[str, Any], Cause | None, str]] = [
    # The cause is what most of the stall speaks for.
    (steps_of(read=8, sample=2), {}, "read", "Limited by reading"),
    (steps_of(read=2, sample=3, **{"stage:Decode": 5}), {}, "cpu", "Limited by the CPU"),
    (steps_of(collate=8, transport=1), {}, "cpu", "Limited by collation"),
    (steps_of(sampler=8, transport=3), {}, "sampler", ""),
    (steps_of(transport=6, sample=3), {}, "transport", ""),
    (steps_of(main_thread=6, sample=3), {}, "transport", ""),
    (steps_of(pin=6, sample=3), {}, "pin", ""),
    (steps_of(startup=6, sample=3), {}, "startup", ""),
    (steps_of(sample=0.2), {}, "compute", "Not limited by its input"),
    # The order is to blame before what the late batch was at.
    (steps_of(read=10, unusual=0.5), {}, "head-of-line", "already complete during 50 % of the stall"),
    (steps_of(read=10, unusual=0.2), {}, "read", ""),
    # Waiting for a core: of the run's own threads, of a task that was blocked before, or of other programs.
    (steps_of(run_queue=6, sample=3), FEW_CORES, "oversubscribed", "8 workers on 2 cores"),
    (steps_of(run_queue=6, sample=3), FEW_CORES | {"dominant": BLUR}, "oversubscribed", "a cheaper GaussianBlur will"),
    (steps_of(run_queue=6, sample=3), FEW_CORES | {"wanted": 0.5}, "cpu", ""),
    (steps_of(run_queue=6, read=3, sample=0.3), FEW_CORES | {"total_workers": 0}, "read", ""),
    (steps_of(run_queue=6, read=3, sample=0.3), FEW_CORES, "read", ""),
    (steps_of(run_queue=6, sample=3), {"cores": 2, "total_workers": 2}, "cpu", ""),
    (steps_of(run_queue=2, sample=6), {"cores": 2, "total_workers": 3}, "cpu", ""),
    (steps_of(run_queue=2, read=6), FEW_CORES, "read", ""),
    (steps_of(run_queue=0.4, transport=0.3), {}, "compute", ""),
    (steps_of(run_queue=0.4, transport=0.3, sample=0.1), {}, "cpu", ""),
    (steps_of(loop_ms=30, transport=3), {}, "transport", ""),
    (steps_of(loop_ms=30, transport=3, of_step=NO_CORE), {}, "compute", "record again on a quiet machine"),
    (steps_of(loop_ms=30, transport=3, of_step=NO_CORE), {"total_workers": 20}, "transport", ""),
    (steps_of(loop_ms=30, transport=3, of_step=NO_CORE | {"loop_cpu_ns": 20 * MS}), {}, "transport", ""),
    # Waiting for the interpreter.
    (steps_of(gil=5, sample=4), LATE_THREADS, "gil", "got the interpreter 5.0 ms late"),
    (steps_of(read=8, sample=1), LATE_THREADS, "read", ""),
    (steps_of(sample=8), LATE_THREADS | {"method": "process"}, "cpu", ""),
    # A device that is fed may wait for copies, or for its main thread.
    (steps_of(of_step=COPIED), {"clock": "device"}, "copy", "; the loader itself keeps up"),
    (steps_of(of_step=WAITING), {"clock": "device"}, "launch-starved", ""),
    (steps_of(of_step=WAITING), {"clock": "host"}, "compute", ""),
    (steps_of(), {"clock": "device"}, "compute", ""),
    # Where the data are thin, there is no verdict.
    (steps_of(29, read=10), {}, None, "29 steady steps"),
    (steps_of(60, read=10), {"overhead": 0.03}, None, "3.0 %"),
    (steps_of(59, loop_ms=10) + steps_of(1, read=200), {}, None, "the stall is between"),
]


def test_a_verdict_follows_from_what_steps_lost_and_from_the_facts_of_a_run():
    for steps, facts, cause, words in JUDGED:
        found = judge(steps, facts_of(**facts))
        assert (found.cause, facts) == (cause, facts), found
        assert words in "\n".join([found.sentence, *found.evidence])


def test_the_severity_follows_the_share():
    found = {ms: judge(steps_of(loop_ms=100, read=ms), facts_of()).severity for ms in (1, 10, 50)}
    assert found == {1: "none", 10: "moderate", 50: "severe"}


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
    "the later of two": ([rank_of(0, [1] * 50, [49] * 50), rank_of(1, [40] * 50, [10] * 50)], "rank 1"),
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


UNHEARD = one_rank(
    [step_of(number, number * 20 * MS, (number * 20 + 10) * MS, [], loop_ns=10 * MS) for number in range(60)]
)
TRACES: dict[str, tuple[Rank, Cause | None, list[str], list[str]]] = {
    "a transform takes most of the workers' time": (
        stalled(samples=blurred(0.88)),
        "cpu",
        ["Limited by GaussianBlur: it takes 88 % of the workers' time", "fix: a cheaper GaussianBlur"],
        ["--level 2"],
    ),
    "no transform takes most": (stalled(samples=blurred(0.4)), "cpu", ["Limited by the CPU"], ["fix: a cheaper Gauss"]),
    "stages may have been recorded": (stalled(), "cpu", ["--level 2 shows which transform"], ["found no stage"]),
    "stages were not recorded": (
        replace(stalled(), level=1),
        "cpu",
        ["--level 2 shows which transform"],
        ["found no stage"],
    ),
    "there are no stages": (replace(stalled(), level=2), "cpu", ["--level 2 found no stage"], ["shows which transf"]),
    "nothing is known of the work": (
        UNHEARD,
        None,
        ["No verdict: the cause of 100 % of the stall is unknown"],
        ["fix: "],
    ),
}


def test_a_trace_has_its_verdict_with_evidence_and_fixes():
    for case, (traced, cause, says, never) in TRACES.items():
        found = analyze(trace_of(traced))
        (rank,) = found.ranks
        said = "\n".join([rank.verdict.sentence, *rank.verdict.evidence, *(f"fix: {fix.title}" for fix in found.fixes)])
        assert rank.verdict.cause == cause, case
        assert [words for words in says if words not in said] == [], (case, said)
        assert [words for words in never if words in said] == [], (case, said)


def half_of_it(task: TaskSpan) -> list[Sample]:
    """Return a sample of which a transform takes half the time, and computes for 8 ms."""
    (sample,) = blurred(0.5)(task)
    sample.stages[0].cpu_ns = 8 * MS
    return [sample]


STAGES: dict[str, tuple[Rank, dict[str, float]]] = {
    "samples that a dataset makes at once": (
        stalled(samples=lambda task: [replace(*blurred(0.75)(task), weight=4)], num_samples=4),
        {"GaussianBlur": 7.5, "sample": 2.5},
    ),
    "waiting for a core, which is no part of a stage": (
        stalled(samples=half_of_it, cpu_ns=10 * MS, runnable_ns=30 * MS),
        {"GaussianBlur": 8.0, "sample": 2.0},
    ),
    "samples that stand for others and take no time": (
        stalled(samples=lambda task: [Sample(task.begun, task.begun, 0, 16)], num_samples=16),
        {"sample": 2.5},
    ),
}


def test_stages_have_their_mean_times_per_sample():
    for case, (rank, expected) in STAGES.items():
        tasks = [task for step in rank.steps for task in step.batch.tasks]
        assert stages_of(tasks) == pytest.approx(expected), case


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


def tracks_of(of: list[Rank], analysis: Analysis) -> set[str]:
    """Return the names of threads in the trace for Perfetto, after a check that it has what its format asks for."""
    events = json.loads(trace_json(of, analysis))["traceEvents"]
    fields = {"X": {"ts", "dur", "name"}, "M": {"name", "args"}}
    for event in events:
        assert fields[event["ph"]] | {"pid", "tid"} <= set(event)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    assert {event["pid"] for event in events} == {*range(1, len(of) + 1)}
    return {event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_in_the_trace_for_perfetto_each_worker_has_a_track():
    rank = stalled()
    assert tracks_of([rank], analyze(trace_of(rank))) == {"main", "worker 0", "worker 1"}


@given(one=ranks(), other=ranks(), alone=st.booleans(), warmup=st.integers(0, 4))
@settings(max_examples=25, deadline=None)
def test_whatever_was_recorded_is_charged_whole_and_comes_to_something_with_no_number_below_zero(
    one, other, alone, warmup
):
    recorded = [one] if alone else [one, other]
    for rank in recorded:
        check_parts(rank, "host")
        check_parts(rank, "device")
    found = analyze(trace_of(*recorded, warmup=warmup))
    assert "main" in tracks_of(recorded, found)
    assert unsound(json.loads(found.to_json())) == []
    for rank in found.ranks:
        lost = sum(rank.blame_ms.values())
        assert lost == pytest.approx(rank.stall.value * rank.step_ms.value, abs=1e-6) or lost > rank.step_ms.value
        assert rank.stall.low <= rank.stall.value <= rank.stall.high <= 1.0


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
