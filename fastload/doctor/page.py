"""Findings as a page for a person, or as JSON. Needs no library: rich itself may be what is broken.

In: findings by section. Out: text. Colours only on a terminal, where rich is there.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .finding import Finding, State

_COLORS: dict[State, str] = {"ok": "green", "absent": "dim", "costs": "yellow", "broken": "bold red"}
_STATE, _NAME = 8, 16


class Line(NamedTuple):
    """A line of the page: pieces of text, each with a style of rich's."""

    pieces: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "".join(text for text, _ in self.pieces)


def page(title: str, found: Sequence[tuple[str, Finding]], columns: int) -> Iterator[Line]:
    """Yield the page's lines.

    Args:
        title: its first line.
        found: (section, finding), in order.
        columns: to wrap at; commands are never wrapped, so that they can be copied.
    """
    yield Line(((title, "bold"),))
    last = ""
    for section, finding in found:
        if section != last:
            yield Line(())
            yield Line(((section, "bold cyan"),))
            last = section
        yield from _of(finding, columns)
    yield Line(())
    words, style = summary([finding for _, finding in found])
    yield from (Line(((line, style),)) for line in textwrap.wrap(words, columns))


def _of(finding: Finding, columns: int) -> Iterator[Line]:
    margin = " " * (2 + _STATE + _NAME)
    room = max(columns - len(margin), 30)
    first, *rest = textwrap.wrap(finding.words, room) or [""]
    yield Line(
        (
            ("  ", ""),
            (f"{finding.state:<{_STATE}}", _COLORS[finding.state]),
            (f"{finding.name:<{_NAME - 1}} ", ""),
            (first, "dim" if finding.state == "absent" else ""),
        )
    )
    for line in rest:
        yield Line(((margin + line, "dim" if finding.state == "absent" else ""),))
    if finding.cost:
        for line in textwrap.wrap(f"cost: {finding.cost}", room, subsequent_indent="      "):
            yield Line(((margin + line, "yellow" if finding.state in ("costs", "broken") else "dim"),))
    if finding.remedy:
        yield Line(((margin + "do:   ", "dim"), (finding.remedy, "" if finding.state == "absent" else "bold")))


def summary(found: Sequence[Finding]) -> tuple[str, str]:
    """Return the last line and its style."""
    names: dict[State, list[str]] = {state: [one.name for one in found if one.state == state] for state in _COLORS}
    if names["broken"]:
        words, style = f"Broken: {', '.join(names['broken'])}.", "bold red"
    else:
        words, style = "Everything that is needed works.", "bold green"
    if names["costs"]:
        words += f" At a price: {', '.join(names['costs'])}."
    return words, style


def to_json(version: str, found: Sequence[tuple[str, Finding]]) -> str:
    """Return everything as JSON.

    Returns:
        ``{"version": 1, "fastload": ..., "ok": ..., "findings": [{"section", "name", "state", "words", "cost",
        "remedy"}, ...]}``.
    """
    listed = [{"section": section, **finding._asdict()} for section, finding in found]
    ok = not any(finding.state == "broken" for _, finding in found)
    return json.dumps({"version": 1, "fastload": version, "ok": ok, "findings": listed}, indent=2)


__all__ = ["Line", "page", "summary", "to_json"]
