"""Prints tables as wide as the terminal, and elsewhere as plain text; makes HTML for notebooks. Imports rich late."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable
from typing import Any, TextIO

_GREY = (128, 128, 128)
_COLOURS = [_GREY, (214, 69, 65), (46, 145, 73), (176, 124, 16), (62, 124, 207), (154, 90, 190), (23, 145, 160), _GREY]
"""The terminal's eight, with enough contrast to white and to black."""

_PLAIN: dict[str, Any] = {
    "highlight": False, "markup": False, "emoji": False, "legacy_windows": False,
    "force_jupyter": False,  # else rich itself displays what is printed in a notebook
}  # fmt: skip


def show(*parts: Any, file: TextIO | None = None) -> None:
    """Print renderables, one below the other, to a file, or standard output. What must not be wrapped may be longer.

    Elsewhere than on a terminal 120 columns wide, or COLUMNS, and in characters that the file supports.
    """
    file = sys.stdout if file is None else file
    if file.isatty():
        from rich.console import Console, Group

        Console(file=file, highlight=False, markup=False, emoji=False).print(Group(*parts), crop=False)
    else:
        text, encoding = as_text(*parts, width=shutil.get_terminal_size((120, 24)).columns), file.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), file=file)


def as_text(*parts: Any, width: int) -> str:
    """Return renderables as text without colours, wrapped at ``width`` columns."""
    from rich.console import Console, Group

    console = Console(width=width, no_color=True, force_terminal=False, **_PLAIN)
    with console.capture() as captured:
        console.print(Group(*parts), crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def as_html(*parts: Any, width: int = 120) -> str:
    """Return renderables as an HTML element for a notebook, wrapped at ``width`` columns.

    Text has the page's own colours, and what is coloured can be read on light and on dark pages.
    """
    from rich.console import Console, Group
    from rich.terminal_theme import TerminalTheme

    console = Console(width=width, file=io.StringIO(), record=True, color_system="truecolor", **_PLAIN)
    console.print(Group(*parts), crop=False)
    theme = TerminalTheme(_GREY, _GREY, _COLOURS)
    element = '<pre style="line-height: 1.3; white-space: pre; overflow-x: auto; background: none">{code}</pre>'
    made = console.export_html(theme=theme, code_format=element, inline_styles=True)
    # A bar names the terminal's own background. Dim text is between it and the foreground: grey.
    return made.replace("background-color: #808080", "background-color: transparent")


def plain_table(columns: Iterable[str | dict[str, Any]]) -> Any:
    """Return an empty table with a line below its head; ``columns``: heads, or all arguments of ``add_column``."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        arguments: dict[str, Any] = {"header": column, "no_wrap": True} if isinstance(column, str) else column
        table.add_column(**arguments)
    return table


def labelled(rows: Iterable[tuple[str, str]]) -> Any:
    """Return a table of names and words without lines; what is wrapped stays in its column."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in rows:
        table.add_row(name, Text(words))
    return table


def section(title: Any, lines: Iterable[Any], *, indent: int = 2) -> Any:
    """Return a title with indented lines below it, which are wrapped each by itself."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    texts = (line if not isinstance(line, str) else Text(line) for line in lines)
    head = Text(title, "bold") if isinstance(title, str) else title
    return Group(head, *(Padding(text, (0, 0, 0, indent)) for text in texts))
