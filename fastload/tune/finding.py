"""Names of a script's loaders, and the loader that ``--loader`` means.

In: loaders, and the value of ``--loader``. Out: one of them, or an error that lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.users_line import users_frame
from ..run.targets import UsageError


@dataclass(frozen=True, slots=True)
class Found:
    """A loader and its names."""

    loader: Any
    name: str
    """The variable that holds it; empty where none was found."""
    line: str
    """``file:line`` that made it; empty for an object."""
    title: str
    """Its dataset and batches, in words."""

    def in_words(self) -> str:
        """Return all names."""
        return ", ".join(word for word in (self.name, self.title, self.line) if word)


def names_in_stack(loaders: Sequence[Any]) -> dict[int, str]:
    """Return the names of the variables that hold loaders in the calling functions, by the loaders' identities."""
    wanted = {id(loader) for loader in loaders}
    found: dict[int, str] = {}
    frame = users_frame()
    while frame is not None and len(found) < len(wanted):
        for variables in (frame.f_locals, frame.f_globals):
            for name, held in list(variables.items()):
                for path, value in _with_items(name, held):
                    if id(value) in wanted and not name.startswith("_"):
                        found.setdefault(id(value), path)
        frame = frame.f_back
    return found


def _with_items(name: str, held: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, and its items or attributes, each with its name."""
    yield name, held
    if type(held) is dict:
        yield from ((f"{name}[{key!r}]", value) for key, value in list(held.items()) if type(key) is str)
    elif type(held) in (list, tuple):
        yield from ((f"{name}[{place}]", value) for place, value in enumerate(held[:20]))
    elif not isinstance(held, type) and type(getattr(held, "__dict__", None)) is dict:
        yield from ((f"{name}.{key}", value) for key, value in list(vars(held).items()))


def chosen(found: Sequence[Found], wanted: str | None, ask: Callable[[str], str] | None) -> Found:
    """Return the loader that is meant.

    Args:
        found: all loaders, at least one.
        wanted: the value of ``--loader``: a number from 1, a variable's name, or a line; None: not given.
        ask: asks the user; None where there is no terminal.

    Raises:
        UsageError: there are several and none was named, or no single loader has that name.
    """
    listed = "\n".join(f"  {number}  {one.in_words()}" for number, one in enumerate(found, 1))
    if wanted is None:
        if len(found) == 1:
            return found[0]
        if ask is None:
            raise UsageError(f"there are {len(found)} loaders; name one with --loader NAME or a number:\n{listed}")
        try:
            wanted = ask(f"There are {len(found)} loaders:\n{listed}\nWhich one? [1-{len(found)}] ").strip()
        except EOFError:
            raise UsageError("no loader was chosen; name one with --loader") from None
    meant = [one for number, one in enumerate(found, 1) if wanted in (str(number), one.name, one.line) and wanted != ""]
    if len(meant) != 1:
        problem = "is no loader of this script" if not meant else "is the name of several loaders"
        raise UsageError(f"{wanted!r} {problem}; there are:\n{listed}")
    return meant[0]


def loaders_in(value: Any, name: str) -> list[tuple[str, Any]]:
    """Return the loader that an object is, or the loaders it holds directly, each with its name."""
    import torch.utils.data

    if isinstance(value, torch.utils.data.DataLoader):
        return [(name, value)]
    return [pair for pair in _with_items(name, value) if isinstance(pair[1], torch.utils.data.DataLoader)]


__all__ = ["Found", "chosen", "loaders_in", "names_in_stack"]
