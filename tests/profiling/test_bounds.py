"""Bounds are what arithmetic says, and each cause has its fixes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_blame import MS, rank_of, step_of, task_of

from fastload.profiling.blame import blamed_steps, clock_of
from fastload.profiling.bounds import bound_text, costs_of, fixes, gain_text, least_ms, limit_text
from fastload.profiling.dominant import Dominant
from fastload.profiling.schema import Cause, Fix, StepCosts
from fastload.profiling.trace import CARRYING, Rank, Sample, Span, StageSpan, TracedBatch, TracedStep

TORCH = {"engine": "torch", "torchs": True, "num_workers": 2, "prefetch_factor": 2}


def costs(**values: Any) -> StepCosts:
    """Return those of a loop of 10 ms, two workers, four cores, and batches of 100 ms, 40 of them computed."""
    fields: dict[str, Any] = {
        "step_ms": 60.0,
        "loop_ms": 10.0,
        "loop_cpu_ms": 8.0,
        "batch_ms": 100.0,
        "batch_cpu_ms": 40.0,
        "start_ms": 0.0,
        "copy_ms": 0.0,
        "workers": 2,
        "cores": 4,
        "takes_turns": False,
    }
    return StepCosts(**(fields | values))


def named(
    cause: Cause | None, of: StepCosts | None = None, stage: Dominant | None = None, **loader: Any
) -> dict[str, Fix]:
    return {fix.title: fix for fix in fixes(of or costs(), cause, TORCH | loader, stage)}


# -- what a bound is --------------------------------------------------------------------------------------------------


def test_a_step_takes_as_long_as_its_loop_its_batch_on_the_workers_and_its_computing_on_the_cores():
    assert least_ms(costs()) == 50.0
    assert least_ms(costs(workers=20)) == 12.0
    assert least_ms(costs(workers=20, cores=48)) == 10.0
    assert least_ms(costs(workers=0, takes_turns=True)) == 110.0
    assert least_ms(costs(workers=0)) == 100.0, "a device works meanwhile"
    assert bound_text(costs()) == (
        "a step takes at least 50.0 ms, the largest of: the loop 10.0 ms; its batch 100 ms / 2 workers; processor time "
        "48.0 ms / 4 cores"
    )
    assert bound_text(costs(workers=0, takes_turns=True)) == (
        "a step takes at least 110 ms: the loop 10.0 ms + loading its batch 100 ms"
    )


# -- what a recording costs -------------------------------------------------------------------------------------------


def recorded(number: int = 40, **task: Any) -> list[TracedStep]:
    """Return steps of 30 ms, of which 10 are the loop's; each batch takes a worker 40 ms."""
    found = []
    for place in range(number):
        begun = place * 30 * MS
        values = {"worker": place % 2, "cpu_ns": 15 * MS, "runnable_ns": 5 * MS} | task
        step = step_of(place, begun, begun + 20 * MS, [task_of(begun - 20 * MS, begun + 20 * MS, **values)])
        step.loop_ns, step.loop_cpu_ns, step.copy_ns = 10 * MS, 8 * MS, MS
        found.append(step)
    return found


NOBODYS = TracedBatch(number=0, drawn=None, sampler_ns=None)


def costs_in(rank: Rank, warmup: int = 0) -> StepCosts | None:
    steps = blamed_steps(rank, clock_of(rank.steps))
    return costs_of(rank, [one for one in steps if one.step.number >= warmup])


def come_from_afar() -> list[TracedStep]:
    """Return steps of which each batch was 10 ms on its way from another machine."""
    steps = recorded(cpu_ns=None, runnable_ns=None)
    for step in steps:
        (task,) = step.batch.tasks
        come = task.ended - 10 * MS
        task.samples = [Sample(come, task.ended, None, 1, [StageSpan(come, task.ended, CARRYING, None)])]
    return steps


# Waiting for a core, and the way from another machine, keep no worker busy.
MEANS = {
    "step_ms": 30,
    "loop_ms": 10,
    "loop_cpu_ms": 8,
    "batch_ms": 35,
    "batch_cpu_ms": 15,
    "start_ms": 0,
    "copy_ms": 1,
}
COSTS: dict[str, tuple[Rank, dict[str, float] | None]] = {
    "means over the steps": (rank_of(recorded()), {**MEANS, "workers": 2, "cores": 2, "takes_turns": False}),
    "threads within workers": (rank_of(recorded(), worker_threads=4), {"workers": 8}),
    "a worker on another machine": (rank_of(recorded(), num_workers=1), {"workers": 2}),
    "the way from another machine": (rank_of(come_from_afar()), {"batch_ms": 30, "batch_cpu_ms": 0}),
    "no workers": (rank_of(recorded(worker=-1), num_workers=0), {"workers": 0, "takes_turns": True}),
    "data in memory": (rank_of(recorded(), resident="host"), None),
    "batches that nobody recorded": (rank_of([replace(one, batch=NOBODYS) for one in recorded()]), None),
    "no step": (rank_of([]), None),
}


