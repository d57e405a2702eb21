"""The analysis as one self-contained HTML file, without network access or libraries.

All text is written here, escaped. The script (``page_parts/page.js``) draws the timelines from numbers. A content
security policy forbids all other scripts and all requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from importlib.resources import files

from .bounds import bound_text, gain_text, limit_text
from .formatting import (
    GROUPS,
    by_size,
    cause_name,
    ceiling_text,
    copied_lines,
    dominant_lines,
    ms,
    ms_interval,
    no_fix_text,
    percent,
    plural,
    printable,
    rank_name,
    run_queue_text,
    share_interval,
    stall_name,
    startup_facts,
    state_of,
    unit_of,
    worker_facts,
    workers_text,
)
from .schema import Analysis, Fix, RankAnalysis

_MOST_TASKS = 20_000
"""Tasks of a rank on the page: a browser can draw so many at once."""


def page(analysis: Analysis) -> str:
    """Return the HTML file's text."""
    parts = files(__package__) / "page_parts"
    script = (parts / "page.js").read_text(encoding="utf-8")
    style = (parts / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    rank = analysis.main_rank()
    title = "no recording" if rank is None else cause_name(rank.verdict.cause)
    command = " ".join(word if word.strip() else "''" for word in analysis.command)
    if rank is None:
        body = '<section class="verdict"><h1>No verdict</h1><p>No recorded process waited for a batch.</p></section>'
    else:
        body = _rank_page(analysis, rank)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>fastload profile: {_text(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<p class="brand">fastload profile</p>
<p class="command"><code>{_text(command)}</code></p>
<p class="dim">{_text(analysis.recorded.replace("T", " "))}</p>
</header>
<main>
<noscript><p>Timelines and the selection of a rank need JavaScript.</p></noscript>
{body}
{_about(analysis)}
</main>
<script type="application/json" id="data">{_data(analysis)}</script>
<script>{script}</script>
</body>
</html>
"""


def _data(analysis: Analysis) -> str:
    """Return what the script draws; without ``<``, so that nothing in it can end the element."""
    drawn = [replace(one, tasks=one.tasks[:_MOST_TASKS], pins=one.pins[:_MOST_TASKS]) for one in analysis.ranks]
    states = {key: state_of(key) for one in analysis.ranks for step in one.steps for key in step.blame_ms}
    value = {
        "ranks": [asdict(one) for one in drawn],
        "states": {key: [state.name, state.group] for key, state in states.items()},
    }
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")


def _rank_page(analysis: Analysis, rank: RankAnalysis) -> str:
    """Return the sections; those that each rank has are shown for ``rank`` only until another one is selected."""

    def each(section: Callable[[int, RankAnalysis], str]) -> str:
        return "\n".join(
            f'<div data-rank="{place}"{"" if one is rank else " hidden"}>{section(place, one)}</div>'
            for place, one in enumerate(analysis.ranks)
        )

    parts = [
        _verdict(analysis, rank),
        _rank_table(analysis, rank),
        each(lambda _, one: _why(analysis, one)),
        _fixes(analysis, rank),
        each(lambda place, one: _steps(place, one) + _timeline(place, one) + _slow_samples(one) + _workers(one)),
    ]
    return "\n".join(parts)


# -- building blocks --------------------------------------------------------------------------------------------------


def _text(words: object) -> str:
    """Return escaped text, which may come from outside."""
    return escape(printable(str(words)), quote=True)


def _sentence(words: str) -> str:
    return _text(_capital(words) + ("" if words.endswith((".", "!", "?")) else "."))


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _section(title: str, *inside: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(inside)}</section>"


def _facts(facts: Mapping[str, object], kind: str = "facts") -> str:
    items = (f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="{kind}">{"".join(items)}</dl>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str) -> str:
    """Return a table of rows of cells, which are HTML; in ``head``, ``>`` is before the names of columns of numbers."""
    top = "".join(
        f'<th scope="col"{" class=n" if name[0] == ">" else ""}>{name.lstrip(">")}</th>'
        if name
        else '<td aria-hidden="true"></td>'
        for name in head
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _cell(words: object) -> str:
    return f"<td>{_text(words)}</td>"


def _number(words: object) -> str:
    return f'<td class="n">{_text(words)}</td>'


def _row_head(words: str, group: str | None = None, below: str = "") -> str:
    """Return the first cell of a row, with the colour of a group of :data:`~.formatting.GROUPS` and a remark."""
    swatch = "" if group is None else f'<i class="swatch c-{group}"></i>'
    return f'<th scope="row">{swatch}{_text(words)}{f"<small>{_text(below)}</small>" if below else ""}</th>'


def _meter(share: float, group: str) -> str:
    """Return a cell with a bar for a share from 0 to 1, in the colour of a group."""
    size = min(max(share, 0.0), 1.0) * 100
    return f'<td class="meter" aria-hidden="true"><i class="c-{group}" style="width:{size:.1f}%"></i></td>'


def _legend(colours: Mapping[str, str]) -> str:
    """Return group -> HTML as a list with colours."""
    items = (f'<li><i class="swatch c-{group}"></i>{words}</li>' for group, words in colours.items())
    return f'<ul class="legend">{"".join(items)}</ul>'


# -- the rank that the report is about --------------------------------------------------------------------------------


def _verdict(analysis: Analysis, rank: RankAnalysis) -> str:
    verdict = rank.verdict
    level = "unknown" if verdict.cause is None else verdict.severity
    badge = {"none": "the loader keeps up", "unknown": "not enough data"}.get(level, level)
    holds = ""
    if len(analysis.ranks) > 1:
        what = "lost most time" if analysis.culprit is None else "delays the others"
        holds = f"<p><strong>{_text(_capital(rank_name(rank)))}</strong> {what}</p>"
    return (
        f'<section class="verdict {_text(level)}"><p class="badge">{_text(badge)}</p>'
        f"<h1>{_text(_capital(cause_name(verdict.cause)))}</h1>{holds}"
        f'<p class="sentence">{_sentence(verdict.sentence)}</p>'
        f"{_mean_step(rank) if rank.num_steps else ''}{_evidence(rank)}</section>"
    )


def _evidence(rank: RankAnalysis) -> str:
    lines = "".join(f"<li>{_text(line)}</li>" for line in rank.verdict.evidence)
    return f"<ul>{lines}</ul>" if lines else ""


def _mean_step(rank: RankAnalysis) -> str:
    """Return the numbers of the mean step, and a bar of it: computing, and the stall by state."""
    numbers = [
        ("stall share", percent(rank.stall.value), share_interval(rank.stall)),
        ("step", f"{ms(rank.step_ms.value)} ms", f"{ms_interval(rank.step_ms)} ms"),
        ("compute", f"{ms(rank.compute_ms)} ms", ""),
        (stall_name(rank), f"{ms(rank.step_ms.value * rank.stall.value)} ms", ""),
    ]
    items = "".join(
        f"<div><dt>{name}</dt><dd>{value}"
        f'<small title="90 % interval">{f"90 %: {interval}" if interval else "&nbsp;"}</small></dd></div>'
        for name, value, interval in numbers
    )
    parts = [("compute", "compute", max(rank.compute_ms, 0.0))]
    parts += [(state_of(key).name, state_of(key).group, value) for key, value in by_size(rank.blame_ms)]
    groups: dict[str, float] = {}
    for _, group, value in parts:
        groups[group] = groups.get(group, 0.0) + value
    whole = sum(groups.values())
    order = sorted(groups, key=lambda group: (group != "compute", -groups[group]))
    pieces = "".join(
        f'<span class="c-{group}" style="flex-grow:{value / whole * 1000:.2f}" title="{_text(name)} {ms(value)} ms">'
        "</span>"
        for name, group, value in sorted(parts, key=lambda part: order.index(part[1]))
        if value > 0
    )
    legend = {group: f"{GROUPS[group]} <strong>{ms(groups[group])} ms</strong>" for group in order}
    bar = f'<div class="stepbar" aria-hidden="true">{pieces}</div>'
    return f'<dl class="numbers">{items}</dl>{bar}{_legend(legend)}'


def _rank_table(analysis: Analysis, rank: RankAnalysis) -> str:
    if len(analysis.ranks) < 2:
        return ""
    rows = []
    options = ""
    for place, one in enumerate(analysis.ranks):
        late = analysis.culprit is not None and one.rank == analysis.culprit
        note = '<strong class="late">delays the others</strong>' if late else ""
        rows.append(
            [
                _row_head(rank_name(one)),
                f"<td>{_text(cause_name(one.verdict.cause))} {note}</td>",
                _number(ms(one.step_ms.value)),
                _number(percent(one.stall.value)),
                _meter(one.stall.value, "cores" if late else "main"),
            ]
        )
        options += f'<option value="{place}"{" selected" if one is rank else ""}>{_text(rank_name(one))}</option>'
    table = _table(("rank", "verdict", ">step, ms", ">stall", ""), rows, "ranks")
    choice = f'<p><label>Show below: <select id="rank">{options}</select></label></p>'
    return _section("Ranks", f'<div class="scroll">{table}</div>{choice}')


def _title(words: str, analysis: Analysis, rank: RankAnalysis) -> str:
    """Return a heading, with the rank if there are several."""
    return f"{words}: {_text(rank_name(rank))}" if len(analysis.ranks) > 1 else words


def _fixes(analysis: Analysis, rank: RankAnalysis) -> str:
    lines = [*dominant_lines(analysis, rank), *copied_lines(rank)]
    inside = "".join(f"<p>{_sentence(line)}</p>" for line in lines)
    if analysis.costs is not None:
        inside += f"<p>{_sentence(bound_text(analysis.costs))}</p>"
    if not analysis.fixes:
        inside += f"<p>{_sentence(no_fix_text(analysis, rank))}</p>"
    else:
        inside += f'<ol class="fixes">{"".join(_fix(fix, rank.step_ms.value) for fix in analysis.fixes)}</ol>'
    if analysis.ceiling_ms is not None:
        inside += f"<p><strong>Ceiling:</strong> {ceiling_text(analysis.ceiling_ms)}.</p>"
    return _section(_title("What to change", analysis, rank), inside)


def _fix(fix: Fix, step_ms: float) -> str:
    lines = "".join(
        f'<span class="{ {"-": "old", "+": "new"}.get(line[:1], "same") }">{_text(line) or " "}</span>\n'
        for line in fix.change.split("\n")
    )
    return f"""<li><h3>{_text(fix.title)}</h3>
<p class="gain"><strong>{_text(gain_text(fix, step_ms))}</strong></p>
{f'<pre tabindex="0">{lines}</pre>' if fix.change else ""}<p class="dim">{_sentence(limit_text(fix))}</p></li>"""


# -- each rank --------------------------------------------------------------------------------------------------------


def _why(analysis: Analysis, rank: RankAnalysis) -> str:
    title = _title("Why", analysis, rank)
    inside = ""
    if rank is not analysis.main_rank():
        inside = f"<p>{_sentence(rank.verdict.sentence)}</p>{_evidence(rank)}"
    states = by_size(rank.blame_ms)
    if not states:
        return _section(title, inside, "<p>There was no stall.</p>")
    total = sum(value for _, value in states)
    inside += f'<p class="dim">What the awaited batch was doing during the stall ({ms(total)} ms of a mean step).</p>'
    rows = []
    for key, value in states:
        state = state_of(key)
        head = _row_head(state.name, state.group, state.meaning)
        rows.append([head, _number(ms(value)), _number(percent(value / total)), _meter(value / total, state.group)])
    inside += _table(("state", ">ms", ">share", ""), rows, "bars")
    if rank.head_of_line >= 0.005:
        inside += f"<p>In {percent(rank.head_of_line)} of the stall a later batch was already complete.</p>"
    return _section(title, inside)


def _steps(place: int, rank: RankAnalysis) -> str:
    if not rank.steps:
        return ""
    longest = max(step.stall_ms for step in rank.steps)
    words = f"{plural(len(rank.steps), 'step')}, one bar each; the longest stall is {ms(longest)} ms"
    groups = {"compute", *(state_of(key).group for key in rank.blame_ms)}
    return _section(
        "Steps",
        _legend({group: name for group, name in GROUPS.items() if group in groups}),
        _canvas("strip", place, words, "Point at a bar or use the arrow keys; click to show the step in the timeline."),
    )


def _canvas(kind: str, place: int, words: str, hint: str) -> str:
    """Return what the script draws on, and a line below for what is pointed at."""
    keys = ' tabindex="0"' if kind == "strip" else ""
    return f"""<canvas class="{kind}" id="{kind}-{place}"{keys} role="img" aria-label="{_text(words)}"></canvas>
<p class="readout" id="{kind}-says-{place}" aria-live="polite">{hint}</p>"""


def _timeline(place: int, rank: RankAnalysis) -> str:
    if not rank.steps or not rank.tasks:
        return ""
    words = f"the main thread and {workers_text(rank)}: {plural(len(rank.tasks), 'task')} over time"
    hint = "Drag to move; point at a task to see which step took its batch."
    if len(rank.tasks) > _MOST_TASKS:
        hint += f" The first {_MOST_TASKS} of {len(rank.tasks)} tasks are shown."
    signs = {"earlier": "←", "zoom out": "\u2212", "zoom in": "+", "later": "→", "show all": "all"}
    buttons = "".join(
        f'<button type="button" data-of="{place}" aria-label="{name}" title="{name}">{sign}</button>'
        for name, sign in signs.items()
    )
    colours = {"compute": "compute", "cores": "stall", "storage": "task", "cpu": "task over 1.5 times the median"}
    return _section(
        "Timeline",
        f'<div class="buttons">{buttons}</div>',
        _legend(colours),
        _canvas("timeline", place, words, hint),
    )


def _slow_samples(rank: RankAnalysis) -> str:
    if not rank.slow_samples:
        return ""
    rows = [
        [
            _number(ms(sample.ms)),
            _meter(sample.ms / (rank.slow_samples[0].ms or 1.0), "cpu"),
            _number("-" if sample.index is None else sample.index),
            f'<td class="file">{"" if sample.file is None else _text(sample.file)}</td>',
            _cell("-" if sample.stage is None else sample.stage),
            _number("main" if sample.worker < 0 else sample.worker),
        ]
        for sample in rank.slow_samples
    ]
    table = _table((">ms", "", ">index", "file", "slowest stage", ">worker"), rows, "samples")
    return _section("Slowest samples", _waits(rank), f'<div class="scroll">{table}</div>')


def _waits(rank: RankAnalysis) -> str:
    """Return whether times include waiting for a core."""
    waits = run_queue_text(rank.workers)
    return "" if waits is None else f'<p class="dim">{_sentence(waits)}</p>'


def _workers(rank: RankAnalysis) -> str:
    facts = {
        "workers": workers_text(rank),
        **worker_facts(rank),
        **{f"startup: {name}": value for name, value in startup_facts(rank).items()},
        "steps": f"{rank.num_steps}, after {rank.num_warmup} of warm-up",
    }
    inside = _facts({name: value for name, value in facts.items() if value is not None}) + _waits(rank)
    if unknown := [name for name, value in facts.items() if value is None]:
        inside += f'<p class="dim">Unknown: {_text(", ".join(unknown))}.</p>'
    if stages := by_size(rank.workers.stages_ms):
        rows = [
            [
                _row_head("the rest of the dataset" if name == "sample" else name),
                _number(ms(value)),
                _meter(value / stages[0][1], "cpu"),
            ]
            for name, value in stages
        ]
        inside += f"<h3>Mean time per {unit_of(rank.loader)}</h3>{_table(('stage', '>ms', ''), rows, 'bars')}"
    if rank.loader:
        inside += f"<details><summary>The loader</summary>{_facts(rank.loader)}</details>"
    return _section("Workers and loader", inside)


def _about(analysis: Analysis) -> str:
    missing = f"<h3>Not recorded</h3>{_facts(analysis.missing, 'missing')}" if analysis.missing else ""
    facts = {
        "cores": analysis.cores,
        **analysis.versions,
        "overhead of recording": "unknown" if analysis.overhead is None else f"at least {percent(analysis.overhead)}",
        "exit status of the script": "unknown" if analysis.exit_status is None else analysis.exit_status,
    }
    return _section("This recording", missing, _facts(facts))
