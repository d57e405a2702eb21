"""The analysis in a terminal: verdict, evidence and suggested changes on one screen. Bars do not depend on colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Group
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from .bounds import bound_text, gain_text, limit_text
from .formatting import (
    by_size,
    cause_name,
    ms,
    percent,
    percent_number,
    plural,
    printable,
    rank_name,
    state_of,
    times,
)
from .schema import Analysis, Fix, Interval, RankAnalysis, SlowSample

_LABEL = 9
"""Columns of the labels on the left."""
_WIDEST = 100
_STATES_SHOWN = 8
_EXPLAINED = 0.1
"""Share of a stall from which the words for a state are explained."""
_FIXES_SHOWN = 3
_SAMPLES_SHOWN = 3
_RANKS_SHOWN = 16

_SEVERITY = {"none": "bold green", "moderate": "bold yellow", "severe": "bold red"}


def summary(analysis: Analysis, *, whole: bool = False) -> Any:
    """Return the summary as a rich renderable; ``whole``: all states and fixes of it."""
    rank = analysis.main_rank()
    parts: list[Any] = [_joined(_head(analysis, rank)), Text(), *_of_rank(analysis, rank, whole)]
    parts.append(_labelled(_suggestions(analysis, rank, None if whole else _FIXES_SHOWN)))
    if analysis.missing:
        missing = (Text(f"{printable(signal)}: {printable(why)}", "dim") for signal, why in analysis.missing.items())
        parts += [Text(), _labelled(("missing", words) for words in missing)]
    return Constrain(Group(*parts), _WIDEST)


def rank_summary(analysis: Analysis, rank: RankAnalysis) -> Any:
    """Return what the summary says of one of several ranks, as a rich renderable."""
    return Constrain(Group(*_of_rank(analysis, rank, True)), _WIDEST)


def further(analysis: Analysis, rank: RankAnalysis) -> Any:
    """Return what the summary leaves out: a rank's stages, slowest samples, loader, and versions of packages."""
    stages = by_size(rank.workers.stages_ms)
    grid = _grid("left", "right", "left")
    for name, value in stages:
        words = "the rest of the dataset" if name == "sample" else printable(name)
        grid.add_row(words, f"{ms(value)} ms", Bar(stages[0][1], 0.0, value, color="yellow"))
    loader = Text("\n".join(printable(f"{name}: {value}") for name, value in rank.loader.items()))
    versions = _joined(printable(f"{name} {version}") for name, version in analysis.versions.items())
    steps = Text(f"{rank.num_steps}, after {rank.num_warmup} of warm-up")
    found = [("steps", steps), ("loader", loader), ("versions", versions)]
    parts: list[Any] = [_labelled([("stages", grid)]), Text()] if stages else []
    return Constrain(Group(*parts, *_slowest(rank.slow_samples), _labelled(found)), _WIDEST)


def _of_rank(analysis: Analysis, rank: RankAnalysis, whole: bool) -> Iterator[Any]:
    found = [("VERDICT", _verdict(analysis, rank))]
    if rank.num_steps:
        found += [("step", _step(rank)), ("why", _why(rank, whole))]
    if len(analysis.ranks) > 1 and rank is analysis.main_rank():
        found.append(("ranks", _ranks(analysis)))
    yield from (_labelled(found), Text())
    found = [("workers", facts)] if (facts := _worker_facts(rank)) else []
    if rank.first_batch_ms is not None:
        gap = None if rank.epoch_gap_ms is None else f"{ms(rank.epoch_gap_ms)} ms"
        found.append(("startup", _facts({"first batch after": f"{ms(rank.first_batch_ms)} ms", "between epochs": gap})))
    if lines := rank.loader.get("copied"):
        found.append(("memory", Text("\n".join(map(printable, lines)))))
    yield from (_labelled(found), Text())
    # Not in the table, which would wrap names of files.
    yield from _slowest(rank.slow_samples[:_SAMPLES_SHOWN])


def _labelled(found: Iterable[tuple[str, Any]]) -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="bold", width=_LABEL)
    rows.add_column(ratio=1)
    for label, content in found:
        rows.add_row(label, content)
    return rows


def _worker_facts(rank: RankAnalysis) -> Text:
    workers = rank.workers
    slowest = None
    if workers.slowest is not None and workers.slowest_over_median is not None:
        slowest = f"{workers.slowest}: {times(workers.slowest_over_median)} the median"
    shares = {"on CPU": workers.on_cpu, "waiting for a core": workers.run_queue, "blocked": workers.blocked}
    durations = {"task p50": workers.task_p50_ms, "task p99": workers.task_p99_ms}
    return _facts(
        {
            "busy": None if workers.busy is None else percent(workers.busy),
            **{name: None if value is None else f"{ms(value)} ms" for name, value in durations.items()},
            **{name: None if share is None else percent(share) for name, share in shares.items()},
            "slowest worker": slowest,
        }
    )


def _suggestions(analysis: Analysis, rank: RankAnalysis, shown: int | None) -> Iterator[tuple[str, Any]]:
    if analysis.fixes and analysis.costs is not None:
        yield "bound", Text(bound_text(analysis.costs))
    for number, fix in enumerate(analysis.fixes[:shown], 1):
        yield f"{'FIX' if number == 1 else '':<{_LABEL - 2}}{number}", _fix_lines(fix, rank.step_ms.value)
    if not analysis.fixes:
        yield "FIX", _no_fix_text(analysis, rank)
    elif left := len(analysis.fixes[shown:] if shown else []):
        yield "", Text(f"{left} more in profile.html", "dim")


