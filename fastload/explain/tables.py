"""Tables for a person: how each loader works, and which stages of its dataset are fused, or would be.

No samples are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch.utils.data
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from ..base.console import labelled, show
from ..engine.facts import facts_of
from ..engine.fusing import plan_of
from ..images.decoder import why_not_native
from ..loader import DataLoader
from ..run.targets import UsageError
from ..spec import decisions_of
from ..tune.runner import name_of, sized


def print_tables(target: Any, *, made: Sequence[tuple[DataLoader[Any], str]] = ()) -> None:
    """Print the table of a loader or a dataset.

    ``made``: by the script of which ``target`` was iterated first: all loaders, each with the line that made it.

    Raises:
        UsageError: the target is neither.
    """
    if isinstance(target, DataLoader):
        place = "".join(f"{place}   iterated first" for loader, place in made if loader is target)
        tables = [table_of_loader(target, place)]
        tables += [table_of_loader(loader, place) for loader, place in made if loader is not target]
        if made:
            words = "The script was stopped at its first batch; loaders that it would make later are not listed."
            tables.append(Text(words, "dim"))
        tables.append(Text("fastload tune measures which settings make it faster.", "dim"))
        show(*tables)
    elif isinstance(target, torch.utils.data.DataLoader):
        raise UsageError("this loader was constructed as torch's DataLoader, before fastload was installed")
    elif hasattr(target, "__getitem__") or isinstance(target, torch.utils.data.IterableDataset):
        show(table_of_dataset(target))
    else:
        raise UsageError(
            "explain takes a DataLoader, a dataset, or a function without arguments that returns one, got "
            f"{type(target).__name__}"
        )


def table_of_loader(loader: DataLoader[Any], place: str = "") -> Any:
    """Return the table of a loader; ``place``: the line that made it, and the like, for the title."""
    decisions = decisions_of(loader)
    parts = [labelled(facts_of(decisions, loader._runtime))]
    if loader.fuse is not True:
        plan = plan_of(loader.dataset, decisions.unfused_reason)
        parts += [Text(""), *_of_plan(plan, f"fuse={loader.fuse!r}; what fuse=True would do")]
    title = Text.assemble((name_of(loader), "bold cyan"), (f"   {place}" if place else "", "dim"))
    return Group(title, Padding(Group(*parts), (0, 0, 1, 2)))


def table_of_dataset(dataset: Any) -> Any:
    """Return the table of a dataset: what ``fuse=True`` would do with it."""
    from ..fusion import recognise  # takes seconds, with torchvision

    plan = recognise(dataset)
    title = Text(sized(type(dataset).__name__, dataset), "bold cyan")
    return Group(title, Padding(Group(*_of_plan(plan, "what fuse=True would do")), (0, 0, 1, 2)))


def _of_plan(plan: Any, heading: str) -> Iterator[Any]:
    if not plan.fused:
        yield Text.assemble((f"{heading}: ", "bold"), f"nothing: {plan.reason}")
        return
    yield Text(heading, "bold")
    yield Padding(Text(str(plan)), (0, 0, 0, 2))
    reason = why_not_native() if plan.reads_files else None
    if reason is not None:
        yield Text(f"Pillow decodes the files: {reason}. Details: fastload doctor.", "yellow")
