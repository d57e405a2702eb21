"""The batches of a loader under a setting, as hashes; and where two such records differ first.

In: a subject and a setting. Out: a record: for each epoch, a hash for each leaf of each sample.

The global generators are seeded alike before each epoch, so that a sampler of the user's that draws from them gives the
same order in every run. Their state is restored afterwards.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..keys.seeding import ORDER, Keys, preserved_global_generators, seed_global_generators
from .hashing import PICKLED, BatchPrint, Leaf, leaves, print_batch
from .plan import Setting
from .subject import Edit, Subject

Record = list[list[BatchPrint]]
"""The batches of each epoch."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where two records differ first."""

    what: str
    epoch: int
    batch: int
    row: int | None
    """In the batch of the reference; None where its samples cannot be told apart."""
    leaf: str


def record(
    subject: Subject, setting: Setting, num_batches: int, *, edit: Edit | None = None, by_samples: bool = False
) -> Record:
    """Run a loader.

    Args:
        subject: what is loaded.
        setting: how.
        num_batches: of an epoch.
        edit: changes the copy of the dataset that is loaded.
        by_samples: hash samples before ``collate_fn``, which is not called.

    Raises:
        Exception: what the user's code or the loader raised.

    Blocking: until all is loaded; a wait for workers ends at the loader's time limit.
    """
    with undisturbed():
        if setting.world_size:
            return [_joined(subject, setting, num_batches, edit, by_samples)]
        loader = subject.loader(setting, edit=edit, by_samples=by_samples)
        with _closing(loader):
            if setting.resume_after is not None:
                return [_resumed(subject, setting, loader, num_batches, edit, by_samples)]
            return [
                list(_pass(subject, setting, loader, epoch, num_batches, by_samples))
                for epoch in range(setting.num_epochs)
            ]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the states of the global generators at the end, and ignore warnings in between."""
    with preserved_global_generators(), warnings.catch_warnings():
        # Such as more workers than cores.
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _closing(loader: Any) -> Iterator[None]:
    """Stop a loader's workers; torch's class has no method for that."""
    try:
        yield
    finally:
        close = getattr(loader, "close", None)
        if close is not None:
            close()
        elif getattr(loader, "_iterator", None) is not None:
            loader._iterator._shutdown_workers()


def _pass(
    subject: Subject, setting: Setting, loader: Any, epoch: int, num_batches: int, by_samples: bool
) -> Iterator[BatchPrint]:
    seed_global_generators(Keys(subject.seed, epoch, ORDER).key(0))
    iterator = iter(loader)
    try:
        for batch in itertools.islice(iterator, num_batches):
            yield _print(subject, setting, batch, by_samples)
    finally:
        if setting.engine == "torch" and setting.num_workers:
            iterator._shutdown_workers()


def _print(subject: Subject, setting: Setting, batch: Any, by_samples: bool) -> BatchPrint:
    if setting.indices_only:
        return BatchPrint(tuple(tuple(leaves(index)) for index in (batch if subject.auto_collation else [batch])))
    if not by_samples:
        return print_batch(batch, by_sample=subject.collates_by_default)
    if isinstance(batch, torch.Tensor):  # of HashedSamples
        return BatchPrint(tuple((Leaf("", "sample", bytes(row)),) for row in batch.tolist()))
    return BatchPrint(tuple(map(tuple, batch)))


def _resumed(
    subject: Subject, setting: Setting, first: Any, num_batches: int, edit: Edit | None, by_samples: bool
) -> list[BatchPrint]:
    assert setting.resume_after is not None
    seen = list(_pass(subject, setting, first, 0, setting.resume_after, by_samples))
    state = first.state_dict()
    first.close()
    second = subject.loader(setting, edit=edit, by_samples=by_samples, workers=setting.resumed_by)
    with _closing(second):
        second.load_state_dict(state)
        return seen + list(_pass(subject, setting, second, 0, num_batches - setting.resume_after, by_samples))


def _joined(
    subject: Subject, setting: Setting, num_batches: int, edit: Edit | None, by_samples: bool
) -> list[BatchPrint]:
    """Run all ranks, one after the other, and join their batches of each step, in the order of the ranks."""
    size = subject.batch_size or subject.global_batch_size
    num_steps = max(1, num_batches * size // subject.global_batch_size)
    ranks = []
    for rank in range(setting.world_size):
        loader = subject.loader(setting, edit=edit, by_samples=by_samples, rank=rank)
        with _closing(loader):
            ranks.append(list(_pass(subject, setting, loader, 0, num_steps, by_samples)))
    steps = itertools.zip_longest(*ranks, fillvalue=BatchPrint(()))
    return [BatchPrint(tuple(sample for batch in step for sample in batch.samples)) for step in steps]


def first_difference(expected: Record, actual: Record, *, regrouped: bool = False) -> Place | None:
    """Return where a record differs from its reference; None if it does not.

    Args:
        expected: the reference; it may have more epochs.
        actual: the other.
        regrouped: the two may cut the samples into batches differently, and one may have more samples.
    """
    for epoch, (before, after) in enumerate(zip(expected, actual, strict=False)):
        place = _in_regrouped(epoch, before, after) if regrouped else _in_pass(epoch, before, after)
        if place is not None:
            return place
    return None


def _in_pass(epoch: int, expected: list[BatchPrint], actual: list[BatchPrint]) -> Place | None:
    for batch, (before, after) in enumerate(zip(expected, actual, strict=False)):
        found = _in_batch(before, after)
        if found is not None:
            row, path, what = found
            return Place(what, epoch, batch, row, path)
    if len(expected) != len(actual):
        what = f"the number of batches differs, {len(actual)} instead of {len(expected)}"
        return Place(what, epoch, min(len(expected), len(actual)), None, "")
    return None


def _in_regrouped(epoch: int, expected: list[BatchPrint], actual: list[BatchPrint]) -> Place | None:
    places = [(batch, row) for batch, one in enumerate(expected) for row in range(len(one.samples))]
    before = (sample for batch in expected for sample in batch.samples)
    after = (sample for batch in actual for sample in batch.samples)
    for (batch, row), one, other in zip(places, before, after, strict=False):
        found = _in_leaves(one, other)
        if found is not None:
            path, what = found
            return Place(what, epoch, batch, row, path)
    return None


def _in_batch(before: BatchPrint, after: BatchPrint) -> tuple[int | None, str, str] | None:
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


def pickled_kinds(made: Record) -> set[str]:
    """Return the types of leaves that were hashed by their pickles."""
    batches = [batch for batches in made for batch in batches]
    found = (leaf.kind for batch in batches for sample in (batch.whole, *batch.samples) for leaf in sample)
    return {kind.removeprefix(PICKLED) for kind in found if kind.startswith(PICKLED)}


def index_of(subject: Subject, setting: Setting, place: Place) -> tuple[int | None, str | None]:
    """Return the position in the epoch's order, and the dataset index there, of a place in a record.

    Args:
        subject: what was loaded.
        setting: of the reference.
        place: the place.
    """
    if subject.iterable or place.row is None or subject.on_error == "skip":  # rows are not the sampler's
        return None, None
    indices: list[Any] = []
    with undisturbed():
        loader = subject.loader(setting)
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        seed_global_generators(Keys(subject.seed, place.epoch, ORDER).key(0))
        # As an iteration does before it draws the first index.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(place.epoch)
        elif hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(place.epoch)
        for batch, drawn in enumerate(itertools.islice(sampler, place.batch + 1)):
            rows = list(drawn) if subject.auto_collation else [drawn]
            if batch == place.batch:
                found = rows[place.row] if place.row < len(rows) else None
                return len(indices) + place.row, None if found is None else repr(found)
            indices += rows
    return None, None


__all__ = ["Place", "Record", "first_difference", "index_of", "pickled_kinds", "record", "undisturbed"]
