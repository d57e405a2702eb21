"""Tables for a person: how each loader works, and which stages of its dataset are fused, or would be.

In: loaders or datasets. Out: tables on standard output, and advice. Samples are loaded for the advice only, by copies.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch.utils.data
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..engine.fusing import named_plan, possible_plan
from ..errors import one_line
from ..images import native_jpeg
from ..run.targets import Result
from ..tune.advice import advise
from .facts import facts

# Width where standard output is no terminal.
_COLUMNS = 120


def show(*tables: Any) -> None:
    """Print as wide as the terminal; elsewhere 120 columns, or the number in COLUMNS, without colours."""
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
    """Return the table of a :class:`fastload.DataLoader`.

    Args:
        loader: which.
        place: the line that made it, and the like, for the title.
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
    """Return the table of a dataset: what ``fuse=True`` would do with it."""
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
        yield Text(f"Pillow decodes the files: {reason}. Details: fastload doctor.", "yellow")


def name_of(loader: Any) -> str:
    """Return a loader's dataset and batches, in words."""
    words = _sized(type(loader.dataset).__name__, loader.dataset)
    if loader.batch_size is not None:
        return f"{words}, batches of {loader.batch_size}"
    return words if loader.batch_sampler is None else f"{words}, batches of {type(loader.batch_sampler).__name__}"


def _sized(name: str, dataset: Any) -> str:
    try:
        return f"{name}, {len(dataset):,} samples"
    except Exception:  # an iterable dataset, or whatever the user's raises
        return name


def explain_script(first: Any, made: list[tuple[Any, str]], options: dict[str, Any]) -> Result:
    """Print the tables of a script's loaders; called in the script's process.

    Args:
        first: the loader that was iterated first.
        made: all loaders, each with the line that made it.
        options: ``samples``: whether to load samples for advice.
    """
    places = {id(loader): place for loader, place in made}
    show(
        table_of_loader(first, f"{places.get(id(first), '')}   iterated first".strip()),
        *(table_of_loader(loader, place) for loader, place in made if loader is not first),
        Text("The script was stopped at its first batch; loaders that it would make later are not listed.", "dim"),
    )
    if options["samples"]:
        show(Text(), _advice(first))
    return Result(0)


def _advice(loader: Any) -> Group:
    """Return which changes make a loader's samples cheaper, measured on some of them."""
    title = Text(f"Advice for {name_of(loader)}", "bold cyan")
    try:
        found = advise(loader)
    except (Exception, SystemExit) as error:  # of the user's code; the tables are right all the same
        why = f"none, because loading a sample fails: {one_line(error)}"
        return Group(title, Padding(Text(why, "yellow"), (0, 0, 0, 2)))
    cost = f"{found.cpu_s * 1e3:.3g} ms of processor time per {found.unit}"
    lines = [f"now: {cost} (measured on {found.number}, without workers)"]
    for gain in found.gains:
        same = "the same batches" if not gain.differs else f"other batches under the same seed ({gain.differs})"
        lines.append(f"{gain.change}: {gain.factor:.1f} times as fast; {same}")
    if not found.gains:
        lines.append("other values of fuse and seeding gain less than 10 %")
    lines.append("fastload tune also tries worker_method, num_workers, chunk_size, resident and prefetch_factor")
    return Group(title, *(Padding(Text(line), (0, 0, 0, 2)) for line in lines))


def print_tables(target: Any, *, advice: bool = False) -> None:
    """Print the table of a loader, a dataset, or what a function without arguments returns.

    Args:
        target: which.
        advice: load some samples of a loader, and end with advice.

    Raises:
        TypeError: it is none of these.
    """
    if callable(target) and not isinstance(target, torch.utils.data.DataLoader) and not hasattr(target, "__getitem__"):
        target = target()
    if isinstance(target, torch.utils.data.DataLoader):
        if not hasattr(target, "fuse"):
            raise TypeError("this loader was constructed as torch's DataLoader, before fastload was installed")
        show(table_of_loader(target), *([_advice(target)] if advice else []))
    elif hasattr(target, "__getitem__") or isinstance(target, torch.utils.data.IterableDataset):
        show(table_of_dataset(target))
    else:
        raise TypeError(
            "explain takes a DataLoader, a dataset, or a function without arguments that returns one, got "
            f"{type(target).__name__}"
        )


__all__ = ["explain_script", "name_of", "print_tables", "show", "table_of_dataset", "table_of_loader"]
