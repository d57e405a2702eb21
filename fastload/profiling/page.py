"""The analysis as one HTML file that needs nothing else: no network, no library.

In: an :class:`~fastload.profiling.analysis.Analysis`. Out: the file's text. All words are written here, escaped; the
script (``page_parts/page.js``) draws the timelines from numbers, and looks the sliders' predictions up in the grid that
was computed before. A content security policy forbids every other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from .analysis import Analysis, Fix, RankAnalysis
from .wording import (
    GROUPS,
    by_size,
    cause_name,
    chief,
    command_in_words,
    ms,
    ms_interval,
    percent,
    plural,
    rank_name,
    share_interval,
    simulation_in_words,
    state_group,
    state_meaning,
    state_name,
    times,
    visible,
    workers_in_words,
)

MOST_TASKS = 20_000
"""Of a rank, that the page holds: a browser draws as many at once."""


def page(analysis: Analysis) -> str:
    """Return the HTML file's text."""
    parts = files(__package__) / "page_parts"
    script = (parts / "page.js").read_text(encoding="utf-8")
    style = (parts / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    rank = chief(analysis)
    title = "nothing recorded" if rank is None else cause_name(rank.verdict.cause)
    body = "\n".join(_body(analysis, rank))
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
{body}
<script type="application/json" id="data">{_data(analysis)}</script>
<script>{script}</script>
</body>
</html>
"""


def _text(words: object) -> str:
    return escape(visible(str(words)), quote=True)


def _data(analysis: Analysis) -> str:
    """Return the numbers that the script draws; no ``<`` in it, so that nothing in it can end the element."""
    states: dict[str, int] = {}
    ranks = [_rank_data(rank, states) for rank in analysis.ranks]
    rank = chief(analysis)
    value = {
        "ranks": ranks,
        "states": [[visible(state_name(state)), state_group(state)] for state in states],
        "grid": None if analysis.grid is None else analysis.grid.step_ms,
        "workers": None if analysis.grid is None else analysis.grid.num_workers,
        "prefetch": None if analysis.grid is None else analysis.grid.prefetch_factor,
        "observed": None if rank is None else _observed(analysis, rank),
    }
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")


def _rank_data(rank: RankAnalysis, states: dict[str, int]) -> dict[str, Any]:
    steps = [
        [
            *_rounded(step.begun_ms, step.wait_ms, step.loop_ms, step.stall_ms),
            step.batch,
            step.pass_number,
            [[states.setdefault(state, len(states)), round(value, 3)] for state, value in by_size(step.blame_ms)],
        ]
        for step in rank.steps
    ]
    tasks = [
        [task.worker, *_rounded(task.begun_ms, task.ended_ms), task.batch, task.pass_number]
        for task in rank.tasks[:MOST_TASKS]
    ]
    pins = [[*_rounded(pin.begun_ms, pin.ended_ms), pin.batch, pin.pass_number] for pin in rank.pins[:MOST_TASKS]]
    return {"steps": steps, "tasks": tasks, "pins": pins}


def _rounded(*values: float | None) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]


def _observed(analysis: Analysis, rank: RankAnalysis) -> float:
    return rank.step_ms.value if analysis.simulation is None else analysis.simulation.observed_ms


def _body(analysis: Analysis, rank: RankAnalysis | None) -> Iterator[str]:
    yield f"""<header>
<p class="brand">fastload profile</p>
<p class="command"><code>{_text(command_in_words(analysis.command))}</code></p>
<p class="dim">{_text(analysis.recorded)}</p>
</header>
<main>"""
    if rank is None:
        yield '<section class="verdict none"><h1>no verdict</h1>'
        yield "<p>No process was recorded that waited for a batch.</p></section>"
    else:
        yield from _verdict(analysis, rank)
        yield from _choice_of_rank(analysis, rank)
        for place, one in enumerate(analysis.ranks):
            yield from _of_rank(place, one is rank, _why(one))
        yield from _fixes(analysis, rank)
        yield from _what_if(analysis, rank)
        for place, one in enumerate(analysis.ranks):
            yield from _of_rank(place, one is rank, _course(place, one))
    yield from _about(analysis)
    yield "</main>"


def _of_rank(place: int, shown: bool, inside: Iterable[str]) -> Iterator[str]:
    yield f'<div data-rank="{place}"{"" if shown else " hidden"}>'
    yield from inside
    yield "</div>"


def _verdict(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    verdict = rank.verdict
    level = "unknown" if verdict.cause is None else verdict.severity
    badge = {"none": "the data keep up", "unknown": "abstains"}.get(level, level)
    yield f'<section class="verdict {level}"><p class="badge">{badge}</p>'
    yield f"<h1>{_text(cause_name(verdict.cause))}</h1>"
    if len(analysis.ranks) > 1:
        holds = " holds the others up" if analysis.culprit is not None else ", the one with the largest stall"
        yield f"<p><strong>{_text(rank_name(rank))}</strong>{holds}</p>"
    yield f'<p class="sentence">{_text(verdict.sentence)}</p>'
    if rank.num_steps:
        lost = rank.step_ms.value * rank.stall.value
        what = "idle device" if rank.clock == "device" else "stall"
        yield '<dl class="numbers">'
        yield _number("step", f"{ms(rank.step_ms.value)} ms", f"{ms_interval(rank.step_ms)} ms")
        yield _number("compute", f"{ms(rank.compute_ms)} ms", "")
        yield _number(what, f"{ms(lost)} ms", "")
        yield _number("share of the step", percent(rank.stall.value), share_interval(rank.stall))
        yield "</dl>"
        yield _step_bar(rank)
    if verdict.evidence:
        yield f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in verdict.evidence)}</ul>"
    yield "</section>"


def _number(name: str, value: str, interval: str) -> str:
    below = f'<small title="90 % interval">{interval}</small>' if interval else "<small>&nbsp;</small>"
    return f"<div><dt>{name}</dt><dd>{value}{below}</dd></div>"


def _step_bar(rank: RankAnalysis) -> str:
    """Return a bar of the mean step: what is computing, and the stall by what it was charged to."""
    whole = max(rank.compute_ms, 0.0) + sum(value for _, value in by_size(rank.blame_ms))
    if whole <= 0:
        return ""
    parts = [("compute", "compute", rank.compute_ms)]
    parts += [(state_name(state), state_group(state), value) for state, value in by_size(rank.blame_ms)]
    words = ", ".join(f"{name} {ms(value)} ms" for name, _, value in parts)
    pieces = "".join(
        f'<span class="c-{group}" style="flex-grow:{value / whole * 1000:.2f}" title="{_text(name)} {ms(value)} ms">'
        f"{_text(name) if value / whole > 0.14 else ''}</span>"
        for name, group, value in parts
        if value > 0
    )
    return f'<div class="stepbar" role="img" aria-label="{_text(f"a mean step: {words}")}">{pieces}</div>'


def _choice_of_rank(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    if len(analysis.ranks) < 2:
        return
    rows = []
    for one in analysis.ranks:
        late = analysis.culprit is not None and one.rank == analysis.culprit
        note = '<strong class="late">holds the others up</strong>' if late else ""
        rows.append(
            [
                f'<th scope="row">{_text(rank_name(one))}</th>',
                f"<td>{_text(cause_name(one.verdict.cause))} {note}</td>",
                _cell(ms(one.step_ms.value), "n"),
                _cell(percent(one.stall.value), "n"),
                _meter(one.stall.value, "order" if late else "main"),
            ]
        )
    options = "".join(
        f'<option value="{place}"{" selected" if one is rank else ""}>{_text(rank_name(one))}</option>'
        for place, one in enumerate(analysis.ranks)
    )
    yield '<section><h2>Ranks</h2><div class="scroll">'
    yield _table(("rank", "verdict", "step, ms", "stall", ""), rows)
    yield f'</div><p><label>Shown below: <select id="rank">{options}</select></label></p></section>'


def _why(rank: RankAnalysis) -> Iterator[str]:
    states = by_size(rank.blame_ms)
    yield "<section><h2>Why</h2>"
    if not states:
        yield "<p>There was no stall to explain.</p></section>"
        return
    total = sum(value for _, value in states)
    yield f'<p class="dim">What the awaited batch was at, in the {ms(total)} ms of a mean step that are a stall.</p>'
    rows = [
        [
            f'<th scope="row"><i class="swatch c-{state_group(state)}"></i>{_text(state_name(state))}'
            f"<small>{_text(state_meaning(state))}</small></th>",
            _cell(ms(value), "n"),
            _cell(percent(value / total), "n"),
            _meter(value / total, state_group(state)),
        ]
        for state, value in states
    ]
    yield _table(("state", "ms", "share", ""), rows, "bars")
    if rank.head_of_line >= 0.005:
        yield f"<p>In {percent(rank.head_of_line)} of the stall a later batch was complete already.</p>"
    yield "</section>"


def _fixes(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    yield "<section><h2>What to change</h2>"
    if analysis.fixes:
        yield f'<ol class="fixes">{"".join(_fix(fix, rank) for fix in analysis.fixes)}</ol>'
    elif rank.verdict.cause == "compute":
        yield "<p>Nothing in the loader: it keeps up.</p>"
    elif analysis.simulation is not None and analysis.simulation.trusted:
        yield "<p>No change that was simulated is predicted to help.</p>"
    if analysis.ceiling_ms is not None:
        words = f"{ms(analysis.ceiling_ms)} ms a step with batches from a cache (measured)."
        yield f"<p><strong>Ceiling:</strong> {words}</p>"
    yield f'<p class="dim">{_text(_sentence(simulation_in_words(analysis)))}</p></section>'


def _fix(fix: Fix, rank: RankAnalysis) -> str:
    lines = "".join(
        f'<span class="{ {"-": "old", "+": "new"}.get(line[:1], "same") }">{_text(line) or " "}</span>\n'
        for line in fix.change.split("\n")
    )
    return f"""<li><h3>{_text(fix.title)}</h3>
<p class="gain"><span>{ms(rank.step_ms.value)} → <strong>{ms(fix.step_ms.value)} ms</strong></span>
<span class="dim">[{ms_interval(fix.step_ms)}]</span> <strong class="times">{times(fix.speedup)}</strong></p>
<pre tabindex="0">{lines}</pre><p class="dim">then bound by {_text(fix.then)}</p></li>"""


def _what_if(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    grid = analysis.grid
    if grid is None or not grid.num_workers or not grid.prefetch_factor:
        return
    observed = _observed(analysis, rank)
    ceiling = (
        ""
        if analysis.ceiling_ms is None
        else _what_if_bar("ceiling", "ceiling, measured", analysis.ceiling_ms, observed, "compute")
    )
    head = "".join(f'<th scope="col">{number}</th>' for number in grid.prefetch_factor)
    body = "".join(
        f'<tr><th scope="row">{number}</th>'
        + "".join(f'<td class="n" data-cell="{row}-{column}">{ms(value)}</td>' for column, value in enumerate(values))
        + "</tr>"
        for row, (number, values) in enumerate(zip(grid.num_workers, grid.step_ms, strict=False))
    )
    yield f"""<section id="whatif"><h2>What if</h2>
<div class="sliders">
{_slider("workers", "num_workers", grid.num_workers, rank.loader.get("num_workers"))}
{_slider("prefetch", "prefetch_factor", grid.prefetch_factor, rank.loader.get("prefetch_factor"))}
</div>
<p class="answer" aria-live="polite"><strong id="predicted">-</strong> <span id="versus"></span></p>
<div class="compare">
{_what_if_bar("observed", "observed", observed, observed, "main")}
{_what_if_bar("prediction", "predicted", observed, observed, "storage")}
{ceiling}
</div>
<details><summary>All predictions, in ms a step</summary><div class="scroll"><table class="grid">
<thead><tr><td></td><th scope="colgroup" colspan="{len(grid.prefetch_factor)}">prefetch_factor</th></tr>
<tr><th scope="col">num_workers</th>{head}</tr></thead><tbody>{body}</tbody></table></div></details>
</section>"""


def _slider(name: str, label: str, values: Sequence[int], now: object) -> str:
    place = 0
    if isinstance(now, (int, float)):
        place = min(range(len(values)), key=lambda one: abs(values[one] - now))
    return (
        f'<label for="{name}">{label} <output id="{name}-value" for="{name}">{values[place]}</output></label>'
        f'<input type="range" id="{name}" min="0" max="{len(values) - 1}" step="1" value="{place}"'
        f' aria-valuetext="{values[place]}">'
    )


def _what_if_bar(name: str, label: str, value: float, whole: float, group: str) -> str:
    share = min(value / whole, 1.0) * 100 if whole else 0.0
    return (
        f'<span>{label}</span><div class="track"><i id="bar-{name}" class="c-{group}" style="width:{share:.1f}%"></i>'
        f'</div><span class="n" id="value-{name}">{ms(value)} ms</span>'
    )


def _course(place: int, rank: RankAnalysis) -> Iterator[str]:
    """Yield what happened when."""
    yield from _steps(place, rank)
    yield from _timeline(place, rank)
    yield from _slow_samples(rank)
    yield from _workers(rank)


def _steps(place: int, rank: RankAnalysis) -> Iterator[str]:
    if not rank.steps:
        return
    slowest = sorted(enumerate(rank.steps), key=lambda one: -one[1].stall_ms)[:10]
    words = (
        f"{plural(len(rank.steps), 'step')}, each with its stall; the longest stall is {ms(slowest[0][1].stall_ms)} ms"
    )
    legend = "".join(
        f'<li><i class="swatch c-{group}"></i>{name}</li>'
        for group, name in [("compute", "computing"), *GROUPS.items()]
        if group == "compute" or any(state_group(state) == group for state in rank.blame_ms)
    )
    rows = [
        [
            f'<th scope="row">{number}</th>',
            _cell(ms(step.wait_ms), "n"),
            _cell(ms(step.stall_ms), "n"),
            _cell(next((state_name(state) for state, _ in by_size(step.blame_ms)), "-")),
        ]
        for number, step in slowest
    ]
    table = _table(("step", "wait, ms", "stall, ms", "mostly"), rows)
    yield f"""<section><h2>Steps</h2><ul class="legend">{legend}</ul>
<canvas class="strip" id="strip-{place}" tabindex="0" role="img" aria-label="{_text(words)}"></canvas>
<p class="readout" id="strip-says-{place}" aria-live="polite">
Point at a bar, or use the arrow keys; a click shows it in the timeline.</p>
<details><summary>The ten longest stalls</summary><div class="scroll">{table}</div></details></section>"""


def _timeline(place: int, rank: RankAnalysis) -> Iterator[str]:
    if not rank.steps or not rank.tasks:
        return
    words = f"the main process and {workers_in_words(rank)}: {plural(len(rank.tasks), 'task')} over time"
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
<ul class="legend"><li><i class="swatch c-compute"></i>computing</li><li><i class="swatch c-cores"></i>stall</li>
<li><i class="swatch c-storage"></i>task</li>
<li><i class="swatch c-cpu"></i>task over 1.5 times the median</li></ul>
<canvas class="timeline" id="timeline-{place}" tabindex="0" role="img" aria-label="{_text(words)}"></canvas>
<p class="readout" id="timeline-says-{place}" aria-live="polite">
Drag to move; point at a task to see which step took its batch.</p>
{note}</section>"""


def _slow_samples(rank: RankAnalysis) -> Iterator[str]:
    if not rank.slow_samples:
        return
    longest = max(sample.ms for sample in rank.slow_samples)
    rows = [
        [
            _cell(ms(sample.ms), "n"),
            _meter(sample.ms / longest if longest else 0, "cpu"),
            _cell("-" if sample.index is None else str(sample.index), "n"),
            f'<td class="file">{"-" if sample.file is None else _text(sample.file)}</td>',
            _cell("-" if sample.stage is None else sample.stage),
            _cell("main" if sample.worker < 0 else str(sample.worker), "n"),
        ]
        for sample in rank.slow_samples
    ]
    yield '<section><h2>Slowest samples</h2><div class="scroll">'
    yield _table(("ms", "", "index", "file", "mostly", "worker"), rows, "samples")
    yield "</div></section>"


def _workers(rank: RankAnalysis) -> Iterator[str]:
    workers = rank.workers
    facts: list[tuple[str, str | None]] = [
        ("workers", workers_in_words(rank)),
        ("busy", _known(percent, workers.busy)),
        ("task, median", _known(_ms, workers.task_p50_ms)),
        ("task, 99th percentile", _known(_ms, workers.task_p99_ms)),
        ("at tasks: on the CPU", _known(percent, workers.on_cpu)),
        ("at tasks: waiting for a core", _known(percent, workers.run_queue)),
        ("at tasks: blocked", _known(percent, workers.blocked)),
        ("bytes that were in the page cache", _known(percent, workers.cache_hit)),
        ("read", None if workers.read_mb_per_s is None else f"{ms(workers.read_mb_per_s)} MB/s"),
        ("slowest worker over the median", _known(times, workers.slowest_over_median)),
        ("slowest worker", None if workers.slowest is None else str(workers.slowest)),
        ("first batch after", _known(_ms, rank.first_batch_ms)),
        ("gap between epochs", _known(_ms, rank.epoch_gap_ms)),
        ("startup, of the whole run", percent(rank.startup)),
        ("steps", f"{rank.num_steps} after {rank.num_warmup} of warm-up"),
    ]
    yield "<section><h2>Workers and loader</h2>"
    yield f'<dl class="facts">{_facts((name, value) for name, value in facts if value is not None)}</dl>'
    if unknown := [name for name, value in facts if value is None]:
        yield f'<p class="dim">Not known: {_text(", ".join(unknown))}.</p>'
    if workers.stages_ms:
        longest = max(workers.stages_ms.values())
        rows = [
            [
                f'<th scope="row">{_text(name)}</th>',
                _cell(ms(value), "n"),
                _meter(value / longest if longest else 0, "cpu"),
            ]
            for name, value in sorted(workers.stages_ms.items(), key=lambda one: -one[1])
        ]
        yield f"<h3>Mean time per sample</h3>{_table(('stage', 'ms', ''), rows, 'bars')}"
    if rank.loader:
        settings = ((name, visible(str(value))) for name, value in rank.loader.items())
        yield f'<details><summary>The loader</summary><dl class="facts">{_facts(settings)}</dl></details>'
    yield "</section>"


def _known(say: Any, value: float | None) -> str | None:
    return None if value is None else str(say(value))


def _ms(value: float) -> str:
    return f"{ms(value)} ms"


def _about(analysis: Analysis) -> Iterator[str]:
    facts = [("cores", str(analysis.cores)), *analysis.versions.items()]
    facts.append(
        ("overhead of the recording", percent(analysis.overhead) if analysis.overhead is not None else "not known")
    )
    facts.append(
        ("exit status of the script", "not known" if analysis.exit_status is None else str(analysis.exit_status))
    )
    yield "<section><h2>This recording</h2>"
    if analysis.missing:
        yield "<h3>What could not be heard</h3>"
        yield f'<dl class="missing">{_facts(analysis.missing.items())}</dl>'
    yield f'<dl class="facts">{_facts(facts)}</dl></section>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    top = "".join(f'<th scope="col">{name}</th>' if name else '<td aria-hidden="true"></td>' for name in head)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def _cell(words: str, kind: str = "") -> str:
    return f"<td{f' class={kind}' if kind else ''}>{_text(words)}</td>"


def _meter(share: float, group: str) -> str:
    size = min(max(share, 0.0), 1.0) * 100
    return f'<td class="meter" aria-hidden="true"><i class="c-{group}" style="width:{size:.1f}%"></i></td>'


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "."


__all__ = ["MOST_TASKS", "page"]
