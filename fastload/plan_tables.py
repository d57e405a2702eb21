"""The plans of loaders as tables: how each works, and what of its dataset is fused, or would be.

In: loaders, or the class whose loaders a script is about to make. Out: tables on standard output, and advice. Samples
are made for the advice alone, by copies.
"""

from __future__ import annotations

import json
import os
import sys
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
from .tune.advice import advise
from .verification.run import told

# Where output is no terminal.
_COLUMNS = 120


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
    title = Text.assemble((name_of(loader), "bold cyan"), (f"   {place}" if place else "", "dim"))
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


def name_of(loader: Any) -> str:
    """Return a loader's dataset and batches, in words."""
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
    made = caught.MadeLoaders(loader_class)

    def act(first: Any) -> None:
        _print_all(first, made.alive(), measured=options["measured"])
        Path(options["result"]).touch()

    caught.catch_loader(loader_class, options, "FASTLOAD_EXPLAIN", act)


def _print_all(first: Any, made: list[tuple[Any, str]], *, measured: bool) -> None:
    places = {id(loader): place for loader, place in made}
    others = [loader for loader, _ in made if loader is not first]
    show(
        table_of_loader(first, f"{places.get(id(first), '')}   asked for a batch first".strip()),
        *(table_of_loader(loader, places[id(loader)]) for loader in others),
    )
    show(Text("The script was ended at its first batch; loaders that it makes later are not listed.", "dim"))
    if measured:
        show(Text(), advice_for(first))


def advice_for(loader: Any) -> Group:
    """Return what would make a loader's samples cheaper, measured on some of them."""
    title = Text(f"Advice for {name_of(loader)}", "bold cyan")
    try:
        found = advise(loader)
    except Exception as error:  # of the user's code; the tables are right all the same
        why = f"none, since a sample cannot be made: {told(error)}"
        return Group(title, Padding(Text(why, "yellow"), (0, 0, 0, 2)))
    cost = f"{found.cpu_s * 1e3:.3g} ms of processor time a {found.unit}"
    lines = [f"{cost}, measured here on {found.number} of them, without workers"]
    for gain in found.gains:
        same = "the same batches" if not gain.differs else f"other batches than now, under one seed ({gain.differs})"
        lines.append(f"{gain.change}: {gain.factor:.1f} times as fast a {found.unit}; {same}")
    if not found.gains:
        lines.append("neither fuse nor seeding brings more than a tenth")
    lines.append("fastload tune tries the rest: processes or threads, how many, chunk_size, resident, prefetch_factor")
    return Group(title, *(Padding(Text(line), (0, 0, 0, 2)) for line in lines))


def print_tables(target: Any, *, measured: bool = False) -> None:
    """Print the tables of a loader, a dataset, or what a function without arguments returns.

    Args:
        target: which.
        measured: make some samples of a loader, and end with advice.

    Raises:
        TypeError: it is none of these.
    """
    if callable(target) and not isinstance(target, torch.utils.data.DataLoader) and not hasattr(target, "__getitem__"):
        target = target()
    if isinstance(target, torch.utils.data.DataLoader):
        if not hasattr(target, "fuse"):
            raise TypeError("this loader was made by torch's class before fastload could take its place")
        show(table_of_loader(target), *([advice_for(target)] if measured else []))
    elif hasattr(target, "__getitem__") or isinstance(target, torch.utils.data.IterableDataset):
        show(table_of_dataset(target))
    else:
        raise TypeError(
            "explain takes a DataLoader, a dataset, or a function without arguments that returns one, got "
            f"{type(target).__name__}"
        )


__all__ = ["explain_first", "name_of", "print_tables", "show", "table_of_dataset", "table_of_loader"]
