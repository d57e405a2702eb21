"""What GitHub shows right and the site's Markdown does not: it tells lists, blocks and comments apart more strictly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation_blocks import PAGES

_FENCE = re.compile(r" *(```|~~~)")
_ITEM = re.compile(r" *([*-]|\d+\.) ")


def faults_of(text: str) -> list[tuple[int, str]]:
    """Return the lines that the site would show wrongly, with the reason."""
    found = []
    inside = False
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            inside = not inside
            if (len(line) - len(line.lstrip())) % 4:
                found.append((number, "a block within a list is indented by four spaces, or the list ends there"))
        elif not inside:
            if line.lstrip().startswith("<!-- figure:") and before.strip():
                found.append((number, "a line that begins with a comment ends the paragraph before it"))
            if _ITEM.match(line) and before.strip() and not _ITEM.match(before) and not before.startswith(" "):
                found.append((number, "a list needs an empty line before it"))
        before = line
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_site_shows_a_page_as_it_is_meant(path: Path) -> None:
    assert faults_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "* an item:\n\n  ```sh\n  fastload doctor\n  ```\n* another",
        "It reaches\n<!-- figure: one -->2.0<!-- end --> times that.",
        "* an item of\n  <!-- figure: one -->2.0<!-- end --> times",
        "These are:\n* one",
        "These are:\n1. one",
    ],
)
def test_what_the_site_shows_wrongly_is_found(text: str) -> None:
    assert faults_of(text)