def test_the_costs_of_a_recording_are_means_over_its_steps_or_not_known():
    for case, (rank, expected) in COSTS.items():
        found = costs_in(rank, warmup=8)
        if expected is None:
            assert found is None, case
        else:
            assert {name: getattr(found, name) for name in expected} == pytest.approx(expected), case


def test_starts_of_later_epochs_are_what_keeping_workers_can_gain():
    steps = recorded()
    for place, step in enumerate(steps):
        step.iterator, step.first = place // 10, place % 10 == 0
    steps[20].startup = [Span(steps[20].wait.begun - 9 * MS, steps[20].wait.begun)]
    found = costs_in(rank_of(steps))
    assert found is not None
    assert found.start_ms == pytest.approx((3 * 20 + 9) / 40)
    fix = named("startup", found)["keep workers between epochs"]
    assert fix.least_ms == pytest.approx(found.step_ms - found.start_ms)
    assert not named("startup", found, persistent_workers=True)


# -- fixes ------------------------------------------------------------------------------------------------------------

BLUR = Dominant(stage="GaussianBlur", share=0.75)


OTHER_LOADER = "fastload's loader, if it makes the samples cheaper"
BUSY, FEW_CORES = costs(batch_cpu_ms=100.0), costs(batch_cpu_ms=100.0, cores=2)
# A cause, costs, what is another than usual of the loader, and the fixes with the least time of a step.
MET_WITH: list[tuple[Cause | None, StepCosts, dict[str, Any], dict[str, float]]] = [
    ("read", costs(), {}, {"num_workers 2 -> 8": 12.5, "nearer files": 20.0}),
    ("read", costs(), {"num_workers": 1}, {"nearer files": 20.0}),  # the other worker is on another machine
    ("cpu", BUSY, {}, {"num_workers 2 -> 4": 27.0, OTHER_LOADER: 10.0}),
    ("cpu", BUSY, {"stage": BLUR}, {"num_workers 2 -> 4": 27.0, OTHER_LOADER: 10.0, "a cheaper GaussianBlur": 12.5}),
    ("cpu", FEW_CORES, {}, {OTHER_LOADER: 10.0}),
    ("cpu", FEW_CORES, {"engine": "fastload"}, {"cheaper samples": 10.0}),
    ("oversubscribed", BUSY, {}, {OTHER_LOADER: 10.0}),
    ("head-of-line", costs(), {}, {"fastload's loader with a seed": 50.0, "prefetch_factor 2 -> 8": 50.0}),
    ("head-of-line", costs(), {"engine": "fastload"}, {"a seed": 50.0, "prefetch_factor 2 -> 8": 50.0}),
    ("transport", costs(), {}, {"fastload's loader": 50.0}),
    ("sampler", costs(), {}, {"a simpler sampler": 50.0}),
    (
        "copy",
        costs(loop_ms=55.0, copy_ms=20.0),
        {},
        {"copy from page-locked memory, while the loop continues": 50.0},
    ),
    ("compute", costs(), {}, {}),
    (None, costs(), {}, {}),
    ("pin", costs(), {}, {}),
    # What can gain less than three percent is not named, nor fastload's loader where it cannot stand in for another.
    ("transport", costs(step_ms=51.0), {}, {}),
    ("transport", costs(), {"torchs": False}, {}),
    ("head-of-line", costs(), {"torchs": False}, {"prefetch_factor 2 -> 8": 50.0}),
    ("cpu", BUSY, {"torchs": False}, {"num_workers 2 -> 4": 27.0}),
]


def test_a_cause_is_met_with_fixes_and_what_a_step_then_takes_at_least():
    for cause, of, other, expected in MET_WITH:
        found = named(cause, of, **other)
        assert {title: fix.least_ms for title, fix in found.items()} == pytest.approx(expected), (cause, other)
        tuned = [title for title, fix in found.items() if fix.tuned]
        assert not {"nearer files", "a simpler sampler", "a cheaper GaussianBlur"} & {*tuned}


def test_a_fix_has_the_lines_to_change_and_its_bound_in_words():
    more = named("read")["num_workers 2 -> 8"]
    assert more.change.splitlines() == [
        "-DataLoader(..., num_workers=2)",
        "+DataLoader(..., num_workers=8)",
        "# if what they wait for (disk, server, lock) serves 8 as fast as 2",
    ]
    assert named("read", torchs=False)["num_workers 2 -> 8"].change.startswith("-LOADER(...")
    assert limit_text(more) == "a step then takes at least 12.5 ms (its batch 100 ms / 8 workers)"
    assert gain_text(more, 60.0) == "at most 4.8x; fastload tune measures it"
    nearer = named("read", costs(loop_ms=0.0, batch_cpu_ms=0.0, loop_cpu_ms=0.0))["nearer files"]
    assert gain_text(nearer, 60.0) == "at most 100x and more; record again to measure it"
    decoder = named("cpu", BUSY, BLUR._replace(stage="PIL.decode"))["a cheaper PIL.decode"]
    assert "fastload pack" in decoder.change
