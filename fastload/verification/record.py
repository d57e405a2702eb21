"""The batches of a loader under a setting, or its samples, as hashes; and where two such records differ first.

The global generators are seeded alike before each epoch, so that a sampler of the user's that draws from them gives the
same order in every run. Their state is restored afterwards.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from ..base.interrupts import raise_if_interrupted
from ..keys.preserving import preserved_global_generators
from ..keys.seeding import ORDER, Keys, seed_global_generators
from .hashing import PICKLED, Hashes, Leaf
from .plan import RunSetting
from .report import Difference
from .stages import TransformStage
from .subject import Subject, Yields

Record = list[list[Hashes]]
"""The batches of each epoch, or its samples, or their indices."""


def record(
    subject: Subject,
    setting: RunSetting,
    num_batches: int,
    yields: Yields = "batches",
    *,
    removed: Sequence[TransformStage] = (),
) -> Record:
    """Run a loader, without some stages of its dataset, for so many batches of each epoch, on each rank.

    The samples of ranks are joined. Raises what the user's code or the loader raises.

    Blocking: until all is loaded; a wait for workers ends at the loader's time limit.
    """

    def epoch_on(loader: DataLoader[Any], epoch: int, number: int) -> list[list[Hashes]]:
        return [subject.hashes_of(batch, yields) for batch in epoch_of(loader, subject.seed or 0, epoch, number)]

    def loader_of(setting: RunSetting, rank: int = 0) -> Any:
        return closing(subject.loader(setting, yields, removed=removed, rank=rank))

    def joined(*ranks: list[list[Hashes]]) -> list[Hashes]:
        steps = itertools.zip_longest(*ranks, fillvalue=[])
        return [one for step in steps for batch in step for one in batch]

    with undisturbed():
        if setting.world_size:
            ranks = []
            for rank in range(setting.world_size):  # one after the other
                with loader_of(setting, rank) as loader:
                    ranks.append(epoch_on(loader, 0, num_batches))
            return [joined(*ranks)]
        with loader_of(setting) as loader:
            if setting.resume_after is None:
                return [joined(epoch_on(loader, epoch, num_batches)) for epoch in range(setting.num_epochs)]
            before = epoch_on(loader, 0, setting.resume_after)
            state = loader.state_dict()
        with loader_of(replace(setting, num_workers=setting.resumed_by)) as loader:
            loader.load_state_dict(state)
            return [joined(before + epoch_on(loader, 0, num_batches - setting.resume_after))]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the states of the global generators at the end, and ignore warnings in between."""
    with preserved_global_generators(), warnings.catch_warnings():
        # Such as more workers than cores.
        warnings.simplefilter("ignore")
        yield


@contextmanager
def closing(loader: DataLoader[Any]) -> Iterator[Any]:
    """Stop a loader's workers at the end; torch's class has no method for that."""
    try:
        yield loader
    finally:
        kept: Any = loader._iterator
        if hasattr(loader, "close"):
            loader.close()
        elif kept is not None:
            kept._shutdown_workers()


def epoch_of(loader: Any, seed: int, epoch: int, number: int) -> Generator[Any, None, None]:
    """Yield so many batches of an epoch, at most; the global generators are seeded for it."""
    seed_global_generators(Keys(seed, epoch, ORDER).key(0))
    iterator: Any = iter(loader)
    try:
        for batch in itertools.islice(iterator, number):
            yield batch
            del batch
            raise_if_interrupted()
    finally:
        if not loader.persistent_workers and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()  # of an epoch that was not finished


def first_difference(
    expected: Record, actual: Record, yields: Yields = "batches", *, regrouped: bool = False
) -> Difference | None:
    """Return where a record differs from its reference, which may have more epochs; None if it does not.

    ``regrouped``: one may have more samples, since batches are cut in another way.
    """

    def at(epoch: int, number: int, what: str, leaf: str = "") -> Difference:
        batch, sample = (number, None) if yields == "batches" else (None, number)
        return Difference(what, epoch, batch, sample, leaf)

    for epoch, (before, after) in enumerate(zip(expected, actual, strict=False)):
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            if (found := _in_leaves(one, other)) is not None:
                return at(epoch, number, *found)
        if len(before) != len(after) and not regrouped:
            what = f"the number of {yields} differs, {len(after)} instead of {len(before)}"
            return at(epoch, min(len(before), len(after)), what)
    return None


def _in_leaves(before: Sequence[Leaf], after: Sequence[Leaf]) -> tuple[str, str] | None:
    """Return description and path of the first leaf that differs."""
    if before == after:
        return None
    others = {leaf.path: leaf for leaf in after}
    for leaf in before:
        other = others.pop(leaf.path, None)
        path = leaf.path.removesuffix(" type")
        if other is None:
            return "a part is missing", path
        if other.kind != leaf.kind:
            return f"the types differ, {other.kind} instead of {leaf.kind}", path
        if other.digest != leaf.digest:
            return "the values differ", path
    return next((("a part was added", path.removesuffix(" type")) for path in others), None)


def note_of_pickles(made: Record) -> list[str]:
    """Return a note that names the types of leaves that were hashed by their pickles; none if there are none."""
    found = {leaf.kind for epoch in made for one in epoch for leaf in one if leaf.kind.startswith(PICKLED)}
    kinds = ", ".join(sorted(kind.removeprefix(PICKLED) for kind in found))
    return [f"compared by their pickles, which may differ though the values are equal: {kinds}"] if kinds else []


def index_of(subject: Subject, setting: RunSetting, num_batches: int, epoch: int, sample: int) -> str | None:
    """Return the dataset index of a sample of a run, by its number in the epoch; None if it is not known."""
    if subject.iterable or subject.arguments["on_error"] == "skip":  # samples are not the sampler's
        return None
    try:
        with undisturbed(), closing(subject.loader(setting, "indices")) as loader:
            for number in range(epoch + 1):
                batches = list(epoch_of(loader, subject.seed or 0, number, num_batches))
        indices = list(itertools.chain.from_iterable(batches)) if subject.auto_collation else batches
        return repr(indices[sample])
    except (Exception, SystemExit):  # of a sampler of the user's that cannot be iterated again
        return None
