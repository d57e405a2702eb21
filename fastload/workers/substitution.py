"""Loads what stands in for samples that fail, as ``on_error`` says.

In: the sample that failed, and its error. Out: the samples in its place, and a record of the failure. Imported only
when a sample fails and its error is not to be raised.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..errors import DatasetError, add_note
from .on_error import ATTEMPTS, Failure, failure_of


class _Samples(Protocol):
    """What is used here of a :class:`.samples.SampleLoader`."""

    job: Any
    dataset: Any
    getitems: Callable[[Any], Any] | None
    failures: list[Failure]

    def ids(self, indices: Any, first: int) -> Sequence[int]: ...
    def fused_in(self, epoch: int) -> Any: ...
    def forgives(self, error: Exception) -> bool: ...
    def name_sample(self, error: Exception, index: Any) -> None: ...
    def seed(self, epoch: int, sample_id: int) -> None: ...
    def guarded(self, get: Callable[[Any], Any], index: Any) -> Any: ...
    def settled(self, sample: Any) -> Any: ...


def one_by_one(loader: _Samples, indices: Any, epoch: int, position: int) -> list[Any]:
    """Load samples of which at least one fails: which one it is shows now."""
    samples: list[Any] = []
    for row, (index, identity) in enumerate(zip(indices, loader.ids(indices, position), strict=False)):
        try:
            samples.append(_one(loader, index, identity, epoch))
        except Exception as error:
            if not loader.forgives(error):
                raise
            samples += instead_of(loader, error, row, index, identity, epoch)
    return samples


def instead_of(loader: _Samples, error: Exception, row: int, index: Any, identity: int, epoch: int) -> list[Any]:
    """Return the sample that stands in for one that failed, in a list, which is empty if it is left out.

    Raises:
        Exception: the same, if the substitutes fail too.
    """
    error_policy, dataset = loader.job.error_policy, loader.job.dataset
    assert error_policy is not None
    if error_policy.candidates is None:
        loader.failures.append(failure_of(error, row, dataset, index, None))
        return []
    for substitute in error_policy.substitutes(index, epoch, identity):
        try:
            sample = _one(loader, substitute, identity, epoch)
        except Exception as another:
            if not loader.forgives(another):
                raise
            continue
        loader.failures.append(failure_of(error, row, dataset, index, substitute))
        return [sample]
    loader.name_sample(error, index)
    add_note(error, f"on_error='replace' tried up to {ATTEMPTS} other samples in its place; all failed")
    raise error


def _one(loader: _Samples, index: Any, identity: int, epoch: int) -> Any:
    """Load one sample with the randomness that belongs to an id."""
    fused = loader.fused_in(epoch)
    if fused is not None:
        return loader.guarded(partial(fused.load_one, identity=identity, epoch=epoch), index)
    loader.seed(epoch, identity)
    if loader.getitems is None:
        return loader.settled(loader.guarded(partial(operator.getitem, loader.dataset), index))
    samples = loader.settled(loader.guarded(loader.getitems, [index]))
    if type(samples) is not list or len(samples) != 1:
        raise DatasetError(
            f"on_error needs samples one by one behind an error, and {type(loader.job.dataset).__name__}."
            f"__getitems__ returned a {type(samples).__name__} for one index; let it return a list of samples, or "
            "use on_error='raise'"
        )
    return samples[0]


__all__ = ["instead_of", "one_by_one"]