def _no_fix_text(analysis: Analysis, rank: RankAnalysis) -> str:
    """Return why no change is suggested."""
    if rank.verdict.cause is None:
        return "none: without a verdict it is not known what helps"
    if rank.verdict.cause == "compute":
        return "nothing to change: the loader keeps up"
    if analysis.costs is None:
        return "none: how the batches were made is not known, or the data are resident in memory"
    return "none: no known change against this cause can make a step 3 % faster"


def _joined(facts: Iterable[str]) -> Text:
    return Text(" · ".join(facts))


def _facts(facts: Mapping[str, str | None]) -> Text:
    return _joined(f"{name} {value}" for name, value in facts.items() if value is not None)


def _head(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    yield "fastload profile"
    yield plural(rank.num_steps, "step")
    if len(analysis.ranks) > 1:
        yield plural(len(analysis.ranks), "rank")
    yield plural(analysis.cores, "core")
    workers = rank.workers
    yield f"{plural(workers.number, 'worker')} ({printable(workers.method)})" if workers.number else "no workers"
    if analysis.overhead is not None:
        yield f"overhead at least {percent(analysis.overhead)}"


def _verdict(analysis: Analysis, rank: RankAnalysis) -> Any:
    verdict = rank.verdict
    style = "bold" if verdict.cause is None else _SEVERITY[verdict.severity]
    severity = "" if verdict.severity == "none" else f" ({verdict.severity})"
    lines = [Text(cause_name(verdict.cause) + severity, style)]
    if len(analysis.ranks) > 1:
        lines.append(Text(rank_name(rank) + ("" if analysis.culprit is None else " delays the others"), "bold"))
    lines.append(Text(printable(verdict.sentence)))
    return Group(*lines, *(Text(f"· {printable(line)}", "dim") for line in verdict.evidence))


def _step(rank: RankAnalysis) -> Any:
    step, share = rank.step_ms.value, rank.stall.value
    stall = "idle device" if rank.clock == "device" else "waiting for data"
    parts = [
        f"{ms(step)} ms [{_limits(rank.step_ms, ms)}]",
        f"compute {ms(rank.compute_ms)}",
        f"stall ({stall}) {ms(step * share)}: {percent(share)} [{_limits(rank.stall, percent_number)} %]",
    ]
    return Group(_joined(parts), Bar(1.0, 0.0, 1.0 - share, color="green"))


def _limits(of: Interval, number: Callable[[float], str]) -> str:
    return f"{number(of.low)}-{number(of.high)}"


def _grid(*justified: str) -> Table:
    """Return an empty table without lines; ``justified``: how each column is."""
    grid = Table.grid(padding=(0, 2))
    for justify in justified:
        grid.add_column(justify=justify, overflow="fold")  # type: ignore[arg-type] # left or right
    return grid


def _why(rank: RankAnalysis, whole: bool) -> Any:
    states = by_size(rank.blame_ms)
    total = sum(value for _, value in states)
    shown = states if whole or len(states) <= _STATES_SHOWN else states[: _STATES_SHOWN - 1]
    rows = [(state_of(state).name, value, state_of(state).colour) for state, value in shown]
    if rest := states[len(shown) :]:
        rows.append((f"{len(rest)} more", sum(value for _, value in rest), "bright_black"))
    grid = _grid("left", "right", "right", "left")
    for name, value, color in rows:
        share = value / total
        grid.add_row(name, f"{ms(value)} ms", percent(share), Bar(1.0, 0.0, share, color=color))
    most = (state for state, value in states if value >= _EXPLAINED * total and not state.startswith("stage:"))
    return Group(grid, *(Text(f"{state_of(state).name}: {state_of(state).meaning}", "dim") for state in most))


def _ranks(analysis: Analysis) -> Any:
    grid = _grid("left", "right", "right", "left", "left")
    for rank in analysis.ranks[:_RANKS_SHOWN]:
        late = analysis.culprit is not None and rank.rank == analysis.culprit
        verdict = Text(cause_name(rank.verdict.cause), _SEVERITY[rank.verdict.severity] if rank.verdict.cause else "")
        note = Text("<- delays the others" if late else "", "bold")
        grid.add_row(rank_name(rank), f"{ms(rank.step_ms.value)} ms", percent(rank.stall.value), verdict, note)
    if len(analysis.ranks) > _RANKS_SHOWN:
        grid.add_row(Text(f"{len(analysis.ranks) - _RANKS_SHOWN} more", "dim"))
    return grid


def _slowest(samples: Sequence[SlowSample]) -> Iterator[Text]:
    """Yield lines that are not wrapped: names of files are there to be copied."""
    for number, sample in enumerate(samples):
        facts = [f"{ms(sample.ms)} ms", f"index {sample.index}"]
        facts += [] if sample.stage is None else [f"mostly {printable(sample.stage)}"]
        line = Text(no_wrap=True, overflow="ignore")
        line.append(f"{'' if number else 'slowest':<{_LABEL + 1}}", "bold")
        line.append("  ".join([*facts, *([] if sample.file is None else [printable(sample.file)])]))
        yield line
    if samples:
        yield Text()


def _fix_lines(fix: Fix, step_ms: float) -> Any:
    head = _grid("left", "right")
    head.expand = True
    head.add_row(Text(printable(fix.title), "bold"), Text(gain_text(fix, step_ms)))
    styles = {"-": "red", "+": "green"}
    lines = (Text(printable(line), styles.get(line[:1], "dim")) for line in fix.change.split("\n"))
    return Group(head, Text(printable(limit_text(fix)), "dim"), *lines)
