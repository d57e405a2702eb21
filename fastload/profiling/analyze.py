"""Builds the analysis of a recording: ranks, verdicts, and the rank that delays the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from .analysis import Analysis, Fix, Grid, PinLine, RankAnalysis, Simulation, StepLine, TaskLine
from .blame import BlamedStep, Clock, blamed_steps, clock_of
from .reader import read_trace
from .ring import CACHE_HITS
from .text import percent
from .trace import Rank, Span, Step, Task, Trace
from .verdict import MODERATE, Facts, judge, stall_share, step_interval, summed
from .whatif import what_if
from .workers import (
    UNUSUAL_WORKER,
    all_batches,
    cores_wanted,
    gil_share,
    loader_text,
    main_loader,
    slow_samples,
    slowest_worker,
    tasks_of,
    worker_kind,
    worker_statistics,
)

WhatIf = Callable[[Trace, Rank], tuple[list[Fix], Simulation, Grid | None]]

_MOSTLY = 2 / 3
"""Share of the time that ranks wait for each other which one rank must cause, to be named."""
_APART = 0.25
"""Ranks that meet at each step are no further apart, at the first and last step, than this share of their time."""
_UNEVEN = 1.3
"""A worker that makes so many times its share of the batches has more of the data."""
_MOST_LINES = 2_000
"""Steps in a timeline; the first ones."""


def analysis_of(folder: str) -> Analysis:
    """Analyse a recording and predict what changes would bring.

    Args:
        folder: made by ``fastload profile`` or :func:`fastload.profile`.

    Raises:
        TraceError: it is not a recording, or it is damaged, or no loader was asked for a batch.
    """
    return analyse(read_trace(folder), what_if)


@dataclass(slots=True)
class _Blamed:
    """A rank with the blame for its stalls."""

    rank: Rank
    clock: Clock
    steps: list[BlamedStep]
    steady: list[BlamedStep]


def analyse(trace: Trace, whatif: WhatIf | None = None) -> Analysis:
    """Analyse a recording.

    Args:
        trace: the recording.
        whatif: predicts what changes would bring, for the rank that loses most; None: no predictions.
    """
    blamed = [_blamed(rank, trace.warmup) for rank in trace.ranks]
    late = _culprit(blamed)
    facts = _RunFacts(
        trace,
        overhead_of(trace),
        sum(_num_workers(one.rank) for one in blamed),
        sum(cores_wanted(one.rank) for one in blamed),
    )
    ranks = [_rank_analysis(one, facts, _name(late) if late not in (None, one) else None) for one in blamed]
    fixes: list[Fix] = []
    simulation: Simulation | None = None
    grid: Grid | None = None
    if whatif is not None and ranks:
        fixes, simulation, grid = whatif(trace, _chosen(blamed, late).rank)
    return Analysis(
        command=list(trace.command),
        recorded=trace.recorded,
        versions=dict(trace.versions),
        cores=max((rank.cores for rank in trace.ranks), default=0),
        ranks=ranks,
        culprit=None if late is None else late.rank.rank,
        fixes=fixes,
        simulation=simulation,
        grid=grid,
        ceiling_ms=max((rank.ceiling_ns / 1e6 for rank in trace.ranks if rank.ceiling_ns is not None), default=None),
        overhead=facts.overhead,
        missing=dict(trace.missing),
        exit_status=trace.exit_status,
    )


def chosen_rank(trace: Trace) -> Rank:
    """Return the rank that the report is about: the one that delays the others, else the one that loses most."""
    blamed = [_blamed(rank, trace.warmup) for rank in trace.ranks]
    return _chosen(blamed, _culprit(blamed)).rank


def _chosen(blamed: Sequence[_Blamed], late: _Blamed | None) -> _Blamed:
    return late or max(blamed, key=lambda one: sum(step.stall_ns for step in one.steady))


def _blamed(rank: Rank, warmup: int) -> _Blamed:
    clock = clock_of(rank.steps)
    steps = blamed_steps(rank, clock)
    return _Blamed(rank, clock, steps, [step for step in steps if step.step.number >= warmup])


def _num_workers(rank: Rank) -> int:
    return int(rank.loaders.get(main_loader(rank), {}).get("num_workers") or 0)


def _name(one: _Blamed | None) -> str | None:
    if one is None:
        return None
    return f"process {one.rank.process}" if one.rank.rank is None else f"rank {one.rank.rank}"


# -- one rank ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RunFacts:
    """What concerns all ranks."""

    trace: Trace
    overhead: float | None
    total_workers: int
    wanted: float


def _rank_analysis(one: _Blamed, run: _RunFacts, held_up_by: str | None) -> RankAnalysis:
    rank, steady = one.rank, one.steady
    loader = main_loader(rank)
    settings = rank.loaders.get(loader, {})
    within = _time_of(steady)
    tasks = [task for task in tasks_of(rank, loader) if task.ended > within.begun and task.begun < within.ended]
    workers = worker_statistics(rank, loader, within, run.trace.versions.get("python", ""))
    if CACHE_HITS in run.trace.missing:  # with --cold the share of hits says nothing
        workers.cache_hit = None
    slow = slow_samples(tasks, rank.files)
    starts = _starts(rank)
    number = max(1, len(steady))
    parts = summed(steady)
    stall = sum(step.stall_ns for step in steady)
    total = sum(step.total_ns for step in steady)
    slowest, ratio = slowest_worker(tasks)
    facts = Facts(
        clock=one.clock,
        cores=rank.cores,
        total_workers=run.total_workers,
        wanted=run.wanted,
        method=worker_kind(settings),
        probe_p50_ns=round(median(rank.probe_ns)) if rank.probe_ns and gil_share(rank, loader) else None,
        startup=_startup_of_epoch(rank, loader, total / number),
        hottest_stage=_hottest(workers.stages_ms),
        slow_samples=[f"{one.file or f'index {one.index}'} ({one.ms:.1f} ms)" for one in slow[:3]],
        slow_worker=(
            f"worker {slowest} takes {ratio:.1f} times as long per sample as the median worker"
            if ratio is not None and ratio > UNUSUAL_WORKER
            else None
        ),
        overhead=run.overhead,
        held_up_by=held_up_by,
        by_loader=_by_loader(rank, steady),
        uneven=_uneven(tasks, settings),
    )
    return RankAnalysis(
        rank=rank.rank,
        process=rank.process,
        loader=dict(settings),
        num_steps=len(steady),
        num_warmup=len(one.steps) - len(steady),
        clock=one.clock,
        step_ms=step_interval(steady),
        compute_ms=max(0, total - stall) / number / 1e6,  # a device may have been idle before the first wait
        stall=stall_share(steady),
        blame_ms={state: ns / number / 1e6 for state, ns in sorted(parts.items(), key=lambda item: -item[1])},
        head_of_line=sum(step.held_ns for step in steady) / stall if stall else 0.0,
        first_batch_ms=starts[0] / 1e6 if starts else None,
        epoch_gap_ms=sum(starts[1:]) / len(starts[1:]) / 1e6 if starts[1:] else None,
        startup=_startup(rank),
        workers=workers,
        verdict=judge(steady, facts),
        slow_samples=slow,
        steps=[_step_line(step, _begin(rank)) for step in one.steps[:_MOST_LINES]],
        tasks=_task_lines(one),
        pins=_pin_lines(one),
    )


def _by_loader(rank: Rank, steady: Sequence[BlamedStep]) -> str | None:
    """Return which of several loaders most is lost to, in words; None if there is one."""
    lost: dict[int, int] = defaultdict(int)
    for one in steady:
        lost[one.step.loader] += one.stall_ns
    if len(lost) < 2 or not any(lost.values()):
        return None
    worst = max(lost, key=lambda loader: lost[loader])
    name = loader_text(rank.loaders.get(worst, {}))
    return f"{percent(lost[worst] / sum(lost.values()))} of the stall is waiting for the loader of {name}"


def _uneven(tasks: Sequence[Task], settings: Mapping[str, object]) -> str | None:
    """Return which worker has made far more batches than the others, in words.

    torch gives each worker equally many batches, so the other workers had less of an IterableDataset. With fastload's
    loader, or out of order, workers take what comes next, and this says nothing.
    """
    workers = settings.get("num_workers")
    if not isinstance(workers, int) or workers < 2 or settings.get("engine") == "fastload":
        return None
    made = Counter(task.worker for task in tasks)
    if not made or settings.get("in_order") is False:
        return None
    ((worker, number),) = made.most_common(1)
    if number < _UNEVEN * len(tasks) / workers:
        return None
    return f"worker {worker} of {workers} made {percent(number / len(tasks))} of the batches: the others had less data"


def _hottest(stages_ms: Mapping[str, float]) -> str | None:
    if not stages_ms:
        return None
    name = max(stages_ms, key=lambda stage: stages_ms[stage])
    share = stages_ms[name] / max(1e-9, sum(stages_ms.values()))
    where = {"sample": "the dataset", "collate": "collation"}.get(name, name)
    more = "; --level 2 shows which transform" if name == "sample" and stages_ms.keys() <= {"sample", "collate"} else ""
    return f"{where} takes {stages_ms[name]:.2f} ms a sample, {percent(share)} of the workers' time{more}"


def _time_of(steps: Sequence[BlamedStep]) -> Span:
    if not steps:
        return Span(0, 0)
    first, last = steps[0].step, steps[-1].step
    return Span(first.wait.begun, last.wait.ended + (last.loop_ns or 0))


def _begin(rank: Rank) -> int:
    if not rank.steps:
        return rank.begun
    first = rank.steps[0]
    return min([first.wait.begun, *(span.begun for span in first.startup)])


# -- starts -----------------------------------------------------------------------------------------------------------


def _starts(rank: Rank) -> list[int]:
    """Return for each epoch, of any loader, the time from making its iterator to its first batch."""
    return [_start(step) for step in rank.steps if step.first]


def _start(step: Step) -> int:
    return step.wait.ended - min([step.wait.begun, *(span.begun for span in step.startup)])


def _startup(rank: Rank) -> float:
    """Return the share of the recorded time that was spent on starting and ending epochs."""
    if not rank.steps:
        return 0.0
    spent = sum(sum(span.ns for span in step.startup) + (step.wait.ns if step.first else 0) for step in rank.steps)
    spent += sum(step.ending.ns for step in rank.steps if step.ending is not None)
    last = rank.steps[-1]
    whole = last.wait.ended + (last.loop_ns or 0) + (last.ending.ns if last.ending else 0) - _begin(rank)
    return min(1.0, spent / whole) if whole > 0 else 0.0


def _startup_of_epoch(rank: Rank, loader: int, step_ns: float) -> float:
    """Return the share of a whole epoch that its start takes; 0 if there were several epochs.

    The recording may end within the first epoch, so the length comes from the loader. If that is unknown, and no end
    was recorded, the epoch may be endless, and the share is 0.
    """
    mine = [step for step in rank.steps if step.loader == loader]
    if sum(step.first for step in mine) != 1:
        return 0.0
    start = _start(mine[0])
    length = rank.loaders.get(loader, {}).get("batches") or (len(mine) if mine[-1].ending is not None else inf)
    whole = start + step_ns * max(0.0, length - 1) if step_ns else start
    return start / whole if whole else 0.0


# -- ranks ------------------------------------------------------------------------------------------------------------


def _culprit(ranks: Sequence[_Blamed]) -> _Blamed | None:
    """Return the rank whose late batches the others wait for; None if there is none.

    Ranks meet at each step. The one with the longest stall comes last, and the others wait for it, within their loops,
    for as long as it is later than the second. It is the culprit if that is most of the time that ranks wait for each
    other, and a share of the steps' time that counts.
    """
    if len(ranks) < 2:
        return None
    stalls = [{step.step.number: step.stall_ns for step in one.steady} for one in ranks]
    common = set.intersection(*(set(found) for found in stalls))
    if not common or not _meet(ranks, common):
        return None
    costs = [0] * len(ranks)
    for number in common:
        at_step = [found[number] for found in stalls]
        order = sorted(range(len(ranks)), key=lambda place: at_step[place])
        costs[order[-1]] += at_step[order[-1]] - at_step[order[-2]]
    worst = max(range(len(ranks)), key=lambda place: costs[place])
    total = sum(step.total_ns for step in ranks[worst].steady if step.step.number in common)
    if costs[worst] < MODERATE * total or costs[worst] < _MOSTLY * sum(costs):
        return None
    return ranks[worst]


def _meet(ranks: Sequence[_Blamed], common: set[int]) -> bool:
    """Return whether processes are at the same steps at the same time, as ranks of one training are."""
    spans = [
        (min(begun), max(begun))
        for begun in ([step.step.wait.ended for step in one.steady if step.step.number in common] for one in ranks)
    ]
    apart: int = max(max(one) - min(one) for one in zip(*spans, strict=True))
    return apart <= _APART * max(ended - begun for begun, ended in spans)


# -- what the recording cost ------------------------------------------------------------------------------------------


def overhead_of(trace: Trace) -> float | None:
    """Return the share of the workers' and the loops' time that hooks took; None if the cost of a hook is unknown."""
    if trace.seconds_per_hook is None:
        return None
    hooks = 0
    spent = 0
    for rank in trace.ranks:
        hooks += 2 * len(rank.steps)
        spent += rank.ended - rank.begun
        for batch in all_batches(rank):
            hooks += (batch.drawn is not None) + (batch.pinned is not None)
            for task in batch.tasks:
                spent += task.ns if task.worker >= 0 else 0
                hooks += 4 + len(task.samples) + sum(len(sample.stages) for sample in task.samples)
    return hooks * trace.seconds_per_hook * 1e9 / spent if spent else None


# -- timelines --------------------------------------------------------------------------------------------------------


def _step_line(one: BlamedStep, base: int) -> StepLine:
    step = one.step
    return StepLine(
        begun_ms=(step.wait.begun - base) / 1e6,
        wait_ms=step.wait.ns / 1e6,
        loop_ms=None if step.loop_ns is None else step.loop_ns / 1e6,
        stall_ms=one.stall_ns / 1e6,
        blame_ms={state: ns / 1e6 for state, ns in one.parts.items()},
        batch=step.batch.number,
        pass_number=step.iterator,
    )


def _until(one: _Blamed) -> int:
    """Return where the timeline ends."""
    return max((step.step.wait.ended for step in one.steps[:_MOST_LINES]), default=0)


def _task_lines(one: _Blamed) -> list[TaskLine]:
    base, until = _begin(one.rank), _until(one)
    found = [
        TaskLine(
            worker=task.worker,
            begun_ms=(task.begun - base) / 1e6,
            ended_ms=(task.ended - base) / 1e6,
            batch=batch.number,
            pass_number=batch.iterator,
        )
        for batch in all_batches(one.rank)
        for task in batch.tasks
        if base <= task.begun < until
    ]
    return sorted(found, key=lambda line: (line.begun_ms, line.worker))


def _pin_lines(one: _Blamed) -> list[PinLine]:
    base, until = _begin(one.rank), _until(one)
    found = [
        PinLine(
            begun_ms=(batch.pinned.begun - base) / 1e6,
            ended_ms=(batch.pinned.ended - base) / 1e6,
            batch=batch.number,
            pass_number=batch.iterator,
        )
        for batch in all_batches(one.rank)
        if batch.pinned is not None and base <= batch.pinned.begun < until
    ]
    return sorted(found, key=lambda line: line.begun_ms)
