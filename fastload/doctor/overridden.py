"""``fastload doctor --overrides``: the names of other libraries that give way to fastload's."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.util import find_spec

from ..base import overrides
from ..base.overrides import Bypass, Override
from ..errors import one_line
from .finding import Finding, State


def overridden(named: bool = False) -> Iterator[Finding]:
    """Compare functions of other libraries with what takes their places, by purpose; ``named``: list all of them."""
    groups: dict[tuple[str, str, State, str], list[str]] = {}
    for _, one in overrides.table():
        state, words = _state_of(one)
        tried = overrides.TRIED_WITH.get(one.package)
        purpose = f"{one.purpose} (in {one.where}{f'; tried with {one.package} {tried}' if tried else ''})"
        groups.setdefault((one.package, purpose, state, words), []).append(one.path)
    for (package, purpose, state, words), names in groups.items():
        shown = ", ".join(names) if named or state == "costs" else f"{len(names)} function{'s'[len(names) == 1 :]}"
        yield Finding(package, state, f"{purpose}: {shown}: {words}")


def _state_of(one: Override) -> tuple[State, str]:
    takes_long = one.always or isinstance(one, Bypass)  # to import trainers and the like
    if takes_long and find_spec(one.package) is not None and not overrides.is_imported(one.library):
        return "ok", f"checked when {one.library} is imported"
    try:
        importlib.import_module(one.library)
    except ModuleNotFoundError:
        return "absent", f"{one.library} is not installed"
    except Exception as error:  # such as of a library that is missing
        return "costs", f"{one.library} cannot be imported: {one_line(error)}"
    reason = one.unavailable_reason()
    if reason is not None:
        return "costs", reason
    cases = list(one.cases(usual=False))
    failed = [" ".join(map(str, case)) for case in cases if not one.agrees(*case)]
    if failed:
        return "costs", ": ".join(filter(None, ("it makes something else, so it is called", ", ".join(failed))))
    return "ok", "the results are the same" if cases else "can be replaced"
