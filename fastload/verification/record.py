"""The batches of a loader under a setting, as hashes of the leaves of samples; and where two such records differ first.

The global generators are seeded alike before each epoch, so that a sampler of the user's that draws from them gives the
same order in every run. Their state is restored afterwards.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from ..keys.preserving import preserved_global_generators
from ..keys.seeding import ORDER, Keys, seed_global_generators
from .hashing import PICKLED, BatchHashes, Leaf, hash_batch, leaves
from .plan import RunSetting
from .report import Difference
from .subject import Edit, Subject

Record = list[list[BatchHashes]]
"""The batches of each epoch."""


def record(
    subject: Subject, setting: RunSetting, num_batches: int, *, edit: Edit | None = None, by_samples: bool = False
) -> Record:
    """Run a loader for so many batches of each epoch, on each rank.

    ``edit`` changes the copy of the dataset that is loaded. ``by_samples``: hash samples before ``collate_fn``, which
    is not called. Raises what the user's code or the loader raises.

    Blocking: until all is loaded; a wait for workers ends at the loader's time limit.
    """

    def hashes(loader: DataLoader[Any], epoch: int, number: int) -> list[BatchHashes]:
        found = []
        for batch in _batches(subject, loader, epoch, number):
            if setting.indices_only:
                indices = batch if subject.auto_collation else [batch]
                found.append(BatchHashes(tuple(tuple(leaves(index)) for index in indices)))
            elif by_samples:
                found.append(batch)
            else:
                found.append(hash_batch(batch, by_sample=subject.collates_by_default))
        return found

    def loader_of(**more: Any) -> Any:
        return closing(subject.loader(setting, edit=edit, by_samples=by_samples, **more))

    with undisturbed():
        if setting.world_size:
            ranks = []
            for rank in range(setting.world_size):  # one after the other
                with loader_of(rank=rank) as loader:
                    ranks.append(hashes(loader, 0, num_batches))
            steps = itertools.zip_longest(*ranks, fillvalue=BatchHashes(()))
            return [[BatchHashes(tuple(sample for batch in step for sample in batch.samples)) for step in steps]]
        with loader_of() as loader:
            if setting.resume_after is None:
                return [hashes(loader, epoch, num_batches) for epoch in range(setting.num_epochs)]
            before = hashes(loader, 0, setting.resume_after)
            state = loader.state_dict()
        with loader_of(workers=setting.resumed_by) as loader:
            loader.load_state_dict(state)
            return [before + hashes(loader, 0, num_batches - setting.resume_after)]


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


def _batches(subject: Subject, loader: DataLoader[Any], epoch: int, number: int) -> Iterator[Any]:
    seed_global_generators(Keys(subject.seed or 0, epoch, ORDER).key(0))
    yield from itertools.islice(loader, number)


def first_difference(expected: Record, actual: Record, *, regrouped: bool = False) -> Difference | None:
    """Return where a record differs from its reference, which may have more epochs; None if it does not.

    ``regrouped``: the two may cut the samples into batches differently, and one may have more samples.
    """
    for epoch, (before, after) in enumerate(zip(expected, actual, strict=False)):
        place = _in_regrouped(epoch, before, after) if regrouped else _in_epoch(epoch, before, after)
        if place is not None:
            return place
    return None


def _in_epoch(epoch: int, expected: list[BatchHashes], actual: list[BatchHashes]) -> Difference | None:
    for batch, (before, after) in enumerate(zip(expected, actual, strict=False)):
        found = _in_batch(before, after)
        if found is not None:
            row, path, what = found
            return Difference(what, epoch, batch, row, path)
    if len(expected) != len(actual):
        what = f"the number of batches differs, {len(actual)} instead of {len(expected)}"
        return Difference(what, epoch, min(len(expected), len(actual)), None, "")
    return None


def _in_regrouped(epoch: int, expected: list[BatchHashes], actual: list[BatchHashes]) -> Difference | None:
    before = [(batch, row, leaves) for batch, one in enumerate(expected) for row, leaves in enumerate(one.samples)]
    after = (sample for batch in actual for sample in batch.samples)
    for (batch, row, one), other in zip(before, after, strict=False):
        found = _in_leaves(one, other)
        if found is not None:
            path, what = found
            return Difference(what, epoch, batch, row, path)
    return None


def _in_batch(before: BatchHashes, after: BatchHashes) -> tuple[int | None, str, str] | None:
    """Return row, path and description of the first difference of two batches."""
    if before == after:
        return None
    found = _in_leaves(before.whole, after.whole)
    if found is not None:
        return None, *found
    if len(before.samples) != len(after.samples):
        return None, "", f"the number of samples differs, {len(after.samples)} instead of {len(before.samples)}"
    for row, (one, other) in enumerate(zip(before.samples, after.samples, strict=True)):
        found = _in_leaves(one, other)
        if found is not None:
            return row, *found
    return None


def _in_leaves(before: Sequence[Leaf], after: Sequence[Leaf]) -> tuple[str, str] | None:
    """Return path and description of the first leaf that differs."""
    if before == after:
        return None
    others = {leaf.path: leaf for leaf in after}
    for leaf in before:
        other = others.pop(leaf.path, None)
        path = leaf.path.removesuffix(" type")
        if other is None:
            return path, "a leaf is missing"
        if other.kind != leaf.kind:
            return path, f"the types differ, {other.kind} instead of {leaf.kind}"
        if other.digest != leaf.digest:
            return path, "the values differ"
    return next(((path.removesuffix(" type"), "a leaf was added") for path in others), None)


def note_of_pickles(made: Record) -> list[str]:
    """Return a note that names the types of leaves that were hashed by their pickles; none if there are none."""
    leaves_of = (
        leaf for batches in made for batch in batches for sample in (batch.whole, *batch.samples) for leaf in sample
    )
    kinds = sorted({leaf.kind.removeprefix(PICKLED) for leaf in leaves_of if leaf.kind.startswith(PICKLED)})
    words = "compared by their pickles, which may differ though the values are equal"
    return [f"{words}: {', '.join(kinds)}"] if kinds else []


def with_index(subject: Subject, setting: RunSetting, num_batches: int, found: Difference) -> Difference:
    """Add the dataset index to a place in a reference, if it is known."""
    if subject.iterable or found.row is None or subject.arguments["on_error"] == "skip":  # rows are not the sampler's
        return found
    setting = replace(setting, indices_only=True)
    try:
        with undisturbed(), closing(subject.loader(setting)) as loader:
            for epoch in range(found.epoch + 1):
                batches = list(_batches(subject, loader, epoch, num_batches))
        indices = batches[found.batch] if subject.auto_collation else [batches[found.batch]]
        return replace(found, index=repr(list(indices)[found.row]))
    except (Exception, SystemExit):  # of a sampler of the user's that cannot be iterated again
        return found
