"""Builds the analysis of a recording: ranks, verdicts, and the rank that delays the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from .analysis import Analysis, Fix, Grid, Interval, PinLine, RankAnalysis, Simulation, StepLine, TaskLine
from .blame import BlamedStep, Clock, blamed_steps, clock_of
from .reader import read_trace
from .ring import CACHE_HITS
from .trace import Rank, Span, Step, Task, Trace
from .verdict import MODERATE, Facts, judge, ratio_interval, stall_share, summed
from .whatif import what_if
from .workers import (
    UNUSUAL_WORKER,
    all_batches,
    cores_wanted,
    interpreter_share,
    loader_in_words,
    main_loader,
    method_of,
    slow_samples,
    slowest_worker,
    tasks_of,
    workers_of,
)

WhatIf = Callable[[Trace, Rank], tuple[list[Fix], Simulation, Grid | None]]

_MOSTLY = 2 / 3
"""Of the time that ranks wait for each other: what one must be to blame for. Ranks that are late by turns are not."""
_APART = 0.25
"""Of the time that they took for the same steps: ranks that meet are no further apart, at the first and the last."""
_UNEVEN = 1.3
"""A worker that makes so many times its share of the batches has more of the data."""
MOST_LINES = 2_000
"""Steps in a timeline; the first ones."""


@dataclass(slots=True)
class _Blamed:
    """A rank with its stalls charged."""

    rank: Rank
    clock: Clock
    steps: list[BlamedStep]
    steady: list[BlamedStep]


def analyse(trace: Trace, whatif: WhatIf | None = None) -> Analysis:
    """Say what a recording comes to.

    Args:
        trace: the recording.
        whatif: predicts what changes would bring, for the rank that loses most; None: nothing is predicted.
    """
    blamed = [_blamed(rank, trace.warmup) for rank in trace.ranks]
    late = _culprit(blamed)
    overhead = overhead_of(trace)
    total_workers = sum(_num_workers(one.rank) for one in blamed)
    wanted = sum(cores_wanted(one.rank) for one in blamed)
    ranks = [
        _rank_analysis(
            one, trace, overhead, total_workers, wanted, _in_words(late) if late not in (None, one) else None
        )
        for one in blamed
    ]
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
        overhead=overhead,
        missing=dict(trace.missing),
        exit_status=trace.exit_status,
    )


def chosen_rank(trace: Trace) -> Rank:
    """Return the rank that the report is about: the one that holds the others up, else the one that loses most."""
    blamed = [_blamed(rank, trace.warmup) for rank in trace.ranks]
    return _chosen(blamed, _culprit(blamed)).rank


def _chosen(blamed: Sequence[_Blamed], late: _Blamed | None) -> _Blamed:
    return late or max(blamed, key=lambda one: sum(step.stall_ns for step in one.steady))


def analyse_rank(trace: Trace, rank: Rank) -> RankAnalysis:
    """Say what one rank of a recording comes to, as if it were alone."""
    return _rank_analysis(
        _blamed(rank, trace.warmup), trace, overhead_of(trace), _num_workers(rank), cores_wanted(rank), None
    )


def _blamed(rank: Rank, warmup: int) -> _Blamed:
    clock = clock_of(rank.steps)
    steps = blamed_steps(rank, clock)
    return _Blamed(rank, clock, steps, [step for step in steps if step.step.number >= warmup])


def _num_workers(rank: Rank) -> int:
    return int(rank.loaders.get(main_loader(rank), {}).get("num_workers") or 0)


def _in_words(one: _Blamed | None) -> str | None:
    if one is None:
        return None
    return f"process {one.rank.process}" if one.rank.rank is None else f"rank {one.rank.rank}"


def _rank_analysis(
    one: _Blamed, trace: Trace, overhead: float | None, total_workers: int, wanted: float, held_up_by: str | None
) -> RankAnalysis:
    rank, steady = one.rank, one.steady
    loader = main_loader(rank)
    settings = rank.loaders.get(loader, {})
    interpreter = interpreter_share(rank, loader)
    within = _time_of(steady)
    tasks = [task for task in tasks_of(rank, loader) if task.ended > within.begun and task.begun < within.ended]
    workers = workers_of(rank, loader, within, trace.versions.get("python", ""))
    if CACHE_HITS in trace.missing:  # what --cold makes of them is no finding
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
        total_workers=total_workers,
        wanted=wanted,
        method=method_of(settings),
        probe_p50_ns=round(median(rank.probe_ns)) if rank.probe_ns and interpreter else None,
        startup=_startup_of_a_pass(rank, loader, total / number),
        hottest_stage=_hottest(workers.stages_ms),
        slow_samples=[f"{one.file or f'index {one.index}'} ({one.ms:.1f} ms)" for one in slow[:3]],
        slow_worker=(
            f"worker {slowest} takes {ratio:.1f} times as long a sample as the median worker"
            if ratio is not None and ratio > UNUSUAL_WORKER
            else None
        ),
        overhead=overhead,
        held_up_by=held_up_by,
        by_loader=_by_loader(rank, steady),
        uneven=_uneven(tasks, settings),
    )
    base = _begin(rank)
    return RankAnalysis(
        rank=rank.rank,
        process=rank.process,
        loader=dict(settings),
        num_steps=len(steady),
        num_warmup=len(one.steps) - len(steady),
        clock=one.clock,
        step_ms=_scaled(ratio_interval(steady, lambda step: step.total_ns, lambda _: 1)),
        compute_ms=max(0, total - stall) / number / 1e6,  # a device may have idled before the first wait
        stall=stall_share(steady),
        blame_ms={state: ns / number / 1e6 for state, ns in sorted(parts.items(), key=lambda item: -item[1])},
        head_of_line=sum(step.held_ns for step in steady) / stall if stall else 0.0,
        first_batch_ms=starts[0] / 1e6 if starts else None,
        epoch_gap_ms=sum(starts[1:]) / len(starts[1:]) / 1e6 if starts[1:] else None,
        startup=_startup(rank),
        workers=workers,
        verdict=judge(steady, facts),
        slow_samples=slow,
        steps=[_step_line(step, base) for step in one.steps[:MOST_LINES]],
        tasks=_task_lines(one, base),
        pins=_pin_lines(one, base),
    )


def _scaled(interval: Interval) -> Interval:
    return Interval(value=interval.value / 1e6, low=interval.low / 1e6, high=interval.high / 1e6)


def _by_loader(rank: Rank, steady: Sequence[BlamedStep]) -> str | None:
    """Return which of several loaders most is lost to, in words; None if there is one."""
    lost: dict[int, int] = defaultdict(int)
    for one in steady:
        lost[one.step.loader] += one.stall_ns
    if len(lost) < 2 or not any(lost.values()):
        return None
    worst = max(lost, key=lambda loader: lost[loader])
    name = loader_in_words(rank.loaders.get(worst, {}))
    return f"of the stall, {100 * lost[worst] / sum(lost.values()):.0f} % is waiting for the loader of {name}"


def _uneven(tasks: Sequence[Task], settings: Mapping[str, object]) -> str | None:
    """Return which worker has made most of the batches by far, in words; None where any takes what comes next.

    torch gives workers as many batches each, so that is one whose part of an IterableDataset is larger.
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
    share = f"{100 * number / len(tasks):.0f} %"
    return f"worker {worker} of {workers} has made {share} of the batches: the others had less of the data"


