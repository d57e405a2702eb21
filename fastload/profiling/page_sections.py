"""Building blocks of the page, and its sections about one rank: steps, timeline, slowest samples, workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from .analysis import RankAnalysis
from .text import GROUPS, by_size, ms, percent, plural, printable, state_group, state_name, times, workers_text

NAMES: dict[str, str] = {"compute": "compute"} | {str(group): name for group, name in GROUPS.items()}
"""Meaning of each colour."""


def text(words: object) -> str:
    """Return escaped text, which may come from outside."""
    return escape(printable(str(words)), quote=True)


def pairs(facts: Iterable[tuple[str, str]]) -> str:
    """Return names and values as items of a list."""
    return "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table.

    Args:
        head: names of columns; ``>`` before those of numbers.
        rows: cells of each row, HTML.
        kind: class of the element.
    """
    top = "".join(
        f'<th scope="col"{" class=n" if name[0] == ">" else ""}>{name.lstrip(">")}</th>'
        if name
        else '<td aria-hidden="true"></td>'
        for name in head
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def folded(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str, number: int, words: str) -> str:
    """Return a table (see :func:`table`) of the first ``number`` rows, and a folded one of the rest."""
    first = table(head, rows[:number], kind)
    if number >= len(rows):
        return first
    rest = table(head, rows[number:], kind)
    return f"{first}<details><summary>{len(rows) - number} more, {text(words)}</summary>{rest}</details>"


def cell(words: str, kind: str = "") -> str:
    """Return a table cell; of kind ``n`` for a number."""
    return f"<td{f' class={kind}' if kind else ''}>{text(words)}</td>"


def meter(share: float, group: str) -> str:
    """Return a cell with a bar for a share from 0 to 1, in the colour of a group of :data:`NAMES`."""
    size = min(max(share, 0.0), 1.0) * 100
    return f'<td class="meter" aria-hidden="true"><i class="c-{group}" style="width:{size:.1f}%"></i></td>'


def capital(words: str) -> str:
    """Return words with a capital first letter."""
    return words[:1].upper() + words[1:]


def sentence(words: str) -> str:
    """Return words as a sentence."""
    return capital(words) + ("" if words.endswith((".", "!", "?")) else ".")


MOST_TASKS = 20_000
"""Tasks of a rank on the page: a browser can draw so many at once."""

_SAMPLES = 8
"""Slowest samples that are shown without unfolding."""

_STAGES = {"sample": "the rest of the dataset"}
"""Names of stages, in words."""


def rank_sections(place: int, rank: RankAnalysis) -> Iterator[str]:
    """Yield the sections about one rank, as HTML; ``place`` is part of the ids by which the script finds them."""
    yield from _steps(place, rank)
    yield from _timeline(place, rank)
    yield from _slow_samples(rank)
    yield from _workers(rank)


def _steps(place: int, rank: RankAnalysis) -> Iterator[str]:
    if not rank.steps:
        return
    slowest = sorted(enumerate(rank.steps), key=lambda one: -one[1].stall_ms)[:10]
    words = f"{plural(len(rank.steps), 'step')}, one bar each; the longest stall is {ms(slowest[0][1].stall_ms)} ms"
    legend = "".join(
        f'<li><i class="swatch c-{group}"></i>{name}</li>'
        for group, name in NAMES.items()
        if group == "compute" or any(state_group(state) == group for state in rank.blame_ms)
    )
    rows = [
        [
            f'<th scope="row" class="n">{number}</th>',
            cell(ms(step.wait_ms), "n"),
            cell(ms(step.stall_ms), "n"),
            cell(next((state_name(state) for state, _ in by_size(step.blame_ms)), "-")),
            cell("warm-up" if number < rank.num_warmup else ""),
        ]
        for number, step in slowest
    ]
    slowest_steps = table((">step", ">wait, ms", ">stall, ms", "mostly", ""), rows)
    yield f"""<section><h2>Steps</h2><ul class="legend">{legend}</ul>
<canvas class="strip" id="strip-{place}" tabindex="0" role="img" aria-label="{text(words)}"></canvas>
<p class="readout" id="strip-says-{place}" aria-live="polite">
Point at a bar or use the arrow keys; click to show the step in the timeline.</p>
<details><summary>The ten longest stalls</summary><div class="scroll">{slowest_steps}</div></details></section>"""


def _timeline(place: int, rank: RankAnalysis) -> Iterator[str]:
    if not rank.steps or not rank.tasks:
        return
    words = f"the main thread and {workers_text(rank)}: {plural(len(rank.tasks), 'task')} over time"
    note = ""
    if len(rank.tasks) > MOST_TASKS:
        note = f'<p class="dim">The first {MOST_TASKS} of {len(rank.tasks)} tasks.</p>'
    buttons = "".join(
        f'<button type="button" data-do="{do}" data-of="{place}" aria-label="{name}" title="{name}">{sign}</button>'
        for do, name, sign in (
            ("back", "earlier", "←"),
            ("out", "zoom out", "\u2212"),
            ("in", "zoom in", "+"),
            ("on", "later", "→"),
            ("all", "show all", "all"),
        )
    )
    yield f"""<section><h2>Timeline</h2><div class="buttons">{buttons}</div>
<ul class="legend"><li><i class="swatch c-compute"></i>compute</li><li><i class="swatch c-cores"></i>stall</li>
<li><i class="swatch c-storage"></i>task</li>
<li><i class="swatch c-cpu"></i>task over 1.5 times the median</li></ul>
<canvas class="timeline" id="timeline-{place}" tabindex="0" role="img" aria-label="{text(words)}"></canvas>
<p class="readout" id="timeline-says-{place}" aria-live="polite">
Drag to move; point at a task to see which step took its batch.</p>
{note}</section>"""


def _slow_samples(rank: RankAnalysis) -> Iterator[str]:
    if not rank.slow_samples:
        return
    longest = max(sample.ms for sample in rank.slow_samples)
    rows = [
        [
            cell(ms(sample.ms), "n"),
            meter(sample.ms / longest if longest else 0, "cpu"),
            cell("-" if sample.index is None else str(sample.index), "n"),
            f'<td class="file">{"" if sample.file is None else text(sample.file)}</td>',
            cell("-" if sample.stage is None else sample.stage),
            cell("main" if sample.worker < 0 else str(sample.worker), "n"),
        ]
        for sample in rank.slow_samples
    ]
    yield '<section><h2>Slowest samples</h2><div class="scroll">'
    faster = f"{ms(rank.slow_samples[_SAMPLES].ms)} ms and less" if len(rows) > _SAMPLES else ""
    yield folded((">ms", "", ">index", "file", "slowest stage", ">worker"), rows, "samples", _SAMPLES, faster)
    yield "</div></section>"


def _workers(rank: RankAnalysis) -> Iterator[str]:
    workers = rank.workers
    facts: list[tuple[str, str | None]] = [
        ("workers", workers_text(rank)),
        ("busy", _known(percent, workers.busy)),
        ("task, median", _known(_ms, workers.task_p50_ms)),
        ("task, 99th percentile", _known(_ms, workers.task_p99_ms)),
        ("tasks: on the CPU", _known(percent, workers.on_cpu)),
        ("tasks: in the run queue", _known(percent, workers.run_queue)),
        ("tasks: blocked", _known(percent, workers.blocked)),
        ("page-cache hits (share of bytes)", _known(percent, workers.cache_hit)),
        ("read", None if workers.read_mb_per_s is None else f"{ms(workers.read_mb_per_s)} MB/s"),
        ("slowest worker / median worker", _known(times, workers.slowest_over_median)),
        ("slowest worker", None if workers.slowest is None else str(workers.slowest)),
        ("time to first batch", _known(_ms, rank.first_batch_ms)),
        ("gap between epochs", _known(_ms, rank.epoch_gap_ms)),
        ("startup (share of the run)", percent(rank.startup)),
        ("steps", f"{rank.num_steps}, after {rank.num_warmup} of warm-up"),
    ]
    yield "<section><h2>Workers and loader</h2>"
    yield f'<dl class="facts">{pairs((name, value) for name, value in facts if value is not None)}</dl>'
    if unknown := [name for name, value in facts if value is None]:
        yield f'<p class="dim">Unknown: {text(", ".join(unknown))}.</p>'
    if workers.stages_ms:
        longest = max(workers.stages_ms.values())
        rows = [
            [
                f'<th scope="row">{text(_STAGES.get(name, name))}</th>',
                cell(ms(value), "n"),
                meter(value / longest if longest else 0, "cpu"),
            ]
            for name, value in sorted(workers.stages_ms.items(), key=lambda one: -one[1])
        ]
        yield f"<h3>Mean time per sample</h3>{table(('stage', '>ms', ''), rows, 'bars')}"
    if rank.loader:
        settings = ((name, printable(str(value))) for name, value in rank.loader.items())
        yield f'<details><summary>The loader</summary><dl class="facts">{pairs(settings)}</dl></details>'
    yield "</section>"


def _known(say: Any, value: float | None) -> str | None:
    return None if value is None else str(say(value))


def _ms(value: float) -> str:
    return f"{ms(value)} ms"
