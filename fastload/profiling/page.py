"""The analysis as one self-contained HTML file, without network access or libraries.

All text is written here, escaped. The script (``page_parts/page.js``) draws the timelines from numbers, and looks up
the predictions for the sliders in a grid that was computed before. A content security policy forbids all other scripts
and all requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any

from .analysis import Analysis, Fix, RankAnalysis
from .page_sections import MOST_TASKS, NAMES, capital, cell, folded, meter, pairs, rank_sections, sentence, table, text
from .text import (
    by_size,
    cause_name,
    main_rank,
    ms,
    ms_interval,
    no_fix_text,
    observed_ms,
    percent,
    printable,
    rank_name,
    share_interval,
    simulation_text,
    state_group,
    state_meaning,
    state_name,
    times,
)


def page(analysis: Analysis) -> str:
    """Return the HTML file's text."""
    parts = files(__package__) / "page_parts"
    script = (parts / "page.js").read_text(encoding="utf-8")
    style = (parts / "page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    rank = main_rank(analysis)
    title = "no recording" if rank is None else cause_name(rank.verdict.cause)
    body = "\n".join(_body(analysis, rank))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>fastload profile: {text(title)}</title>
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


def _data(analysis: Analysis) -> str:
    """Return the numbers that the script draws; without ``<``, so that nothing in it can end the element."""
    states: dict[str, int] = {}
    ranks = [_rank_data(rank, states) for rank in analysis.ranks]
    rank = main_rank(analysis)
    value = {
        "ranks": ranks,
        "states": [[printable(state_name(state)), state_group(state)] for state in states],
        "grid": None if analysis.grid is None else analysis.grid.step_ms,
        "workers": None if analysis.grid is None else analysis.grid.num_workers,
        "prefetch": None if analysis.grid is None else analysis.grid.prefetch_factor,
        "observed": None if rank is None else observed_ms(analysis, rank),
        "ceiling": analysis.ceiling_ms,
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
    return {"steps": steps, "tasks": tasks, "pins": pins, "warmup": rank.num_warmup}


def _rounded(*values: float | None) -> list[float | None]:
    return [None if value is None else round(value, 3) for value in values]


def _body(analysis: Analysis, rank: RankAnalysis | None) -> Iterator[str]:
    yield f"""<header>
<p class="brand">fastload profile</p>
<p class="command"><code>{text(" ".join(word if word.strip() else "''" for word in analysis.command))}</code></p>
<p class="dim">{text(analysis.recorded.replace("T", " "))}</p>
</header>
<main>
<noscript><p>Timelines, sliders and the selection of a rank need JavaScript.</p></noscript>"""
    if rank is None:
        yield '<section class="verdict unknown"><h1>No verdict</h1>'
        yield "<p>No recorded process waited for a batch.</p></section>"
    else:
        yield from _verdict(analysis, rank)
        yield from _choice_of_rank(analysis, rank)
        for place, one in enumerate(analysis.ranks):
            yield from _of_rank(place, one is rank, _why(analysis, one))
        yield from _fixes(analysis, rank)
        yield from _what_if(analysis, rank)
        for place, one in enumerate(analysis.ranks):
            yield from _of_rank(place, one is rank, rank_sections(place, one))
    yield from _about(analysis)
    yield "</main>"


def _of_rank(place: int, shown: bool, inside: Iterable[str]) -> Iterator[str]:
    yield f'<div data-rank="{place}"{"" if shown else " hidden"}>'
    yield from inside
    yield "</div>"


def _verdict(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    verdict = rank.verdict
    level = "unknown" if verdict.cause is None else verdict.severity
    badge = {"none": "the loader keeps up", "unknown": "not enough data"}.get(level, level)
    yield f'<section class="verdict {level}"><p class="badge">{badge}</p>'
    yield f"<h1>{text(capital(cause_name(verdict.cause)))}</h1>"
    if len(analysis.ranks) > 1:
        holds = " delays the others" if analysis.culprit is not None else " lost most time"
        yield f"<p><strong>{text(capital(rank_name(rank)))}</strong>{holds}</p>"
    yield f'<p class="sentence">{text(sentence(verdict.sentence))}</p>'
    if rank.num_steps:
        lost = rank.step_ms.value * rank.stall.value
        what = "stall (idle device)" if rank.clock == "device" else "stall"
        yield '<dl class="numbers">'
        yield _number("stall share", percent(rank.stall.value), share_interval(rank.stall))
        yield _number("step", f"{ms(rank.step_ms.value)} ms", f"{ms_interval(rank.step_ms)} ms")
        yield _number("compute", f"{ms(rank.compute_ms)} ms", "")
        yield _number(what, f"{ms(lost)} ms", "")
        yield "</dl>"
        yield _step_bar(rank)
    yield _evidence(rank)
    yield "</section>"


def _evidence(rank: RankAnalysis) -> str:
    lines = "".join(f"<li>{text(line)}</li>" for line in rank.verdict.evidence)
    return f"<ul>{lines}</ul>" if lines else ""


def _number(name: str, value: str, interval: str) -> str:
    below = f'<small title="90 % interval">90 %: {interval}</small>' if interval else "<small>&nbsp;</small>"
    return f"<div><dt>{name}</dt><dd>{value}{below}</dd></div>"


def _step_bar(rank: RankAnalysis) -> str:
    """Return a bar of the mean step: computing, and the stall by state."""
    states = by_size(rank.blame_ms)
    whole = max(rank.compute_ms, 0.0) + sum(value for _, value in states)
    if whole <= 0:
        return ""
    groups = {"compute": max(rank.compute_ms, 0.0)}
    for state, value in states:
        groups[state_group(state)] = groups.get(state_group(state), 0.0) + value
    groups = dict(sorted(groups.items(), key=lambda one: (one[0] != "compute", -one[1])))
    parts = [("compute", "compute", rank.compute_ms)]
    for group in groups:
        parts += [(state_name(state), group, value) for state, value in states if state_group(state) == group]
    pieces = "".join(
        f'<span class="c-{group}" style="flex-grow:{value / whole * 1000:.2f}" title="{text(name)} {ms(value)} ms">'
        "</span>"
        for name, group, value in parts
        if value > 0
    )
    legend = "".join(
        f'<li><i class="swatch c-{group}"></i>{NAMES[group]} <strong>{ms(value)} ms</strong></li>'
        for group, value in groups.items()
    )
    return f'<div class="stepbar" aria-hidden="true">{pieces}</div><ul class="legend">{legend}</ul>'


def _choice_of_rank(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    if len(analysis.ranks) < 2:
        return
    rows = []
    for one in analysis.ranks:
        late = analysis.culprit is not None and one.rank == analysis.culprit
        note = '<strong class="late">delays the others</strong>' if late else ""
        rows.append(
            [
                f'<th scope="row">{text(rank_name(one))}</th>',
                f"<td>{text(cause_name(one.verdict.cause))} {note}</td>",
                cell(ms(one.step_ms.value), "n"),
                cell(percent(one.stall.value), "n"),
                meter(one.stall.value, "order" if late else "main"),
            ]
        )
    options = "".join(
        f'<option value="{place}"{" selected" if one is rank else ""}>{text(rank_name(one))}</option>'
        for place, one in enumerate(analysis.ranks)
    )
    yield '<section><h2>Ranks</h2><div class="scroll">'
    yield table(("rank", "verdict", ">step, ms", ">stall", ""), rows, "ranks")
    yield f'</div><p><label>Show below: <select id="rank">{options}</select></label></p></section>'


def _why(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    states = by_size(rank.blame_ms)
    yield f"<section><h2>Why{_of(analysis, rank)}</h2>"
    if rank is not main_rank(analysis):
        yield f"<p>{text(sentence(rank.verdict.sentence))}</p>{_evidence(rank)}"
    if not states:
        yield "<p>There was no stall.</p></section>"
        return
    total = sum(value for _, value in states)
    yield f'<p class="dim">What the awaited batch was doing during the stall ({ms(total)} ms of a mean step).</p>'
    rows = [
        [
            f'<th scope="row"><i class="swatch c-{state_group(state)}"></i>{text(state_name(state))}'
            f"<small>{text(state_meaning(state))}</small></th>",
            cell(ms(value), "n"),
            cell(percent(value / total), "n"),
            meter(value / total, state_group(state)),
        ]
        for state, value in states
    ]
    # The smallest are folded.
    shown = len(rows) if len(rows) < 8 else max(1, sum(value >= 0.01 * total for _, value in states))
    rest = percent(sum(value for _, value in states[shown:]) / total)
    yield folded(("state", ">ms", ">share", ""), rows, "bars", shown, f"together {rest}")
    if rank.head_of_line >= 0.005:
        yield f"<p>In {percent(rank.head_of_line)} of the stall a later batch was already complete.</p>"
    yield "</section>"


def _fixes(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    simulation = analysis.simulation
    trusted = simulation is not None and simulation.trusted
    note = text(sentence(simulation_text(analysis)))
    yield f"<section><h2>What to change{_of(analysis, rank)}</h2>"
    if not trusted:
        yield f"<p>{note}</p>"
    if analysis.fixes:
        yield f'<ol class="fixes">{"".join(_fix(fix, observed_ms(analysis, rank)) for fix in analysis.fixes)}</ol>'
    elif rank.verdict.cause == "compute":
        yield "<p>Nothing: the loader keeps up.</p>"
    elif simulation is not None and simulation.trusted:
        yield f"<p>{text(sentence(no_fix_text(simulation)))}</p>"
    if analysis.ceiling_ms is not None:
        words = f"{ms(analysis.ceiling_ms)} ms a step with cached batches (measured)."
        yield f"<p><strong>Ceiling:</strong> {words}</p>"
    yield f'<p class="dim">{note}</p></section>' if trusted else "</section>"


def _of(analysis: Analysis, rank: RankAnalysis) -> str:
    """Return the rank for a heading, if there are several."""
    return f": {text(rank_name(rank))}" if len(analysis.ranks) > 1 else ""


def _fix(fix: Fix, observed: float) -> str:
    lines = "".join(
        f'<span class="{ {"-": "old", "+": "new"}.get(line[:1], "same") }">{text(line) or " "}</span>\n'
        for line in fix.change.split("\n")
    )
    interval = f'<span class="dim">90 % interval {ms_interval(fix.step_ms)} ms</span>'
    return f"""<li><h3>{text(fix.title)}</h3>
<p class="gain"><span>{ms(observed)} → <strong>{ms(fix.step_ms.value)} ms</strong></span>
<strong class="times">{times(fix.speedup)}</strong> {interval}</p>
{f'<pre tabindex="0">{lines}</pre>' if fix.change else ""}<p class="dim">Then limited by {text(fix.then)}.</p></li>"""


def _what_if(analysis: Analysis, rank: RankAnalysis) -> Iterator[str]:
    grid = analysis.grid
    if grid is None or not grid.num_workers or not grid.prefetch_factor:
        yield "<section><h2>What if</h2><p>There are no predictions for this recording.</p></section>"
        return
    observed = observed_ms(analysis, rank)
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
    yield f"""<section id="whatif"><h2>What if{_of(analysis, rank)}</h2>
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
    was = ""
    if isinstance(now, int):
        place = min(range(len(values)), key=lambda one: abs(values[one] - now))
        was = f" <small>was {now}</small>"
    return (
        f'<label for="{name}">{label} <output id="{name}-value" for="{name}">{values[place]}</output>{was}</label>'
        f'<input type="range" id="{name}" min="0" max="{len(values) - 1}" step="1" value="{place}"'
        f' aria-valuetext="{values[place]}">'
    )


def _what_if_bar(name: str, label: str, value: float, whole: float, group: str) -> str:
    share = min(value / whole, 1.0) * 100 if whole else 0.0
    return (
        f'<span>{label}</span><div class="track"><i id="bar-{name}" class="c-{group}" style="width:{share:.1f}%"></i>'
        f'</div><span class="n" id="value-{name}">{ms(value)} ms</span>'
    )


def _about(analysis: Analysis) -> Iterator[str]:
    facts = [("cores", str(analysis.cores)), *analysis.versions.items()]
    overhead = "unknown" if analysis.overhead is None else f"at least {percent(analysis.overhead)}"
    facts.append(("overhead of recording", overhead))
    facts.append(
        ("exit status of the script", "unknown" if analysis.exit_status is None else str(analysis.exit_status))
    )
    yield "<section><h2>This recording</h2>"
    if analysis.missing:
        yield "<h3>Not recorded</h3>"
        yield f'<dl class="missing">{pairs(analysis.missing.items())}</dl>'
    yield f'<dl class="facts">{pairs(facts)}</dl></section>'
