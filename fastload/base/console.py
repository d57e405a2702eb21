"""Prints tables as wide as the terminal, and elsewhere as plain text. rich is imported where something is printed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from typing import Any, TextIO


def show(*parts: Any, file: TextIO | None = None) -> None:
    """Print renderables, one below the other, to a file, or standard output.

    Elsewhere than on a terminal 120 columns wide, or COLUMNS, and in characters that the file supports.
    """
    file = sys.stdout if file is None else file
    if file.isatty():
        from rich.console import Console, Group

        Console(file=file, highlight=False, markup=False, emoji=False).print(Group(*parts))
    else:
        text, encoding = as_text(*parts, width=shutil.get_terminal_size((120, 24)).columns), file.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), file=file)


def as_text(*parts: Any, width: int) -> str:
    """Return renderables as text without colours, wrapped at ``width`` columns."""
    from rich.console import Console, Group

    settings: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "legacy_windows": False}
    console = Console(width=width, no_color=True, force_terminal=False, **settings)
    with console.capture() as captured:
        console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def plain_table(columns: Iterable[str | dict[str, Any]], *, gap: int = 1) -> Any:
    """Return an empty table with a line below its head.

    Args:
        columns: the heads; or all arguments of rich's ``add_column``.
        gap: blanks between columns.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, gap, 0, 0))
    for column in columns:
        arguments: dict[str, Any] = {"header": column, "no_wrap": True} if isinstance(column, str) else column
        table.add_column(**arguments)
    return table


def section(title: Any, lines: Iterable[Any], *, indent: int = 2) -> Any:
    """Return a title with indented lines below it, which are wrapped each by itself."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    texts = (line if not isinstance(line, str) else Text(line) for line in lines)
    head = Text(title, "bold") if isinstance(title, str) else title
    return Group(head, *(Padding(text, (0, 0, 0, indent)) for text in texts))
