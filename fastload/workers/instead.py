"""What takes the place of a sample that failed: the sample itself, loaded again, a substitute, or nothing.

In: the error, and the :class:`.samples.SampleLoader` that met it. Out: what is loaded in place of the
sample. Imported only when a sample fails.
"""

from __future__ import annotations

import time
from typing import Any

from ..errors import add_note
from .on_error import ATTEMPTS, failure_of


def instead_of(samples: Any, error: Exception, row: int, index: Any, identity: int, epoch: int) -> list[Any]:
    """Return what is loaded in place of a sample that failed, in a list; empty: it is left out.

    That is the sample itself, if it can be loaded now and ``on_error`` says to try again, else a substitute.

    Raises:
        Exception: the last error of the sample, if the substitutes fail too.
    """
    error_policy, dataset = samples.job.error_policy, samples.job.dataset
    assert error_policy is not None
    for wait in error_policy.waits:
        time.sleep(wait)
        try:
            return [samples.one(index, identity, epoch)]
        except Exception as another:
            if not samples.tolerates(another):
                raise
            error = another
    if error_policy.raises:
        samples.name_sample(error, index)
        add_note(error, f"on_error has loaded it {1 + len(error_policy.waits)} times; each time it failed")
        raise error
    if error_policy.candidates is None:
        samples.failures.append(failure_of(error, row, dataset, index, None))
        return []
    for substitute in error_policy.substitutes(index, epoch, identity):
        try:
            sample = samples.one(substitute, identity, epoch)
        except Exception as another:
            if not samples.tolerates(another):
                raise
            continue
        samples.failures.append(failure_of(error, row, dataset, index, substitute))
        return [sample]
    samples.name_sample(error, index)
    add_note(error, f"on_error='replace' tried up to {ATTEMPTS} other samples in its place; all failed")
    raise error
