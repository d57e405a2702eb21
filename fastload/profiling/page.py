"""The analysis as one HTML file: the summary with all of its lines, and what it leaves out.

Without scripts, libraries and network access. All text from outside goes through rich or ``html.escape``; a content
security policy forbids scripts and requests.
"""

from __future__ import annotations

from html import escape

from ..base.console import as_html
from .formatting import cause_name, printable, rank_name
from .schema import Analysis
from .summary import further, rank_summary, summary


def page(analysis: Analysis) -> str:
    """Return the HTML file's text."""
    rank = analysis.main_rank()
    title = cause_name(rank.verdict.cause)
    parts = [as_html(summary(analysis, whole=True)), as_html(further(analysis, rank))]
    for other in analysis.ranks:
        if other is not rank:
            name = _text(f"{rank_name(other)}: {cause_name(other.verdict.cause)}")
            inside = as_html(rank_summary(analysis, other)) + as_html(further(analysis, other))
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
<style>body {{ margin: 2em auto; max-width: 62em; padding: 0 1em; font: 15px system-ui, sans-serif; }}</style>
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
