"""Handles a sample that failed: loads it again, takes a substitute, or leaves it out. Imported only when one fails.

``loader``: the :class:`.samples.SampleLoader` that met the error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ..errors import DatasetError, add_note
from .on_error import ATTEMPTS, ErrorPolicy, failure_of, name_sample


def load_one_by_one(loader: Any, indices: Any, epoch: int, position: int) -> list[Any]:
    """Load samples of which at least one fails, to find which one it is."""
    samples: list[Any] = []
    for row, (index, identity) in enumerate(zip(indices, loader.ids(indices, position), strict=False)):
        try:
            samples.append(loader.one(index, identity, epoch))
        except Exception as error:
            if not loader.tolerates(error):
                raise
            samples += substitutes_of(loader, error, row, index, identity, epoch)
    return samples


def only(loader: Any, samples: Any) -> Any:
    """Return the sample that ``__getitems__`` has loaded alone.

    Raises:
        DatasetError: it is none.
    """
    if type(samples) is not list or len(samples) != 1:
        raise DatasetError(
            f"on_error loads samples one by one after an error, and {type(loader.job.dataset).__name__}.__getitems__ "
            f"returned a {type(samples).__name__} for one index; let it return a list of samples, or use "
            "on_error='raise'"
        )
    return samples[0]


def substitutes_of(loader: Any, error: Exception, row: int, index: Any, identity: int, epoch: int) -> list[Any]:
    """Return what is loaded in place of a sample that failed, in a list; empty: it is left out.

    That is the sample itself, if it can be loaded now and ``on_error`` says to try again, else a substitute.

    Raises:
        Exception: the last error of the sample, if the substitutes fail too.
    """
    policy, dataset = loader.job.error_policy, loader.job.dataset
    assert policy is not None
    for again, candidate in _attempts(policy, index, epoch, identity):
        try:
            sample = loader.one(candidate, identity, epoch)
        except Exception as another:
            if not loader.tolerates(another):
                raise
            error = another if again else error
            continue
        if not again:
            loader.failures.append(failure_of(error, row, dataset, index, candidate))
        return [sample]
    if policy.candidates is None and not policy.raises:
        loader.failures.append(failure_of(error, row, dataset, index, None))
        return []
    name_sample(error, dataset, index)
    if policy.raises:
        add_note(error, f"on_error has loaded it {1 + len(policy.waits)} times; each time it failed")
    else:
        add_note(error, f"on_error='replace' tried up to {ATTEMPTS} other samples in its place; all failed")
    raise error


def _attempts(policy: ErrorPolicy, index: Any, epoch: int, identity: int) -> Iterator[tuple[bool, Any]]:
    """Yield what is to be loaded after a sample has failed: True and the sample again, or False and another."""
    for wait in policy.waits:
        time.sleep(wait)
        yield True, index
    for candidate in policy.substitutes(index, epoch, identity):
        yield False, candidate
