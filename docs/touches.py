"""Write the table of overrides into touches.md: ``python docs/touches.py``."""

from __future__ import annotations

from pathlib import Path

from fastload.base import overrides
from fastload.base.overrides import Bypass, Override

PAGE = Path(__file__).with_name("touches.md")
BEGIN, END = "<!-- overrides -->\n", "<!-- end of overrides -->\n"
MOST_NAMES = 12


def rendered() -> str:
    """Return the page with the table of this version."""
    by_purpose: dict[tuple[str, str, str, bool], list[Override]] = {}
    for _, one in overrides.table():
        by_purpose.setdefault(
            (one.package, one.purpose, one.where, isinstance(one, Bypass)), []
        ).append(one)
    lines = ["| library | functions | why | in |", "| --- | --- | --- | --- |"]
    for (package, purpose, where, is_left), some in by_purpose.items():
        place = f"left in place; {where}" if is_left else where
        lines.append(
            f"| {package} | {_names(package, [one.path for one in some])} | {purpose} | {place} |"
        )
    page = PAGE.read_text(encoding="utf-8")
    return "\n".join(
        [page[: page.index(BEGIN)] + BEGIN, *lines, "", page[page.index(END) :]]
    )


def _names(package: str, paths: list[str]) -> str:
    names = [f"`{path.removeprefix(package + '.')}`" for path in paths]
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return (
        f"<details><summary>{len(names)} functions</summary>{', '.join(names)}</details>"
    )


if __name__ == "__main__":
    PAGE.write_text(rendered(), encoding="utf-8")
