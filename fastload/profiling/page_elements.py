"""Pieces of the page: text that others wrote, tables, bars. All words pass through :func:`text`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from .wording import GROUPS, visible

NAMES: dict[str, str] = {"compute": "compute"} | {str(group): name for group, name in GROUPS.items()}
"""What each colour means."""


def text(words: object) -> str:
    """Return words that may be anybody's, so that they only show."""
    return escape(visible(str(words)), quote=True)


def pairs(facts: Iterable[tuple[str, str]]) -> str:
    """Return names and values, for a list of them."""
    return "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table.

    Args:
        head: names of columns; a ``>`` before one of numbers.
        rows: cells of each, HTML.
        kind: the element's class.
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
    """Return a table of the first rows, and another one, which can be unfolded, of those that are left.

    Args:
        head: as for :func:`table`; so are ``rows`` and ``kind``.
        number: rows that are shown.
        words: what the others are.
    """
    first = table(head, rows[:number], kind)
    if number >= len(rows):
        return first
    rest = table(head, rows[number:], kind)
    return f"{first}<details><summary>{len(rows) - number} more, {text(words)}</summary>{rest}</details>"


def cell(words: str, kind: str = "") -> str:
    """Return a table's cell; of the kind ``n`` it holds a number."""
    return f"<td{f' class={kind}' if kind else ''}>{text(words)}</td>"


def meter(share: float, group: str) -> str:
    """Return a cell with a bar: a share from 0 to 1, in the colour of a group of :data:`NAMES`."""
    size = min(max(share, 0.0), 1.0) * 100
    return f'<td class="meter" aria-hidden="true"><i class="c-{group}" style="width:{size:.1f}%"></i></td>'


def capital(words: str) -> str:
    """Return words with a capital at the beginning."""
    return words[:1].upper() + words[1:]


def sentence(words: str) -> str:
    """Return words as a sentence."""
    return capital(words) + ("" if words.endswith((".", "!", "?")) else ".")


__all__ = ["NAMES", "capital", "cell", "folded", "meter", "pairs", "sentence", "table", "text"]
