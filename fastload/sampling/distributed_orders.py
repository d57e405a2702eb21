"""Orders that only the distributed samplers have: blocks, torch's, by weight, by length.

The ordinary ones are in :mod:`.order`. Pure, but for a cache of the last two epochs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ConfigError
from ..keys.philox import SampleWords
from .order import BATCHES, DRAWS, PERMUTATION, ROWS, Cached, Indices, Keyed, Order, Permutation, Sequential, order_key

_HALF = np.uint64(32)


class Blocks(Cached["Permutation"]):
    """Blocks of consecutive samples, in random order, for slow storage; the dataset's last one may be shorter."""

    once = True

    def __init__(self, length: int, seed: int, block_size: int) -> None:
        self.length = length
        self.name = f"block {block_size}"
        self._seed = seed
        self._size = block_size
        self._num_blocks = -(-length // block_size)

    def _compute(self, epoch: int) -> Permutation:
        return Permutation(self._num_blocks, order_key(self._seed, epoch, PERMUTATION))

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        permutation = self.of(epoch)
        # The dataset's last block may be short; the blocks that follow it in the order begin earlier by the difference.
        missing = self._num_blocks * self._size - self.length
        place = int(permutation.position_of(np.array([self._num_blocks - 1]))[0])
        follows = positions >= (place + 1) * self._size - missing
        shifted = np.where(follows, positions + missing, positions)
        indices: Indices = permutation.at(shifted // self._size) * self._size + shifted % self._size
        return indices


class AsTorch(Cached[Indices]):
    """The order of torch's ``DistributedSampler``, and of a ``RandomSampler`` whose generator had that seed.

    The generator of an epoch is seeded with ``seed + epoch``. Memory: 8 bytes a sample.
    """

    once = True
    name = "torch"

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed

    def _compute(self, epoch: int) -> Indices:
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        order: Indices = torch.randperm(self.length, generator=generator, device="cpu").numpy()
        return order

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        return self.of(epoch)[positions]


class Weighted:
    """Draws with replacement, by the samples' weights; each draw depends only on its position. 8 bytes a sample.

    Raises:
        ConfigError: a weight is negative or not finite, or all are 0.
    """

    once = False

    def __init__(self, weights: Sequence[float] | torch.Tensor | npt.ArrayLike, num_draws: int, seed: int) -> None:
        values = _float64("weights", weights)
        if values.ndim != 1 or not np.all(np.isfinite(values)) or np.any(values < 0) or not np.any(values > 0):
            raise ConfigError(
                "weights must be one number for each sample, finite, not negative and not all 0, got "
                f"shape {values.shape}, minimum {values.min(initial=np.inf)}, sum {values.sum()}"
            )
        self.length = num_draws
        self.name = f"weighted {digest(values)}"
        self._ends = np.cumsum(values)
        self._last = int(np.flatnonzero(values)[-1])
        self._seed = seed

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        drawn = SampleWords(order_key(self._seed, epoch, DRAWS), positions, 0).units(1)[:, 0] * self._ends[-1]
        # A draw that is rounded up to the end must not select a weight of 0 there.
        indices: Indices = np.minimum(np.searchsorted(self._ends, drawn, side="right"), self._last).astype(np.int64)
        return indices

    def possible(self) -> Indices:
        """Return the indices that can be drawn: those whose weight is not 0."""
        indices: Indices = np.flatnonzero(np.diff(self._ends, prepend=0.0)).astype(np.int64)
        return indices


class Buckets(Cached[Indices]):
    """Batches of samples of similar length, in random order, every sample once.

    The samples, in the order of :class:`Keyed` (or the dataset's own), are sorted by length within windows of many
    batches and cut into batches, which are shuffled within their window. The rows of a batch are shuffled too, so that
    no rank always gets the longest. The samples at the end that do not fill a batch are not sorted, so that
    ``tail="drop"`` does not always drop the longest.

    ``batch_size``: of the global batch. ``window``: number of batches that are sorted together: with more, lengths are
    more similar; with fewer, the order is more random. Without ``shuffle`` it is the dataset's, only sorted within the
    windows.

    Memory: 8 bytes a sample, and a window.
    """

    once = True

    def __init__(
        self,
        lengths: Sequence[float] | torch.Tensor | npt.ArrayLike,
        seed: int,
        *,
        batch_size: int,
        window: int,
        shuffle: bool,
    ) -> None:
        self._lengths = _float64("lengths", lengths)
        if self._lengths.ndim != 1:
            raise ConfigError(f"lengths must be one number for each sample, got shape {self._lengths.shape}")
        self.length = len(self._lengths)
        self.name = f"buckets {batch_size} {window} {digest(self._lengths)}"
        self._base: Order = Keyed(self.length, seed) if shuffle else Sequential(self.length)
        self._seed, self._batch_size, self._shuffle = seed, batch_size, shuffle
        self._window_size = batch_size * window
        self._full = self.length // batch_size * batch_size

    def at(self, epoch: int, positions: Indices) -> Indices:
        """Return the dataset indices at these positions."""
        indices = self._base.at(epoch, positions).copy()
        in_full_batch = positions < self._full
        windows = positions // self._window_size
        for window in np.unique(windows[in_full_batch]).tolist():
            inside = in_full_batch & (windows == window)
            indices[inside] = self.of((epoch, window))[positions[inside] - window * self._window_size]
        return indices

    def _compute(self, key: tuple[int, int]) -> Indices:
        epoch, window = key
        positions = np.arange(window * self._window_size, min((window + 1) * self._window_size, self._full))
        indices = self._base.at(epoch, positions)
        indices = indices[np.argsort(self._lengths[indices], kind="stable")].reshape(-1, self._batch_size)
        if self._shuffle:
            batches = positions[:: self._batch_size] // self._batch_size
            indices = indices[argsort_of_words(order_key(self._seed, epoch, BATCHES), batches)]
        rows = argsort_of_words(order_key(self._seed, epoch, ROWS), positions, indices.shape)
        return np.take_along_axis(indices, rows, axis=1).ravel()


def argsort_of_words(key: bytes, ids: Indices, shape: tuple[int, ...] | None = None) -> Indices:
    """Sort random words of these ids, along the last axis of ``shape``; return the indices, as ``np.argsort``."""
    words = SampleWords(key, ids, 0).words(2).astype(np.uint64)
    values = words[:, 0] << _HALF | words[:, 1]
    return np.argsort(values.reshape(shape or (-1,)), axis=-1, kind="stable")


def _float64(name: str, values: Any) -> npt.NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().double()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be one number for each sample, got {type(values).__name__}: {error}") from error


def digest(values: npt.NDArray[Any]) -> str:
    """Return eight letters that tell an array from others."""
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=4).hexdigest()
