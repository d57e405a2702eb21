"""The analysis as one HTML file: the summary with all of its lines, a picture of the steps, and one of the workers.

Without scripts, libraries and network access. All text from outside goes through rich or ``html.escape``; a content
security policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from ..base.console import as_html
from .formatting import GROUPS, by_size, cause_name, ms, printable, rank_name, state_of
from .schema import Analysis, RankAnalysis, StepLine
from .summary import further, rank_summary, summary

_COLOURS = {
    "compute": "#2e9149",
    "storage": "#3e7ccf",
    "cpu": "#b07c10",
    "cores": "#d64541",
    "moving": "#1791a0",
    "main": "#808080",
}
"""Of :data:`~.formatting.GROUPS`; they can be told from white and from black."""
_WIDE, _LEFT = 1000.0, 70.0
"""Width of a picture, and of the names on its left."""
_HIGH = 140.0
"""Height of the bars of steps."""
_ROW = 16.0
_MOST_BARS = 300
"""Of steps that share a bar the slowest is shown."""
_STEPS_SHOWN = 24
"""In the picture of workers, the first ones after the warm-up."""

_STYLE = """
body { margin: 2em auto; max-width: 62em; padding: 0 1em; font: 15px system-ui, sans-serif; }
svg { display: block; width: 100%; margin-bottom: 1em; font-size: 12px; fill: currentColor; }
b { display: inline-block; width: 0.8em; height: 0.8em; margin: 0 0.3em 0 1em; }
"""


def page(analysis: Analysis) -> str:
    """Return the HTML file's text."""
    rank = analysis.main_rank()
    title = cause_name(rank.verdict.cause)
    parts = [as_html(summary(analysis, whole=True)), _pictures(rank), as_html(further(analysis, rank))]
    for other in analysis.ranks:
        if other is not rank:
            name = _text(f"{rank_name(other)}: {cause_name(other.verdict.cause)}")
            inside = as_html(rank_summary(analysis, other)) + _pictures(other) + as_html(further(analysis, other))
            parts.append(f"<details><summary>{name}</summary>{inside}</details>")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>fastload profile: {_text(title)}</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
</head>
<body>
<p><code>{_text(" ".join(analysis.command))}</code> {_text(analysis.recorded.replace("T", " "))}</p>
{"".join(parts)}
</body>
</html>
"""


def _text(words: str) -> str:
    """Return escaped text, which may come from outside."""
    return escape(printable(words))


def _pictures(rank: RankAnalysis) -> str:
    if not rank.steps:
        return ""
    shown = {"compute", *(state_of(key).group for key in rank.blame_ms)}
    legend = "".join(f'<b style="background:{_COLOURS[one]}"></b>{GROUPS[one]}' for one in GROUPS if one in shown)
    again = "the same over time in trace.json, for ui.perfetto.dev; point at a bar for its numbers"
    return f"<h2>Steps</h2><p>{legend}</p>{_svg(*_bars(rank))}<h2>Timeline</h2><p>{again}</p>{_svg(*_timeline(rank))}"


def _svg(high: float, shapes: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDE:g} {high:g}" role="img">{"".join(shapes)}</svg>'


def _box(x: float, y: float, wide: float, high: float, group: str, title: str, more: str = "") -> str:
    at = f'x="{x:.2f}" y="{y:.2f}" width="{max(wide, 0.3):.2f}" height="{high:.2f}"'
    return f'<rect {at} fill="{_COLOURS[group]}"{more}><title>{_text(title)}</title></rect>'


def _label(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.2f}" y="{y:.2f}">{_text(words)}</text>'


def _took(step: StepLine) -> float:
    return max(step.wait_ms + (step.loop_ms or 0.0), step.stall_ms)


def _words(rank: RankAnalysis, number: int) -> str:
    """Return a step's numbers."""
    step = rank.steps[number]
    loop = "" if step.loop_ms is None else f", the loop took {ms(step.loop_ms)} ms"
    parts = ", ".join(f"{state_of(state).name} {ms(value)}" for state, value in by_size(step.blame_ms)[:4])
    warmup = " (warm-up)" if number < rank.num_warmup else ""
    return f"step {number}{warmup}: waited {ms(step.wait_ms)} ms{loop}; stall {ms(step.stall_ms)} ms: {parts}"


