"""Which loader is meant: those that a script has made, with their names, and the one that the user names.

In: loaders, and what ``--loader`` says. Out: one of them, or an error that lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..targets import TargetError
from ..users_line import users_frame


@dataclass(frozen=True, slots=True)
class Found:
    """A loader, and what it can be called by."""

    loader: Any
    name: str
    """Of the variable that holds it; empty where none was found."""
    place: str
    """The line that made it; empty for an object."""
    title: str
    """Its dataset and batches, in words."""

    def in_words(self) -> str:
        """Return all of it."""
        return ", ".join(word for word in (self.name, self.title, self.place) if word)


def names_in_stack(loaders: Sequence[Any]) -> dict[int, str]:
    """Return the names of variables that hold loaders, in the calls that are under way, by the loaders' identities."""
    wanted = {id(loader) for loader in loaders}
    found: dict[int, str] = {}
    frame = users_frame()
    while frame is not None and len(found) < len(wanted):
        for variables in (frame.f_locals, frame.f_globals):
            for name, held in list(variables.items()):
                for path, value in _reached(name, held):
                    if id(value) in wanted and not name.startswith("_"):
                        found.setdefault(id(value), path)
        frame = frame.f_back
    return found


def _reached(name: str, held: Any) -> Iterator[tuple[str, Any]]:
    """Yield a value, and what lies one step inside of it: items, attributes."""
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
        found: all that there are, at least one.
        wanted: a number from 1, a variable's name, or a line; None: not said.
        ask: asks the user; None where there is no terminal.

    Raises:
        TargetError: it is not said which of several, or none is called so.
    """
    listed = "\n".join(f"  {number}  {one.in_words()}" for number, one in enumerate(found, 1))
    if wanted is None:
        if len(found) == 1:
            return found[0]
        if ask is None:
            raise TargetError(f"there are {len(found)} loaders; say which with --loader NAME or a number:\n{listed}")
        try:
            wanted = ask(f"There are {len(found)} loaders:\n{listed}\nWhich one? [1-{len(found)}] ").strip()
        except EOFError:
            raise TargetError("it was not said which loader is meant; see --loader") from None
    meant = [
        one for number, one in enumerate(found, 1) if wanted in (str(number), one.name, one.place) and wanted != ""
    ]
    if len(meant) != 1:
        problem = "is no loader of this script" if not meant else "is the name of several"
        raise TargetError(f"{wanted!r} {problem}; there are:\n{listed}")
    return meant[0]


def loaders_in(value: Any, name: str) -> list[tuple[str, Any]]:
    """Return the loaders that an object is, or holds directly, with their names."""
    import torch.utils.data

    if isinstance(value, torch.utils.data.DataLoader):
        return [(name, value)]
    return [pair for pair in _reached(name, value) if isinstance(pair[1], torch.utils.data.DataLoader)]


__all__ = ["Found", "chosen", "loaders_in", "names_in_stack"]
