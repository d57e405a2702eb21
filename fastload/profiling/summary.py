"""The analysis in a terminal: verdict, evidence and suggested changes on one screen.

Colours are used only on a terminal, through rich. Bars also differ in shape, so that no information depends on colour.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TextIO

from .formatting import (
    by_size,
    cause_name,
    ceiling_text,
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
    stall_name,
    startup_facts,
    state_of,
    times,
    worker_facts,
    workers_text,
)
from .schema import Analysis, Fix, RankAnalysis, SlowSample

Line = list[tuple[str, str]]
"""Pieces of text, each with its style for rich."""

_LABEL = 10
"""Columns of the labels on the left."""
_WIDEST = 100
_NARROWEST = 30
_STATES_SHOWN = 8
_FIXES_SHOWN = 3
_SAMPLES_SHOWN = 3
_RANKS_SHOWN = 16

_SEVERITY = {"none": "bold green", "moderate": "bold yellow", "severe": "bold red"}
_GROUPS = {
    "storage": "blue",
    "cpu": "yellow",
    "cores": "red",
    "moving": "cyan",
    "main": "bright_black",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
_ASCII = str.maketrans({"█": "#", "░": ".", "·": ",", "…": "~", "→": ">"} | dict.fromkeys(_EIGHTHS[1:], "#"))


def print_summary(analysis: Analysis, file: TextIO) -> None:
    """Print the summary to a file; with colours if that is a terminal."""
    write_lines(file, lambda columns: summary(analysis, columns))


def write_lines(file: TextIO, lines: Callable[[int], Iterable[Line]]) -> None:
    """Write lines, with rich on a terminal, else as plain text in characters that the file supports."""
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
    for line in lines(min(columns, _WIDEST)):
        console.print(Text.assemble(*((_encodable(text, file), style) for text, style in line)))


def _encodable(text: str, file: TextIO) -> str:
    encoding = getattr(file, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def summary(analysis: Analysis, columns: int) -> Iterator[Line]:
    """Yield the lines of the summary, at most ``columns`` wide.

    Commands and changes of code are not wrapped, so that they can be copied.
    """
    columns = max(columns, _NARROWEST)
    room = columns - _LABEL
    rank = analysis.main_rank()
    if rank is None:
        yield [("fastload profile", "bold")]
        yield from _labelled("VERDICT", _wrapped("no verdict: no recorded process waited for a batch", room, "bold"))
        return
    yield from _head(analysis, rank, columns)
    yield []
    yield from _labelled("VERDICT", _verdict(analysis, rank, room))
    if rank.num_steps:
        yield []
        yield from _labelled("step", _step(rank, room))
        yield from _labelled("why", _why(rank, room))
    if len(analysis.ranks) > 1:
        yield []
        yield from _labelled("ranks", _ranks(analysis, room))
    yield []
    yield from _labelled("workers", _facts(worker_facts(rank), room))
    if rank.first_batch_ms is not None:
        yield from _labelled("startup", _facts(startup_facts(rank), room))
    slowest = (line for sample in rank.slow_samples[:_SAMPLES_SHOWN] for line in _slow_sample(sample, room))
    yield from _labelled("slowest", slowest)
    yield []
    yield from _fixes(analysis, rank, room)
    for signal, why in analysis.missing.items():
        yield from _labelled("missing", _wrapped(f"{printable(signal)}: {printable(why)}", room, "dim"))
    if analysis.exit_status:
        yield from _labelled("script", _wrapped(f"exit status {analysis.exit_status}", room))


def _labelled(label: str, lines: Iterable[Line]) -> Iterator[Line]:
    """Yield lines with a label before the first one, and spaces before the others."""
    for number, line in enumerate(lines):
        yield [(f"{'' if number else label:<{_LABEL}}", "bold"), *line]


def _wrapped(words: str, room: int, style: str = "") -> Iterator[Line]:
    for line in textwrap.wrap(words, room):
        yield [(line, style)]


def _joined(facts: Iterable[str], room: int) -> Iterator[Line]:
    """Yield lines of facts; a fact that fits on one line is not broken."""
    line = ""
    for fact in facts:
        if line and len(line) + 3 + len(fact) > room:
            yield [(line, "")]
            line = ""
        line = f"{line} · {fact}" if line else fact
    if line:
        yield [(line, "")]


def _facts(facts: Mapping[str, str | None], room: int) -> Iterator[Line]:
    return _joined((f"{name} {value}" for name, value in facts.items() if value is not None), room)


def _head(analysis: Analysis, rank: RankAnalysis, columns: int) -> Iterator[Line]:
    ranks = [plural(len(analysis.ranks), "rank")] if len(analysis.ranks) > 1 else []
    overhead = [] if analysis.overhead is None else [f"overhead at least {percent(analysis.overhead)}"]
    facts = [plural(rank.num_steps, "step"), *ranks, plural(analysis.cores, "core"), workers_text(rank), *overhead]
    yield from _joined(["fastload profile", *facts], columns)


def _verdict(analysis: Analysis, rank: RankAnalysis, room: int) -> Iterator[Line]:
    verdict = rank.verdict
    style = "bold" if verdict.cause is None else _SEVERITY[verdict.severity]
    yield [(cause_name(verdict.cause) + ("" if verdict.severity == "none" else f" ({verdict.severity})"), style)]
    if len(analysis.ranks) > 1:
        yield [(rank_name(rank) + (" delays the others" if analysis.culprit is not None else ""), "bold")]
    yield from _wrapped(printable(verdict.sentence), room)
    for evidence in verdict.evidence:
        for number, line in enumerate(textwrap.wrap(printable(evidence), room - 2)):
            yield [(("  " if number else "· ") + line, "dim")]


def _step(rank: RankAnalysis, room: int) -> Iterator[Line]:
    step, share = rank.step_ms.value, rank.stall.value
    parts = [
        f"{ms(step)} ms [{ms_interval(rank.step_ms)}]",
        f"compute {ms(rank.compute_ms)}",
        f"{stall_name(rank)} {ms(step * share)}: {percent(share)} [{share_interval(rank.stall)}]",
    ]
    yield from _joined(parts, room)
    lost = round(room * min(max(share, 0.0), 1.0))
    lost = max(lost, 1) if share > 0 else lost
    yield [("█" * (room - lost), "green"), ("░" * lost, "red")]


def _why(rank: RankAnalysis, room: int) -> Iterator[Line]:
    states = by_size(rank.blame_ms)
    total = sum(value for _, value in states)
    if not states:
        return
    shown = states if len(states) <= _STATES_SHOWN else states[: _STATES_SHOWN - 1]
    rows = [(state_of(state).name, value, _GROUPS[state_of(state).group]) for state, value in shown]
    if rest := states[len(shown) :]:
        rows.append((f"{len(rest)} more", sum(value for _, value in rest), "bright_black"))
    named = min(max(len(name) for name, _, _ in rows), max(room // 3, 10))
    for name, value, style in rows:
        yield [
            (f"{shortened(name, named):<{named}}{ms(value):>7} ms {percent(value / total):>6}  ", ""),
            (_bar(value / total, room - named - 19), style),
        ]
    if rank.head_of_line >= 0.005:
        words = f"in {percent(rank.head_of_line)} of the stall a later batch was already complete"
        yield from _wrapped(words, room, "dim")


def _bar(share: float, room: int) -> str:
    eighths = round(max(room, 0) * 8 * min(max(share, 0.0), 1.0))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _ranks(analysis: Analysis, room: int) -> Iterator[Line]:
    for rank in analysis.ranks[:_RANKS_SHOWN]:
        late = analysis.culprit is not None and rank.rank == analysis.culprit
        name = shortened(rank_name(rank), 14)
        yield [
            (f"{name:<8} {f'{ms(rank.step_ms.value):>6} ms, stall ' if room >= 50 else ''}", ""),
            (f"{percent(rank.stall.value):>5}  ", ""),
            (cause_name(rank.verdict.cause), _SEVERITY[rank.verdict.severity] if rank.verdict.cause else ""),
            (" <- delays the others" if late and room >= 80 else " <-" if late else "", "bold"),
        ]
    if len(analysis.ranks) > _RANKS_SHOWN:
        yield [(f"{len(analysis.ranks) - _RANKS_SHOWN} more", "dim")]


def _slow_sample(sample: SlowSample, room: int) -> Iterator[Line]:
    where = "a sample" if sample.index is None else f"sample {sample.index}"
    stage = "" if sample.stage is None else f", mostly {printable(sample.stage)}"
    words = f"{ms(sample.ms):>5} ms  {where}{shortened(stage, 30)}"
    file = "" if sample.file is None else printable(sample.file)
    beside = room - len(words) - 2
    if file and beside >= min(len(file), 24):
        yield [(f"{words}  {shortened(file, beside)}", "")]
        return
    yield [(shortened(words, room), "")]
    if file:
        yield [(" " * _LABEL + shortened(file, room - _LABEL), "dim")]


def _fixes(analysis: Analysis, rank: RankAnalysis, room: int) -> Iterator[Line]:
    trusted = analysis.simulation is not None and analysis.simulation.trusted
    for number, fix in enumerate(analysis.fixes[:_FIXES_SHOWN]):
        label = f"{'' if number else 'FIX':<{_LABEL - 3}}{number + 1}"
        yield from _labelled(label, _fix(fix, observed_ms(analysis, rank), room))
        yield []
    if not analysis.fixes:
        yield from _labelled("FIX", _wrapped(no_fix_text(analysis.simulation, rank.verdict.cause), room))
    elif len(analysis.fixes) > _FIXES_SHOWN:
        yield from _labelled("", _wrapped(f"{len(analysis.fixes) - _FIXES_SHOWN} more in profile.html", room, "dim"))
    if analysis.ceiling_ms is not None:
        yield from _labelled("ceiling", _wrapped(ceiling_text(analysis.ceiling_ms), room))
    if trusted:
        yield from _labelled("", _wrapped(simulation_text(analysis.simulation), room, "dim"))


def _fix(fix: Fix, observed: float, room: int) -> Iterator[Line]:
    gain = f"{ms(observed)} → {ms(fix.step_ms.value)} ms [{ms_interval(fix.step_ms)}], {times(fix.speedup)}"
    title = printable(fix.title)
    gap = room - len(title) - len(gain)
    if gap >= 2:
        yield [(title, "bold"), (" " * gap + gain, "bold green")]
    else:
        yield from _wrapped(title, room, "bold")
        yield [(gain, "bold green")]
    yield from _wrapped(f"then limited by {printable(fix.then)}", room, "dim")
    for line in fix.change.split("\n"):
        yield [(printable(line), {"-": "red", "+": "green"}.get(line[:1], "dim"))]
