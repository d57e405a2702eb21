"""The command line of ``fastload tune``. Nothing that takes time is imported before it is needed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.users_line import users_frame
from ..errors import one_line
from ..run.targets import Target, TargetResult, UsageError, Verb, add_json_option, positive

if TYPE_CHECKING:
    from ..loader import DataLoader


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``fastload tune``."""
    parser.add_argument("--seconds", type=positive, default=30, metavar="N", help="time to take, about (30)")
    parser.add_argument(
        "--loader", metavar="NAME", help="of several: its variable (train_loader), line (train.py:30) or number"
    )
    add_json_option(parser)


def tune(target: Target, options: dict[str, Any]) -> TargetResult:
    """Tune one of a script's loaders, or of those in an object, and print the table.

    Raises:
        UsageError: there is no loader, or several and none was named.
    """
    from ..base.console import show
    from .run import tune as tune_loader  # takes time: torch
    from .runner import name_of

    if target.name:
        found = [Found(loader, name, "", name_of(loader)) for name, loader in loaders_in(target)]
    else:
        names = names_in_stack([loader for loader, _ in target.made])
        found = [Found(loader, names.get(id(loader), ""), line, name_of(loader)) for loader, line in target.made]
    meant = chosen(found, options["loader"], input if sys.stdin.isatty() and sys.stdout.isatty() else None)
    command = "" if target.name else options["command"]  # no command would change the defaults of an object
    try:
        report = tune_loader(meant.loader, seconds=options["seconds"], subject=meant.in_words(), command=command)
    except (Exception, SystemExit) as error:  # of the user's
        print(f"fastload tune: the loader fails as it is: {one_line(error)}", file=sys.stderr)
        return TargetResult(1)
    if options["json"] != "-":
        show(report.table())
    interrupted = report.outcome.interrupted
    return TargetResult(128 + interrupted if interrupted else 0, report.to_json())


class Found(NamedTuple):
    """A loader and its names."""

    loader: DataLoader[Any]
    name: str
    """The variable that holds it; empty where none was found."""
    line: str
    """``file:line`` that made it; empty for an object."""
    title: str
    """Its dataset and batches, in words."""

    def in_words(self) -> str:
        """Return all names."""
        return ", ".join(word for word in (self.name, self.title, self.line) if word)


def loaders_in(target: Target) -> list[tuple[str, Any]]:
    """Return the loader that an object is, or the loaders it holds directly, each with its name.

    Raises:
        UsageError: there is none.
    """
    from ..loader import DataLoader

    named = list(_with_items(target.name.rpartition(":")[2], target.value))
    found = [pair for pair in named if isinstance(pair[1], DataLoader)]
    found = found[:1] if isinstance(target.value, DataLoader) else found
    if not found:
        raise UsageError(
            f"{target.name} is of type {type(target.value).__name__}: no DataLoader, nor a list, dict or function with "
            "one (a loader that was constructed before fastload was installed does not count)"
        )
    return found


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


VERB = Verb(
    name="tune",
    summary="try settings of a loader, and recommend the fastest",
    description="""\
Try settings of a loader on this machine, and recommend the fastest that gives the same batches. Without a seed these
are torch's: with another number of worker processes the augmentation is another, as with torch's loader, and the table
says so. What leaves torch's batches (seed=1, threads, fuse=True) is shown as "other augmentation", not recommended.

Processes or threads, how many, fuse, cache, seed, chunk_size, resident and prefetch_factor are tried in turns. A script
runs unmodified up to its first batch, and ends there: nothing is trained.""",
    loader_of_script="a loader that the script has made when it asks for its first batch",
    object="a DataLoader, some in a list or dict, or a function that returns such",
    status="""0 measured; 1 the loader fails as it is; 2 the command was not understood, no loader was found, or
           --loader is missing where there are several; 130 or 143 interrupted: what was measured so far is shown""",
    add_options=add_options,
    action="fastload.tune.command:tune",
)