def _bars(rank: RankAnalysis) -> tuple[float, Iterator[str]]:
    """Return a picture's height and shapes: a bar for each step, of computing and of the stall by group."""
    each = -(-len(rank.steps) // _MOST_BARS)
    numbers = [
        max(range(first, min(first + each, len(rank.steps))), key=lambda number: _took(rank.steps[number]))
        for first in range(0, len(rank.steps), each)
    ]
    sizes = sorted(_took(rank.steps[number]) for number in numbers)
    # One step of a minute must not make all others invisible: it is cut off.
    top = min(sizes[-1], 3 * sizes[len(sizes) * 9 // 10]) or 1.0

    def shapes() -> Iterator[str]:
        wide = (_WIDE - _LEFT) / len(numbers)
        for place, number in enumerate(numbers):
            step, words = rank.steps[number], _words(rank, number)
            faint = ' opacity="0.4"' if number < rank.num_warmup else ""
            groups: dict[str, float] = {"compute": max(0.0, _took(step) - step.stall_ms)}
            for state, value in by_size(step.blame_ms):
                groups[state_of(state).group] = groups.get(state_of(state).group, 0.0) + value
            low = 0.0
            for group, value in groups.items():
                high = min(low + value, top)
                if high > low:
                    y, size = _HIGH * (1 - high / top), _HIGH * (high - low) / top
                    yield _box(_LEFT + place * wide, y, 0.9 * wide, size, group, words, faint)
                low = high
        yield _label(0, 12, f"{ms(top)} ms") + _label(0, _HIGH, "0")
        yield _label(_LEFT, _HIGH + 15, "step 0") + _label(_WIDE - 50, _HIGH + 15, str(len(rank.steps) - 1))

    return _HIGH + 20, shapes()


def _timeline(rank: RankAnalysis) -> tuple[float, Iterator[str]]:
    """Return a picture's height and shapes: the main thread, copies to page-locked memory, and workers over time."""
    first = rank.num_warmup if 0 < rank.num_warmup < len(rank.steps) else 0
    last = min(first + _STEPS_SHOWN, len(rank.steps)) - 1
    begun, ended = rank.steps[first].begun_ms, rank.steps[last].begun_ms + _took(rank.steps[last])
    rows = rank.tracks()

    def box(low: float, high: float, name: str, group: str, title: str) -> Iterator[str]:
        low, high = max(low, begun), min(high, ended)
        if high > low:
            scale = (_WIDE - _LEFT) / (ended - begun)
            y = rows.index(name) * _ROW
            yield _box(_LEFT + (low - begun) * scale, y, (high - low) * scale - 0.5, _ROW - 3, group, title)

    def shapes() -> Iterator[str]:
        for span in rank.spans:
            title = f"batch {span.batch}: {ms(span.ended_ms - span.begun_ms)} ms"
            yield from box(
                span.begun_ms, span.ended_ms, span.track, "moving" if span.track == "pin" else "storage", title
            )
        for number in range(first, last + 1):
            step, words = rank.steps[number], _words(rank, number)
            taken = step.begun_ms + step.wait_ms
            yield from box(taken, taken + (step.loop_ms or 0.0), "main", "compute", words)
            yield from box(taken - step.stall_ms, taken, "main", "cores", words)
        for place, name in enumerate(rows):
            yield _label(0, place * _ROW + 11, name)
        below = len(rows) * _ROW + 12
        yield _label(_LEFT, below, f"{ms(begun)} ms") + _label(_WIDE - 70, below, f"{ms(ended)} ms")

    return (len(rows) + 1) * _ROW, shapes()