def _hottest(stages_ms: Mapping[str, float]) -> str | None:
    if not stages_ms:
        return None
    name = max(stages_ms, key=lambda stage: stages_ms[stage])
    share = stages_ms[name] / max(1e-9, sum(stages_ms.values()))
    where = {"sample": "the dataset", "collate": "collation"}.get(name, name)
    more = "; --level 2 tells which transform" if name == "sample" and stages_ms.keys() <= {"sample", "collate"} else ""
    return f"{where} takes {stages_ms[name]:.2f} ms a sample, {100 * share:.0f} % of the workers' time{more}"


def _time_of(steps: Sequence[BlamedStep]) -> Span:
    if not steps:
        return Span(0, 0)
    last = steps[-1].step
    first = steps[0].step
    return Span(first.wait.begun, last.wait.ended + (last.loop_ns or 0))


def _begin(rank: Rank) -> int:
    if not rank.steps:
        return rank.begun
    first = rank.steps[0]
    return min([first.wait.begun, *(span.begun for span in first.startup)])


# -- starts -----------------------------------------------------------------------------------------------------------


def _starts(rank: Rank) -> list[int]:
    """Return for each pass, over whichever loader, the time from the making of its iterator to its first batch."""
    return [_start(step) for step in rank.steps if step.first]


def _start(step: Step) -> int:
    return step.wait.ended - min([step.wait.begun, *(span.begun for span in step.startup)])


def _startup(rank: Rank) -> float:
    """Return the share of the recorded time that went into starting and ending passes."""
    if not rank.steps:
        return 0.0
    spent = sum(sum(span.ns for span in step.startup) + (step.wait.ns if step.first else 0) for step in rank.steps)
    spent += sum(step.ending.ns for step in rank.steps if step.ending is not None)
    last = rank.steps[-1]
    whole = last.wait.ended + (last.loop_ns or 0) + (last.ending.ns if last.ending else 0) - _begin(rank)
    return min(1.0, spent / whole) if whole > 0 else 0.0


def _startup_of_a_pass(rank: Rank, loader: int, step_ns: float) -> float:
    """Return the share of a whole pass that its start takes; 0 if there were more passes than one.

    What is recorded may end in the middle of the first pass, which a real run does not: the loader knows how many
    batches a pass has. Where it does not, and no end was seen, the pass may be endless, and its share 0.
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
    """Return the rank whose late batches the others wait for, while they compute nothing.

    Ranks meet at each step. The one with the longest stall comes last, and what it is later than the others, they wait
    for it, within their loops. A rank is to blame if by that it costs the others a share of their time that counts,
    and most of all that ranks wait for each other.
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
    """Return whether processes meet at each step: then they are at the same one at the same time.

    Programs that follow each other, or run beside each other, do not; nobody waits there.
    """
    spans = [
        (min(begun), max(begun))
        for begun in ([step.step.wait.ended for step in one.steady if step.step.number in common] for one in ranks)
    ]
    apart: int = max(max(one) - min(one) for one in zip(*spans, strict=True))
    return apart <= _APART * max(ended - begun for begun, ended in spans)


# -- what the recording cost ------------------------------------------------------------------------------------------


def overhead_of(trace: Trace) -> float | None:
    """Return the share of the workers' and the loops' time that hooks took; None if a hook's cost is not known."""
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
    return max((step.step.wait.ended for step in one.steps[:MOST_LINES]), default=0)


def _task_lines(one: _Blamed, base: int) -> list[TaskLine]:
    until = _until(one)
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


def _pin_lines(one: _Blamed, base: int) -> list[PinLine]:
    until = _until(one)
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


def analysis_of(folder: str) -> Analysis:
    """Explain a recording.

    Args:
        folder: as ``fastload profile`` and :func:`fastload.profile` make it.

    Raises:
        TraceError: it is none, it is damaged, or no loader was asked for a batch.
    """
    return analyse(read_trace(folder), what_if)


__all__ = ["WhatIf", "analyse", "analyse_rank", "analysis_of", "chosen_rank", "overhead_of"]
