"""``on_error="skip"`` and ``"replace"``: samples that cannot be loaded.

The indices that may replace one are the same for any number of workers and ranks. Imported only when a sample fails or
``on_error`` is not ``"raise"``. Pure.
"""

from __future__ import annotations

import bisect
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data import DistributedSampler as TorchDistributedSampler

from ..base.checks import as_integer
from ..base.retry import Retry
from ..errors import ConfigError, DatasetError, add_note
from ..keys.seeding import SUBSTITUTE, Keys
from ..sampling.epochs import Sampling, known_batches, known_rows, without_skipping

if TYPE_CHECKING:
    import numpy.typing as npt

# Substitutes that are tried for a sample before its own error is raised.
ATTEMPTS = 8
# Draws for them: one may give an index that was tried already.
_DRAWS = 64
_DRAW_BITS = 8

# Failed samples that an error lists.
_LISTED = 5
_MESSAGE_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """Policy of workers for a sample that cannot be loaded."""

    candidates: Sequence[Any] | npt.NDArray[np.int64] | None
    """The indices that may stand in for it; None: it is left out."""
    seed: int
    """Seed of the keys that substitutes are chosen by."""
    waits: Sequence[float] = ()
    """Seconds before each further attempt at the sample itself."""
    raises: bool = False
    """True if its error is raised when they have failed too."""

    def substitutes(self, index: Any, epoch: int, sample_id: int) -> Iterator[Any]:
        """Yield the indices to be tried in the place of one that failed: at most ``ATTEMPTS``, each another.

        They are chosen by the key of the epoch and of the id, see :func:`fastload.keys.seeding.sample_id`.
        """
        candidates = self.candidates
        if candidates is None or not len(candidates):
            return
        keys = Keys(self.seed, epoch, SUBSTITUTE)
        tried = [index]
        for draw in range(_DRAWS):
            key = keys.key((sample_id << _DRAW_BITS) + draw)
            candidate = candidates[int.from_bytes(key, "little") % len(candidates)]
            if isinstance(candidate, np.integer):
                candidate = int(candidate)
            if candidate in tried:
                continue
            yield candidate
            tried.append(candidate)
            if len(tried) > ATTEMPTS:
                return


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSample:
    """A sample that could not be loaded, and what was done about it: see ``DataLoader.failed_samples``."""

    # Workers leave the epoch out, and count rows within their task.
    epoch: int = 0
    """The epoch, from 0."""
    row: int = 0
    """Its place in its batch."""
    index: Any
    """The index that the sampler gave."""
    file: str | None
    """Its file, for datasets that list their files in ``samples`` or ``imgs``, as ImageFolder does; else None."""
    error: str
    """The class of the exception."""
    message: str
    """The first line of its text."""
    substitute: Any
    """The index of the sample that replaces it; None: it is left out of its batch."""

    def __str__(self) -> str:
        done = "left out" if self.substitute is None else f"replaced by {self.substitute!r}"
        place = f"index {self.index!r}" + ("" if self.file is None else f", {self.file}")
        return f"{place} ({self.error}: {self.message}): {done}"


class FailureLog:
    """The failed samples of a loader: how many they are, and the last of them."""

    def __init__(self) -> None:
        self.total = 0
        """Over all epochs."""
        self.recent: deque[FailedSample] = deque(maxlen=1)
        """The last of them: as many as one epoch may have, and at least one."""

    def begin(self, epoch: int, limit: int) -> EpochFailures:
        """Return the log of the failed samples of an epoch that begins, in which at most ``limit`` may fail."""
        kept = min(max(1, limit), sys.maxsize)
        if self.recent.maxlen != kept:
            self.recent = deque(self.recent, maxlen=kept)
        return EpochFailures(self, epoch, limit)


class EpochFailures:
    """The failed samples of one epoch; a loader may have several under way."""

    def __init__(self, log: FailureLog, epoch: int, limit: int) -> None:
        self._log = log
        self._epoch = epoch
        self._limit = limit
        self._number = 0
        self._first: list[FailedSample] = []

    def note(self, failures: Iterable[FailedSample]) -> None:
        """Take down the failed samples of a batch that is given out.

        Raises:
            DatasetError: more samples failed in this epoch than may fail.
        """
        found = [replace(failure, epoch=self._epoch) for failure in failures]
        self._log.total += len(found)
        self._log.recent.extend(found)
        self._number += len(found)
        self._first += found[: _LISTED - len(self._first)]
        if found and self._number > self._limit:
            listed = "".join(f"\n  {failed}" for failed in self._first)
            raise DatasetError(
                f"{self._number} samples of epoch {self._epoch} could not be loaded, above "
                f"max_errors={self._limit}; repair or remove them, or raise max_errors; on_error='raise' shows a whole "
                f"error. The first:{listed}"
            ) from None  # the exception in whose handling this is raised is fastload's own


