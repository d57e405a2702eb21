"""``fastload doctor``: has the probes made, and prints the page. Nothing that takes time is imported before that."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, version

from .finding import Finding
from .page import Line, page, to_json
from .probes import PROBES
from .watching import findings


def examine_and_print(*, as_json: bool) -> int:
    """Carry out ``fastload doctor``.

    Args:
        as_json: print JSON in place of the page.

    Returns:
        The exit status: 1 if something is broken.
    """
    found = []
    for place, some in findings(range(len(PROBES)), _say if sys.stderr.isatty() else lambda place: None):
        found += [(PROBES[place].section, finding) for finding in some]
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    _print(found, in_json=as_json)
    return int(any(finding.state == "broken" for _, finding in found))


def _say(place: int) -> None:
    """Let a person know what takes so long."""
    print(f"\r\033[Klooking at {PROBES[place].name} ...", end="", file=sys.stderr, flush=True)


def _print(found: list[tuple[str, Finding]], *, in_json: bool) -> None:
    try:
        own = version("fastload")
    except PackageNotFoundError:  # run from its folder
        own = "(not installed)"
    if in_json:
        print(to_json(own, found))
        return
    terminal = sys.stdout.isatty()
    columns = min(shutil.get_terminal_size((100, 24)).columns, 120)
    lines = list(page(f"fastload {own}", found, columns))
    if not (terminal and _print_in_color(lines)):
        print("\n".join(map(str, lines)))


def _print_in_color(lines: list[Line]) -> bool:
    """Print; False if rich cannot, which the page then says."""
    try:
        from rich.console import Console
        from rich.text import Text
    except Exception:  # whatever a broken installation raises
        return False
    out = Console(highlight=False)
    for line in lines:
        out.print(Text.assemble(*line.pieces), soft_wrap=True)
    return True


__all__ = ["examine_and_print"]
