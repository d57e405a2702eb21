"""The analysis as one HTML file: the summary with all of its lines, and a picture of the steps.

Without scripts, libraries and network access. All text from outside goes through rich or ``html.escape``; a content
security policy forbids scripts and requests.
"""

from __future__ import annotations

from collections.abc import Iterator
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
"""Width of the picture, and of what is on its left."""
_HIGH = 140.0
"""Height of the bars of steps."""
_MOST_BARS = 300
"""Of steps that share a bar the slowest is shown."""

_STYLE = """
body { margin: 2em auto; max-width: 62em; padding: 0 1em; font: 15px system-ui, sans-serif; }
svg { display: block; width: 100%; margin-bottom: 1em; font-size: 12px; fill: currentColor; }
b { display: inline-block; width: 0.8em; height: 0.8em; margin: 0 0.3em 0 1em; }
"""


def page(analysis: Analysis) -> str:
    """Return the HTML file's text."""
    rank = analysis.main_rank()
    title = cause_name(rank.verdict.cause)
    parts = [as_html(summary(analysis, whole=True)), _picture(rank), as_html(further(analysis, rank))]
    for other in analysis.ranks:
        if other is not rank:
            name = _text(f"{rank_name(other)}: {cause_name(other.verdict.cause)}")
            inside = as_html(rank_summary(analysis, other)) + _picture(other) + as_html(further(analysis, other))
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


def _picture(rank: RankAnalysis) -> str:
    """Return a bar for each step, of computing and of the stall by group."""
    if not rank.steps:
        return ""
    shown = {"compute", *(state_of(key).group for key in rank.blame_ms)}
    legend = "".join(f'<b style="background:{_COLOURS[one]}"></b>{GROUPS[one]}' for one in GROUPS if one in shown)
    words = "point at a bar for its numbers; trace.json has them over time, with the workers, for ui.perfetto.dev"
    bars = f'<svg viewBox="0 0 {_WIDE:g} {_HIGH + 20:g}" role="img">{"".join(_bars(rank))}</svg>'
    return f"<h2>Steps</h2><p>{legend}</p>{bars}<p>{words}</p>"


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


def _bars(rank: RankAnalysis) -> Iterator[str]:
    """Yield the shapes of the picture."""
    each = -(-len(rank.steps) // _MOST_BARS)
    numbers = [
        max(range(first, min(first + each, len(rank.steps))), key=lambda number: _took(rank.steps[number]))
        for first in range(0, len(rank.steps), each)
    ]
    sizes = sorted(_took(rank.steps[number]) for number in numbers)
    # One step of a minute must not make all others invisible: it is cut off.
    top = min(sizes[-1], 3 * sizes[len(sizes) * 9 // 10]) or 1.0
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
