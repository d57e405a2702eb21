"""Handles a sample that failed: loads it again, takes a substitute, or leaves it out.

Imported only when a sample fails.
"""

from __future__ import annotations

import time
from typing import Any

from ..errors import DatasetError, add_note
from .on_error import ATTEMPTS, failure_of, name_sample


class Failed:
    """See the module; ``samples``: the :class:`.samples.SampleLoader` that met the error."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples

    def name_sample(self, error: Exception, index: Any) -> None:
        """Add a note to an error that says which sample of the dataset failed."""
        name_sample(error, self._samples.job.dataset, index)

    def one_by_one(self, indices: Any, epoch: int, position: int) -> list[Any]:
        """Load samples of which at least one fails, to find which one it is."""
        loader, samples = self._samples, []
        for row, (index, identity) in enumerate(zip(indices, loader.ids(indices, position), strict=False)):
            try:
                samples.append(loader.one(index, identity, epoch))
            except Exception as error:
                if not loader.tolerates(error):
                    raise
                samples += self.substitutes_of(error, row, index, identity, epoch)
        return samples

    def only(self, samples: Any) -> Any:
        """Return the sample that ``__getitems__`` has loaded alone.

        Raises:
            DatasetError: it is none.
        """
        if type(samples) is not list or len(samples) != 1:
            raise DatasetError(
                f"on_error loads samples one by one after an error, and {type(self._samples.job.dataset).__name__}."
                f"__getitems__ returned a {type(samples).__name__} for one index; let it return a list of samples, or "
                "use on_error='raise'"
            )
        return samples[0]

    def substitutes_of(self, error: Exception, row: int, index: Any, identity: int, epoch: int) -> list[Any]:
        """Return what is loaded in place of a sample that failed, in a list; empty: it is left out.

        That is the sample itself, if it can be loaded now and ``on_error`` says to try again, else a substitute.

        Raises:
            Exception: the last error of the sample, if the substitutes fail too.
        """
        samples = self._samples
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
            self.name_sample(error, index)
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
        self.name_sample(error, index)
        add_note(error, f"on_error='replace' tried up to {ATTEMPTS} other samples in its place; all failed")
        raise error
