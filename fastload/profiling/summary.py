"""The analysis in a terminal: verdict, evidence and suggested changes on one screen.

Colours are used only on a terminal, through rich. Bars also differ in shape, so that no information depends on colour.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from .analysis import Analysis, Fix, RankAnalysis
from .text import (
    Group,
    by_size,
    cause_name,
    main_rank,
    ms,
    ms_interval,
    no_fix_text,
    observed_ms,
    percent,
    plural,
    printable,
    rank_name,
    share_interval,
    shortened,
    simulation_text,
    state_group,
    state_name,
    times,
    width,
    workers_text,
)

Piece = tuple[str, str]
"""Text and its style, of rich's."""

_LABEL = 10
_WIDEST = 100
_NARROWEST = 30
_STATES_SHOWN = 8
_FIXES_SHOWN = 3
_RANKS_SHOWN = 16

_SEVERITY = {"none": "bold green", "moderate": "bold yellow", "severe": "bold red"}
_GROUPS: dict[Group, str] = {
    "storage": "blue",
    "cpu": "yellow",
    "cores": "red",
    "order": "magenta",
    "moving": "cyan",
    "main": "bright_black",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_ASCII = str.maketrans({"█": "#", "░": ".", "·": ",", "…": "~", "→": ">"} | dict.fromkeys(_EIGHTHS[1:], "#"))


def print_summary(analysis: Analysis, file: TextIO | None = None) -> None:
    """Print the summary to ``file`` (None: standard error); with colours if that is a terminal."""
    file = sys.stderr if file is None else file
    write_lines(file, lambda columns: summary(analysis, columns))


def write_lines(file: TextIO, lines: Callable[[int], Iterable[Sequence[Piece]]]) -> None:
    """Write lines, with rich on a terminal, else as plain text in characters that the file supports.

    Args:
        file: where to.
        lines: number of columns -> the pieces of each line.
    """
    if not file.isatty():
        for line in lines(_WIDEST):
            print(_encodable("".join(text for text, _ in line).rstrip(), file), file=file)
        return
    from rich.console import Console
    from rich.text import Text

    try:
        columns = os.get_terminal_size(file.fileno()).columns
    except (OSError, ValueError):  # not a file of the system
        columns = 80
    console = Console(file=file, width=max(columns, _NARROWEST), highlight=False, soft_wrap=True)
    for line in lines(min(max(columns, _NARROWEST), _WIDEST)):
        console.print(Text.assemble(*((_encodable(text, file), style) for text, style in line)))


def _encodable(text: str, file: TextIO) -> str:
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def summary(analysis: Analysis, columns: int) -> Iterator[list[Piece]]:
    """Yield the lines of the summary.

    Args:
        analysis: what to show.
        columns: maximum width of a line; commands and changes of code are not wrapped, so that they can be copied.
    """
    columns = max(columns, _NARROWEST)
    rank = main_rank(analysis)
    if rank is None:
        yield [("fastload profile", "bold")]
        yield from _row("VERDICT", "no verdict: no recorded process waited for a batch", columns, "bold")
        return
    yield from _head(analysis, rank, columns)
    yield []
    yield from _verdict(analysis, rank, columns)
    if rank.num_steps:
        yield []
        yield from _step(rank, columns)
        yield from _why(rank, columns)
    if len(analysis.ranks) > 1:
        yield []
        yield from _ranks(analysis, columns)
    yield []
    yield from _facts("workers", _workers(rank), columns)
    yield from _facts("startup", _startup(rank), columns)
    yield from _slow(rank, columns)
    yield []
    yield from _fixes(analysis, rank, columns)
    for signal, why in analysis.missing.items():
        yield from _row("missing", f"{printable(signal)}: {printable(why)}", columns, "dim")
    if analysis.exit_status:
        yield from _row("script", f"exit status {analysis.exit_status}", columns)


def _head(analysis: Analysis, rank: RankAnalysis, columns: int) -> Iterator[list[Piece]]:
    name = "fastload profile"
    facts = [plural(rank.num_steps, "step"), plural(analysis.cores, "core"), workers_text(rank)]
    if len(analysis.ranks) > 1:
        facts.insert(1, plural(len(analysis.ranks), "rank"))
    overhead = "" if analysis.overhead is None else f"overhead at least {percent(analysis.overhead)}"
    words = " · ".join(facts)
    if len(name) + 2 + width(words) + 2 + len(overhead) <= columns:
        gap = " " * (columns - len(name) - 2 - width(words) - len(overhead))
        yield [(name, "bold"), (f"  {words}", ""), (gap + overhead, "dim")]
        return
    yield [(name, "bold")]
    yield from ([(line, "")] for line in _wrapped([*facts, overhead] if overhead else facts, columns))


def _verdict(analysis: Analysis, rank: RankAnalysis, columns: int) -> Iterator[list[Piece]]:
    verdict = rank.verdict
    style = "bold" if verdict.cause is None else _SEVERITY[verdict.severity]
    where = ""
    if len(analysis.ranks) > 1:
        where = f"  {rank_name(rank)}" + (" delays the others" if analysis.culprit is not None else "")
    title = cause_name(verdict.cause) + ("" if verdict.severity == "none" else f" ({verdict.severity})")
    beside = _LABEL + len(title) + len(where) <= columns
    yield [(f"{'VERDICT':<{_LABEL}}", "bold"), (title, style), (where if beside else "", "bold")]
    if not beside:
        yield [(" " * _LABEL + where.strip(), "bold")]
    for line in textwrap.wrap(printable(verdict.sentence), columns - _LABEL):
        yield [(" " * _LABEL + line, "")]
    for evidence in verdict.evidence:
        first, *rest = textwrap.wrap(printable(evidence), columns - _LABEL - 2) or [""]
        yield [(" " * _LABEL + "· " + first, "dim")]
        yield from ([(" " * (_LABEL + 2) + line, "dim")] for line in rest)


def _step(rank: RankAnalysis, columns: int) -> Iterator[list[Piece]]:
    step, stalled = rank.step_ms.value, rank.step_ms.value * rank.stall.value
    what = "stall (idle device)" if rank.clock == "device" else "stall"
    parts = [
        f"{ms(step)} ms [{ms_interval(rank.step_ms)}]",
        f"compute {ms(rank.compute_ms)}",
        f"{what} {ms(stalled)}: {percent(rank.stall.value)} [{share_interval(rank.stall)}]",
    ]
    for number, line in enumerate(_wrapped(parts, columns - _LABEL)):
        yield [(f"{'' if number else 'step':<{_LABEL}}", "bold"), (line, "")]
    room = columns - _LABEL
    lost = round(room * min(max(rank.stall.value, 0.0), 1.0))
    lost = max(lost, 1) if rank.stall.value > 0 else lost
    yield [(" " * _LABEL, ""), ("█" * (room - lost), "green"), ("░" * lost, "red")]


def _why(rank: RankAnalysis, columns: int) -> Iterator[list[Piece]]:
    states = by_size(rank.blame_ms)
    total = sum(value for _, value in states)
    if not states:
        return
    shown = states if len(states) <= _STATES_SHOWN else states[: _STATES_SHOWN - 1]
    rows = [(state_name(state), value, _GROUPS[state_group(state)]) for state, value in shown]
    if len(shown) < len(states):
        rest = states[len(shown) :]
        rows.append((f"{len(rest)} more", sum(value for _, value in rest), "bright_black"))
    named = min(max(width(name) for name, _, _ in rows), max((columns - _LABEL) // 3, 10))
    room = columns - _LABEL - named - 19
    for number, (name, value, style) in enumerate(rows):
        short = shortened(name, named)
        yield [
            (f"{'' if number else 'why':<{_LABEL}}", "bold"),
            (short + " " * (named - width(short)), ""),
            (f"{ms(value):>7} ms {percent(value / total):>6}  ", ""),
            (_bar(value / total, room), style),
        ]
    if rank.head_of_line >= 0.005:
        words = f"in {percent(rank.head_of_line)} of the stall a later batch was already complete"
        yield from _row("", words, columns, "dim")


def _bar(share: float, room: int) -> str:
    eighths = round(max(room, 0) * 8 * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _ranks(analysis: Analysis, columns: int) -> Iterator[list[Piece]]:
    for number, rank in enumerate(analysis.ranks[:_RANKS_SHOWN]):
        late = analysis.culprit is not None and rank.rank == analysis.culprit
        name = shortened(rank_name(rank), 14)
        yield [
            (f"{'' if number else 'ranks':<{_LABEL}}", "bold"),
            (f"{name:<8} {f'{ms(rank.step_ms.value):>6} ms, stall ' if columns >= 60 else ''}", ""),
            (f"{percent(rank.stall.value):>5}  ", ""),
            (cause_name(rank.verdict.cause), _SEVERITY[rank.verdict.severity] if rank.verdict.cause else ""),
            (" <- delays the others" if late and columns >= 90 else " <-" if late else "", "bold"),
        ]
    if len(analysis.ranks) > _RANKS_SHOWN:
        yield from _row("", f"{len(analysis.ranks) - _RANKS_SHOWN} more", columns, "dim")


def _workers(rank: RankAnalysis) -> list[str]:
    workers = rank.workers
    facts = []
    if workers.busy is not None and workers.method != "inline":
        facts.append(f"{percent(workers.busy)} busy")
    if workers.task_p50_ms is not None:
        facts.append(f"task p50 {ms(workers.task_p50_ms)} ms, p99 {ms(workers.task_p99_ms)} ms")
    split = (("on CPU", workers.on_cpu), ("run queue", workers.run_queue), ("blocked", workers.blocked))
    facts += [f"{name} {percent(share)}" for name, share in split if share is not None]
    if workers.cache_hit is not None:
        facts.append(f"page-cache hits {percent(workers.cache_hit)}")
    if workers.read_mb_per_s is not None:
        facts.append(f"{ms(workers.read_mb_per_s)} MB/s read")
    if workers.slowest is not None and (workers.slowest_over_median or 0) >= 1.2:
        facts.append(f"worker {workers.slowest} takes {times(workers.slowest_over_median or 0)} the median's time")
    return facts


def _startup(rank: RankAnalysis) -> list[str]:
    facts = []
    if rank.first_batch_ms is not None:
        facts.append(f"first batch after {ms(rank.first_batch_ms)} ms")
    if rank.epoch_gap_ms is not None:
        facts.append(f"{ms(rank.epoch_gap_ms)} ms between epochs")
    return [*facts, f"{percent(rank.startup)} of the run"] if facts else []


def _slow(rank: RankAnalysis, columns: int) -> Iterator[list[Piece]]:
    for number, sample in enumerate(rank.slow_samples[:3]):
        where = f"sample {sample.index}" if sample.index is not None else "a sample"
        stage = "" if sample.stage is None else f", mostly {state_name('stage:' + sample.stage)}"
        words = f"{ms(sample.ms):>5} ms  {where}{shortened(stage, 30)}"
        file = "" if sample.file is None else printable(sample.file)
        beside = columns - _LABEL - width(words) - 2
        if file and beside >= min(width(file), 24):
            words += f"  {shortened(file, beside)}"
            file = ""
        yield [(f"{'' if number else 'slowest':<{_LABEL}}", "bold"), (shortened(words, columns - _LABEL), "")]
        if file:
            yield [(" " * (_LABEL + 10) + shortened(file, columns - _LABEL - 10), "dim")]


def _fixes(analysis: Analysis, rank: RankAnalysis, columns: int) -> Iterator[list[Piece]]:
    simulation = analysis.simulation
    trusted = simulation is not None and simulation.trusted
    if not analysis.fixes:
        if simulation is None or not simulation.trusted:
            reason = simulation_text(analysis)
        else:
            reason = "nothing to change" if rank.verdict.cause == "compute" else no_fix_text(simulation)
        yield from _row("FIX", reason, columns)
    for number, fix in enumerate(analysis.fixes[:_FIXES_SHOWN]):
        yield from _fix(number, fix, observed_ms(analysis, rank), columns)
    if len(analysis.fixes) > _FIXES_SHOWN:
        yield from _row("", f"{len(analysis.fixes) - _FIXES_SHOWN} more in profile.html", columns, "dim")
    if analysis.ceiling_ms is not None:
        words = f"{ms(analysis.ceiling_ms)} ms a step with cached batches (measured)"
        yield from _row("ceiling", words, columns)
    if trusted:
        yield from _row("", simulation_text(analysis), columns, "dim")


def _fix(number: int, fix: Fix, observed: float, columns: int) -> Iterator[list[Piece]]:
    gain = f"{ms(observed)} → {ms(fix.step_ms.value)} ms [{ms_interval(fix.step_ms)}], {times(fix.speedup)}"
    label = f"{'FIX' if number == 0 else '':<{_LABEL - 3}}"
    title = printable(fix.title)
    room = columns - _LABEL
    if width(title) + 2 + width(gain) <= room:
        gap = " " * (room - width(title) - width(gain))
        yield [(label, "bold"), (f"{number + 1}  ", "bold"), (title, "bold"), (gap + gain, "bold green")]
    else:
        for place, line in enumerate(textwrap.wrap(title, room)):
            yield [(" " * _LABEL if place else f"{label}{number + 1}  ", "bold"), (line, "bold")]
        yield [(" " * _LABEL, ""), (gain, "bold green")]
    yield from _row("", f"then limited by {printable(fix.then)}", columns, "dim")
    for line in fix.change.split("\n"):
        style = {"-": "red", "+": "green"}.get(line[:1], "dim")
        yield [(" " * _LABEL, ""), (printable(line), style)]
    yield []


def _facts(label: str, facts: Sequence[str], columns: int) -> Iterator[list[Piece]]:
    for number, line in enumerate(_wrapped(facts, columns - _LABEL)):
        yield [(f"{'' if number else label:<{_LABEL}}", "bold"), (line, "")]


def _wrapped(facts: Sequence[str], room: int) -> Iterator[str]:
    """Yield lines of facts; a fact that fits on one line is not broken."""
    line = ""
    for fact in facts:
        if line and width(line) + 3 + width(fact) > room:
            yield line
            line = ""
        line = f"{line} · {fact}" if line else fact
    if line:
        yield line


def _row(label: str, words: str, columns: int, style: str = "") -> Iterator[list[Piece]]:
    for number, line in enumerate(textwrap.wrap(words, columns - _LABEL)):
        yield [(f"{'' if number else label:<{_LABEL}}", "bold"), (line, style)]