def failure_of(error: Exception, row: int, dataset: Any, index: Any, substitute: Any) -> FailedSample:
    """Return what is kept of a sample that failed."""
    try:
        lines = str(error).strip().splitlines()
    except Exception as unsaid:  # of the user's class; the sample's own error counts
        lines = [f"str() of it raised {type(unsaid).__name__}"]
    message = lines[0][:_MESSAGE_LENGTH] if lines else ""
    return FailedSample(
        row=row,
        index=plain(index),
        file=file_of(dataset, index),
        error=type(error).__qualname__,
        message=message,
        substitute=substitute,
    )


def plain(index: Any) -> Any:
    """Return an index as a Python integer, where it is one; anything else as it is."""
    try:
        return as_integer(index)
    except (TypeError, ValueError, RuntimeError):  # a tensor of several elements, or on another device
        return index


def name_sample(error: Exception, dataset: Any, index: Any) -> None:
    """Let an error's traceback say which sample it is of, and where that lies."""
    file = file_of(dataset, index)
    shown = repr(plain(index))  # without auto-collation it may be a batch of indices
    shown = shown if len(shown) <= _MESSAGE_LENGTH else f"{shown[:_MESSAGE_LENGTH]}..."
    note = f"at index {shown} of the dataset" + ("" if file is None else f": {file}")
    if note not in getattr(error, "__notes__", ()):  # a dataset may raise the same object again
        add_note(error, note)


def file_of(dataset: Any, index: Any) -> str | None:
    """Return where a sample lies; None if that is not known.

    Known are datasets whose ``samples`` or ``imgs`` is a sequence of tuples that begin with a path, and Subsets and
    ConcatDatasets of them.
    """
    try:
        while isinstance(dataset, (Subset, ConcatDataset)):
            if isinstance(dataset, Subset):
                dataset, index = dataset.dataset, dataset.indices[index]
                continue
            ends = dataset.cumulative_sizes
            index = index + ends[-1] if index < 0 else index
            place = bisect.bisect_right(ends, index)
            dataset, index = dataset.datasets[place], index - ends[place - 1] if place else index
        for name in ("samples", "imgs"):
            entries = getattr(dataset, name, None)
            if isinstance(entries, Sequence) and not isinstance(entries, str):
                entry = entries[index]
                path = entry[0] if isinstance(entry, (list, tuple)) else None
                if isinstance(path, (str, os.PathLike)):
                    return os.fsdecode(path)
    except Exception:  # of the dataset's attributes, which may be anything; the sample's own error counts
        return None
    return None


def error_policy_of(on_error: str, sampling: Sampling, seed: int) -> ErrorPolicy:
    """Return what workers do with samples that fail, if their errors are not raised; ``seed``: of the samples' keys.

    Raises:
        ConfigError: the loader's sampler was replaced by one whose indices are not known.
    """
    return ErrorPolicy(
        candidates=candidates_of(sampling) if on_error == "replace" else None,
        seed=seed,
        waits=on_error.waits() if isinstance(on_error, Retry) else (),
        raises=on_error == "retry",
    )


def candidates_of(sampling: Sampling) -> Sequence[Any] | npt.NDArray[np.int64]:
    """Return the indices that a loader's sampler gives in some epoch or other, so that none leaks from another split.

    Raises:
        ConfigError: they are not known.
    """
    known = known_batches(sampling)
    batches, _ = without_skipping(sampling.batch_sampler)
    while (type(batches).__module__, type(batches).__name__) == ("accelerate.data_loader", "BatchSamplerShard"):
        batches = batches.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    rows = known_rows(sampler) if known is None else known
    if rows is not None:
        possible = getattr(rows.order, "possible", None)
        return range(rows.order.length) if possible is None else possible()
    kind = type(sampler)
    if kind in (list, tuple, range, np.ndarray) and sampler is not batches:
        integers = _integers(sampler)
        return sampler if integers is None else integers
    if kind is WeightedRandomSampler:
        return np.flatnonzero(np.asarray(sampler.weights)).astype(np.int64)
    if kind in (RandomSampler, SequentialSampler) or (kind.__module__, kind.__name__) == (
        "accelerate.data_loader",
        "SeedableRandomSampler",
    ):
        return range(len(sampler.data_source))
    if kind is TorchDistributedSampler:
        return range(len(sampler.dataset))
    # As SubsetRandomSampler has them, and as other samplers can say what they choose from.
    indices = getattr(sampler, "indices", None)
    integers = None if indices is None else _integers(indices)
    if integers is not None:
        return integers
    raise ConfigError(
        "on_error='replace' must know which indices the sampler can give, so that no substitute comes from another "
        f"split; {kind.__name__} does not expose them as integers; give it an attribute indices (a list of integers), "
        "or choose the samples by a torch.utils.data.Subset and leave the order to the loader, or use on_error='skip'"
    )


def _integers(indices: Any) -> Sequence[int] | npt.NDArray[np.int64] | None:
    """Return indices that are integers, a copy; None if they are something else."""
    if isinstance(indices, range):
        return indices
    try:
        values = np.array(indices)
    except (TypeError, ValueError):  # lists of different lengths, say
        return None
    if values.ndim != 1 or (values.dtype.kind not in "iu" and len(values)):
        return None
    return values.astype(np.int64, copy=False)
