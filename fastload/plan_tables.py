"""The plans of loaders as tables: how each works, and what of its dataset is fused, or would be.

In: loaders, or the class whose loaders a script is about to make. Out: tables on standard output. Nothing is loaded.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.utils.data
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from . import caught
from .explaining import facts
from .fusing import named_plan, possible_plan
from .images import native_jpeg

# Where output is no terminal.
_COLUMNS = 120
# Frames of these are none of the script's.
_INSIDE = tuple(str(Path(file).parent) + os.sep for file in (__file__, torch.utils.data.__file__))
# Nor these: the standard library's.
_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<")


def show(*tables: Any) -> None:
    """Print: as wide as the terminal; where there is none 120 columns, or what COLUMNS says, without colours."""
    if sys.stdout.isatty():
        Console(highlight=False, markup=False, emoji=False).print(*tables, sep="")
        return
    asked = os.environ.get("COLUMNS", "")
    columns = int(asked) if asked.isdigit() and int(asked) > 0 else _COLUMNS
    out = Console(highlight=False, markup=False, emoji=False, no_color=True, force_terminal=False, width=columns)
    with out.capture() as captured:
        out.print(*tables, sep="")
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table_of_loader(loader: Any, place: str = "") -> Group:
    """Return what is to be said of a :class:`fastload.DataLoader`.

    Args:
        loader: which.
        place: where it was made, and the like; said in its title.
    """
    words = Table(box=None, pad_edge=False, show_header=False)
    words.add_column(style="dim", no_wrap=True)
    words.add_column()
    for name, text in facts(loader):
        words.add_row(name, text)
    plan = possible_plan(loader)
    if loader.fuse is True:
        heading = "fused, as fuse=True asks" if isinstance(plan, str) or plan.fused else "fuse=True changes nothing"
    else:
        heading = f"fuse={loader.fuse!r}; what fuse=True would do"
    title = Text.assemble((_name(loader), "bold cyan"), (f"   {place}" if place else "", "dim"))
    return Group(title, Padding(Group(words, Text(""), *_of_plan(plan, heading)), (0, 0, 1, 2)))


def table_of_dataset(dataset: Any) -> Group:
    """Return what ``fuse=True`` would do with a dataset."""
    plan: Any = named_plan(dataset)
    if isinstance(dataset, torch.utils.data.IterableDataset):
        plan = "an IterableDataset has no indices"
    title = Text(_sized(type(dataset).__name__, dataset), "bold cyan")
    return Group(title, Padding(Group(*_of_plan(plan, "what fuse=True would do")), (0, 0, 1, 2)))


def _of_plan(plan: Any, heading: str) -> Iterator[Any]:
    if isinstance(plan, str):
        yield Text.assemble((f"{heading}: ", "bold"), f"nothing: {plan}")
        return
    yield Text(heading, "bold")
    yield Padding(plan.table(), (0, 0, 0, 2))
    files = any(part.source.size is None for part in plan.parts)
    reason = native_jpeg.why_not() if plan.fused and files and plan.rows.startswith("Pillow") else None
    if reason is not None:
        yield Text(f"Files are left to Pillow: {reason}. fastload doctor says more.", "yellow")


def _name(loader: Any) -> str:
    words = _sized(type(loader.dataset).__name__, loader.dataset)
    if loader.batch_size is not None:
        return f"{words}, batches of {loader.batch_size}"
    return words if loader.batch_sampler is None else f"{words}, batches of {type(loader.batch_sampler).__name__}"


def _sized(name: str, dataset: Any) -> str:
    try:
        return f"{name}, {len(dataset):,} samples"
    except Exception:  # an iterable one, or whatever the user's raises
        return name


def explain_first(loader_class: Any, wanted: str) -> None:
    """Print the tables of a script's loaders where it asks for its first batch, and end it there.

    Args:
        loader_class: :class:`fastload.DataLoader`.
        wanted: what FASTLOAD_EXPLAIN says: JSON of the options; ``result`` is a file that is made when it is done.
    """
    options = json.loads(wanted)
    made: list[tuple[weakref.ref[Any], str]] = []
    initialize = loader_class.__init__

    @functools.wraps(initialize)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        initialize(loader, *args, **kwargs)
        made.append((weakref.ref(loader), _maker()))

    def act(first: Any) -> None:
        loader_class.__init__ = initialize
        _print_all(first, [(loader, place) for reference, place in made if (loader := reference()) is not None])
        Path(options["result"]).touch()

    loader_class.__init__ = init
    caught.catch_loader(loader_class, options, "FASTLOAD_EXPLAIN", act)


def _print_all(first: Any, made: list[tuple[Any, str]]) -> None:
    places = {id(loader): place for loader, place in made}
    others = [loader for loader, _ in made if loader is not first]
    show(
        table_of_loader(first, f"{places.get(id(first), '')}   asked for a batch first".strip()),
        *(table_of_loader(loader, places[id(loader)]) for loader in others),
    )
    show(Text("The script was ended at its first batch; loaders that it makes later are not listed.", "dim"))


def _maker() -> str:
    """Return the file and line that is constructing a loader: the user's, else the library's that does it."""
    places = []
    frame: Any = sys._getframe(2)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_INSIDE):
            places.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    own = [place for place in places if not place[0].startswith(_STANDARD) and "-packages" not in place[0]]
    for file, line in [*own, *places][:1]:
        near = os.path.relpath(file)
        return f"{file if near.startswith(os.pardir) else near}:{line}"
    return ""


def print_tables(target: Any) -> None:
    """Print the tables of a loader, a dataset, or what a function without arguments returns.

    Raises:
        TypeError: it is none of these.
    """
    if callable(target) and not isinstance(target, torch.utils.data.DataLoader) and not hasattr(target, "__getitem__"):
        target = target()
    if isinstance(target, torch.utils.data.DataLoader):
        if not hasattr(target, "fuse"):
            raise TypeError("this loader was made by torch's class before fastload could take its place")
        show(table_of_loader(target))
    elif hasattr(target, "__getitem__") or isinstance(target, torch.utils.data.IterableDataset):
        show(table_of_dataset(target))
    else:
        raise TypeError(
            "explain takes a DataLoader, a dataset, or a function without arguments that returns one, got "
            f"{type(target).__name__}"
        )


__all__ = ["explain_first", "print_tables", "show", "table_of_dataset", "table_of_loader"]
