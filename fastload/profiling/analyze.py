"""Builds the analysis of a recording: ranks, verdicts, and the rank that delays the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from .blame import BlamedStep, blamed_steps, clock_of
from .bounds import costs_of, fixes
from .dominant import dominant
from .formatting import percent, rank_name
from .reader import read_trace
from .schema import Analysis, RankAnalysis, SlowSample, Workers
from .trace import Rank, Span, Trace
from .verdict import MODERATE, Facts, Judgement
from .workers import (
    UNUSUAL_WORKER,
    LoaderWork,
    cores_wanted,
    loader_text,
    main_loader,
    slow_samples,
    worker_statistics,
)

_MOSTLY = 2 / 3
"""Share of the time that ranks wait for each other which one rank must cause, to be named."""
_APART = 0.25
"""Ranks that meet at each step are no further apart, at the first and last step, than this share of their time."""


def analysis_of(folder: str) -> Analysis:
    """Analyze a recording.

    Raises:
        TraceError: it is not a recording, or it is damaged, or no loader was asked for a batch.
    """
    return analyze(read_trace(folder))


class _Blamed:
    """A rank with the blame for its stalls."""

    def __init__(self, rank: Rank, warmup: int) -> None:
        self.rank = rank
        self.work = LoaderWork(rank, main_loader(rank))
        self.clock = clock_of(rank.steps)
        self.steps = blamed_steps(rank, self.clock)
        self.steady = [step for step in self.steps if step.step.number >= warmup]


def analyze(trace: Trace) -> Analysis:
    """Analyze a recording: verdicts, and of the rank that the report is about the bounds and fixes."""
    blamed = [_Blamed(rank, trace.warmup) for rank in trace.ranks]
    late = _culprit(blamed)
    overhead = _overhead(trace)
    found = Analysis(
        command=list(trace.command),
        recorded=trace.recorded,
        versions=dict(trace.versions),
        cores=max(rank.cores for rank in trace.ranks),
        ranks=[_rank_analysis(one, blamed, late, overhead) for one in blamed],
        culprit=None if late is None else late.rank.rank,
        fixes=[],
        overhead=overhead,
        missing=dict(trace.missing),
    )
    about = found.main_rank()
    one = next(one for one in blamed if one.rank.process == about.process)
    found.costs = costs_of(one.rank, one.steady)
    if found.costs is not None:
        of = loader_text(about.loader) if len({step.loader for step in one.rank.steps}) > 1 else ""
        stage = dominant(about.workers.stages_ms)
        found.fixes = fixes(found.costs, about.verdict.cause, about.loader, stage, of)
    return found


def _rank_analysis(
    one: _Blamed, ranks: Sequence[_Blamed], late: _Blamed | None, overhead: float | None
) -> RankAnalysis:
    rank, steady, work = one.rank, one.steady, one.work
    within = Span(steady[0].step.wait.begun, steady[-1].step.ended) if steady else Span(0, 0)
    tasks = [task for task in work.tasks if task.ended > within.begun and task.begun < within.ended]
    workers = worker_statistics(work, tasks, within)
    slow = slow_samples(tasks, rank.files)
    starts = [step.wait.ended - step.asked for step in rank.steps if step.first]
    found = dominant(workers.stages_ms)
    facts = Facts(
        clock=one.clock,
        cores=rank.cores,
        total_workers=sum(other.work.settings.get("num_workers") or 0 for other in ranks),
        wanted=sum(cores_wanted(other.rank) for other in ranks),
        method=work.kind,
        probe_p50_ns=round(median(rank.probe_ns)) if rank.probe_ns and work.gil_share else None,
        dominant=found,
        hottest=None if found is not None else _hottest_text(workers.stages_ms, rank.level),
        unusual=list(_unusual_texts(workers, slow)),
        overhead=overhead,
        held_up_by=None if late in (None, one) else rank_name(late.rank),
        by_loader=_by_loader(rank, steady),
    )
    judgement = Judgement(steady, facts)
    number = max(1, len(steady))
    return RankAnalysis(
        rank=rank.rank,
        process=rank.process,
        loader=dict(work.settings),
        num_steps=len(steady),
        num_warmup=len(one.steps) - len(steady),
        clock=one.clock,
        step_ms=judgement.step_ms,
        # A device may have been idle before the first wait.
        compute_ms=max(0, judgement.total_ns - judgement.stall_ns) / number / 1e6,
        stall=judgement.stall,
        blame_ms={state: ns / number / 1e6 for state, ns in judgement.parts.most_common()},
        first_batch_ms=starts[0] / 1e6 if starts else None,
        epoch_gap_ms=sum(starts[1:]) / len(starts[1:]) / 1e6 if starts[1:] else None,
        workers=workers,
        verdict=judgement.verdict(),
        slow_samples=slow,
    )


def _unusual_texts(workers: Workers, slow: Sequence[SlowSample]) -> Iterator[str]:
    """Yield a slow worker and the slowest samples, in words."""
    if (ratio := workers.slowest_over_median or 0.0) > UNUSUAL_WORKER:
        yield f"worker {workers.slowest} takes {ratio:.1f} times as long per sample as the median worker"
    if slow:
        named = (f"{sample.file or f'index {sample.index}'} ({sample.ms:.1f} ms)" for sample in slow[:3])
        yield f"slowest samples: {', '.join(named)}"


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


def _hottest_text(stages_ms: Mapping[str, float], level: int | None) -> str | None:
    """Return the stage that takes most time of a sample, in words; None if none is known."""
    if not stages_ms:
        return None
    name = max(stages_ms, key=lambda stage: stages_ms[stage])
    where = {"sample": "the dataset", "collate": "collation"}.get(name, name)
    more = ""
    if name == "sample" and not stages_ms.keys() <= {"sample", "collate"}:
        where = "the dataset outside of known stages"
    elif name == "sample":
        more = "; --level 2 found no stage in it" if level == 2 else "; --level 2 shows which transform"
    share = stages_ms[name] / max(1e-9, sum(stages_ms.values()))
    return f"{where} takes {stages_ms[name]:.2f} ms a sample, {percent(share)} of the workers' time{more}"


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


def _overhead(trace: Trace) -> float | None:
    """Return the share of the workers' and the loops' time that hooks took; None if the cost of a hook is unknown."""
    if trace.hooks_ns is None:
        return None
    tasks = (task for rank in trace.ranks for batch in rank.batches for task in batch.tasks)
    loops = sum(rank.steps[-1].ended - rank.steps[0].asked for rank in trace.ranks if rank.steps)
    spent = loops + sum(task.ns for task in tasks if task.worker >= 0)
    return trace.hooks_ns / spent if spent else None
