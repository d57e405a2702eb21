"""Stalls are charged to the last nanosecond, and to what was waited for."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import strategies as st

from fastload.profiling.blame import BlamedStep, blamed_steps, clock_of
from fastload.profiling.formatting import STATES
from fastload.profiling.trace import Rank, Sample, Span, StageSpan, TaskSpan, TracedBatch, TracedStep

MS = 1_000_000
KNOWN = {*STATES, "stage:Decode", "stage:Flip"}


def rank_of(steps: list[TracedStep], ahead: list[TracedBatch] | None = None, **loader: Any) -> Rank:
    return Rank(
        rank=None,
        process=1,
        cores=2,
        loaders={0: {"num_workers": 2, **loader}},
        steps=steps,
        ahead=ahead or [],
    )


def task_of(begun: int, ended: int, **values: Any) -> TaskSpan:
    fields: dict[str, Any] = {
        "worker": 0,
        "num_samples": 1,
        "dispatched": begun,
        "arrived": ended,
        "cpu_ns": None,
        "runnable_ns": None,
    }
    return TaskSpan(begun=begun, ended=ended, **{**fields, **values})


def step_of(number: int, begun: int, ended: int, tasks: list[TaskSpan], **values: Any) -> TracedStep:
    batch = TracedBatch(
        number=number,
        drawn=values.pop("drawn", None),
        sampler_ns=values.pop("sampler_ns", None),
        tasks=tasks,
        pinned=values.pop("pinned", None),
        iterator=0,
        loader=0,
    )
    fields: dict[str, Any] = {"startup": [], "first": False, "loop_ns": MS}
    return TracedStep(number=number, loader=0, iterator=0, wait=Span(begun, ended), batch=batch, **{**fields, **values})


def first_of(
    *steps: TracedStep, ahead: tuple[TracedBatch, ...] = (), probes_ms: tuple[int, ...] = (), **loader: Any
) -> BlamedStep:
    """Charge the first of some steps, of which the last is not the last of the rank."""
    end = step_of(99, 10**12, 10**12, [], loop_ns=None)
    rank = rank_of([*steps, end], [*ahead], **loader)
    rank.probe_ns = [ms * MS for ms in probes_ms]
    return blamed_steps(rank, clock_of([steps[0]]))[0]


# -- generated recordings ---------------------------------------------------------------------------------------------

maybe = st.booleans()
times = st.integers(0, 40 * MS)


@st.composite
def samples(draw: st.DrawFn, begun: int, ended: int) -> list[Sample]:
    cuts = sorted(draw(st.lists(st.integers(begun, ended), min_size=0, max_size=6)))
    found = []
    for place, (first, last) in enumerate(zip(cuts[::2], cuts[1::2], strict=False)):
        inner = sorted(draw(st.lists(st.integers(first, last), min_size=0, max_size=4)))
        stages = [
            StageSpan(
                one, two, draw(st.sampled_from(["Decode", "Flip"])), draw(st.none() | st.integers(0, 2 * (two - one)))
            )
            for one, two in zip(inner[::2], inner[1::2], strict=False)
        ]
        found.append(Sample(first, last, draw(st.none() | st.just(place)), draw(st.sampled_from([1, 16])), stages))
    return found


@st.composite
def tasks(draw: st.DrawFn, worker: int, free_at: int, handed: int) -> TaskSpan:
    begun = max(free_at, handed) + draw(st.integers(0, 3 * MS))
    ended = begun + draw(times)
    collate = None
    until = ended
    if draw(maybe):
        until = draw(st.integers(begun, ended))
        collate = Span(until, ended)
    return task_of(
        begun,
        ended,
        worker=worker,
        dispatched=handed if draw(st.integers(0, 9)) else None,
        arrived=ended + draw(st.integers(0, 30 * MS)) if draw(st.integers(0, 9)) else None,
        cpu_ns=draw(st.none() | st.integers(0, 2 * (ended - begun))),
        runnable_ns=draw(st.none() | st.integers(0, 2 * (ended - begun))),
        samples=draw(samples(begun, until)),
        collate=collate,
        collate_cpu_ns=draw(st.none() | times),
    )


@st.composite
def ranks(draw: st.DrawFn) -> Rank:
    """Draw a recording: several passes; batches of one task or several, or none that was heard; workers or none."""
    workers = draw(st.integers(0, 3))
    pinning = draw(maybe)
    device = draw(maybe)
    persistent = draw(maybe)
    now = draw(st.integers(0, 10 * MS))
    steps: list[TracedStep] = []
    ahead: list[TracedBatch] = []
    free = [0, 0, 0]
    for iterator in range(draw(st.integers(1, 3))):
        made = now
        now += draw(times)
        startup = [Span(made, now)] if draw(maybe) else []
        if not persistent:
            free = [now, now, now]
        for number in range(draw(st.integers(1, 5))):
            drawn_for = draw(st.integers(0, 10 * MS))
            wait_begun = now + draw(times)
            batch = TracedBatch(number=number, drawn=None, sampler_ns=None, iterator=iterator, loader=0)
            if workers:
                handed = draw(st.integers(max(0, made - MS), wait_begun))
                if draw(st.integers(0, 9)):
                    batch.drawn = Span(handed, handed + drawn_for)
                    batch.sampler_ns = draw(st.none() | st.integers(0, drawn_for))
                for _ in range(draw(st.sampled_from([0, 1, 1, 1, 3]))):
                    worker = draw(st.integers(0, workers - 1))
                    task = draw(tasks(worker, free[worker], handed))
                    free[worker] = task.ended
                    batch.tasks.append(task)
                done = max([wait_begun, *(task.arrived or task.ended for task in batch.tasks)])
                if pinning:
                    batch.pinned = Span(done, done + draw(st.integers(0, 5 * MS)))
                    done = batch.pinned.ended
            else:
                task = draw(tasks(-1, wait_begun + drawn_for, 0))
                batch.tasks.append(task)
                done = task.ended
            if draw(st.integers(0, 5)) == 0:
                ahead.append(batch)
                continue
            wait = Span(wait_begun, done + draw(st.integers(0, 5 * MS)))
            now = wait.ended + draw(times)
            idle = draw(st.integers(0, wait.ns + 2 * MS)) if device else None
            steps.append(
                TracedStep(
                    len(steps), 0, iterator, wait, batch, startup if not number else [], not number, now - wait.ended,
                    device_idle_ns=idle if draw(st.integers(0, 9)) else None,
                )
            )  # fmt: skip
        if steps and draw(maybe):
            ending = now + draw(times)
            steps[-1].ending = Span(now, ending)
            now = ending
    if not steps:
        steps.append(step_of(0, now, now + MS, []))
    rank = rank_of(steps, ahead, num_workers=workers, pin_memory=pinning)
    if draw(maybe):
        rank.loaders[0] = {**rank.loaders[0], "worker_method": "thread"}
        rank.probe_ns = draw(st.lists(st.integers(0, 10 * MS), max_size=3))
    return rank


def check_parts(rank: Rank, clock: Literal["host", "device"]) -> None:
    """Check that the stall of each step is charged to the last nanosecond."""
    found = blamed_steps(rank, clock)
    for one in found:
        step = one.step
        assert sum(one.parts.values()) == one.stall_ns
        assert all(type(ns) is int and ns >= 0 for ns in one.parts.values())
        assert set(one.parts) <= KNOWN
        assert 0 <= one.unusual_ns <= one.held_ns <= step.wait.ns
        if clock == "device":
            assert one.stall_ns == step.device_idle_ns
        else:
            ending = step.ending.ns if step.ending is not None and step is not rank.steps[-1] else 0
            assert one.stall_ns == step.wait.ns + sum(span.ns for span in step.startup) + ending
            assert one.total_ns == one.stall_ns + (step.loop_ns or 0)
    counted = [step for step in rank.steps if clock == "host" or step.device_idle_ns is not None]
    assert [one.step for one in found] == counted


# -- what is charged to what ------------------------------------------------------------------------------------------


IN_TURN = task_of(
    20 * MS,
    60 * MS,
    dispatched=5 * MS,
    arrived=63 * MS,
    cpu_ns=20 * MS,
    runnable_ns=0,
    samples=[Sample(20 * MS, 50 * MS, 7, 1)],
    collate=Span(50 * MS, 60 * MS),
    collate_cpu_ns=10 * MS,
)
BUSY, ASLEEP = {"cpu_ns": 30 * MS, "runnable_ns": 0}, {"cpu_ns": 0, "runnable_ns": 0}
STAGES = [Sample(0, 15 * MS, 0, 1, [StageSpan(0, 10 * MS, "Decode", 10 * MS)])]
IN_PARTS = task_of(
    0,
    70 * MS,
    cpu_ns=40 * MS,
    runnable_ns=10 * MS,
    samples=[Sample(0, 60 * MS, 0, 1, [StageSpan(0, 40 * MS, "Decode", 20 * MS)])],
    collate=Span(60 * MS, 70 * MS),
    collate_cpu_ns=10 * MS,
)


def waiting_for_cores(*numbers: int) -> list[TracedStep]:
    """Return steps of workers that compute for 2 ms, and wait for a core for 8."""
    fields = {"cpu_ns": 2 * MS, "runnable_ns": 8 * MS}
    return [step_of(one, 20 * MS, 20 * MS, [task_of(0, 10 * MS, worker=one, **fields)]) for one in numbers]


def of_threads(cpu_ms: int) -> TracedStep:
    """Return a step of two threads that compute for so long of 40 ms."""
    return step_of(
        0, 0, 40 * MS, [task_of(0, 40 * MS, worker=one, cpu_ns=cpu_ms * MS, runnable_ns=0) for one in (0, 1)]
    )


ON_ITS_WAY = step_of(0, 10 * MS, 20 * MS, [task_of(0, 10 * MS, arrived=20 * MS, cpu_ns=2 * MS, runnable_ns=8 * MS)])
DRAWN_NEXT = TracedBatch(number=1, drawn=Span(2 * MS, 30 * MS), sampler_ns=28 * MS, iterator=0, loader=0)
CHARGED: dict[str, tuple[BlamedStep, dict[str, int]]] = {
    "what its batch was at in turn": (
        first_of(step_of(0, 0, 64 * MS, [IN_TURN], drawn=Span(1 * MS, 5 * MS), sampler_ns=4 * MS)),
        # startup: the worker's first
        {"sampler": 4, "startup": 15, "sample": 10, "read": 20, "collate": 10, "transport": 3, "main-thread": 2},
    ),
    "of a task of which a half was waited for, half of all": (
        first_of(step_of(0, 35 * MS, 70 * MS, [IN_PARTS])),
        {"stage:Decode": 10, "collate": 5, "sample": 5, "run-queue": 5, "read": 10},
    ),
    "in a queue, what the worker did instead": (
        first_of(
            step_of(1, 10 * MS, 40 * MS, [task_of(32 * MS, 40 * MS, dispatched=1 * MS, **ASLEEP)]),
            step_of(0, 0, 1, [task_of(0, 30 * MS, **BUSY)]),
        ),
        {"sample": 20, "queued": 2, "read": 8},
    ),
    "on its way, the worker while it is at the next batch": (
        first_of(
            step_of(0, 0, 20 * MS, [task_of(0, 10 * MS, arrived=20 * MS, cpu_ns=10 * MS, runnable_ns=0)]),
            step_of(1, 98 * MS, 99 * MS, [task_of(10 * MS, 18 * MS, cpu_ns=8 * MS, runnable_ns=0)]),
        ),
        {"sample": 18, "transport": 2},
    ),
    "on its way, cores, where workers want more than there are": (
        first_of(ON_ITS_WAY, *waiting_for_cores(1, 2, 3), num_workers=8),
        {"run-queue": 8, "transport": 2},
    ),
    "on its way, where there are cores": (first_of(ON_ITS_WAY, *waiting_for_cores(1, 2, 3)), {"transport": 10}),
    "on its way, where the others sleep": (first_of(ON_ITS_WAY, num_workers=8), {"transport": 10}),
    "of many tasks the one that arrived last": (
        first_of(step_of(0, 0, 30 * MS, [task_of(0, 10 * MS, **BUSY), task_of(0, 30 * MS, worker=1, **ASLEEP)])),
        {"read": 30},
    ),
    "stages by their names": (
        first_of(step_of(0, 0, 15 * MS, [task_of(0, 15 * MS, cpu_ns=15 * MS, samples=STAGES)])),
        {"stage:Decode": 10, "sample": 5},
    ),
    "without workers, the work in the wait": (
        first_of(
            step_of(
                0, 0, 26 * MS, [task_of(5 * MS, 25 * MS, worker=-1, dispatched=None, cpu_ns=20 * MS, runnable_ns=0)]
            ),
            num_workers=0,
        ),
        {"sampler": 5, "sample": 20, "main-thread": 1},
    ),
    "threads that get the interpreter late": (
        first_of(of_threads(20), probes_ms=(5, 5, 5, 0), worker_method="thread"),
        {"sample": 20, "gil": 15, "read": 5},
    ),
    "threads of which none computes": (first_of(of_threads(0), probes_ms=(5,), worker_method="thread"), {"read": 40}),
    "the next indices, drawn before a batch is given out": (
        first_of(step_of(0, 0, 31 * MS, [task_of(-9 * MS, -8 * MS, arrived=1 * MS)]), ahead=(DRAWN_NEXT,)),
        {"transport": 1, "main-thread": 2, "sampler": 28},
    ),
    "with a device, the part in which that was idle": (
        first_of(step_of(0, 0, 36 * MS, [task_of(0, 30 * MS, arrived=35 * MS, **BUSY)], device_idle_ns=10 * MS)),
        {"sample": 4, "transport": 5, "main-thread": 1},
    ),
    "work that nobody heard": (first_of(step_of(0, 0, 10 * MS, [])), {"other": 10}),
}


def test_a_wait_is_charged_to_what_was_waited_for():
    for case, (found, parts) in CHARGED.items():
        assert found.parts == {state: ms * MS for state, ms in parts.items()}, case


# -- the order of batches ---------------------------------------------------------------------------------------------


def held(slow: int, later: list[tuple[int, int, int]], **values: Any) -> BlamedStep:
    """Wait for a batch that takes ``slow`` ms in worker 0; the later ones: dispatched, begun, ended, in worker 1."""
    task = task_of(0, slow * MS, **values)
    got = task.arrived or task.ended
    steps = [step_of(0, 0, got, [task])]
    steps += [
        step_of(1 + place, got, got, [task_of(two * MS, three * MS, worker=1, dispatched=one * MS)])
        for place, (one, two, three) in enumerate(later)
    ]
    return first_of(*steps)


@pytest.mark.parametrize(
    ("slow", "later", "task", "held_ms", "unusual_ms"),
    [
        (100, [(0, 0, 10), (0, 10, 20)], {}, 90, 80),
        (100, [(0, 0, 50), (0, 50, 130)], {}, 50, 0),
        (100, [(0, 0, 90)], {}, 10, 0),
        (100, [(0, 0, 10), (0, 10, 20)], {"cpu_ns": 10 * MS, "runnable_ns": 90 * MS}, 90, 0),
        (3, [(0, 0, 1), (0, 1, 2)], {"arrived": 100 * MS}, 99, 1),
    ],
    ids=["a worker is idle", "all work", "as long as others", "it waited for a core", "it is on its way"],
)
def test_a_slow_batch_holds_up_later_ones_and_that_counts_while_a_worker_has_nothing_to_do(
    slow, later, task, held_ms, unusual_ms
):
    found = held(slow, later, **task)
    assert (found.held_ns, found.unusual_ns) == (held_ms * MS, unusual_ms * MS)
