"""``fastload doctor``: asks the probes, and prints what they found.

Nothing that may be broken or takes time is imported before the page needs it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from ..base.version import __version__
from ..errors import one_line
from .finding import Finding

_STATE, _NAME = 8, 16


def examine_and_print(*, as_json: bool, with_ok: bool, only_overrides: bool) -> int:
    """Carry out ``fastload doctor``; return the exit status: 1 if something is broken."""
    with contextlib.redirect_stdout(sys.stderr):  # libraries print, too
        found = examine(only_overrides)
    if as_json:
        print(to_json(found))
    else:
        columns = min(shutil.get_terminal_size((100, 24)).columns, 120)
        print("\n".join(page(found, columns, with_ok=with_ok or only_overrides)))
    return int(any(finding.state == "broken" for finding in found))


def examine(only_overrides: bool = False) -> list[Finding]:
    """Return what all probes find; where a package that fastload needs cannot be imported, only what that says."""
    from .packages import own, required

    if only_overrides:
        with contextlib.suppress(ImportError):  # why, the packages say
            from .overridden import overridden

            return list(overridden(named=True))
    found = [*own(), *required()]
    if any(finding.state == "broken" for finding in found):
        return found
    from ..base.terminal_bar import TerminalBar
    from .probes import PROBES

    with TerminalBar() as bar:
        bar.begin(len(PROBES))
        for probe in PROBES:
            name = probe.__name__.replace("_", " ")
            bar.describe(name)
            try:
                found += probe()
            except Exception as error:  # whatever it meets: the other probes run all the same
                found.append(Finding(name, "costs", f"could not be checked: {one_line(error)}"))
            bar.advance()
    return found


def page(found: Sequence[Finding], columns: int, *, with_ok: bool) -> Iterator[str]:
    """Yield the page's lines, wrapped at ``columns``; commands are not wrapped, so that they can be copied.

    ``with_ok``: with the findings that all is well, and of what is not there and need not be.
    """
    yield from textwrap.wrap(f"fastload {__version__}: {summary(found)}", columns)
    margin = " " * (2 + _STATE + _NAME)
    room = max(columns - len(margin), 30)
    shown = [finding for finding in found if with_ok or finding.state in ("costs", "broken")]
    for finding in shown:
        first, *rest = textwrap.wrap(finding.words, room) or [""]
        yield f"  {finding.state:<{_STATE}}{finding.name:<{_NAME - 1}} {first}".rstrip()
        yield from (margin + line for line in rest)
        for line in textwrap.wrap(f"cost: {finding.cost}", room, subsequent_indent="      ") if finding.cost else ():
            yield margin + line
        if finding.remedy:
            yield f"{margin}do:   {finding.remedy}"
    if len(shown) < len(found):
        yield f"  {len(found) - len(shown)} more are well, or not needed: fastload doctor -v"


def summary(found: Sequence[Finding]) -> str:
    """Return the verdict, which stands first on the page."""
    broken, costs = (
        ", ".join(dict.fromkeys(one.name for one in found if one.state == state)) for state in ("broken", "costs")
    )
    words = f"broken: {broken}." if broken else "everything that fastload needs works."
    return words + (f" Slower or limited: {costs}." if costs else "")


def to_json(found: Sequence[Finding]) -> str:
    """Return everything as JSON: ``{"version": 1, "fastload": ..., "ok": ..., "findings": [...]}``."""
    ok = not any(finding.state == "broken" for finding in found)
    listed = [finding._asdict() for finding in found]
    return json.dumps({"version": 1, "fastload": __version__, "ok": ok, "findings": listed}, indent=2)
